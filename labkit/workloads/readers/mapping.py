"""What the columns of a table of jobs mean: fields and units, told by a user or kept beside the file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError, TraceError, unknown
from labkit.core.files import refuse_unreadable, write_text
from labkit.core.text import shortened

ENDING: Final = ".labkit.toml"
"""What the file beside a trace is called, after the trace's own name."""

SPANS: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
MOMENTS: Final = {"ns": 1e-9, "us": 1e-6, **SPANS}
AMOUNTS: Final = {"milli": 1e-3, "percent": 1e-2}
SIZES: Final = {
    "bytes": 1e-9,
    "kb": 1e-6,
    "mb": 1e-3,
    "gb": 1.0,
    "tb": 1e3,
    "kib": 2.0**-20,
    "mib": 2.0**-10,
    "gib": 1.0,
}
"""GB in a unit of memory; a GiB counts as a GB, as elsewhere in labkit."""

_SUFFIXES: Final = {
    "ns": "ns", "milli": "milli", "percent": "percent", "pct": "percent",
    "us": "us", "ms": "ms", "millis": "ms", "milliseconds": "ms", "s": "s", "sec": "s", "secs": "s", "seconds": "s",
    "second": "s", "minute": "min", "hour": "h", "d": "days", "day": "days",
    "m": "min", "min": "min", "mins": "min", "minutes": "min", "h": "h", "hr": "h", "hrs": "h", "hours": "h",
    "minuten": "min", "sek": "s", "sekunden": "s", "std": "h", "stunden": "h", "tage": "days",
    "days": "days", "b": "bytes", "bytes": "bytes", "kb": "kb", "mb": "mb", "gb": "gb", "tb": "tb", "kib": "kib",
    "mib": "mib", "gib": "gib",
}  # fmt: skip
_CLOCKS: Final = {
    ("hh", "mm", "ss"): "s", ("h", "mm", "ss"): "s", ("hh", "mm"): "h", ("h", "mm"): "h", ("mm", "ss"): "min",
}  # fmt: skip
"""Forms of spans of time in names of columns, and the unit of a number, or of the first part of two, in them."""
PER: Final = {
    **dict.fromkeys(("node", "host", "machine", "server"), "node"),
    **dict.fromkeys(("instance", "inst", "pod", "worker", "replica", "task", "rank", "process", "proc"), "instance"),
    **dict.fromkeys(("gpu", "card", "device"), "gpu"),
}
"""What an amount may be of, by the word behind "per" in a column's name: of each node, instance or GPU of a job."""

WHOLE: Final = "whole"
"""Says that an amount is the whole job's."""

_SMALL, _LARGE = "a-zß-öø-ÿ", "A-ZÀ-ÖØ-Þ"
_WORD: Final = re.compile(rf"[{_LARGE}]{{2,}}s(?![{_SMALL}])|[{_LARGE}]?[{_SMALL}]+|[{_LARGE}]+(?![{_SMALL}])|\d+")


@dataclass(frozen=True, slots=True)
class Field:
    """Something that a trace may tell of a job.

    Attributes
    ----------
    kind : str
        "moment", "span", "count", "amount", "size" or "name": how its cells are read.
    what : str
        In words.
    names : tuple of str
        What columns are called that mean it, without doubt.
    maybe : tuple of str
        What they are called that may mean it.
    """

    kind: str
    what: str
    names: tuple[str, ...]
    maybe: tuple[str, ...] = ()

    @property
    def units(self) -> Mapping[str, float]:
        """Units that its numbers may be in; the default is "s" or "gb"."""
        return {"moment": MOMENTS, "span": SPANS, "size": SIZES, "amount": AMOUNTS}.get(self.kind, {})


def _named(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(", "))


FIELDS: Final = {
    "arrival": Field(
        "moment", "when it was submitted",
        _named("submit, submit time, submitted, submitted at, submission, submission time, arrival, arrival time, "
               "created, created at, creation time, queued at, enqueue time, gmt create"),
        _named("timestamp, time, date, queued, queued ts, submit ts, submitted ts, enqueued, enqueued at, "
               "requested at, eingereicht, eingereicht am, abgeschickt"),
    ),
    "start": Field(
        "moment", "when it started",
        _named("start, start time, started, started at, begin, begin time, launch time, scheduled time"),
        _named("start ts, started ts, beginn, gestartet"),
    ),
    "end": Field(
        "moment", "when it ended",
        _named("end, end time, ended, ended at, finish, finish time, finished, finished at, completed at, "
               "completion time, stop time, deletion time, deleted, deleted at"),
        _named("end ts, ended ts, finished ts, ende, beendet"),
    ),
    "duration": Field(
        "span", "how long it ran",
        _named("duration, runtime, run time, elapsed, elapsed time, service time, exec time, execution time"),
        _named("walltime, wall time, wallclock, time used, length, wall, laufzeit, dauer, took"),
    ),
    "gpus": Field(
        "amount", "GPUs of the whole job",
        _named("gpus, gpu, num gpus, n gpus, ngpus, gpu num, gpu count, req gpus, alloc gpus, requested gpus, "
               "allocated gpus, gpu request"),
        _named("num gpu, gpus requested, gpus allocated, devices, accelerators, cards, n cards, num cards, gpu cards, "
               "gpu ids, gpu indices, gpu indexes, gpu uuids, world size, num ranks, num acc, num accelerators, "
               "karten, grafikkarten, gres alloc, alloc gres, gres, gres req, req gres, tres alloc, alloc tres"),
    ),
    "gpu_time": Field(
        "span", "GPUs x time of the whole job",
        _named("gpu, gpus, total gpu, total gpus, used gpu, gpu used, alloc gpu, allocated gpu, consumed gpu"),
        _named("gpu time, total gpu time"),
    ),
    "instances": Field(
        "amount", "tasks of the job",
        _named("instances, num instances, n instances, num inst, inst num, replicas, num replicas, n replicas, "
               "workers, num workers, n workers, worker num, worker count, pods, num pods, num tasks, task num, "
               "instance count, inst count, replica count, pod count, task count"),
    ),
    "nodes": Field(
        "amount", "machines of the job",
        _named("nodes, num nodes, n nodes, nnodes, node num, node count, nodes alloc, alloc nodes, nodes used, "
               "num hosts, hosts, host count, machines, num machines, nodes req, nodes requested, req nodes, "
               "requested nodes, nodes allocated, allocated nodes"),
    ),
    "cpus": Field(
        "amount", "cores of the whole job",
        _named("cpus, cpu, num cpus, n cpus, ncpus, cpu num, cpu count, cores, num cores, req cpus, alloc cpus, "
               "num hwthreads"),
    ),
    "memory": Field("size", "memory of the whole job", _named("memory, mem, ram, req mem, memory request")),
    "user": Field(
        "name", "user, team or queue", _named("user, username, user name, owner, submitter"),
        _named("account, team, group, vc, project, tenant, queue, partition, namespace, department"),
    ),
    "model": Field(
        "name", "kind of job", _named("model, model name, job type, workload, workload type"),
        _named("job name, name, jobname, task, framework"),
    ),
    "id": Field("name", "unique name", _named("id, job id, jobid, uuid, id job"), _named("job")),
    "device_type": Field(
        "name", "kind of GPU that it demands",
        _named("requested gpu type, gpu type requested, req gpu type, gpu constraint, gpu spec"), _named("constraint"),
    ),
    "measured_on": Field(
        "name", "kind of GPU that it ran on",
        _named("gpu type, gpu model, device type, gpu name, accelerator type"),
        _named("device, gpu kind, board, card type, card model, accelerator"),
    ),
    "deadline": Field("moment", "when it is due", _named("deadline, ddl, due, due time, due date, due at")),
    "priority": Field("number", "priority, higher is more urgent", _named("priority, prio")),
    "reservation": Field("name", "reservation that it belongs to", _named("reservation, reservation name")),
}  # fmt: skip
"""What may be told of a job, by the name that `--map` takes."""


@dataclass(frozen=True, slots=True)
class FieldSource:
    """Where a field comes from: a column, the unit of its numbers, how sure that is, and what has so much of it.

    `per` is "node", "instance" or "gpu" where the amount is that of each one of the job's; "" or "whole": of the job.
    """

    column: str
    unit: str = ""
    sure: str = "named"
    per: str = ""


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """How a table is read: its separator, and the source of each field."""

    separator: str
    sources: dict[str, FieldSource] = field(default_factory=dict)


def named(text: str) -> dict[str, FieldSource]:
    """Return the sources that a user names: "arrival=submit_time,duration=runtime:min".

    Raises
    ------
    InputError
        If a field or unit is not known, or something else than FIELD=COLUMN or FIELD=COLUMN:UNIT stands there.

    Examples
    --------
    >>> named("duration=run:min")
    {'duration': FieldSource(column='run', unit='min', sure='named', per='')}
    """
    sources: dict[str, FieldSource] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, found, column = (word.strip() for word in part.partition("="))
        if not found or not column:
            raise InputError(f"--map has '{shortened(part)}'; expected FIELD=COLUMN, such as arrival=submit_time.")
        sources[name] = _source(name, column)
    return sources


def _source(name: str, column: str) -> FieldSource:
    if name not in FIELDS:
        raise unknown("field of a trace", name, FIELDS)
    plain, colon, unit = column.rpartition(":")
    units = FIELDS[name].units
    if (
        FIELDS[name].kind in ("amount", "size")
        and plain
        and unit.lower() in (WHOLE, "per_node", "per_instance", "per_gpu")
    ):
        return replace(_source(name, plain), per=unit.lower().removeprefix("per_"))
    if colon and (known := _SUFFIXES.get(unit.lower(), unit.lower())) in units:
        return FieldSource(plain, known)
    if colon and units and plain:
        raise unknown(f"unit of {name}", unit, units)
    return FieldSource(column)


def words_of(column: str) -> tuple[tuple[str, ...], str]:
    """Return the words of a column's name without its unit, and the unit; "" if it has none.

    >>> words_of("runTime_min"), words_of("Submit Time"), words_of("Duration (hh:mm)")
    ((('run', 'time'), 'min'), (('submit', 'time'), ''), (('duration',), 'h'))
    """
    words = tuple(word.lower() for word in _WORD.findall(column.replace("/", " per ")))
    for clock, unit in _CLOCKS.items():
        if words[-len(clock) :] == clock and len(words) > len(clock):
            return words[: -len(clock)], unit
    unit = _SUFFIXES.get(words[-1], "") if len(words) > 1 else ""
    return (words[:-1], unit) if unit else (words, "")


def per_of(words: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return words without "per node" or the like, and what the amount is told of; "" where they say none.

    >>> per_of(("gpus", "per", "node"))
    (('gpus',), 'node')
    """
    place = words.index("per") if "per" in words[:-1] else len(words)
    found = PER.get(words[place + 1].removesuffix("s"), "") if place < len(words) else ""
    return ((*words[:place], *words[place + 2 :]), found) if found and len(words) > 2 else (words, "")


_NO_AMOUNT: Final = frozenset(
    {"util", "utilization", "utilisation", "usage", "used", "time", "hour", "hours", "seconds", "power", "temp", "type",
     "model", "name", "id", "ids", "index", "cost", "price", "energy", "quota", "wrapper", "average", "avg", "mean",
     "peak", "load", "bw", "bandwidth", "clock", "freq"}
)  # fmt: skip
"""Words of columns that tell something of GPUs, cores or memory, but not how many of them a job has."""
_NO_GPUS: Final = frozenset({"memory", "mem", "vram", "ram", "eff", "efficiency"})
"""Words of columns that tell something else of GPUs than their number, where they are no amount of memory."""


_OF_GPUS: Final = frozenset({"gpu", "gpus", "vram", "device", "card", "accelerator"})
"""Words of columns whose memory is that of GPUs, not of hosts."""


def sureness(name: str, column: str) -> str:
    """Return how sure a column's name means a field: "sure", "likely", or "" for not at all."""
    spec, (apart, unit) = FIELDS[name], words_of(column)
    if name == "gpus" and _NO_GPUS.intersection(apart):
        return ""
    if name == "memory" and _OF_GPUS.intersection(per_of(apart)[0]):
        return ""
    if name == "gpu_time":
        words = " ".join(apart)
        return "sure" if unit in SPANS and words in spec.names else "likely" if words in spec.maybe else ""
    if spec.kind in ("amount", "size") and (unit in SPANS or (_NO_AMOUNT.intersection(apart) and not lists(column))):
        return ""
    words = " ".join(per_of(apart)[0] if spec.kind in ("amount", "size") else apart)
    plain = words.replace(" ", "")
    if words in spec.names or plain in {known.replace(" ", "") for known in spec.names}:
        return "sure"
    if words in spec.maybe or any(f" {known} " in f" {words} " for known in spec.names if len(known) > 2):
        return "likely"
    return ""


def lists(column: str) -> bool:
    """Return whether a column lists GPUs by the words of its name, so that their number is that of its items."""
    return words_of(column)[0][-2:] in {("gpu", word) for word in ("ids", "indices", "indexes", "uuids")}


def sidecar(path: str | Path) -> Path:
    """Return the file beside a trace that says how it is read."""
    return Path(f"{path}{ENDING}")


def keep(mapping: ColumnMap, path: str | Path) -> Path:
    """Write how a trace is read beside it; nothing half-written is ever seen."""
    lines = [
        f"# How labkit reads {json.dumps(Path(path).name)}: made by `labkit traces import`, and free to be changed.",
        f"separator = {json.dumps(mapping.separator)}",
        "",
        "[columns]",
        *(f"{name} = {json.dumps(source.column, ensure_ascii=False)}" for name, source in mapping.sources.items()),
        "",
        "[units]",
        *(f"{name} = {json.dumps(source.unit)}" for name, source in mapping.sources.items() if source.unit),
        "",
        "[per]",
        *(f"{name} = {json.dumps(source.per)}" for name, source in mapping.sources.items() if source.per),
    ]
    map_path = sidecar(path)
    write_text(map_path, "\n".join(lines) + "\n")
    return map_path


def stored_mapping(path: str | Path) -> ColumnMap:
    """Return how a trace is read, as the file beside it says.

    Raises
    ------
    TraceError
        If there is none, or it is not as `keep` writes it.
    """
    map_path = sidecar(path)
    again = f"Make it anew: labkit traces import {path}"
    refuse_unreadable(map_path, expected="a mapping of columns", error=TraceError)
    try:
        content = tomllib.loads(map_path.read_text("utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: nothing says what its columns mean. Tell it: labkit traces import {path}") from None
    except OSError as error:
        raise TraceError(f"{map_path}: {error.strerror or error}. {again}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{map_path} is not TOML ({error}). {again}") from None
    separator, columns = content.get("separator", ","), content.get("columns")
    units, pers = content.get("units", {}), content.get("per", {})
    if not _strings(columns) or not columns or not _strings(units) or not _strings(pers):
        raise TraceError(f"{map_path}: expected tables [columns], [units] and [per] of names. {again}")
    if not isinstance(separator, str) or len(separator) != 1:
        raise TraceError(f"{map_path}: separator is {separator!r}; expected one character. {again}")
    return ColumnMap(separator, _checked(columns, units, pers, map_path, again))


def _checked(
    columns: Mapping[str, str], units: Mapping[str, str], pers: Mapping[str, str], map_path: Path, again: str
) -> dict[str, FieldSource]:
    for name in (*columns, *units, *pers):
        if name not in FIELDS:
            raise TraceError(f"{map_path}: {unknown('field of a trace', name, FIELDS)} {again}")
    for name, unit in units.items():
        if unit not in FIELDS[name].units:
            raise TraceError(f"{map_path}: {unknown(f'unit of {name}', unit, FIELDS[name].units or ['none'])} {again}")
    for name, per in pers.items():
        if per not in {WHOLE, *PER.values()}:
            raise TraceError(
                f"{map_path}: {unknown(f'per of {name}', per, [WHOLE, *dict.fromkeys(PER.values())])} {again}"
            )
    return {name: FieldSource(column, units.get(name, ""), per=pers.get(name, "")) for name, column in columns.items()}


def _strings(table: object) -> bool:
    return isinstance(table, dict) and all(isinstance(value, str) for value in table.values())


def lacking(sources: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of which some would tell what is not known of jobs: arrival, duration, GPUs."""
    names = set(sources)
    when = names & {"arrival", "start"}
    lasted = names & {"duration"} or names >= {"start", "end"} or names >= {"gpu_time", "gpus"}
    gpus = names & {"gpus", "gpu_time"}
    fields = (*(() if when else ("arrival", "start")), *(() if lasted else ("duration", "start", "end")))
    return tuple(dict.fromkeys((*fields, *(() if gpus else ("gpus",)))))


def refuse_unfit(
    sources: Iterable[str], columns: Sequence[str], path: object, *, odd: Mapping[str, str] | None = None
) -> None:
    """Raise if what has to be known of a job has no column; `odd` says what was not understood, by field.

    Raises
    ------
    InputError
        With the columns that there are.
    """
    absent, there = lacking(sources), ", ".join(columns)

    def why(*fields: str) -> str:
        found = [(odd or {})[name] for name in fields if name in (odd or {})]
        return f" ({'; '.join(found)})" * bool(found)

    if "arrival" in absent:
        raise InputError(
            f"{path}: no column shows when jobs were submitted{why('arrival', 'start')}; name it: --map "
            f"arrival=COLUMN. There are: {there}."
        )
    if "duration" in absent:
        raise InputError(
            f"{path}: no column shows how long jobs ran{why('duration', 'start', 'end')}; name it: --map "
            f"duration=COLUMN, or start=COLUMN,end=COLUMN. There are: {there}."
        )
