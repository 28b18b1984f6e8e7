"""The files of a run: written under another name, synced and renamed; events as columns; one writer, by a lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from labkit.core.below import read_plain
from labkit.core.calls import python_value
from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError
from labkit.core.events import LATER, NAMED, PLAIN, Events, events, names, positions
from labkit.core.files import write_atomically, write_text
from labkit.core.gpu_kinds import GpuKind
from labkit.core.jobs import Jobs
from labkit.core.parquet import ForeignError, ParquetError, Texts, decode, decode_frame, encode, encode_frame
from labkit.core.resources import RESOURCES
from labkit.core.text import odd_name, shortened
from labkit.results.record import RUN_ID, RunInfo, RunState
from labkit.system.printing import printable
from labkit.topology.single_switch import star

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
    texts = (
        jobs.id, jobs.models, jobs.users, jobs.device_type, jobs.measured_on, jobs.reservation, jobs.partitions,
        jobs.constraint, jobs.after, jobs.array, jobs.qos, jobs.recorded_hosts, [jobs.name],
    )  # fmt: skip
    if odd := odd_name(text for column in texts for text in column):
        raise InputError(f"{path} has the name '{odd}'; expected names without control characters.")
    return jobs


def write_info(path: Path, info: RunInfo) -> None:
    """Write the row of a run; what JSON cannot hold is written as its text."""
    row = asdict(info) | {"wall_s": None if np.isnan(info.wall_s) else info.wall_s}
    write_text(path, json.dumps(row, indent=1, default=_as_json, ensure_ascii=False) + "\n")


def _as_json(value: object) -> object:
    """Return a number of numpy's as Python's own, and the text of anything else."""
    own = python_value(value)
    return own if isinstance(own, str | int | float | bool) else str(value)


def read_info(path: Path) -> RunInfo:
    """Read the row of a run; entries of a newer labkit are left out.

    A run's id is the name of its folder: a copy under another name is another run.
    """
    row = _read_json(path)
    known = {field.name for field in fields(RunInfo)}
    known_fields = {key: value for key, value in row.items() if key in known}
    try:
        known_fields["state"] = RunState(row.get("state", "done"))
        known_fields["wall_s"] = float("nan") if row.get("wall_s") is None else float(row["wall_s"])
        info = RunInfo(**known_fields)
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


MASKS: Final = ("partitions", "features")
"""Fields of a cluster that name some of its machines."""


def write_cluster(path: Path, cluster: Cluster) -> None:
    """Write a cluster; of its network only the links of a single switch, as machines over SSH have."""
    columns = {field.name: getattr(cluster, field.name) for field in fields(Cluster) if field.name != "network"}
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns.items()}
    for key in MASKS:
        plain[key] = {name: np.flatnonzero(hosts).tolist() for name, hosts in getattr(cluster, key).items()}
    if cluster.network is not None and cluster.network.kind == "single_switch":
        upwards = cluster.network.link_from < cluster.n_machines
        plain["links_gbps"] = cluster.network.link_gbps[upwards].tolist()
    if kinds := plain.pop("gpu_kinds"):
        plain["gpu_kinds"] = {
            name: {key: value for key, value in asdict(kind).items() if value and value == value}
            for name, kind in kinds.items()
        }
    write_text(path, json.dumps(plain, ensure_ascii=False) + "\n")


def read_cluster(path: Path) -> Cluster:
    """Read the cluster of a run, without its network unless that is a single switch."""
    row = _read_json(path)
    for key in (*MASKS, "gpu_kinds"):
        if not isinstance(value := row.get(key, {}), dict):
            what = f"{key} is {value!r:.60}; expected an object with a value for each name"
            raise InputError(f"{path} does not describe a cluster: {what}.")
    types: dict[str, Any] = {"group_machine": np.int32, "group_type": np.int32, "partition": np.int32}
    types |= dict.fromkeys(("capacity", "group_pcie_gbps", "machine_socket_gbps"), np.float64)
    try:
        arrays: dict[str, Any] = {name: np.array(row[name], dtype=dtype) for name, dtype in types.items()}
        machines, kinds = (tuple(map(str, row[name])) for name in ("machines", "device_types"))
        for key in MASKS:
            arrays[key] = {str(n): np.isin(np.arange(len(machines)), hosts) for n, hosts in row.get(key, {}).items()}
        arrays["gpu_kinds"] = {str(name): GpuKind(**kind) for name, kind in row.get("gpu_kinds", {}).items()}
        cluster = Cluster(name=str(row["name"]), machines=machines, device_types=kinds, **arrays)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} does not describe a cluster: {printable(str(error))}.") from error
    if fault := _fault_of(cluster):
        raise InputError(f"{path} does not describe a cluster: {fault}.")
    return cluster if "links_gbps" not in row else replace(cluster, network=_star(path, row["links_gbps"], cluster))


def _star(path: Path, links_gbps: Any, cluster: Cluster) -> Network:
    """Return the network of machines on one switch, from the bandwidth of each one's link."""
    m = cluster.n_machines
    try:
        gbps = np.array(links_gbps, dtype=np.float64)
    except (TypeError, ValueError):
        gbps = np.empty(0)
    if gbps.shape != (m,) or not (np.isfinite(gbps) & (gbps > 0)).all():
        raise InputError(f"{path} does not describe a cluster: links_gbps is no list of {m} bandwidths above 0.")
    return star(m, gbps=gbps)


def _fault_of(cluster: Cluster) -> str:
    """Return the fault of a cluster, "" if it has none."""
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
    reasons = _json(path)
    if not (isinstance(reasons, list) and all(isinstance(text, str) for text in reasons)):
        raise InputError(f"{path} does not hold reasons; expected a list of texts.")
    return reasons


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


LOCK: Final = ".writer"
LOOKED_S: Final = 1.0
"""A process that only looks whether there is a writer holds the lock for a moment."""

_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """The right to write a run, from now until `release` or the end of this process.

    The kernel keeps it (flock), so that of a killed process is free at once. A process that is only stopped has it. The
    process that holds it is written inside, for people. Raise InputError if another process, or another part of this
    one, writes the run: which, and how to watch it.

    `folder`: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        _locks.add(self)
        try:
            if not _taken(self.file):
                raise InputError(_refusal(folder))
            os.ftruncate(self.file, 0)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            me = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            os.pwrite(self.file, json.dumps(me).encode(), 0)
        except BaseException:
            self.release()
            raise

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.release()

    def release(self) -> None:
        """Let others write; twice is as good as once."""
        _locks.discard(self)
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _forget_in_child() -> None:
    """Hold nothing in a forked child: it may outlive the writer, and writes nothing."""
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)


def _taken(file: int) -> bool:
    until_s = time.monotonic() + LOOKED_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        else:
            return True


def writer_of(folder: Path) -> dict[str, Any] | None:
    """Return the process that writes a run (pid, host, since); None where none does."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None  # never written by a labkit with locks, or not ours to read
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _writer_info(file)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(file)
    return None


def _writer_info(file: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        content = json.loads(os.pread(file, 1 << 12, 0))
        if isinstance(content, dict):
            return content
    return {}


def _refusal(folder: Path) -> str:
    by = writer_of(folder) or {}
    return (
        f"run '{folder.name}' is being written by process {by.get('pid', '?')} on {by.get('host', '?')} since "
        f"{by.get('since', '?')}; watch it with: labkit watch {folder}."
    )


Columns = Mapping[str, NDArray[Any] | Texts]


def to_columns(rows: Events) -> dict[str, NDArray[Any] | Texts]:
    """Return the fields of `EVENT`; kind, role, quantity and cause by name."""
    columns: dict[str, NDArray[Any] | Texts] = {name: np.ascontiguousarray(rows[name]) for name in PLAIN}
    for name, enum in NAMED.items():
        columns[name] = Texts(positions(np.ascontiguousarray(rows[name]), enum), names(enum))
    return {name: columns[name] for name in rows.dtype.names or ()}


def from_columns(columns: Columns, *, source: str) -> Events:
    """Return the events of `to_columns`.

    Raise InputError if a column is missing or holds something else, or a kind is not known; the message names `source`.
    """
    missing = [name for name in (*PLAIN, *NAMED) if name not in (*columns, *LATER)]
    if missing:
        raise InputError(f"{source}: column '{missing[0]}' is missing; is it an event table of labkit?")
    present = [name for name in (*PLAIN, *NAMED) if name in columns]
    for name in present:
        column = columns[name]
        kind = "text" if isinstance(column, Texts) else column.dtype.kind
        if kind not in ({"text"} if name in NAMED else {"f", "i"}):
            raise InputError(f"{source}: column '{name}' has another type; is it an event table of labkit?")
    first = columns[present[0]]
    rows = events(len(first))
    for name in present:
        column = columns[name]
        rows[name] = _codes(column, NAMED[name], source=source) if isinstance(column, Texts) else column
    return rows


def refuse_odd_rows(rows: Events, *, jobs: Jobs, cluster: Cluster, source: str) -> None:
    """Raise if events have times that are no numbers, or name jobs or machines that a run does not have.

    Raise InputError with the first such event.
    """
    limits = {"job": len(jobs), "partner": len(jobs), "machine": cluster.n_machines, "group": cluster.n_groups}
    checks = {name: (rows[name] < -1) | (rows[name] >= n) for name, n in limits.items()}
    checks["time_s"] = ~np.isfinite(rows["time_s"])
    for name, wrong in checks.items():
        if wrong.any():
            at = int(np.argmax(wrong))
            expected = "seconds" if name == "time_s" else f"-1 to {limits[name] - 1}"
            raise InputError(f"{source}: event {at} has the {name} {rows[name][at]:g}; expected {expected}.")


def _codes(column: Texts, enum: type[IntEnum], *, source: str) -> NDArray[np.int8]:
    """Return the numbers behind names, -1 for none; the file may list the names in another order."""
    number = {member.name.lower(): int(member) for member in enum}
    foreign = [name for name in column.names if name not in number]
    if foreign:
        raise InputError(
            f"{source}: {enum.__name__.lower()} {shortened(foreign[0])!r} is not known; it is of a newer labkit."
        )
    codes: NDArray[np.int8] = np.array([*(number[name] for name in column.names), -1], dtype=np.int8)[column.codes]
    return codes
