"""The files of a run: each is written under another name, synced and renamed, and read with errors that name it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from labkit.core.below import read_plain
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.parquet import ForeignError, ParquetError, decode, decode_frame, encode, encode_frame
from labkit.core.resources import RESOURCES
from labkit.core.text import odd_name
from labkit.results.record import RUN_ID, RunInfo, RunState
from labkit.results.table import from_columns, to_columns
from labkit.system.printing import printable

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
NAME_KEY = "labkit.name"


_KINDS: dict[str, type] = {
    **dict.fromkeys(("run", "scheduler", "backend", "cluster", "trace", "commit", "host", "command", "started"), str),
    **dict.fromkeys(("config", "versions", "dropped"), dict), "seed": int,
}  # fmt: skip


class MissingError(InputError):
    """A file of a run is not there."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, sync it, and rename it to `path`; no link is followed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        temporary.unlink()
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file or nothing."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_events(path: Path, rows: Events) -> None:
    """Write one part of the event table."""
    _write_bytes(path, encode(to_columns(rows)))


def read_events(path: Path) -> Events:
    """Read one part of the event table."""
    return from_columns(_read(path, decode)[0], source=str(path))


def write_frame(path: Path, frame: pd.DataFrame, *, name: str) -> None:
    """Write a table together with a name of what it holds."""
    _write_bytes(path, encode_frame(frame, notes={NAME_KEY: name}))


def read_jobs(path: Path) -> Jobs:
    """Read the jobs of a run."""
    frame, notes = _read(path, decode_frame)
    try:
        jobs = Jobs.from_frame(frame, name=notes.get(NAME_KEY, "jobs"))
    except InputError as error:
        raise InputError(f"{path}: {printable(str(error))}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} does not hold jobs: {printable(str(error))}.") from error
    texts = (jobs.id, jobs.models, jobs.users, jobs.device_type, jobs.measured_on, jobs.reservation, [jobs.name])
    if odd := odd_name(text for column in texts for text in column):
        raise InputError(f"{path} has the name '{odd}'; expected names without control characters.")
    return jobs


def write_info(path: Path, info: RunInfo) -> None:
    """Write the row of a run; what JSON cannot hold is written as its text."""
    row = asdict(info) | {"wall_s": None if np.isnan(info.wall_s) else info.wall_s}
    write_text(path, json.dumps(row, indent=1, default=str, ensure_ascii=False) + "\n")


def read_info(path: Path) -> RunInfo:
    """Read the row of a run; entries of a newer labkit are left out.

    A run's id is the name of its folder: a copy under another name is another run.
    """
    row = _read_json(path)
    known = {field.name for field in fields(RunInfo)}
    given = {key: value for key, value in row.items() if key in known}
    try:
        given["state"] = RunState(row.get("state", "done"))
        given["wall_s"] = float("nan") if row.get("wall_s") is None else float(row["wall_s"])
        info = RunInfo(**given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} does not describe a run: {printable(str(error))}.") from error
    if odd := next((name for name, kind in _KINDS.items() if not isinstance(getattr(info, name), kind)), None):
        raise InputError(f"{path}: {odd} is {getattr(info, odd)!r:.60}; expected another kind of value.")
    if odd_text := odd_name((info.scheduler, info.trace, info.cluster, info.backend, info.host, *info.dropped)):
        raise InputError(f"{path} has the name '{odd_text}'; expected names without control characters.")
    folder = path.absolute().parent.name
    run = folder if RUN_ID.fullmatch(folder) else info.run
    if not RUN_ID.fullmatch(run):
        raise InputError(f"{path} names the run '{printable(run)}'; expected letters, digits, '.', '_', '+' and '-'.")
    return replace(info, run=run)


def write_cluster(path: Path, cluster: Cluster) -> None:
    """Write a cluster without its network."""
    columns = {field.name: getattr(cluster, field.name) for field in fields(Cluster) if field.name != "network"}
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns.items()}
    write_text(path, json.dumps(plain, ensure_ascii=False) + "\n")


def read_cluster(path: Path) -> Cluster:
    """Read the cluster of a run, without its network."""
    row = _read_json(path)
    types: dict[str, Any] = {"group_machine": np.int32, "group_type": np.int32, "partition": np.int32}
    types |= dict.fromkeys(("capacity", "group_pcie_gbps", "machine_socket_gbps"), np.float64)
    try:
        arrays: dict[str, Any] = {name: np.array(row[name], dtype=dtype) for name, dtype in types.items()}
        machines, kinds = (tuple(map(str, row[name])) for name in ("machines", "device_types"))
        cluster = Cluster(name=str(row["name"]), machines=machines, device_types=kinds, **arrays)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} does not describe a cluster: {printable(str(error))}.") from error
    if fault := _fault_of(cluster):
        raise InputError(f"{path} does not describe a cluster: {fault}.")
    return cluster


def _fault_of(cluster: Cluster) -> str:
    """Return what is wrong with a cluster, "" if nothing is."""
    m, g = cluster.n_machines, len(cluster.group_machine) if cluster.group_machine.ndim else 0
    shapes = {
        "group_machine": (g,), "group_type": (g,), "capacity": (g, len(RESOURCES)), "group_pcie_gbps": (g,),
        "machine_socket_gbps": (m,), "partition": (m,),
    }  # fmt: skip
    for name, shape in shapes.items():
        column = getattr(cluster, name)
        if column.shape != shape or not (column >= 0).all():
            return f"{name} has the shape {column.shape}, or amounts below 0; expected {shape}"
    if not (m and g and np.isfinite(cluster.capacity).all()):
        return "it has no machines, no device groups, or no finite capacity"
    if cluster.group_machine.max() >= m or (np.diff(cluster.group_machine) < 0).any():
        return "group_machine names machines that there are none of, or not in their order"
    if cluster.group_type.max() >= len(cluster.device_types):
        return "group_type names device types that there are none of"
    if odd := odd_name((cluster.name, *cluster.machines, *cluster.device_types)):
        return f"the name '{odd}' has control characters"
    return ""


def write_reasons(path: Path, reasons: Sequence[str]) -> None:
    """Write why decisions changed jobs: the texts that events name by number."""
    write_text(path, json.dumps(list(reasons), indent=0, ensure_ascii=False) + "\n")


def read_reasons(path: Path) -> list[str]:
    """Read why decisions changed jobs; none where the run has no such file, as no reason was given."""
    if not os.path.lexists(path):
        return []
    told = _json(path)
    if not (isinstance(told, list) and all(isinstance(text, str) for text in told)):
        raise InputError(f"{path} does not hold reasons; expected a list of texts.")
    return told


def _json(path: Path) -> Any:
    try:
        data = read_plain(path)
        value = json.loads(data.decode())
        if b"\\ud" in data.lower():  # half of a pair stands for no letter, and cannot be written again
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise InputError(f"{path} is missing; the folder is not a whole run.") from None
    except InputError:  # it is no plain file
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); the run cannot be read.") from error


def _read_json(path: Path) -> dict[str, Any]:
    row = _json(path)
    if not isinstance(row, dict):
        raise InputError(f"{path} holds a {type(row).__name__}; expected an object.")
    return row


def _write_bytes(path: Path, data: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def _read(path: Path, decoder: Callable[[bytes], T]) -> T:
    try:
        return decoder(read_plain(path))
    except FileNotFoundError:
        raise MissingError(f"{path} is missing; the folder is not a whole run.") from None
    except ForeignError as error:
        raise InputError(f"{path}: {error}.") from None
    except (ParquetError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as Parquet ({error}); it is cut short or damaged. "
            "Take it from a copy, or run again."
        ) from error
