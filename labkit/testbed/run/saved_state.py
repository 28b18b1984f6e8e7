"""The state that a later process needs to continue a run on machines: testbed.json in the run's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from labkit.core.below import Below, read_plain
from labkit.core.errors import InputError

if TYPE_CHECKING:
    from pydantic import ConfigDict

STATE: Final = "testbed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """State of a run on machines, written at every decision."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "ignore"}

    run: str
    """Its name on the hosts."""
    inventory: str
    """Path of the inventory's file."""
    began_at: float
    """When it began, in seconds since 1970."""
    training: dict[str, Any]
    """See `labkit.testbed.run.training.TrainingTable`."""
    lease_s: float = 600.0
    """Seconds a host keeps the run alive without a heartbeat from this process."""
    homes: dict[str, str] = field(default_factory=dict)
    """Job that runs -> host of its controller."""
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Job -> device group -> workers and PSs."""
    saved: dict[str, float] = field(default_factory=dict)
    """Job -> updates that a checkpoint keeps."""
    ended: bool = False
    """Whether its processes on hosts were ended: a continued run has another name there."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Id of each job that was given up -> why."""
    fence: str = ""
    """Its first name on the hosts, by which their agents know which process drives it; empty: `run`."""
    generation: int = 0
    """Of the process that wrote this: that of who takes the run over is higher."""

    def write(self, folder: Path) -> None:
        """Write it into the folder of a run, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = f".{STATE}"
        with Below(folder) as below:
            below.remove(partial)
            with below.file(partial, mode=0o644) as file:
                file.write(json.dumps(asdict(self)).encode())
            below.rename(partial, to=STATE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from the folder of a run; InputError if it is not there, or damaged."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json(read_plain(folder / STATE))
        except FileNotFoundError:
            raise InputError(
                f"run '{folder.name}' did not run on a testbed, or was cut off before anything began there: it has no "
                f"{STATE}."
            ) from None
        except ValidationError as error:
            fault = error.errors()[0]
            raise InputError(
                f"{folder / STATE} is damaged ({'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}); the "
                "run cannot go on. Its record can still be read: labkit report."
            ) from None
