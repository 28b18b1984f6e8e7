"""A worker or PS of a job, by its name on machines."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from labkit.core.events import Role

MEMBER: Final = re.compile(r"(worker|ps)-(\d{1,9})")


class Member(NamedTuple):
    """A worker or PS of a job."""

    role: Role
    number: int

    @classmethod
    def of(cls, name: object) -> Member | None:
        """Return the member of a name such as worker-3; None: no member has such a name.

        >>> Member.of("ps-2"), Member.of("ps-two")
        (Member(role=<Role.PS: 1>, number=2), None)
        """
        found = MEMBER.fullmatch(str(name))
        if found is None or int(found[2]) > np.iinfo(np.int32).max:
            return None
        return cls(Role.WORKER if found[1] == "worker" else Role.PS, int(found[2]))

    def __str__(self) -> str:
        return f"{'worker' if self.role == Role.WORKER else 'ps'}-{self.number}"
