"""Federated training: several clusters, each with traces of its own, learn one policy together (sec. 6.5).

Each cluster's trainer takes a lesson or plays a trace, and learns from it slot by slot; then the weights of all are
averaged, and go back to all. The paper has A3C, whose clusters write into one network whenever they like; here they
wait for each other, so that the same seed gives the same weights wherever the trainers are: in this process, in one
process for each cluster, or on the workers of a Dask cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.learning.env import ExperimentOf
from labkit.learning.training import Trains, Update
from reproductions.dl2.policy import FlatNet
from reproductions.dl2.scheduler import FlatWeights
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import Trainer

if TYPE_CHECKING:
    from distributed import Client

APART: Final = 1000
"""Between the seeds of two clusters."""
HERE: Final = "here"
PROCESSES: Final = "processes"

Parts = list[NDArray[np.float32]]


class ClusterMember:
    """One cluster and its trainer, in whatever process it is."""

    def __init__(
        self, experiments: ExperimentOf, models: Sequence[str], slot_s: float, seed: int, switches: Published
    ) -> None:
        torch.set_num_threads(1)
        self._trainer = Trainer(experiments, models, slot_s, seed=seed, switches=switches)

    def update(self, parts: Parts | None) -> tuple[Update, Parts]:
        """Take a lesson, or play a round, from these weights on; return what came of it, and the weights now."""
        if parts is not None:
            self.adopt(parts)
        update = self._trainer.update()
        return update, self.parts()

    def parts(self) -> Parts:
        """Return the weights of policy and value network."""
        return [np.array(part.detach().numpy()) for part in self._parameters()]

    def adopt(self, parts: Parts) -> None:
        """Take weights."""
        with torch.no_grad():
            for mine, part in zip(self._parameters(), parts, strict=True):
                mine.copy_(torch.from_numpy(np.array(part)))

    def _parameters(self) -> list[torch.nn.Parameter]:
        learner = self._trainer.learner
        return [*learner.policy.parameters(), *learner.value.parameters()]

    def weights(self, source: str) -> FlatWeights:
        """Return the policy as it is here."""
        return self._trainer.weights(source)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on."""
        return self._trainer.state()

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from a state; see `Trainer.go_on`."""
        self._trainer.go_on(state)


Ask = Callable[..., Callable[[], Any]]
"""Asks a member for something by name; what is returned waits for the answer."""


@dataclass(eq=False)
class Federated(Trains):
    """Trains DL2's own network on k clusters at once; it takes, gives and goes on as a `Trainer` does.

    Examples
    --------
    >>> switches = Published(clusters=3)  # doctest: +SKIP
    >>> with Federated(setting, DL2_MODELS, 1200.0, switches=switches, where="processes") as trainer:  # doctest: +SKIP
    ...     for update in trainer.updates():
    ...         print(update.slots, update.mean_jct)
    """

    experiments: ExperimentOf
    models: Sequence[str]
    slot_s: float
    seed: int = 1
    switches: Published = field(default_factory=lambda: Published(clusters=2))
    """`experiments`, `models`, `slot_s`, `seed` and `switches`: as a `Trainer` has them; `switches.clusters` is k.
    Cluster i has the seed plus 1,000 i."""
    where: str | Client = HERE
    """"here", one after the other; "processes", one for each cluster; or a Dask cluster's client."""
    _parts: Parts | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.where, str) and self.where not in (HERE, PROCESSES):
            raise InputError(f"where is {self.where!r}; expected {HERE!r}, {PROCESSES!r} or the client of a cluster.")
        alone = replace(self.switches, clusters=1)
        given = [
            (self.experiments, self.models, self.slot_s, self.seed + APART * k, alone)
            for k in range(self.switches.clusters)
        ]
        self._pools: list[ProcessPoolExecutor] = []
        if self.where == PROCESSES:
            self._pools = [_process(one) for one in given]
            self._members = [_ask_process(pool) for pool in self._pools]
        elif self.where == HERE:
            self._members = [_ask_here(ClusterMember(*one)) for one in given]
        else:
            self._members = [_ask_actor(self.where, one) for one in given]
        self._parts = self._members[0]("parts")()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)

    def adopt(self, net: FlatNet) -> None:
        """Begin with the weights of a policy that was trained, on all clusters."""
        policy = [np.array(part) for part in net]
        self._parts = policy + (self._parts or [])[len(policy) :]

    @property
    def n_of_kind(self) -> tuple[int, int]:
        """How many lessons and rounds there are, each on all clusters."""
        return self.switches.n_of_kind

    def update(self) -> Update:
        """Let each cluster take a lesson or play a round, and average what they learned; see `Trainer.update`."""
        answers = [answer() for answer in [ask("update", self._parts) for ask in self._members]]
        told = [update for update, _ in answers]
        self._parts = [np.mean(same, axis=0, dtype=np.float32) for same in zip(*(p for _, p in answers), strict=True)]
        self.n_done += 1
        self.slots = sum(update.slots for update in told)
        mean = {name: float(np.mean([getattr(one, name) for one in told])) for name in ("mean_jct", "loss", "entropy")}
        return Update(
            told[0].kind, self.n_done - 1, self.slots, mean["mean_jct"], mean["loss"], mean["entropy"],
            sum(update.cpu_s for update in told),
        )  # fmt: skip

    def weights(self, source: str) -> FlatWeights:
        """Return the policy that all have, for a scheduler."""
        self._members[0]("adopt", self._parts)()
        made: FlatWeights = self._members[0]("weights", source)()
        return made

    def state(self) -> dict[str, Any]:
        """Return the states of all members, and the mean weights."""
        parts = [torch.from_numpy(part) for part in self._parts or []]
        members = [answer() for answer in [ask("state") for ask in self._members]]
        return {"members": members, "parts": parts, "n_done": self.n_done, "slots": self.slots}

    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state of as many clusters."""
        members = state.get("members", ())
        if len(members) != len(self._members):
            raise InputError(
                f"the training to go on with has {len(members)} clusters at once; expected {len(self._members)}. "
                "Give it the same options, or another file."
            )
        for answer in [ask("go_on", one) for ask, one in zip(self._members, members, strict=True)]:
            answer()
        self._parts = [part.numpy() for part in state["parts"]]
        self.n_done, self.slots = state["n_done"], state["slots"]
        return self


# --- where members are


def _ask_here(member: ClusterMember) -> Ask:
    def ask(what: str, *words: Any) -> Callable[[], Any]:
        return lambda: getattr(member, what)(*words)

    return ask


_mine: ClusterMember | None = None


def _process(given: tuple[Any, ...]) -> ProcessPoolExecutor:
    """Return a process with a member in it."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=given)


def _begin(*given: Any) -> None:
    """Become a member that leaves Ctrl-C to the parent, and ends when that does."""
    global _mine
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _mine = ClusterMember(*given)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(what: str, *words: Any) -> Any:
    return getattr(_mine, what)(*words)


def _ask_process(pool: ProcessPoolExecutor) -> Ask:
    def ask(what: str, *words: Any) -> Callable[[], Any]:
        return pool.submit(_call, what, *words).result

    return ask


def _ask_actor(client: Any, given: tuple[Any, ...]) -> Ask:
    with client.as_current():  # an actor talks through the client that is current when it comes back
        actor = client.submit(ClusterMember, *given, actor=True, pure=False).result()

    def ask(what: str, *words: Any) -> Callable[[], Any]:
        with client.as_current():
            result: Callable[[], Any] = getattr(actor, what)(*words).result
        return result

    return ask
