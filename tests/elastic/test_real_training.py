"""Training as PyTorch users write it: their optimizers, schedulers, clipping, buffers and loaders, bit by bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from benchmarks.ports import NAMES, SCRIPTS, compared
from labkit.core.errors import InputError
from labkit.elastic import train
from labkit.elastic.data import as_dataset
from labkit.elastic.loading import LoaderData, Loading, Samples
from labkit.elastic.plain import in_pairs
from labkit.elastic.proof import moving_buffers
from labkit.elastic.protocol.blocks import MovingBuffers, layout, pack, trained, unpack
from labkit.elastic.protocol.program import Program, Spec
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.server.block import Block, Pushed
from labkit.elastic.server.optimizers import optimizer
from labkit.elastic.server.torch_optimizers import Rates, TorchUpdates, recipes
from labkit.elastic.server.update_rule import NormClipping, whole_norm
from labkit.elastic.verification import VerifiedTraining, disturb, hash_seeds, verify
from tests.elastic.rounding import LIKE_TORCH, assert_torch_s
from tests.elastic.stage import part_of

X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


# --- the ports


@pytest.mark.parametrize("name", ["gin", "nanogpt", "rnn", "dcgan"])
def test_a_port_trains_as_its_author_meant_it(name: str) -> None:
    """BatchNorm and a collate function; groups, clipping and a scheduler; carried state; two optimizers in turn."""
    outcome = compared(name, steps=6)
    assert outcome.right, outcome
    assert outcome.alone == outcome.sharded == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_port_trains_through_kills_and_scalings_or_says_why_not(name: str) -> None:
    outcome = compared(name, steps=60, faults=True)
    assert outcome.right or name in ("time_sequence", "word_language_model"), outcome


def test_there_are_twenty_ports() -> None:
    assert len(NAMES) == 20
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*NAMES, "made"}


def test_values_are_added_in_pairs_as_the_tree_of_shards_does() -> None:
    values = [np.float32(x) for x in np.random.default_rng(0).normal(size=5)]
    assert in_pairs(list(values)) == ((values[0] + values[1]) + (values[2] + values[3])) + values[4]


def slower(step: int) -> float:
    return 0.9**step


def test_a_training_is_verified_beside_a_plain_loop() -> None:
    """The plain loop knows named optimizers, schedules and weights, too."""
    options: dict[str, Any] = {"batch": 16, "shards": 4, "servers": 1, "optimizer": "momentum", "lr": 0.1}
    options["schedule"] = slower
    findings = list(verify(VerifiedTraining(net(), as_dataset((X, Y)), loss, options), steps=3))
    assert [finding.right for finding in findings] == [True] * 3
    assert findings[0].line.startswith(f"one shard, 3 steps of a plain loop of torch beside it: {LIKE_TORCH}")
    assert findings[2].line.startswith("one worker and 3, ")
    assert findings[2].line.endswith(": equal bits")


class Carries(nn.Module):
    """Its state has the size of a shard, so it cannot compute a whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 5), nn.Linear(5, 3)
        self.register_buffer("h", torch.zeros(4, 5))

    def forward(self, x: Any) -> Any:
        self.h = self.cell(x, self.h)
        out = self.out(self.h)
        self.h = self.h.detach()
        return out


def test_a_state_of_each_shard_is_verified_with_shards_alone() -> None:
    torch.manual_seed(0)
    options = {"batch": 16, "shards": 4, "servers": 1, "per_shard": ("h",), "shuffle": False, "lr": 0.1}
    findings = list(verify(VerifiedTraining(Carries(), as_dataset((X, Y)), loss, options), steps=3))
    assert findings[0].line == "one shard: not compared: h has the size of one of 4 shards"
    assert findings[1].line.startswith(
        f"4 shards, in micro-batches, 3 steps of a plain loop of torch beside it: {LIKE_TORCH}"
    )
    assert [finding.right for finding in findings] == [True] * 3


SETS = """import torch
words = {WORDS}
order = {word: number for number, word in enumerate(words)}
x = torch.tensor([[float(order[word]), 1.0] for word in ("red", "green", "blue", "black") * 4])
model = torch.nn.Linear(2, 1)
data = x, torch.ones(16, 1)
options = {"batch": 16}
def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()
"""


def test_two_hash_seeds_show_a_vocabulary_that_is_made_from_a_set(tmp_path: Path) -> None:
    words = "'red', 'green', 'blue', 'black', 'white', 'grey', 'pink'"
    for text, right in ((f"set([{words}])", False), (f"sorted([{words}])", True)):
        (tmp_path / "mine.py").write_text(SETS.replace("{WORDS}", text))
        found = hash_seeds(tmp_path / "mine.py", seed=0)
        assert found.right is right, found
    assert found.line == "two hash seeds, a step of a plain loop each: equal bits"


# --- optimizers

TORCH: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd, dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.1),
    "adadelta": torch.optim.Adadelta,
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", TORCH)
def test_blocks_step_an_optimizer_of_torch_with_its_bits(name: str) -> None:
    """Twenty updates with a new optimizer each time, so that all it remembers comes from the vectors of the blocks."""
    model, plain = net(), net()
    updates = recipes(TORCH[name](model.parameters()), model)
    own, cut = TORCH[name](plain.parameters()), layout(model, n_blocks=3, whole=True)
    vector = pack(model)
    states = [updates.described.init(n) for _, n in cut.extents]
    rng = np.random.default_rng(0)
    for step in range(1, 21):
        gradient = rng.normal(size=cut.n).astype(np.float32)
        for p, part in zip(plain.parameters(), cut.params, strict=True):
            p.grad = torch.from_numpy(part_of(cut, part.name, gradient).copy())
        own.step()
        for number, (first, n) in enumerate(cut.extents):
            block = updates.of_block(cut.of_block(number), first, Rates(updates))
            block.apply(vector[first : first + n], gradient[first : first + n], states[number], step=step)
    assert np.array_equal(vector, pack(plain))
    described = updates.described
    assert optimizer(described.name, **described.options).options == described.options


class NormOfAll(torch.optim.SGD):
    """Looks at all parameters at once."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        super().step()


class Noisy(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.add_(torch.randn_like(p))
        super().step()


class Remembers(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["history"] = [1]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (torch.optim.LBFGS, "LBFGS cannot be stepped on servers: it needs the whole gradient, and several losses"),
        (torch.optim.SparseAdam, "SparseAdam cannot be stepped on servers: gradients arrive dense"),
        (lambda p: NormOfAll(p, lr=0.1), r"NormOfAll updates '.*' otherwise when it has that parameter alone"),
        (lambda p: Noisy(p, lr=0.1), r"Noisy updates '.*' otherwise"),
        (lambda p: Remembers(p, lr=0.1), "Remembers remembers 'history', a list; expected tensors and numbers"),
    ],
)
def test_an_optimizer_that_servers_cannot_step_is_refused_with_why(make: Any, what: str) -> None:
    with pytest.raises(InputError, match=what) as refused:
        recipes(lambda model: make(model.parameters()), net())
    assert "\n" not in str(refused.value)


class Average:
    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, *_: Any) -> None:
        self.shadow = {name: 0.9 * value for name, value in self.shadow.items()}


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        (lambda model: lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 1.0), "'model'"),
        (lambda model: partial(torch.clamp, model.weight), "'argument 0'"),
        (lambda model: Average(model).update, "'weight'"),
    ],
)
def test_a_hook_of_an_optimizer_that_refers_to_the_model_is_refused(hook: Any, what: str) -> None:
    """On a server it would change a copy that nothing trains."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(hook(model))
    with pytest.raises(InputError, match=f"a hook of optimizer SGD uses {what}"):
        recipes(optimizer, model)


def test_a_scheduler_that_ends_before_the_training_is_refused_before_it() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ending = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    with pytest.raises(InputError, match=r"the scheduler cannot be stepped through 6 updates: Tried to step 6 times"):
        train(model, as_dataset((X, Y)), loss, optimizer=optimizer, scheduler=ending, steps=6, batch=16, shards=1)


def test_two_optimizers_with_one_parameter_are_refused() -> None:
    model = net()
    with pytest.raises(InputError, match=r"two optimizers have '0\.weight'"):
        recipes([torch.optim.SGD(model[0].parameters()), torch.optim.SGD([model[0].weight])], model)


def test_a_critic_may_have_two_updates_for_each_of_its_generator() -> None:
    """As in Wasserstein GANs: the bits of a loop, and its counts of updates, where the last round is not whole."""

    def made() -> tuple[nn.Module, list[Any]]:
        torch.manual_seed(0)
        model = nn.ModuleDict({"critic": nn.Linear(4, 3), "generator": nn.Linear(4, 4)})
        critic = torch.optim.AdamW(model["critic"].parameters(), lr=0.01)
        return model, [critic, critic, torch.optim.RMSprop(model["generator"].parameters(), lr=0.01)]

    def both(model: Any, batch: Any, step: int) -> Any:
        out = nn.functional.cross_entropy(model["critic"](model["generator"](batch[0])), batch[1])
        return out if step % 3 < 2 else -out

    expected, turns = made()
    for step in range(7):
        expected.zero_grad()
        both(expected, (X[step % 4 * 16 :][:16], Y[step % 4 * 16 :][:16]), step).backward()
        turns[step % 3].step()
    model, optimizers = made()
    result = train(
        model, as_dataset((X, Y)), both, optimizer=optimizers, steps=7, batch=16, shuffle=False, shards=1, workers=1,
        servers=2,
    )  # fmt: skip
    result.load_optimizer(optimizers)
    assert all(
        torch.equal(a, b) for a, b in zip(result.state_dict().values(), expected.state_dict().values(), strict=True)
    )
    assert [str(each.state_dict()) for each in optimizers] == [str(each.state_dict()) for each in turns]


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad", "adafactor", "asgd"])
def test_the_state_of_an_optimizer_goes_in_and_comes_out(name: str) -> None:
    """Three steps in a loop, three in a job, three in a loop: the bits of nine in a loop."""

    def loop(model: nn.Module, optimizer: Any, scheduler: Any, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            rows = slice(step * 16 % 64, step * 16 % 64 + 16)
            loss(model, (X[rows], Y[rows])).backward()
            optimizer.step(), scheduler.step()

    def made() -> tuple[nn.Module, Any, Any]:
        model = net()
        optimizer = TORCH[name](model.parameters())
        return model, optimizer, lr_scheduler.StepLR(optimizer, 2, 0.5)

    expected, own = made(), made()
    loop(*expected, range(9))
    loop(*own, range(3))
    model, optimizer, scheduler = own
    samples = as_dataset((X.roll(16, 0), Y.roll(16, 0)))  # the fourth batch is the first
    result = train(
        model, samples, loss, optimizer=optimizer, scheduler=scheduler, steps=3, batch=16, shuffle=False, shards=1,
        workers=1, servers=2,
    )  # fmt: skip
    result.load_optimizer(optimizer, scheduler)
    loop(model, optimizer, scheduler, range(6, 9))
    for a, b in zip(own[0].parameters(), expected[0].parameters(), strict=True):
        assert torch.equal(a, b)
    assert str(optimizer.state_dict()) == str(expected[1].state_dict())
    assert scheduler.state_dict()["last_epoch"] == 9


def test_a_hook_keeps_the_average_of_the_weights_with_the_bits_of_torch() -> None:
    """With kills: in `test_every_port_trains_through_kills`, state of optimizers is that of any other."""

    def average(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            state = optimizer.state[p]
            if "average" in state:
                state["average"].lerp_(p.detach(), 1 - 0.9)
            else:
                state["average"] = p.detach().clone()

    model, plain = net(), net()
    optimizer, own = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, plain))
    optimizer.register_step_post_hook(average)
    swa = torch.optim.swa_utils
    averaged = swa.AveragedModel(plain, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9))
    for step in range(8):
        own.zero_grad()
        rows = slice(step * 16 % 64, step * 16 % 64 + 16)
        loss(plain, (X[rows], Y[rows])).backward()
        own.step()
        averaged.update_parameters(plain)
    result = train(
        model, as_dataset((X, Y)), loss, optimizer=optimizer, steps=8, batch=16, shuffle=False, shards=1, workers=2
    )
    result.load_optimizer(optimizer)
    for p, expected in zip(model.parameters(), averaged.module.parameters(), strict=True):
        assert torch.equal(optimizer.state[p]["average"], expected)


def test_a_folder_has_the_state_of_its_optimizer_once(tmp_path: Path) -> None:
    model = net()
    optimizer = TORCH["adam"](model.parameters())
    options = {"optimizer": optimizer, "batch": 16, "workers": 1, "servers": 1, "folder": tmp_path}
    result = train(model, as_dataset((X, Y)), loss, steps=2, **options)
    train(model, as_dataset((X, Y)), loss, steps=3, **options)
    result.load_optimizer(optimizer)
    with pytest.raises(InputError, match=r"made 2 updates before the job, and 0 where the training in .* began"):
        train(model, as_dataset((X, Y)), loss, steps=4, **options)
    with pytest.raises(InputError, match=r"2 optimizers; expected 1"):
        result.load_optimizer([optimizer, optimizer])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "in sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 20)], [5]
    ),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step", "ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_of_torch_is_a_function_of_the_update(name: str) -> None:
    """Servers ask for any update at any time: after a hand-over for a late one, after going back for an early one."""
    model = net()
    own = torch.optim.Adam(model.parameters(), lr=0.01)
    updates = recipes(own, model, scheduler=SCHEDULERS[name], every=2)
    other = torch.optim.Adam(net().parameters(), lr=0.01)
    scheduler, groups = SCHEDULERS[name](other), []
    for step in range(30):
        groups.append({key: value for key, value in other.param_groups[0].items() if key != "params"})
        if step % 2:
            scheduler.step()
    rates = Rates(updates)
    for step in (1, 2, 30, 29, 5, 1, 17):
        assert rates.at(step)[0][0] == groups[step - 1]


def test_a_plateau_is_refused_with_what_else_there_is() -> None:
    with pytest.raises(InputError, match="ReduceLROnPlateau, which needs a validation loss between two updates"):
        recipes(lambda m: torch.optim.SGD(m.parameters()), net(), scheduler=lambda o: lr_scheduler.ReduceLROnPlateau(o))


# --- clipping


def test_norms_of_parameters_give_the_bits_of_clip_grad_norm() -> None:
    model = net()
    cut = layout(model, n_blocks=4, whole=True)
    clipping = NormClipping(0.5, cut)
    gradient = np.random.default_rng(0).normal(size=cut.n).astype(np.float32)
    for p, part in zip(model.parameters(), cut.params, strict=True):
        p.grad = torch.from_numpy(part_of(cut, part.name, gradient).copy())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    parts = {number: clipping.of_block(number, part) for number, part in enumerate(cut.blocks(gradient))}
    bits = whole_norm(dict(reversed(parts.items())))
    assert np.uint32(bits).view(np.float32) == float(norm)
    clipping.limit(gradient, bits)
    for p, part in zip(model.parameters(), cut.params, strict=True):
        assert p.grad is not None
        assert np.array_equal(part_of(cut, part.name, gradient), p.grad.numpy())


def test_a_block_waits_with_its_whole_sum_and_takes_no_gradient_twice_meanwhile() -> None:
    sgd, block = optimizer("sgd", lr=1.0), Block(0, np.zeros(2, np.float32), {})
    how: dict[str, Any] = {"step": 0, "n_shards": 2, "optimizer": sgd, "hold": True}
    assert block.push(np.float32([2, 0]), node=Node(0, 1), **how) is Pushed.KEPT
    assert block.push(np.float32([0, 4]), node=Node(1, 2), **how) is Pushed.HELD
    assert block.push(np.float32([0, 4]), node=Node(1, 2), **how) is Pushed.DUPLICATE
    assert block.version == 0
    block.release(sgd)
    block.release(sgd)
    assert (block.version, block.params.tolist()) == (1, [-1.0, -2.0])


def test_asynchronous_training_limits_the_norm_of_each_gradient() -> None:
    """One worker is a plain loop: its losses are those of clip_grad_norm_ after each minibatch."""
    model = nn.Linear(4, 3)
    plain = copy.deepcopy(model)
    result = train(
        model, as_dataset((X, Y)), loss, steps=4, batch=16, workers=1, servers=1, sync=False, lr=5.0, clip_norm=0.01
    )
    moved = sum(
        float((a - b).detach().square().sum())
        for a, b in zip(result.model.parameters(), plain.parameters(), strict=True)
    )
    assert moved**0.5 <= 4 * 5.0 * 0.01 + 1e-6


# --- buffers


def test_a_network_with_batch_normalization_is_that_of_a_plain_loop_bit_by_bit() -> None:
    plain = net()
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    spec = Spec((), (), "", {}, 16, 1, 5, n_samples=64)
    for step in range(5):
        rows = Samples(as_dataset((X, Y)), spec).of(step, 0)
        own.zero_grad()
        loss(plain, (X[rows], Y[rows])).backward()
        own.step()
    result = train(net(), as_dataset((X, Y)), loss, steps=5, batch=16, workers=1, servers=2, shards=1, lr=0.1)
    state = result.state_dict()
    assert list(state) == list(plain.state_dict())
    for name, tensor in plain.state_dict().items():
        assert_torch_s(state[name], tensor)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3)
        self.backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.head(self.backbone(x))


@pytest.mark.parametrize(("make", "n"), [(net, 3), (Frozen, 0), (lambda: nn.Linear(4, 3), 0)])
def test_buffers_that_the_forward_pass_changes_are_found(make: Any, n: int) -> None:
    program = Program(make(), as_dataset((X, Y)), loss)
    before = copy.deepcopy(program.model.state_dict())
    found = moving_buffers(program, Spec((), (), "", {}, 16, 2, 1))
    assert len(found) == n
    assert all(torch.equal(before[name], tensor) for name, tensor in program.model.state_dict().items())


def test_buffers_lie_behind_the_parameters_and_those_of_each_shard_have_rows() -> None:
    model = net()
    model.register_buffer("h", torch.arange(2.0))
    cut = layout(model, n_blocks=4, buffers=[("1.running_mean", (8,)), ("h", (3, 2))], whole=True)
    assert [p.name for p in cut.buffers] == ["1.running_mean", "h"]
    assert cut.n == cut.n_trained + 8 + 6
    assert not cut.cuts_a_parameter()
    vector = pack(model, cut)
    assert vector[-6:].tolist() == [0, 1] * 3
    moving = MovingBuffers(model, cut)
    model.h.fill_(5)
    moving.store(torch.from_numpy(vector), leaf=1)
    assert vector[-6:].tolist() == [0, 0, 5, 5, 0, 0]
    moving.load(torch.from_numpy(vector), leaf=2)
    assert model.h.tolist() == [0, 0]
    unpack(np.arange(cut.n, dtype=np.float32), model, cut)
    assert trained(model)[0][1].flatten()[1].item() == 1.0
    assert model[1].running_mean.tolist() == list(range(cut.n_trained, cut.n_trained + 8))


# --- samples


class Drawing(Dataset[Any]):
    """Samples with noise, as augmentations draw it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        return X[i] + torch.randn(4) + float(np.random.normal()), Y[i]  # noqa: NPY002


def dropping(model: nn.Module, batch: Any, step: int, epoch: int) -> Any:
    assert epoch == step * 16 // 64
    return nn.functional.cross_entropy(nn.functional.dropout(model(batch[0]), 0.2), batch[1])


def test_loading_ahead_changes_no_bit_and_leaves_no_process() -> None:
    """Random numbers of data and model come from the same generators, which a loader hands on."""
    options: dict[str, Any] = {"steps": 8, "batch": 16, "workers": 1, "servers": 1, "lr": 0.1}
    digests = {train(nn.Linear(4, 3), Drawing(), dropping, loaders=n, state=STATE, **options).digest for n in (0, 2)}
    assert len(digests) == 1
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in left.splitlines() if "pt_data_worker" in line and "defunct" not in line]


STATE = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}


def test_a_data_loader_brings_its_batch_its_function_and_its_order() -> None:
    def together(rows: list[Any]) -> Any:
        return torch.stack([x for x, _ in rows]), len(rows)

    loader = DataLoader(Drawing(), batch_size=8, shuffle=False, num_workers=2, collate_fn=together)
    found = Loading.of(loader, batch=None, shuffle=True, loaders=0, default=64)
    assert (found.batch, found.shuffle, found.loaders) == (8, False, 2)
    assert found.data.fetch([3, 4])[1] == 2
    assert Loading.of(DataLoader(Drawing(), 8, shuffle=True), batch=8, shuffle=True, loaders=1, default=1).shuffle
    weighted = DataLoader(Drawing(), 8, sampler=WeightedRandomSampler([1.0, *[0.0] * 63], 16))
    sampled = Loading.of(weighted, batch=None, shuffle=True, loaders=0, default=64).data
    assert isinstance(sampled, LoaderData)
    spec = Spec((), (), "", {}, 8, 2, 5, n_samples=len(sampled))
    assert Samples(sampled, spec).of(1, 1) == [0, 0, 0, 0]


def test_a_samplers_order_is_that_of_seed_and_epoch_alone() -> None:
    sampled = LoaderData(Drawing(), list, WeightedRandomSampler(torch.ones(64), 32))
    spec = Spec((), (), "", {}, 8, 2, 9, n_samples=32)
    first, again = Samples(sampled, spec), Samples(sampled, spec)
    torch.manual_seed(5)
    orders = [first.between(0, 32, epoch).tolist() for epoch in (0, 1, 2)]
    assert [again.between(0, 32, epoch).tolist() for epoch in (2, 0, 1)] == [orders[2], orders[0], orders[1]]
    assert orders[0] != orders[1]


def test_updates_are_described_by_kind_and_state() -> None:
    updates = recipes(lambda m: torch.optim.AdamW(m.parameters()), net())
    assert isinstance(updates, TorchUpdates)
    assert updates.described.options == {"kinds": ["AdamW"], "state": ["exp_avg", "exp_avg_sq"]}


def test_a_job_that_ends_before_it_can_be_disturbed_is_verified_as_it_was() -> None:
    """Its processes may be gone between the look at their numbers and the signal."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    members = [SimpleNamespace(name=name, pid=ended.pid) for name in ("ps-0", "worker-0")]
    job: Any = SimpleNamespace(events=lambda: [{"event": "loss"}], status=lambda: SimpleNamespace(members=members))
    assert disturb(job) == "which were done too soon to be disturbed"
