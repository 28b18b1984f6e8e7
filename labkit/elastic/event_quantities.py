"""Quantities of the members of a job from its events: seconds of steps, loads, cores and memory, by `Quantity`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from labkit.core.events import Quantity, Role

MEMBER: Final = re.compile(r"(worker|ps)-(\d{1,9})")


class MemberName(NamedTuple):
    """A worker or PS of a job."""

    role: Role
    number: int

    @classmethod
    def of(cls, name: object) -> MemberName | None:
        """Return the member of a name such as worker-3; None if it is no name of a member.

        >>> MemberName.of("ps-2"), MemberName.of("ps-two")
        (MemberName(role=<Role.PS: 1>, number=2), None)
        """
        match = MEMBER.fullmatch(str(name))
        if match is None or int(match[2]) > np.iinfo(np.int32).max:
            return None
        return cls(Role.WORKER if match[1] == "worker" else Role.PS, int(match[2]))

    def __str__(self) -> str:
        return f"{'worker' if self.role == Role.WORKER else 'ps'}-{self.number}"


@dataclass(slots=True)
class EventQuantities:
    """Quantities in the events of one job since they were last taken."""

    where: dict[MemberName, tuple[str, int]] = field(default_factory=dict)
    """Host and process number."""
    compute_s: dict[MemberName, list[float]] = field(default_factory=lambda: defaultdict(list))
    step_s: dict[MemberName, list[float]] = field(default_factory=lambda: defaultdict(list))
    n_bytes: dict[MemberName, float] = field(default_factory=lambda: defaultdict(float))
    cores: dict[MemberName, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory_gb: dict[MemberName, float] = field(default_factory=dict)

    def note(self, event: Mapping[str, Any]) -> None:
        """Add an event of the elastic runtime; events of another host must have been checked before."""
        member = MemberName.of(event.get("name"))
        if member is None:
            return
        if event["event"] == "started":
            self.where[member] = str(event["host"]), int(event["pid"])
        elif event["event"] == "left":
            self.where.pop(member, None)
        elif event["event"] == "stepped":
            self.compute_s[member].append(float(event["compute_s"]))
            self.step_s[member].append(float(event["compute_s"]) + float(event["wait_s"]))
        elif event["event"] == "served":
            self.n_bytes[member] += float(event["bytes"])
            if "update_s" in event:
                self.compute_s[member].append(float(event["update_s"]))
        elif event["event"] == "used":
            self._note_used(member, event)

    def _note_used(self, member: MemberName, event: Mapping[str, Any]) -> None:
        if isinstance(event.get("cores"), int | float):
            self.cores[member].append(float(event["cores"]))
        if isinstance(event.get("memory_gb"), int | float):
            self.memory_gb[member] = float(event["memory_gb"])

    def taken(self) -> dict[tuple[MemberName, Quantity], float]:
        """Return the quantities by (member, Quantity) since the last call, and start anew."""
        quantities = {(m, Quantity.COMPUTE_S): float(np.mean(s)) for m, s in self.compute_s.items() if m in self.where}
        quantities |= {(m, Quantity.STEP_S): float(np.mean(s)) for m, s in self.step_s.items() if m in self.where}
        total = sum(self.n_bytes.values())
        if total > 0:
            quantities |= {(m, Quantity.LOAD): n / total for m, n in self.n_bytes.items() if m in self.where}
        quantities |= {(m, Quantity.CORES): float(np.mean(c)) for m, c in self.cores.items() if m in self.where}
        quantities |= {(m, Quantity.MEMORY_GB): gb for m, gb in self.memory_gb.items() if m in self.where}
        for each in (self.compute_s, self.step_s, self.n_bytes, self.cores, self.memory_gb):
            each.clear()
        return quantities
