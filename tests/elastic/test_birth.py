"""What the birth of a process, pickling or sharding would change is made the same in all processes, or refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from labkit.core.errors import InputError
from labkit.elastic import JobError, Validation, job_start, start, train
from labkit.elastic.data import as_dataset
from labkit.elastic.protocol.program import FILE as PROGRAM
from labkit.elastic.protocol.program import Program
from labkit.system.proc import command_line, stat
from tests.elastic.slow_training import Slow
from tests.hang import HANG_S

WORDS = "to be or not to be that is the question whether tis nobler in the mind to suffer".split() * 16  # noqa: SIM905


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    for module in (here := sys.modules[__name__], sys.modules[Slow.__module__]):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (here, sys.modules[Slow.__module__]):
        cloudpickle.unregister_pickle_by_value(module)


class Words:
    """Pairs of words, numbered when they are first needed: by the order of a set."""

    numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(WORDS) - 1

    def fetch(self, indices: list[int]) -> Any:
        if self.numbers is None:
            self.numbers = {word: number for number, word in enumerate(set(WORDS))}
        return tuple(torch.tensor([self.numbers[WORDS[i + k]] for i in indices]) for k in (0, 1))


def next_word(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_vocabulary_from_a_set_is_the_same_in_a_worker_of_another_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the new server's children had another hash seed: other bits after a fault, without a word."""
    monkeypatch.setenv("LABKIT_FORK_SERVER_FOLDER", str(tmp_path / "forks"))
    digests = []
    for kill in (False, True):
        torch.manual_seed(0)
        model, slow = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)), tmp_path / "slow"
        data = Slow(Words(), slow)
        with start(model, data, next_word, steps=40, batch=32, workers=1, servers=1, lr=0.5, save_every=10) as job:
            for event in job.events():
                if kill and event["event"] == "loss" and event["version"] == 15:
                    kill = False  # the step is repeated
                    slow.touch()
                    worker = next(m.pid for m in job.status().members if m.role == "worker")
                    found = stat(worker)
                    assert found is not None
                    assert command_line(found.parent)[0] == "labkit-forks"
                    os.kill(found.parent, signal.SIGKILL)
                    os.kill(worker, signal.SIGKILL)
                if event["event"] == "left" and not event["expected"]:
                    slow.unlink()
            digests.append(job.wait(timeout_s=HANG_S).digest)
    assert digests[0] == digests[1]


# What pickling loses --------------------------------------------------------------------------------------------------


def points(n: int = 64) -> Any:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=drawn)
    return as_dataset((x, (x.sum(1) > 0).long() + (x[:, 0] > 1.5).long()))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def cross_entropy(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


OPTIONS: dict[str, Any] = {"steps": 3, "batch": 32, "workers": 1, "servers": 1, "lr": 0.1}


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused_by_its_name(register: str) -> None:
    """Before, torch dropped it in silence: a loss of 1.62 in place of 2.02 after 16 steps."""
    model = net()

    def a_tenth(gradient: Any) -> None:
        """Stand for the hook of a user."""

    getattr(model[2].weight, register)(a_tenth)
    with pytest.raises(InputError, match=r"parameter '2.weight' has the hook .*a_tenth \(test_birth.py, line \d+\)"):
        start(model, points(), cross_entropy, **OPTIONS)


class Scaled(nn.Module):
    """A model with a factor that its pickle does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.factor = net(), 1.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "factor": 1.0}

    def forward(self, x: Any) -> Any:
        return self.body(x) * self.factor


def test_whatever_else_pickling_loses_is_found_by_a_gradient() -> None:
    model = Scaled()
    model.factor = 2.0
    with pytest.raises(
        InputError, match=r"the gradient of 'body.0.weight' is another one after the program was pickled"
    ):
        start(model, points(), cross_entropy, **OPTIONS)
    assert model.factor == 2.0
    assert model.training
    assert all(p.grad is None for p in model.parameters())


class Mapped:
    """Samples in a file: all of it, a part whose rows are reversed, and one that is no `np.memmap` any more."""

    def __init__(self, file: Path, mode: Any) -> None:
        self.whole = np.memmap(file, np.float32, mode, shape=(1 << 18, 64))
        self.part = self.whole[5:69][::-1, ::2]
        self.plain = np.asarray(self.whole[100:164])

    def __len__(self) -> int:
        return 64

    def fetch(self, indices: list[int]) -> Any:
        x = self.part[indices, :4] + self.plain[indices, :4] + self.whole[indices, :4]
        return torch.from_numpy(np.array(x)), torch.zeros(len(indices), dtype=torch.long)


@pytest.mark.parametrize("mode", ["r", "c"])
def test_an_array_that_is_mapped_from_a_file_is_sent_as_its_path(mode: str, tmp_path: Path) -> None:
    """Before, 64 MB were copied into the job's folder, and into each worker."""
    file = tmp_path / "samples"
    np.memmap(file, np.float32, "w+", shape=(1 << 18, 64))[:200] = np.arange(64)
    data = Mapped(file, mode)
    Program(net(), data, cross_entropy).save(tmp_path)
    assert (tmp_path / PROGRAM).stat().st_size < 100_000
    loaded = Program.load(tmp_path).data
    for name in ("whole", "part", "plain"):
        assert np.array_equal(getattr(loaded, name), getattr(data, name))
    assert train(net(), data, cross_entropy, **OPTIONS).version == 3


def test_a_large_program_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(job_start, "LARGE_BYTES", 1000)
    told = train(net(), points(), cross_entropy, **OPTIONS).events
    assert any("the job's folder and each worker have a copy" in event.get("what", "") for event in told)
    assert "labkit: model, data and loss take" in capsys.readouterr().err


def test_changes_of_a_private_map_are_sent(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    np.memmap(file, np.float32, "w+", shape=(1 << 18, 64))[:200] = np.arange(64)
    data = Mapped(file, "c")
    data.whole[6] = -1.0
    Program(net(), data, cross_entropy).save(tmp_path)
    assert (Program.load(tmp_path).data.whole[6] == -1.0).all()


class Drawn:
    """Samples with noise of a generator of their own, which goes on from one fetch to the next."""

    def __init__(self) -> None:
        self.samples, self.noise = points(), np.random.default_rng(0)

    def __len__(self) -> int:
        return 64

    def fetch(self, indices: list[int]) -> Any:
        x, y = self.samples.fetch(indices)
        return x + torch.from_numpy(self.noise.normal(size=x.shape).astype(np.float32)), y


def test_a_generator_in_the_data_is_refused_as_what_each_worker_would_have_of_its_own() -> None:
    with pytest.raises(InputError, match=r"what data\.noise counts or draws.*generators of torch, numpy and Python"):
        start(net(), Drawn(), cross_entropy, **OPTIONS)
    result = train(net(), Drawn(), cross_entropy, **OPTIONS, proof="tell")
    (told,) = (event["what"] for event in result.events if event["event"] == "told")
    assert told.startswith("differs: the same samples have another gradient the second time")


# What sharding changes ------------------------------------------------------------------------------------------------


def class_weights(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([10.0, 1.0, 0.1]))


def padding(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1].where(batch[0][:, 1] > 0, -100))


def total(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def contrastive(model: nn.Module, batch: Any) -> Any:
    to = nn.functional.normalize(model(batch[0]), dim=1)
    return nn.functional.cross_entropy(to @ to.t() / 0.1, torch.arange(len(to)))


def dice(model: nn.Module, batch: Any) -> Any:
    there, is_so = model(batch[0])[:, 0].sigmoid(), (batch[1] == 1).float()
    return 1 - 2 * (there * is_so).sum() / (there.sum() + is_so.sum())


def noisy_total(model: nn.Module, batch: Any) -> Any:
    x = batch[0]
    return nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), batch[1], reduction="sum")


def noisy_batch_norm(model: nn.Module, batch: Any) -> Any:
    x = batch[0]
    found = model(x + 3 * torch.randn_like(x))
    return nn.functional.cross_entropy(nn.functional.batch_norm(found, None, None, training=True), batch[1])


def noisy_mean(model: nn.Module, batch: Any) -> Any:
    return noisy_total(model, batch) / len(batch[0])


@pytest.mark.parametrize("loss", [class_weights, padding, total, contrastive, dice, noisy_total, noisy_batch_norm])
def test_a_loss_that_is_no_plain_mean_is_refused(loss: Any) -> None:
    """Before, a mean of means trained something else at the defaults, as transformers#34191 did."""
    with pytest.raises(InputError, match=r"no plain mean .* \(cosine -?\d.\d+, norms .*shards=1") as refused:
        start(net(), points(), loss, **OPTIONS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("loss", [contrastive, noisy_batch_norm])
def test_a_loss_that_is_no_plain_mean_trains_with_one_shard(loss: Any) -> None:
    result = train(net(), points(), loss, **OPTIONS, shards=1)
    assert result.version == 3
    (told,) = (event["what"] for event in result.events if event["event"] == "told")
    assert told.startswith("proved in evaluation mode: pickling changes no bit of a gradient")


@pytest.mark.parametrize("loss", [cross_entropy, noisy_mean])
def test_a_plain_mean_is_accepted_and_the_proof_is_told(loss: Any) -> None:
    result = train(net(), points(), loss, **OPTIONS)
    (told,) = (event["what"] for event in result.events if event["event"] == "told")
    assert told.endswith("the mean of 8 shards of 4 samples has the gradient of their batch")


def weighted(model: nn.Module, batch: Any) -> Any:
    weight = torch.tensor([10.0, 1.0, 0.1])
    losses = nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weight, reduction="sum")
    return losses, weight[batch[1]].sum(), {"right": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


@pytest.mark.parametrize("sync", [True, False])
def test_a_sum_with_its_weight_trains_as_the_whole_batch_does(sync: bool) -> None:
    """The gradient is divided by the weights of all shards; in asynchronous training by those of the minibatch."""
    options = {**OPTIONS, "steps": 12, "sync": sync}
    found = train(net(), points(), weighted, **options)
    whole = train(net(), points(), class_weights, **{**options, "shards": 1})
    assert found.losses == pytest.approx(whole.losses, rel=1e-5)
    assert found.losses[-1] < found.losses[0]
    assert set(found.metrics.columns) == {"loss", "right"}


def test_weights_are_added_in_the_order_of_the_tree_whichever_worker_has_which_shard() -> None:
    options = {**OPTIONS, "steps": 12, "optimizer": "momentum"}
    found = [train(net(), points(), weighted, **{**options, "workers": n, "servers": m}) for n, m in ((1, 1), (3, 2))]
    assert found[0].digest == found[1].digest
    assert found[0].losses == found[1].losses


def test_a_validation_divides_by_the_sum_of_the_weights() -> None:
    program = Program(net(), points(), weighted)
    found = Validation(data=points(), every=1, batch=24).measured(program, net(), "float32")["loss"]
    assert found == pytest.approx(class_weights(net(), points().fetch(list(range(64)))).item(), rel=1e-5)


def sometimes(model: nn.Module, batch: Any) -> Any:
    return weighted(model, batch) if batch[0][0, 0] > 0 else cross_entropy(model, batch)


def test_weights_for_some_shards_alone_end_the_job() -> None:
    with pytest.raises(JobError, match=r"step \d: the loss function returned a weight for some shards, and none for"):
        train(net(), points(), sometimes, **OPTIONS, proof="off")


def test_a_difference_is_only_told_if_that_is_asked_for() -> None:
    result = train(net(), points(), total, **OPTIONS, proof="tell")
    (told,) = (event["what"] for event in result.events if event["event"] == "told")
    assert told.startswith("differs: the loss is no plain mean")


class Fatal:
    """Samples that end the process which reads them, as a fault of a library does; only before a file is there."""

    def __init__(self, alive: Path) -> None:
        self.samples, self.alive, self.starter = points(), alive, os.getpid()

    def __len__(self) -> int:
        return 64

    def fetch(self, indices: list[int]) -> Any:
        if not self.alive.exists():
            self.alive.touch()
            os._exit(9)
        return self.samples.fetch(indices)


def test_a_program_that_ends_its_process_ends_a_copy_and_the_job_says_that_nothing_was_proved(tmp_path: Path) -> None:
    result = train(net(), Fatal(tmp_path / "alive"), cross_entropy, **OPTIONS)
    (told,) = (event["what"] for event in result.events if event["event"] == "told")
    assert told == "nothing was proved: a copy of this process ended with code 9"


# What a forward pass changes ------------------------------------------------------------------------------------------


class Transfer(nn.Module):
    """A pretrained part with batch normalization that stays in evaluation mode, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def train(self, mode: bool = True) -> Transfer:
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def test_frozen_batch_normalization_changes_nothing_and_trains() -> None:
    """Before, it was refused by an attribute, with advice that makes a pretrained net use batch statistics."""
    assert train(Transfer(), points(), cross_entropy, **OPTIONS).version == 3
    fixed = Transfer()
    fixed.body.eval()
    assert train(fixed, points(), cross_entropy, **OPTIONS).version == 3


def test_batch_normalization_trains_and_a_line_says_what_it_normalizes() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    result = train(model, points(), cross_entropy, **OPTIONS)
    told = " ".join(event["what"] for event in result.events if event["event"] == "told")
    assert "BatchNorm normalizes 4 samples at a time (shards=1: 32), its statistics are averaged" in told
    assert int(result.model[1].num_batches_tracked) == 3
    without = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))
    with pytest.raises(InputError, match=r"shards=1; nn.BatchNorm sees one shard: shards=1, or nn.GroupNorm"):
        start(without, points(), cross_entropy, **OPTIONS)
    assert train(without, points(), cross_entropy, **OPTIONS, shards=1).version == 3
