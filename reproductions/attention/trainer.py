"""REINFORCE for attention: a trace is played often, and what turned out better than the mean becomes more probable.

Pods forward in a play as in `Partitioned`. What SCARL's text and the MARL text leave open, and how it is read here, is
in `docs/marl.md`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor, nn

from labkit.core.clock import ENDED, N_COUNTS, N_ENDED, N_OVER, N_RUNNING, N_WAITING, QUEUE, RUNNING, advance
from labkit.core.errors import InputError, LabkitError, unknown
from labkit.core.files import refuse_unwritable
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.kernels.arrays import add_to
from labkit.learning.marl.episodes import World, begin_job, end_job
from labkit.learning.marl.plays import blame_of, mean_jct_of
from labkit.learning.marl.settings import Setting
from labkit.learning.marl.trainer import better_than_others
from labkit.learning.training import Course, NetworkTraining, Outcome
from labkit.schedulers.marl.network import SLOT_S, Scene
from reproductions.attention.placer import SHAPES, GangView, Net, Notes, Stand, about_of, length_of, notes_of, place


def stand_of(scene: Scene, capacity: Floats) -> Stand:
    """Return the machines of a scene, empty; what is free there is that of the scene."""
    n = len(scene.facts.up_gbps)
    first = scene.room.first_group.astype(np.int64)
    return Stand(scene.room.free, np.ascontiguousarray(capacity, np.float64), first, np.zeros(n), np.zeros(n))


@inner
def _gang(scene: Scene, job: int, about: Floats, workers_on: Bools) -> GangView:
    room = scene.room
    for g in range(len(workers_on)):
        workers_on[g] = room.up[g] and (scene.worker[job, GPUS] <= 0 or scene.runs_on[job, room.group_type[g]])
    return GangView(
        scene.worker[job], scene.ps[job], scene.n_workers[job], scene.n_ps[job], workers_on, room.up, about[job]
    )


@inner
def _free_gpus(scene: Scene, stand: Stand, pod: int) -> float:
    """Return the GPUs that are free in a pod."""
    free, room = 0.0, scene.room
    for at in range(room.first_machine[pod], room.first_machine[pod + 1]):
        m = room.machines[at]
        for g in range(stand.first_group[m], stand.first_group[m + 1]):
            free += stand.free[g, GPUS]
    return free


@inner
def _pods(scene: Scene, stand: Stand, home: int) -> Ints:
    """Return the pods but one, those with most free GPUs first."""
    n = len(scene.room.first_machine) - 1
    key = np.array([-_free_gpus(scene, stand, pod) for pod in range(n)])
    order: Ints = np.argsort(key, kind="mergesort")
    others: Ints = order[order != home]
    return others


@inner
def _holds(scene: Scene, stand: Stand, gang: GangView, pod: int) -> bool:
    """Return whether a pod has as many free GPUs and cores in all as a gang asks for."""
    room, free = scene.room, np.zeros(stand.free.shape[1])
    for at in range(room.first_machine[pod], room.first_machine[pod + 1]):
        m = room.machines[at]
        for g in range(stand.first_group[m], stand.first_group[m + 1]):
            free += stand.free[g]
    return bool((gang.n_workers * gang.worker + gang.n_ps * gang.ps <= free + 1e-9).all())


@inner
def _tried(
    net: Net, scene: Scene, stand: Stand, gang: GangView, pod: int, groups: Ints, draws: bool, rng: np.random.Generator,
    notes: Notes, job: int,
) -> bool:  # fmt: skip
    """Try to place a gang in a pod; what is free is as before, whether it fits or not."""
    if not _holds(scene, stand, gang, pod):
        return False
    room = scene.room
    machines = room.machines[room.first_machine[pod] : room.first_machine[pod + 1]]
    if not place(net, stand, gang, machines, groups, draws, rng, notes, job):
        return False
    for t in range(len(groups)):
        add_to(stand.free[groups[t]], gang.worker if t < gang.n_workers else gang.ps, 1)
    return True


@inner
def _note(scene: Scene, stand: Stand, length: Floats, job: int, groups: Ints, sign: int) -> None:
    for g in groups:
        stand.tasks[scene.facts.group_machine[g]] += sign
        stand.length[scene.facts.group_machine[g]] += sign * length[job]


@kernel(error_model="numpy")
def play(  # noqa: C901 - two passes over those that wait: at home, then elsewhere
    net: Net, scene: Scene, world: World, stand: Stand, about: Floats, length: Floats, draws: bool,
    rng: np.random.Generator, notes: Notes,
) -> None:  # fmt: skip
    """Simulate a trace to its end: each pod its own jobs in order of arrival, then those left over elsewhere."""
    n_jobs = len(world.steps)
    jobs, n, now_s = np.zeros((3, n_jobs), np.int64), np.zeros(N_COUNTS, np.int64), 0.0
    others, workers_on = np.zeros(n_jobs, np.int64), np.zeros(len(stand.free), np.bool_)
    while n[N_OVER] < n_jobs:
        now_s = advance(
            np.inf, now_s, world.arrival_s, world.steps, scene.left, world.tasks.speed, world.since_s, jobs, n
        )  # fmt: skip
        if now_s == np.inf:
            return
        for i in range(n[N_ENDED]):
            j = jobs[ENDED, i]
            _note(scene, stand, length, j, scene.tasks.group[j, : scene.n_workers[j] + scene.n_ps[j]], -1)
            end_job(scene, world, world.slow, j, now_s, others)
        for elsewhere in (False, True):
            kept = 0
            for i in range(n[N_WAITING]):
                j = jobs[QUEUE, i]
                gang, started, home = _gang(scene, j, about, workers_on), False, scene.home[j]
                groups = np.zeros(gang.n_workers + gang.n_ps, np.int64)
                if not elsewhere:
                    started = home >= 0 and _tried(net, scene, stand, gang, home, groups, draws, rng, notes, j)
                else:
                    for pod in _pods(scene, stand, home):
                        if _tried(net, scene, stand, gang, pod, groups, draws, rng, notes, j):
                            started = True
                            break
                if not started:
                    jobs[QUEUE, kept] = j
                    kept += 1
                    continue
                begin_job(scene, world, world.slow, j, groups, now_s, others)
                _note(scene, stand, length, j, groups, 1)
                jobs[RUNNING, n[N_RUNNING]] = j
                n[N_RUNNING] += 1
            n[N_WAITING] = kept


CREDITS: Final = ("job", "return")
N_DECISIONS: Final = 20_000
CLUSTER: Final = "single_switch(20, gbps=10)"
TRACE: Final = "marl_jobs(load=5, n_pods=1)"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How it is trained; the defaults are what was best of what was tried.

    Attributes
    ----------
    n_rounds : int
        Updates: one step of RMSprop each.
    n_draws : int
        Times that the trace of a round is played; each is judged against the mean of them.
    rate : float
        Learning rate, which falls linearly.
    credit : {"job", "return"}
        What a choice is judged by: "job": the JCT of its job, and what the jobs beside it took longer; "return": the
        rewards from the job's start to the end of the trace, each -(sum over running jobs of 1 / slots alone + waiting
        jobs).
    entropy : float
        Times the entropy that is added to the gain.
    """

    n_lessons: ClassVar[int] = 0

    n_rounds: int = 150
    n_draws: int = 20
    rate: float = 3e-3
    credit: str = "job"
    entropy: float = 0.0

    def __post_init__(self) -> None:
        if self.credit not in CREDITS:
            raise unknown("credit of attention", self.credit, CREDITS)
        if self.n_draws < 2 or self.n_rounds < 0:
            raise InputError(
                f"attention is to be trained in {self.n_rounds} rounds of {self.n_draws} plays; expected 0 rounds or "
                "more, and 2 plays or more: each is judged against the mean."
            )


class Policy(nn.Module):
    """The network of `reproductions.attention.placer` as torch knows it: parameters of the same names."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            scale = 0.0 if name.endswith("bias") else shape[0] ** -0.5
            self.register_parameter(name, nn.Parameter(scale * torch.randn(shape)))

    def forward(self, seen: Tensor, task: Tensor, there: Tensor) -> Tensor:
        """Return scores (D, M) from machines (D, M, F), of which `there` (D, M) is told, and tasks (D, Q)."""
        p = dict(self.named_parameters())
        hidden = torch.tanh(seen @ p["machine"] + p["machine_bias"])
        e = torch.tanh(hidden @ p["machine2"] + p["machine2_bias"])
        q = torch.tanh(torch.tanh(task @ p["task"] + p["task_bias"]) @ p["task2"] + p["task2_bias"])
        looked = torch.tanh(e @ p["look_machine"] + (q @ p["look"])[:, None]) @ p["look_out"]
        part = torch.softmax(looked.masked_fill(~there, -1e9), 1)
        g = (part[..., None] * e).sum(1)
        asked = torch.cat([q, g], 1) @ p["query"]
        return torch.tanh(e @ p["key"] + asked[:, None]) @ p["out"]

    def net(self) -> Net:
        """Return the weights for compiled code."""
        parts = {name: part.detach().numpy().astype(np.float64) for name, part in self.named_parameters()}
        return Net(**{name: np.ascontiguousarray(parts[name]) for name in SHAPES})


@dataclass(frozen=True, eq=False)
class Weights:
    """A network, and how it was made."""

    net: Net
    source: str

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        self.net.save(path, source=self.source)


@dataclass(eq=False)
class Trainer(NetworkTraining):
    """Trains attention on traces of a setting; the same seed gives the same weights."""

    setting: Setting
    seed: int = 1
    recipe: Recipe = field(default_factory=Recipe)
    policy: Policy = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._begin(Policy, torch.optim.RMSprop)

    def _round(self, left: float) -> Outcome:
        recipe, net, seed = self.recipe, self.policy.net(), self._seed()
        judged, notes, jct = [], [], []
        for _ in range(recipe.n_draws):
            scene, world, made = played(self.setting, net, seed, self._seed())
            judged.append(blame_of(scene, world) if recipe.credit == "job" else _cost_to_go(scene, world))
            notes.append(made)
            jct.append(mean_jct_of(world))
            self.slots += int(np.ceil(np.nanmax(world.done_s) / SLOT_S))
        self._set_rate(recipe.rate * left)
        return float(np.mean(jct)), *self._learn(notes, better_than_others(np.array(judged)))

    def _learn(self, notes: list[Notes], better: Floats) -> tuple[float, float]:
        """Make choices more probable that turned out better; return the loss and the entropy."""
        total = sum(int(one.n[0]) for one in notes)
        self._optimizer.zero_grad()
        loss, entropy = 0.0, 0.0
        for one, worth in zip(notes, better, strict=True):
            n = int(one.n[0])
            seen, task, fits, action = (torch.from_numpy(c[:n]) for c in (one.machines, one.task, one.fits, one.action))
            score = self.policy(seen, task, (seen != 0).any(2)).masked_fill(~fits, -1e9)
            chances = torch.log_softmax(score, 1)
            gain = (chances[torch.arange(n), action] * torch.from_numpy(worth[one.job[:n]].astype(np.float32))).sum()
            doubt = -(chances.exp() * chances.clamp(min=-1e3)).sum()
            part = -(gain + self.recipe.entropy * doubt) / total
            part.backward()  # type: ignore[no-untyped-call]
            loss, entropy = loss + float(part.detach()), entropy + float(doubt.detach()) / total
        if np.isfinite(loss):
            self._apply(most=1.0)
        return loss, entropy

    def weights(self, source: str) -> Weights:
        """Return the policy as it is, for a scheduler."""
        return Weights(self.policy.net(), source)

    def _identity(self) -> dict[str, Any]:
        setting = self.setting
        where = {"clusters": list(setting.clusters), "traces": list(setting.traces)}
        return asdict(self.recipe) | {"seed": self.seed} | where | {"interference": setting.interference}


def played(
    setting: Setting, net: Net, seed: int, draw: int | None, *, n_notes: int = N_DECISIONS
) -> tuple[Scene, World, Notes]:
    """Return a trace of a setting, played, with the choices that were made.

    `seed`: of the trace; `draw`: seed of the choices; None: the most probable ones.
    """
    jobs, cluster = setting.drawn(np.random.default_rng(seed))
    scene, world = setting.world(jobs, cluster)
    notes = notes_of(n_notes, int(np.diff(scene.room.first_machine).max()))
    rng = np.random.default_rng(draw)
    stand = stand_of(scene, cluster.capacity)
    play(net, scene, world, stand, about_of(jobs), length_of(jobs), draw is not None, rng, notes)
    return scene, world, notes


def _cost_to_go(scene: Scene, world: World) -> Floats:
    """Return what all jobs cost from the start of each one on, (N,) in slots: waiting, and running over its length."""
    start, done, alone = world.start_s, world.done_s, np.maximum(scene.alone_s / SLOT_S, 1e-9)
    since = start[:, None]
    running = np.maximum(done - np.maximum(start, since), 0.0) / alone
    waiting = np.maximum(start - np.maximum(world.arrival_s, since), 0.0)
    cost: Floats = (running + waiting).sum(axis=1) / SLOT_S
    return cost


def main() -> None:
    """Train, write the weights, and say how."""
    plain = Recipe()
    parser = argparse.ArgumentParser(prog="python -m reproductions.attention", description=__doc__)
    parser.add_argument("--cluster", default=CLUSTER, help="where traces are played")
    parser.add_argument("--trace", default=TRACE, help="a generator of traces")
    parser.add_argument("--interference", default="calibrated", help="how co-located jobs slow each other")
    parser.add_argument("--rounds", type=int, default=plain.n_rounds)
    parser.add_argument("--draws", type=int, default=plain.n_draws, help="times that a trace is played")
    parser.add_argument("--rate", type=float, default=plain.rate)
    parser.add_argument("--credit", default=plain.credit, help=f"what a choice is judged by: {' or '.join(CREDITS)}")
    parser.add_argument("--entropy", type=float, default=plain.entropy)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("attention.safetensors"))
    given = parser.parse_args()
    torch.set_num_threads(1)  # so that the same seed gives the same weights
    try:
        refuse_unwritable(given.out, endings=(".safetensors",))
        recipe = Recipe(given.rounds, given.draws, given.rate, given.credit, given.entropy)
        setting = Setting([given.cluster], [given.trace], given.interference)
        setting.refuse_unfit()
        trainer = Trainer(setting, seed=given.seed, recipe=recipe)
        source = f"python -m reproductions.attention {' '.join(sys.argv[1:])}".strip()
        Course(out=given.out, source=source).run(trainer)
    except LabkitError as error:
        raise SystemExit(f"{error}") from None
    print(f"{trainer.cpu_s:.0f} s of processor time. Written to {given.out}.")
