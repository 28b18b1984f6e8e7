"""What the GPUs of a device type are: their memory, whether tasks share one, and the slice of a GPU that MIG made.

A slice is a GPU to all that place tasks: it has a device type of its own, "a100-2g.10gb", and a task that takes it, or
a part of it, sits in a device group of that type. Slices are made before a run and stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final

from labkit.core.errors import InputError, unknown

_PROFILE: Final = re.compile(r"(\d)g\.(\d+)gb")


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What is known of the GPUs of a device type.

    Attributes
    ----------
    memory_gb : float
        Of one GPU, or slice; NaN: not known. A part of it has as large a part of its memory.
    exclusive : bool
        A GPU belongs to one task: tasks that take a part of one are not placed there.
    profile : str
        The profile of MIG of which the type's slices are, as "2g.10gb"; "": whole GPUs.
    """

    memory_gb: float = nan
    exclusive: bool = False
    profile: str = ""


@dataclass(frozen=True, slots=True)
class SliceableGpu:
    """A GPU that MIG can cut: its slices of compute and of memory, and how many of the latter each profile takes."""

    name: str
    memory_gb: int
    compute: int
    memory: int
    profiles: dict[str, int]

    def adds_up(self, profiles: Sequence[str]) -> bool:
        """Return whether one such GPU has slices of all these profiles at once."""
        return self.needed(profiles)[0] <= self.compute and self.needed(profiles)[1] <= self.memory

    def needed(self, profiles: Sequence[str]) -> tuple[int, int]:
        """Return the slices of compute and of memory that profiles take together."""
        return sum(map(compute_of, profiles)), sum(self.profiles[name] for name in profiles)


def _of_seven(name: str, memory_gb: int, sizes: Sequence[int]) -> SliceableGpu:
    """Return a card of 7 slices of compute and 8 of memory; `sizes`: GB of 1, 2, 4 and 8 slices of memory."""
    one, two, four, all_ = sizes
    profiles = {f"1g.{one}gb": 1, f"1g.{two}gb": 2, f"2g.{two}gb": 2, f"3g.{four}gb": 4, f"4g.{four}gb": 4}
    return SliceableGpu(name, memory_gb, 7, 8, profiles | {f"7g.{all_}gb": 8})


CARDS: Final = (
    SliceableGpu("A30", 24, 4, 4, {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}),
    _of_seven("A100 40GB", 40, (5, 10, 20, 40)),
    _of_seven("A100 and H100 80GB", 80, (10, 20, 40, 80)),
    _of_seven("H200", 141, (18, 35, 71, 141)),
)
"""The GPUs that can be cut, with NVIDIA's profiles [1]_; those with media extensions (+me) take as much.

.. [1] NVIDIA, "Multi-Instance GPU user guide", Supported MIG profiles,
   docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
"""

NEVER_CUT: Final = frozenset({"k80", "p4", "p40", "p100", "v100", "t4", "a10", "a16", "a40", "l4", "l40", "l40s"})
"""GPUs of NVIDIA without MIG."""


def compute_of(profile: str) -> int:
    """Return the slices of compute of a profile.

    >>> compute_of("3g.20gb")
    3
    """
    return int(profile[0])


def memory_of(profile: str) -> float:
    """Return the GB of a profile.

    >>> memory_of("3g.20gb")
    20.0
    """
    found = _PROFILE.fullmatch(profile)
    assert found is not None
    return float(found[2])


def refuse_geometry(profiles: Sequence[str], *, memory_gb: float = nan, device_type: str = "", where: str) -> None:
    """Raise if no GPU can be cut into slices of these profiles at once.

    >>> refuse_geometry(["3g.20gb", "2g.10gb", "2g.10gb"], where="host a")

    Parameters
    ----------
    memory_gb : float
        Of the GPU; NaN: any that has these profiles.
    device_type : str
        Of the GPU; where it names one of `CARDS`, the profiles are that one's.
    where : str
        Begins the message.

    Raises
    ------
    InputError
        If MIG does not cut such a GPU, a profile is not known there, or they do not add up; the message counts their
        slices.
    """
    words = set(re.findall(r"[a-z]+\d+[a-z]*", device_type.casefold()))
    if words & NEVER_CUT:
        raise InputError(
            f"{where}: MIG cuts no {device_type}; expected one of {', '.join(card.name for card in CARDS)}."
        )
    named = [card for card in CARDS if words & set(card.name.casefold().split())] or CARDS
    cards = [card for card in named if isnan(memory_gb) or card.memory_gb == memory_gb]
    if not cards:
        told = ", ".join(f"{card.memory_gb} ({card.name})" for card in named)
        raise InputError(f"{where}: gpu_memory_gb is {memory_gb:g}; MIG cuts GPUs with {told} GB.")
    known = list(dict.fromkeys(name for card in cards for name in card.profiles))
    if odd := next((name for name in profiles if name not in known), None):
        raise unknown(f"MIG profile of {where}", odd, known)
    whole = [card for card in cards if all(name in card.profiles for name in profiles)]
    if any(card.adds_up(profiles) for card in whole):
        return
    asked = " + ".join(profiles)
    if not whole:
        raise InputError(f"{where}: no GPU has all of the MIG profiles {asked}; expected those of one GPU.")
    compute, memory = whole[-1].needed(profiles)
    raise InputError(
        f"{where}: the MIG profiles {asked} do not add up: {compute} slices of compute and {memory} of memory on one "
        f"GPU ({whole[-1].name}); expected at most {whole[-1].compute} and {whole[-1].memory}."
    )


def slices_of(
    sockets: Sequence[tuple[float, float, float]], profiles: Sequence[str], device_type: str
) -> list[tuple[tuple[float, float, float], str]]:
    """Return the device groups of a machine whose GPUs are all cut alike, with the device type of each.

    Cores and memory of a socket go to its slices in proportion to their compute.

    >>> slices_of([(2, 14, 70)], ["4g.20gb", "3g.20gb"], "a100")
    [((2, 8.0, 40.0), 'a100-4g.20gb'), ((2, 6.0, 30.0), 'a100-3g.20gb')]
    """
    total = sum(map(compute_of, profiles))
    parts = [(name, n, n * compute_of(name) / total) for name, n in Counter(profiles).items()]
    return [
        ((gpus * n, cpus * part, memory_gb * part), f"{device_type}-{name}")
        for gpus, cpus, memory_gb in sockets
        for name, n, part in parts
    ]
