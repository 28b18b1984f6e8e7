"""Which jobs of a Slurm site preempt which: by quality of service, or by the tiers of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final

from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs

TYPES: Final = ("none", "qos", "partition_prio")
MODES: Final = ("requeue", "cancel", "off")


@dataclass(frozen=True)
class PreemptRules:
    """Preemption as slurm.conf and sacctmgr state it [1]_ [2]_.

    Attributes
    ----------
    type : str
        "qos" or "partition_prio", as PreemptType has them; or "none".
    preempts : mapping
        The qualities of service that each may preempt (Preempt of `sacctmgr show qos`), by name.
    tiers : mapping
        PriorityTier of each partition, 1 for others: jobs of higher tiers are looked at first, and with
        "partition_prio" preempt those of lower ones.
    mode : str or mapping
        PreemptMode: "requeue" (the job waits again; a scenario's `preemption_loses_work` says what it keeps), "cancel"
        (it is given up), "off" (it is not preempted); or a mapping from the quality of service, or partition, of the
        preempted job to these, "requeue" for others.
    exempt_s, grace_s : float
        PreemptExemptTime: seconds that a job runs before it may be preempted. GraceTime: seconds from when it is
        selected until it ends.

    References
    ----------
    .. [1] https://slurm.schedmd.com/preempt.html
    .. [2] https://slurm.schedmd.com/slurm.conf.html, PreemptType, PreemptMode, PreemptExemptTime, GraceTime
    """

    type: str = "none"
    preempts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tiers: Mapping[str, float] = field(default_factory=dict)
    mode: str | Mapping[str, str] = "requeue"
    exempt_s: float = 0.0
    grace_s: float = 0.0

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise unknown("preempt_type of slurm", str(self.type), TYPES)
        self._refuse_odd_mappings()
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            if mode not in MODES:
                raise unknown("preempt_mode of slurm", str(mode), MODES)
        for name in ("exempt_s", "grace_s"):
            if not getattr(self, name) >= 0:
                raise InputError(f"slurm: {name} is {getattr(self, name)!r}; expected seconds >= 0.")

    def _refuse_odd_mappings(self) -> None:
        for name, of, what in (("preempts", self.preempts, "qos"), ("partition_tiers", self.tiers, "partition_prio")):
            if self.type == what and not of:
                raise InputError(f"slurm: preempt_type is {what!r}, and {name} is empty; expected a mapping by name.")
        if self.preempts and self.type != "qos":
            raise InputError(f"slurm: preempts is given, and preempt_type is {self.type!r}; expected 'qos'.")
        try:
            TopologicalSorter({name: _listed(of) for name, of in self.preempts.items()}).prepare()
        except CycleError as error:
            raise InputError(
                f"slurm: preempts lets {' and '.join(map(repr, dict.fromkeys(error.args[1])))} preempt each other; "
                "expected no way back."
            ) from None

    def tier(self, jobs: Jobs, job: int) -> float:
        """Return the PriorityTier of the partition of a job."""
        return float(self.tiers.get(jobs.partitions[jobs.partition[job]], 1.0))

    def may(self, jobs: Jobs, job: int, other: int) -> bool:
        """Return whether one job may preempt another one."""
        if self.type == "none" or self.mode_of(jobs, other) == "off":
            return False
        if self.type == "partition_prio":
            return self.tier(jobs, other) < self.tier(jobs, job)
        return str(jobs.qos[other]) in _listed(self.preempts.get(str(jobs.qos[job]), ()))

    def mode_of(self, jobs: Jobs, job: int) -> str:
        """Return the fate of a job that is preempted."""
        if isinstance(self.mode, str):
            return self.mode
        name = jobs.qos[job] if self.type == "qos" else jobs.partitions[jobs.partition[job]]
        return self.mode.get(str(name), "requeue")


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    """Return names, which may be one."""
    return [names] if isinstance(names, str) else names
