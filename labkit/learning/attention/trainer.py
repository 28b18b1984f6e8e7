"""REINFORCE for attention: a trace is played often, and what turned out better than the mean becomes more probable.

What SCARL's text and the MARL text leave open of it, and how it is read here, is in `docs/marl.md`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from labkit.core.errors import InputError, LabkitError, unknown
from labkit.core.files import refuse_unwritable
from labkit.core.resources import Floats
from labkit.learning.attention.episodes import play, stand_of
from labkit.learning.course import Course
from labkit.learning.marl.episodes import World
from labkit.learning.marl.plays import blame_of, mean_jct_of
from labkit.learning.marl.settings import Setting
from labkit.learning.marl.trainer import better_than_others
from labkit.learning.training import Training, copied, refuse_not_finite
from labkit.schedulers.marl.network import SLOT_S, Scene
from labkit.schedulers.pods.attending import SHAPES, Net, Notes, about_of, length_of, notes_of

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
    """The network of `labkit.schedulers.pods.attending` as torch knows it: parameters of the same names."""

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
class Trainer(Training):
    """Trains attention on traces of a setting; the same seed gives the same weights."""

    setting: Setting
    seed: int = 1
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.policy = Policy()
        self._optimizer = torch.optim.RMSprop(self.policy.parameters(), lr=self.recipe.rate)
        self._rng = np.random.default_rng(self.seed)

    @property
    def n_updates(self) -> int:
        """How many updates there are in all."""
        return self.recipe.n_rounds

    def _update(self) -> tuple[str, float, float, float]:
        recipe, before, net = self.recipe, copied(self.policy), self.policy.net()
        seed = int(self._rng.integers(1 << 31))
        judged, notes, jct = [], [], []
        for _ in range(recipe.n_draws):
            scene, world, made = played(self.setting, net, seed, int(self._rng.integers(1 << 31)))
            judged.append(blame_of(scene, world) if recipe.credit == "job" else _cost_to_go(scene, world))
            notes.append(made)
            jct.append(mean_jct_of(world))
            self.slots += int(np.ceil(np.nanmax(world.done_s) / SLOT_S))
        loss, entropy = self._step(notes, better_than_others(np.array(judged)))
        refuse_not_finite(self.policy, before, loss=loss, mean_jct=float(np.mean(jct)), n_done=self.n_done)
        return "round", float(np.mean(jct)), loss, entropy

    def _step(self, notes: list[Notes], better: Floats) -> tuple[float, float]:
        """Make choices more probable that turned out better; return the loss and the entropy."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.rate * (1 - self.n_done / self.recipe.n_rounds)
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
            nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self._optimizer.step()
        return loss, entropy

    def weights(self, source: str) -> Weights:
        """Return the policy as it is, for a scheduler."""
        return Weights(self.policy.net(), source)

    def _asked(self) -> dict[str, Any]:
        setting = self.setting
        where = {"clusters": list(setting.clusters), "traces": list(setting.traces)}
        return asdict(self.recipe) | {"seed": self.seed} | where | {"interference": setting.interference}

    def _learned(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.policy.load_state_dict(learned["policy"])
        self._optimizer.load_state_dict(learned["optimizer"])


def played(
    setting: Setting, net: Net, seed: int, draw: int | None, *, n_notes: int = N_DECISIONS
) -> tuple[Scene, World, Notes]:
    """Return a trace of a setting, played, with the choices that were made.

    Parameters
    ----------
    seed : int
        Of the trace.
    draw : int or None
        Seed of the choices; None: the most probable ones.
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
    parser = argparse.ArgumentParser(prog="python -m labkit.learning.attention", description=__doc__)
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
        source = f"python -m labkit.learning.attention {' '.join(sys.argv[1:])}".strip()
        Course(out=given.out, source=source).run(trainer)
    except LabkitError as error:
        raise SystemExit(f"{error}") from None
    print(f"{trainer.cpu_s:.0f} s of processor time. Written to {given.out}.")
