"""When a job may be changed, and from where on something counts as wrong: every threshold of the brain."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from labkit.core.errors import InputError

LEARNS: Final = 0.3
"""Part of a new measurement in an average of measurements."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Thresholds, most of them of DLRover's repository.

    Attributes
    ----------
    gap_s : float
        Seconds between two changes of a job, at least; a sample takes as long.
    patience_s : float
        Seconds without a usable sample after which a job goes on as the user asked.
    n_estimates : int
        Times that a job is estimated again after its first plan.
    n_signs : int
        Measurements in a row that must show a trouble.
    n_tries : int
        Repairs of a trouble of a task, after which it is left alone.
    hot_use, hot_load : float
        A server is hot from this part of its cores and this multiple of the mean load on.
    slow_pace : float
        A task is slow up to this part of the pace of the middle.
    wait : float
        Workers wait where they do so for this part of their steps.
    hopeless : float
        Below this part of the pace of the middle a worker is of no use.
    idle_use : float
        Servers that use less than this part of their cores are idle.
    n_more, n_additions : int
        Workers that are added at once where servers are idle, and how often.
    efficiency : float
        Speed that an added worker must bring, as a part of what each has brought so far.
    min_gain : float
        A speed-up by less than this part is not worth a change.
    frees : float
        A plan as fast that frees less than this part of the cores is not worth a change.
    back : float
        A plan that turned out slower than an earlier one by more than this part is taken back; a final one whose speed
        changes by more than this part is estimated again. inf: none is.
    doubt : float
        From speeds that differ by more than this part from what was predicted on, measurements count, and no form.
    n_full : int
        Number of plans with which tasks must use all of their cores, and different core-seconds per step, before their
        measured use is distrusted. 1: full use with one plan is enough.
    n_trials : int
        Plans of a job that are tried for what they promise, beside those that are expected to be faster.
    pays : float
        Times the seconds of a change that it must save.
    balance : bool
        Move blocks of hot servers before they are given cores.
    beyond : bool
        Give cores that no job asks for to jobs beyond their quota: more workers, larger hot servers.
    watch_memory : bool
        Give servers more memory before it runs out.
    memory_margin : float
        Times the memory that is foreseen.
    """

    gap_s: float = 60.0
    patience_s: float = 300.0
    n_estimates: int = 2
    n_signs: int = 3
    n_tries: int = 2
    hot_use: float = 0.8
    hot_load: float = 1.2
    slow_pace: float = 0.5
    wait: float = 0.25
    hopeless: float = 0.1
    idle_use: float = 0.95
    n_more: int = 4
    n_additions: int = 3
    efficiency: float = 0.3
    min_gain: float = 0.05
    frees: float = 0.05
    back: float = 0.1
    doubt: float = 0.25
    n_full: int = 2
    n_trials: int = 6
    pays: float = 2.0
    balance: bool = True
    beyond: bool = True
    watch_memory: bool = True
    memory_margin: float = 1.2

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) >= 0:
                raise InputError(f"dlrover: {each.name} is {getattr(self, each.name)}; expected a number >= 0.")


USUAL: Final = Rules()
