"""What a process after this one must know to go on with a run on machines: testbed.json in the run's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from labkit.core.errors import InputError

STATE: Final = "testbed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A run on machines, as it is written down at every decision.

    Attributes
    ----------
    run : str
        Its name on the hosts.
    inventory : str
        The file.
    began_at : float
        When it began, in seconds since 1970.
    training : dict
        See `labkit.testbed.run.training.TrainingTable`.
    lease_s : float
        How long hosts keep it alive without a sign of life from here.
    homes : dict
        Job -> host of its controller, of those that run.
    places : dict
        Job -> device group -> workers and PSs.
    saved : dict
        Job -> steps in a checkpoint.
    ended : bool
        Whether all of it that ran on hosts was ended from here: what goes on has another name there.
    dropped : dict
        Jobs that were given up, by id, and why.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore"}

    run: str
    inventory: str
    began_at: float
    training: dict[str, Any]
    lease_s: float = 600.0
    homes: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    saved: dict[str, float] = field(default_factory=dict)
    ended: bool = False
    dropped: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it into the folder of a run, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{STATE}"
        partial.write_text(json.dumps(asdict(self)))
        partial.rename(folder / STATE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from the folder of a run.

        Raises
        ------
        InputError
            If it is not there, or damaged.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json((folder / STATE).read_bytes())
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
