"""Schedules, clipped gradients and updates of one's own: the bits of one process, and refusals in one line."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from labkit.core.errors import InputError
from labkit.elastic import JobError, OwnUpdate, start, train
from labkit.elastic.protocol.blocks import pack
from labkit.elastic.protocol.summation_tree import Node, halves
from labkit.elastic.result import Result
from labkit.elastic.schedules import Cosine, Steps, WarmUp
from labkit.elastic.server.block import PAGE, GrowingValues, grown
from labkit.elastic.server.optimizers import UpdateError, optimizer
from labkit.elastic.server.update_rule import ClippedUpdates, ScheduledUpdates
from labkit.elastic.shards import samples_of
from tests.elastic.rounding import assert_torch_s
from tests.elastic.stage import bind

STEPS, BATCH, SHARDS, LR = 12, 16, 4, 0.5
GENERATOR = torch.Generator().manual_seed(3)
X, Y = torch.randn(48, 40, generator=GENERATOR), torch.randn(48, 30, generator=GENERATOR)
Apply = Callable[[Any, Any, int], None]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 30))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def lion(params: Any, gradient: Any, state: Mapping[str, Any], *, lr: float, step: int) -> Any:
    """Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, without weight decay."""
    mean = state["mean"]
    params = params - np.float32(lr) * np.sign(np.float32(0.9) * mean + np.float32(0.1) * gradient)
    return params, {"mean": np.float32(0.99) * mean + np.float32(0.01) * gradient}


def lion_torch(params: Any, gradient: Any, state: Mapping[str, Any], *, lr: float, step: int) -> Any:
    mean = state["mean"]
    return params - lr * (0.9 * mean + 0.1 * gradient).sign(), {"mean": 0.99 * mean + 0.01 * gradient}


def in_jobs(tmp_path: Path, *, workers: int = 2, servers: int = 2, **options: Any) -> Result:
    with start(
        net(), TensorDataset(X, Y), loss, steps=STEPS, batch=BATCH, shards=SHARDS, workers=workers, servers=servers,
        folder=tmp_path / "job", lr=LR, **options,
    ) as job:  # fmt: skip
        return job.wait()


def gradient_sum(model: nn.Module, step: int, node: Node) -> torch.Tensor:
    """Return the sum of the gradients of a node's shards, in the order of the tree."""
    if node.size > 1:
        left, right = halves(node)
        return gradient_sum(model, step, left) + gradient_sum(model, step, right)
    chosen = samples_of(step, node.first, n_samples=len(X), batch=BATCH, n_shards=SHARDS, seed=0).tolist()
    model.zero_grad()
    loss(model, (X[chosen], Y[chosen])).backward()
    return torch.cat([p.grad.reshape(-1).clone() for p in model.parameters() if p.grad is not None])


def in_one_process(apply: Apply) -> np.ndarray:
    """Return the parameters after a plain loop in this process, on one thread as workers have it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = net()
        vector = pack(model).copy()
        bind(vector, model)
        for step in range(STEPS):
            apply(vector, gradient_sum(model, step, Node(0, SHARDS)).numpy() * np.float32(1 / SHARDS), step)
        return vector
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("function", "tensors"), [(lion, False), (lion_torch, True)], ids=["numpy", "torch"])
def test_an_update_of_ones_own_gives_the_bits_of_a_loop_in_one_process(
    function: Any, tensors: bool, tmp_path: Path
) -> None:
    schedule = Cosine(STEPS, warm_up=3)
    found = in_jobs(
        tmp_path, optimizer=OwnUpdate(function, state=("mean",), torch=tensors), schedule=schedule, clip_value=0.01
    )
    kept = {"mean": np.zeros(len(pack(net())), np.float32)}

    def apply(vector: np.ndarray, gradient: np.ndarray, step: int) -> None:
        vector[:], state = lion(
            vector, np.clip(gradient, np.float32(-0.01), np.float32(0.01)), kept, lr=LR * schedule(step), step=step + 1
        )
        kept.update(state)

    assert np.array_equal(pack(found.model), in_one_process(apply))
    assert set(found.blocks[0].state) == {"mean"}


def test_momentum_with_schedule_and_clipping_is_torch_s_with_lambda_lr_and_clip_grad_value(tmp_path: Path) -> None:
    schedule, limit = Steps(5, factor=0.3), 0.003
    found = in_jobs(tmp_path, optimizer="momentum", schedule=schedule, clip_value=limit)
    flat = torch.zeros(len(pack(net())))
    sgd = torch.optim.SGD([flat], lr=LR, momentum=0.9)
    rates = torch.optim.lr_scheduler.LambdaLR(sgd, schedule)

    def apply(vector: np.ndarray, gradient: np.ndarray, step: int) -> None:
        flat.data.copy_(torch.from_numpy(vector))
        flat.grad = torch.from_numpy(gradient)
        torch.nn.utils.clip_grad_value_([flat], limit)
        sgd.step()
        rates.step()
        vector[:] = flat.detach().numpy()

    assert_torch_s(pack(found.model), in_one_process(apply))


def test_schedule_and_clipping_change_no_bit_with_the_number_of_processes_nor_in_between(tmp_path: Path) -> None:
    how = {"optimizer": OwnUpdate(lion, state=("mean",)), "schedule": WarmUp(6), "clip_value": 0.02}
    one = in_jobs(tmp_path / "1", workers=1, servers=1, **how)
    with start(
        net(), TensorDataset(X, Y), loss, steps=STEPS // 2, batch=BATCH, shards=SHARDS, workers=2, servers=2,
        folder=tmp_path / "2" / "job", lr=LR, **how,
    ) as job:  # fmt: skip
        job.wait()
    resumed = in_jobs(tmp_path / "2", workers=1, servers=2, **how)  # continues at step 6
    assert resumed.digest == one.digest


def fails_late(params: Any, gradient: Any, state: Any, *, lr: float, step: int) -> Any:
    if step > 4:
        raise ZeroDivisionError("too late")
    return params - np.float32(lr) * gradient, state


def test_an_update_that_raises_ends_the_job_and_the_error_has_the_server_s_log(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="ps-0: update number 5 raised ZeroDivisionError: too late") as caught:
        in_jobs(tmp_path, servers=1, optimizer=OwnUpdate(fails_late))
    assert caught.value.log_file == tmp_path / "job" / "ps-0.log"
    assert "in fails_late" in caught.value.log
    assert caught.value.log in str(caught.value)


def normed(params: Any, gradient: Any, state: Any, *, lr: float, step: int) -> Any:
    return params - np.float32(lr) * gradient / np.linalg.norm(gradient), state


def drawn(params: Any, gradient: Any, state: Any, *, lr: float, step: int) -> Any:
    return params - np.float32(lr) * gradient + np.random.normal(size=len(params)).astype(np.float32), state  # noqa: NPY002


def wider(params: Any, gradient: Any, state: Any, *, lr: float, step: int) -> Any:
    return params - np.float64(lr) * gradient, state


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"optimizer": OwnUpdate(normed)}, "not element by element"),
        ({"optimizer": OwnUpdate(drawn)}, "other numbers when it is called again"),
        ({"optimizer": OwnUpdate(wider)}, r"parameters of float64 \(67,\); expected float32"),
        ({"optimizer": OwnUpdate(lambda *_, **__: 1)}, "the update returned a int; expected"),
        ({"optimizer": OwnUpdate(lion)}, "raised KeyError: 'mean'"),
        ({"optimizer": OwnUpdate(lion, state=("mean", "x"))}, r"returned the state \['mean'\]; expected"),
        ({"optimizer": OwnUpdate(lion, state=("mean",)), "betas": 1}, "has no option 'betas'"),
        ({"schedule": lambda step: 1 - step}, r"schedule\(2\) is -1\.0; expected a finite factor"),
        ({"schedule": lambda step: 1 / step}, r"schedule\(0\) raised ZeroDivisionError"),
        ({"schedule": 0.1}, r"schedule is 0\.1; expected a function of the step"),
        ({"clip_value": 0}, "clip_value is 0; expected a number above 0"),
        ({"precision": "float64"}, "precision is 'float64'; expected 'float32', 'bf16' or 'fp16'"),
        ({"precision": "fp8"}, "precision is 'fp8'; expected"),
        ({"state": {}}, "state has no '0.weight'"),
        ({"state": {f"module.{k}": v for k, v in net().state_dict().items()}}, r"cut 'module\.' off the names"),
        ({"state": net().state_dict() | {"more": X}}, "state has 'more', which the model has not"),
        ({"state": net().state_dict() | {"0.bias": X}}, r"'0\.bias' of state is of shape \(48, 40\); expected \(50,\)"),
        ({"state": "model.pt"}, "state is the path 'model.pt'; expected a state_dict"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(given: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=what) as caught:
        start(net(), TensorDataset(X, Y), loss, folder=tmp_path / "job", **{"steps": 9, "lr": LR, "batch": 16, **given})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "job").exists()


def test_a_state_dict_goes_in_and_comes_out(tmp_path: Path) -> None:
    given = {name: tensor + 1 for name, tensor in net().state_dict().items()}
    options = {"steps": 1, "batch": 16, "shards": 1, "workers": 1, "servers": 1, "lr": 0.0}
    with start(net(), TensorDataset(X, Y), loss, folder=tmp_path / "a", state=given, **options) as job:
        out = job.wait().state_dict()
    assert all(torch.equal(out[name], given[name]) for name in given)


def test_bf16_computes_in_bfloat16_and_gives_the_same_bits_with_any_number_of_workers(tmp_path: Path) -> None:
    def watched(model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        return nn.functional.mse_loss(out, batch[1]), {"is_bf16": float(out.dtype == torch.bfloat16)}

    digests, seen = set(), []
    for workers in (1, 2):
        with start(
            net(), TensorDataset(X, Y), watched, steps=4, batch=BATCH, shards=SHARDS, workers=workers, servers=1,
            folder=tmp_path / str(workers), lr=LR, precision="bf16",
        ) as job:  # fmt: skip
            found = job.wait()
        digests.add(found.digest)
        seen += [event["values"] for event in found.events if event["event"] == "metrics"]
    assert len(digests) == 1
    assert seen == [{"is_bf16": 1.0}] * 8
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("large", [1.0, 3e4])
def test_fp16_has_the_bits_of_a_gradient_scaler_and_halves_its_scale_where_it_must(large: float) -> None:
    """Where gradients are infinite, torch would skip the update and try with half the scale at the next one."""

    def scaled(model: nn.Module, batch: Any) -> Any:
        out = model(batch[0])
        return nn.functional.mse_loss(out.float() * large, batch[1]), {"is_fp16": float(out.dtype == torch.float16)}

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x, y = torch.randn(64, 4), torch.randn(64, 2)
    own, n_threads = copy.deepcopy(model), torch.get_num_threads()
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1 / large**2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, backoff_factor=0.5)
    for step in range(4):
        rows = slice(step * 16, step * 16 + 16)
        done = False
        while not done:  # until the scale is small enough
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                value, _ = scaled(own, (x[rows], y[rows]))
            scaler.scale(value).backward()
            before = scaler.get_scale()
            scaler.step(optimizer), scaler.update()
            done = scaler.get_scale() == before
    torch.set_num_threads(n_threads)
    assert (scaler.get_scale() < 2.0**16) == (large > 1)
    options: dict[str, Any] = {"steps": 4, "batch": 16, "shuffle": False, "servers": 1, "precision": "fp16"}
    options |= {"lr": 0.1 / large**2, "state": copy.deepcopy(model.state_dict())}
    results = [
        train(model, TensorDataset(x, y), scaled, shards=shards, workers=workers, **options)
        for shards, workers in ((1, 1), (4, 1), (4, 3))
    ]
    assert results[1].digest == results[2].digest
    with_events = [event["values"] for event in results[0].events if event["event"] == "metrics"]
    assert with_events == [{"is_fp16": 1.0}] * 4
    trained = results[0].blocks
    assert np.allclose(
        np.concatenate([trained[number].params for number in sorted(trained)]),
        torch.cat([p.detach().ravel() for p in own.parameters()]).numpy(), rtol=0, atol=1e-6,
    )  # fmt: skip


def test_own_updates_that_move_zeros_use_all_pages() -> None:
    """A page of zeros has no memory; an update without a gradient may still change it."""

    def rises(params: Any, gradient: Any, state: Any, *, lr: float, step: int) -> Any:
        return params + np.float32(lr), state

    n = 8 * PAGE
    rows, pages = grown(np.zeros((1, n), np.float32))
    assert pages is not None
    assert not pages.any()
    GrowingValues(OwnUpdate(rises, lr=1.0), pages).apply(rows[0], np.zeros(n, np.float32), {}, step=1)
    assert pages.all()
    assert (rows[0] == 1).all()
    before = optimizer("sgd", lr=1.0)
    assert ScheduledUpdates(ClippedUpdates(before, 1.0), WarmUp(1)).keeps_zeros


def test_an_own_update_does_not_change_what_it_is_given() -> None:
    def writes(params: Any, gradient: Any, state: Any, *, lr: float, step: int) -> Any:
        params -= np.float32(lr) * gradient
        return params, state

    vector = np.ones(4, np.float32)
    with pytest.raises(UpdateError, match="raised ValueError: output array is read-only"):
        OwnUpdate(writes, lr=1.0).apply(vector, vector.copy(), {}, step=1)
    assert (vector == 1).all()
