"""Plays of traces, here or on workers: each is a function of what it is given, so that all give the same bits.

A trainer plays one trace after the other in this process, or hands plays to what takes calls: an executor of
`concurrent.futures`, or the client of a Dask cluster.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from labkit.core.clock import jct_s
from labkit.core.errors import LabkitError
from labkit.core.resources import Floats, Ints
from labkit.learning.marl.episodes import ActionRule, Rec, World, play, record
from labkit.schedulers.marl.network import SLOT_S, Net, Scene, desk_of
from labkit.speed.what_if import learned

WorldOf = Callable[[np.random.Generator], tuple[Scene, World]]
MOST_DECISIONS: Final = 6000
PER_JOB: Final = 4
"""Decisions of a play that are learned from: so many, or so many for each job if that is more; the first ones."""
BLOCK: Final = 1024
"""Jobs that are compared with all others at a time: memory grows with their product."""


class Play(NamedTuple):
    """What is to be played: the weights, how they decide, the seeds of trace and draws, and room for samples."""

    net: Net
    how: ActionRule
    seed: int
    draws: int
    n_samples: int = 1


class Played(NamedTuple):
    """What came of a play."""

    rec: Rec
    """Its decisions and samples, as many as there were."""
    home: Ints
    blame: Floats
    """`home` and `blame`: (N,) pods where jobs arrived, and what each cost in slots (`blame_of`)."""
    mean_jct: float
    """In slots."""
    slots: int
    """Until the last job was done."""
    cpu_s: float
    """Processor time that it took, in seconds."""


class Submits(Protocol):
    """What takes calls, such as an executor or the client of a Dask cluster."""

    def submit(self, function: Callable[..., Any], /, *words: Any) -> Any:
        """Return a future; its `result()` waits."""


def played(worlds: WorldOf, one: Play) -> Played:
    """Return the outcome of a play."""
    began_s = time.thread_time()
    scene, world = worlds(np.random.default_rng(one.seed))
    rec, net = record(max(MOST_DECISIONS, PER_JOB * len(scene.home)), one.n_samples), one.net
    play(scene, world, learned(net.seen, net.out), net, one.how, desk_of(scene), rec, np.random.default_rng(one.draws))
    slots = int(np.ceil(np.nanmax(world.done_s) / SLOT_S))
    blame, mean_jct = blame_of(scene, world), mean_jct_of(world)
    return Played(trimmed(rec), scene.home, blame, mean_jct, slots, time.thread_time() - began_s)


def all_played(worlds: WorldOf, plays: Sequence[Play], *, where: Submits | None = None) -> list[Played]:
    """Return the outcomes of some plays, in their order; LabkitError if workers were lost on the way."""
    if where is None:
        return [played(worlds, one) for one in plays]
    raw = pickle.dumps(worlds)
    futures = [where.submit(_played_there, raw, one) for one in plays]
    try:
        return [future.result() for future in futures]
    except Exception as error:
        if type(error).__name__ not in LOST:
            raise
        raise LabkitError(
            f"workers were lost while they played traces ({type(error).__name__}); what was learned up to the last "
            "update that was kept is there: start workers, and the same call continues."
        ) from error


LOST: Final = (
    "KilledWorker", "CancelledError", "FutureCancelledError", "CommClosedError", "BrokenProcessPool", "TimeoutError",
)  # fmt: skip
"""Names of errors which say that workers are gone: those of Dask are known where it is installed."""


@lru_cache(maxsize=2)
def _worlds_of(raw: bytes) -> WorldOf:
    """Return the sampler of traces, made once in each worker."""
    worlds: WorldOf = pickle.loads(raw)
    return worlds


def _played_there(raw: bytes, one: Play) -> Played:
    return played(_worlds_of(raw), one)


def trimmed(rec: Rec) -> Rec:
    """Return a record without the room that was not needed."""
    n, n_samples = (int(k) for k in rec.n)
    return Rec(
        rec.n, rec.features[:n].copy(), rec.cost[:n].copy(), rec.n_top[:n].copy(), rec.action[:n].copy(),
        rec.taught[:n].copy(), rec.job[:n].copy(), rec.felt[:n_samples].copy(),
    )  # fmt: skip


def mean_jct_of(world: World) -> float:
    """Return the mean JCT of a trace that was played, in slots."""
    return float(jct_s(arrival_s=world.arrival_s, completion_s=world.done_s).mean() / SLOT_S)


def blame_of(scene: Scene, world: World) -> Floats:
    """Return the cost of each job, (N,) in slots: its JCT, and what the jobs beside it took longer, by time together.

    A job that took e seconds more than alone over its stay of t blames a job that was on one of its machines for o of
    them for e o / t.
    """
    n = len(world.steps)
    on = np.zeros((n, len(world.facts.up_gbps)), np.float32)
    rows, columns = np.nonzero(world.where >= 0)
    on[rows, world.facts.group_machine[world.where[rows, columns]]] = 1.0
    start, done = world.start_s, world.done_s
    longer = np.maximum(done - start - scene.alone_s, 0.0) / np.maximum(done - start, 1e-9)
    theirs = np.empty(n)
    for first in range(0, n, BLOCK):
        mine = slice(first, first + BLOCK)
        beside = (on[mine] @ on.T) > 0
        np.fill_diagonal(beside[:, first:], val=False)
        together = np.minimum(done[mine, None], done) - np.maximum(start[mine, None], start)
        theirs[mine] = (np.maximum(together, 0.0) * beside) @ longer
    blame: Floats = (jct_s(arrival_s=world.arrival_s, completion_s=done) + theirs) / SLOT_S
    return blame
