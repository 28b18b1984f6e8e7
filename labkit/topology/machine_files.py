"""Machines, read from what clusters print of themselves: Slurm, Kubernetes, and node tables of public traces."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.device_names import (
    MIG_RESOURCE,
    SLICE,
    TYPE_LABELS,
    counted,
    counting,
    device_counts,
    is_known,
    part_by_labels,
    quantity,
    requested_gpus,
    slice_of,
    whole_type,
)
from labkit.core.errors import InputError
from labkit.core.files import refuse_unreadable
from labkit.core.host_names import listed
from labkit.core.resources import Bools
from labkit.core.text import shortened
from labkit.core.totals import totals

EXPECTED: Final = (
    "what `scontrol show node`, `scontrol show partition`, `sinfo -N -o '%N|%P|%t|%c|%m|%G|%f'`, `sinfo --json` or "
    "`kubectl get nodes -o json` prints, or a CSV of nodes with a header (name, gpus, gpu_type, cpus, memory_gb)"
)
CORES_PER_GPU: Final = 16.0
MEMORY_GB_PER_GPU: Final = 128.0
"""What a host is taken to have where its file does not tell."""


@dataclass(frozen=True, slots=True)
class ListedHost:
    """A host as a cluster tells of it.

    Attributes
    ----------
    name : str
        Its name.
    gpus : dict
        GPUs by type; slices of MIG count by their sevenths.
    cpus, memory_gb : float
        NaN where not told.
    partitions, features, taints : tuple of str
        As the cluster names them.
    down : str
        The state in which no job can start on it; "": it can be used.
    devices : tuple of str
        Resources that look like devices and are not known as GPUs.
    bare : bool
        Only its name and partitions are told, not what it has.
    divided : bool
        It lists parts of its GPUs as GPUs, as time slicing does.
    total : bool
        It is no host, but a row that sums up others.
    """

    name: str
    gpus: Mapping[str, float]
    cpus: float = math.nan
    memory_gb: float = math.nan
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    down: str = ""
    devices: tuple[str, ...] = ()
    bare: bool = False
    divided: bool = False
    total: bool = False

    def joined(self, other: ListedHost) -> ListedHost:
        """Return the host with what another file, or another row, tells of it."""
        known, more = (other, self) if self.bare else (self, other)
        both: dict[str, Any] = {
            key: tuple(dict.fromkeys((*getattr(known, key), *getattr(more, key))))
            for key in ("partitions", "features", "taints", "devices")
        }
        return replace(known, down=known.down or more.down, **both)


def machines(files: Sequence[str | Path], *, devices: str = "") -> list[ListedHost]:
    """Return the hosts that some files tell of, each once, in order.

    `devices`: what counts as GPUs beside them, as `labkit.core.device_names.device_counts` reads it.

    Raises
    ------
    InputError
        If a file is none of what is expected, or tells of hosts whose GPUs no file tells.
    """
    found: dict[str, ListedHost] = {}
    with counting(device_counts(devices)):
        for file in files:
            for one in _read(Path(file), known=tuple(found)):
                found[one.name] = found[one.name].joined(one) if one.name in found else one
    if not found:
        raise InputError(f"{files[0]} has no hosts; expected {EXPECTED}.")
    if bare := [one.name for one in found.values() if one.bare]:
        raise InputError(
            f"{shortened(', '.join(map(str, files)))} does not show what {bare[0]} and {len(bare) - 1} other hosts "
            "have; give what `scontrol show node`, or sinfo with %G, prints beside it."
        )
    return list(found.values())


def inventory(hosts: Sequence[ListedHost], *, source: str, every: bool = False) -> tuple[str, list[str]]:
    """Return the inventory of some machines, as TOML, and what is to be known of it, a sentence each.

    `every` keeps hosts that are down or have no GPUs, too.

    Raises
    ------
    InputError
        If none is left.
    """
    kept, notes = _usable([one for one in hosts if not one.total], every=every)
    if not kept:
        raise InputError(
            f"{source}: no host is left that has GPUs and can be used ({'; '.join(notes)}); --all keeps all."
        )
    rows, partitions = [], defaultdict[str, list[str]](list)
    for one in kept:
        own_rows = _rows(one)
        rows += own_rows
        for partition in one.partitions:
            partitions[partition] += [name for name, _ in own_rows]
    if sums := [one for one in hosts if one.total]:
        notes.append(f"left out {len(sums)} rows that sum up others: {_some(sums)}")
    notes += _doubts(kept, n_more=len(rows) - len(kept))
    return "".join(_toml(rows, partitions, source=source, notes=notes)), notes


def _usable(hosts: Sequence[ListedHost], *, every: bool) -> tuple[list[ListedHost], list[str]]:
    """Return the hosts that have GPUs and can be used, or all, and what was left out."""
    if every:
        return list(hosts), []
    notes, up = [], [one for one in hosts if not one.down]
    if down := [one for one in hosts if one.down]:
        states = Counter(one.down for one in down)
        text = ", ".join(f"{n} {state}" for state, n in states.most_common())
        notes.append(f"left out {len(down)} of {len(hosts)} hosts that are down or drained ({text}): {_some(down)}")
    if bare := [one for one in up if not sum(one.gpus.values())]:
        devices = dict.fromkeys(name for one in bare for name in one.devices)
        notes.append(f"left out {len(bare)} hosts without GPUs: {_some(bare)}" + _how_counted(devices))
    return [one for one in up if sum(one.gpus.values())], notes


def _doubts(kept: Sequence[ListedHost], *, n_more: int) -> list[str]:
    """Return notes on the guesses about the hosts that are kept, and on what does not count."""
    notes = []
    if devices := Counter(name for one in kept for name in one.devices):
        text = ", ".join(f"{name} of {n} hosts" for name, n in devices.items())
        notes.append(f"devices that are not counted as GPUs: {text}{_how_counted(devices)}")
    if n_more:
        notes.append(f"hosts with GPUs of several types stand as one host for each: {n_more} more than there are")
    if odd := [one for one in kept if any(n % 1 for n in one.gpus.values())]:
        notes.append(f"slices of GPUs count by their sevenths, rounded up to whole GPUs: {_some(odd)}")
    if divided := [one for one in kept if one.divided]:
        notes.append(
            f"slices count as parts of GPUs on {len(divided)} hosts: {_some(divided)}; those that pods ask for do so "
            "where their list has the nodes, too: kubectl get pods,nodes -A -o json"
        )
    for key, most, unit in (("cpus", CORES_PER_GPU, "cores"), ("memory_gb", MEMORY_GB_PER_GPU, "GB")):
        if n := sum(math.isnan(getattr(one, key)) for one in kept):
            notes.append(f"{key} of {n} hosts is unknown: {most:g} {unit} for each GPU is assumed")
    return notes


def _how_counted(devices: Iterable[str]) -> str:
    names = ",".join(devices)
    return f"; --devices {names} counts them as GPUs" if names else ""


def _some(hosts: Sequence[ListedHost]) -> str:
    return shortened(", ".join(one.name for one in hosts), most=60)


Row = tuple[str, dict[str, Any]]
"""Name and keys of a [[hosts]] table."""


def _rows(one: ListedHost) -> list[Row]:
    """Return the hosts as which a machine stands: one for each of its types of GPU, with its share of the rest."""
    whole = {kind: math.ceil(n - 1e-6) for kind, n in one.gpus.items() if n > 0} or {"cpu": 0}
    total = sum(whole.values())
    cpus = CORES_PER_GPU * max(total, 1) if math.isnan(one.cpus) else one.cpus
    memory_gb = MEMORY_GB_PER_GPU * max(total, 1) if math.isnan(one.memory_gb) else one.memory_gb
    rows = []
    for kind, n in whole.items():
        share = n / total if total else 1.0
        keys: dict[str, Any] = {"gpus": n, "cpus": _plain(cpus * share), "memory_gb": _plain(memory_gb * share)}
        keys["device_type"] = kind or "gpu"
        keys |= {key: list(getattr(one, key)) for key in ("features", "taints") if getattr(one, key)}
        rows.append((one.name if len(whole) == 1 else f"{one.name}-{kind or 'gpu'}", keys))
    return rows


def _plain(amount: float) -> float:
    return int(amount) if amount == int(amount) else round(amount, 3)


def _toml(
    rows: Sequence[Row], partitions: Mapping[str, list[str]], *, source: str, notes: Sequence[str]
) -> Iterator[str]:
    yield f"# Made by `labkit clusters import` from {source}.\n"
    yield from (f"# note: {note}\n" for note in notes)
    alike: dict[str, list[str]] = defaultdict(list)
    for name, keys in rows:
        alike["".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())].append(name)
    for keys_, names in alike.items():
        yield from (f'\n[[hosts]]\nname = "{name}"\n{keys_}' for name in ranges(names))
    yield "\n[partitions]\n" * bool(partitions)
    yield from (f"{json.dumps(name)} = {json.dumps(ranges(hosts))}\n" for name, hosts in partitions.items())


_NUMBERED: Final = re.compile(r"(.*?)(\d{1,9})(\D*)")


def ranges(names: Sequence[str]) -> list[str]:
    """Return names that differ by one number as one name with a range.

    >>> ranges(["n08", "n09", "n10", "n12", "login"]), ranges(["gpu0", "gpu9", "gpu10"])
    (['n[08-10,12]', 'login'], ['gpu[0,9-10]'])
    """
    parts = {name: match.groups() for name in names if (match := _NUMBERED.fullmatch(name))}
    padded = {
        (head, tail, len(digits)) for head, digits, tail in parts.values() if digits[0] == "0" and len(digits) > 1
    }
    groups: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name in names:
        head, digits, tail = parts.get(name, (name, "", ""))
        width = len(digits) if (head, tail, len(digits)) in padded else 0
        groups[head, tail, width].append(name)
    made = []
    for (head, tail, width), alike in groups.items():
        if len(alike) == 1:
            made += alike
            continue
        numbers = sorted(int(parts[name][1]) for name in alike)
        runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
        spans = [f"{run[0]:0{width}}" + (f"-{run[-1]:0{width}}" if len(run) > 1 else "") for run in runs]
        made.append(f"{head}[{','.join(spans)}]{tail}")
    return made


# --- which file is what


def _read(file: Path, *, known: Sequence[str]) -> list[ListedHost]:
    refuse_unreadable(file, expected=EXPECTED)
    try:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file; check the path.") from None
    head = next((line for line in text.splitlines() if line.strip() and not _DATE.match(line)), "")
    try:
        if head.lstrip()[:1] in ("{", "["):
            return _of_json(json.loads(text), file)
        if re.search(r"(?m)^kind:|^\s*(?:- )?apiVersion:", text[: 1 << 16]):
            return _of_json(_yaml(text, file), file)
        if re.search(r"(?im)^\s*(?:NodeName|PartitionName)=", text):
            return list(_of_scontrol(text, known=known))
        if (columns := _sinfo_columns(head)) is not None:
            return list(_of_sinfo(text, columns, head, file))
        return list(_of_table(*_apart(text, head), file))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read ({shortened(str(error))}); expected {EXPECTED}.") from None


def _yaml(text: str, file: Path) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InputError(f"{file} is YAML, and PyYAML is not installed; take kubectl's -o json instead.") from None
    try:
        parts = [part for part in yaml.safe_load_all(text) if part]
    except yaml.YAMLError as error:
        raise InputError(
            f"{file} is no YAML ({shortened(' '.join(str(error).split()))}); expected {EXPECTED}."
        ) from None
    return parts[0] if len(parts) == 1 else parts


# --- Slurm

_GRES: Final = re.compile(r"[^,()]+(?:\([^)]*\))?")
_DOWN: Final = re.compile(r"DOWN|DRAIN|DRNG|FAIL|ERROR|INVAL|FUTURE|FUTR|NOT_RESPONDING|NO_RESPOND|UNKNOWN|UNK|\*")
_POWERED: Final = re.compile(r"POWER(?:ED|ING)?_?DOWN")
"""Hosts of a cloud that start when a job wants them."""


def gres(text: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return GPUs by type, and other devices, of a node's Gres, or of its TRES.

    >>> gres("gpu:a100:4(S:0-1),shard:16,fpga:2"), gres("(null)"), gres("gpu:8")
    (({'a100': 4.0}, ('fpga',)), ({}, ()), ({'': 8.0}, ()))
    >>> gres("gpu:a100_1g.5gb:7(S:0)")[0], gres("cpu=16,mem=62.50G,gres/gpu=4,gres/gpu:a100=4")[0]
    ({'a100': 1.0}, {'a100': 4.0})
    >>> gres("gres/gpu=16,gres/gpu:b200=4")[0]  # 12 are of no type that is tracked
    {'b200': 4.0, '': 12.0}
    """
    gpus, typed, devices = defaultdict[str, float](float), defaultdict[str, float](float), list[str]()
    n_typed = 0.0
    for item in _GRES.findall(text):
        name, _, rest = item.partition("(")[0].strip().replace("=", ":").removeprefix("gres/").partition(":")
        words = [word for word in rest.split(":") if word and word != "no_consume"]
        if name != "gpu" and (name in ("shard", "mps") or not counted(name)):
            known = ("", "null", "shard", "mps", "cpu", "mem", "billing", "energy", "node", "license", "N/A")
            devices += [name] if words and name not in known and not name.startswith("gpu") else []
            continue
        amount = _count(words.pop()) if words and re.fullmatch(r"\d+(?:\.\d+)?[KkMm]?", words[-1]) else 1.0
        amount *= counted(name) or 1.0
        kind = "-".join(filter(None, (name.removeprefix("gpu"), *words[:1])))
        part = slice_of(kind)
        (typed if kind else gpus)[kind if part is None else SLICE.sub("", kind)] += round(amount * (part or 1.0), 9)
        n_typed += amount if kind else 0.0
    if typed and (more := sum(gpus.values()) - n_typed) > 0:
        typed[""] += more
    return dict(typed or gpus), tuple(dict.fromkeys(devices))


def _count(text: str) -> float:
    factor = {"k": 1024, "m": 1024**2}.get(text[-1].lower(), 1)
    return float(text.rstrip("KkMm")) * factor


def state(text: str) -> str:
    """Return a state of Slurm in which no job can start; "" for others.

    >>> state("IDLE"), state("DOWN*+DRAIN"), state("mix-"), state("IDLE+CLOUD+POWERED_DOWN"), state("idle~")
    ('', 'DOWN*+DRAIN', '', '', '')
    """
    return text if _DOWN.search(_POWERED.sub("", text.upper())) else ""


def _of_scontrol(text: str, *, known: Sequence[str]) -> Iterator[ListedHost]:
    """Yield the hosts of `scontrol show node` and `show partition`, also with -o, and of slurm.conf."""
    usual: dict[str, str] = {}
    names, blocks = list(known), list(_blocks(text))
    down = {
        one: state(cells.get("State", "DOWN")) for cells in blocks for one in listed(cells.get("DownNodes", "")) if one
    }
    for cells in blocks:
        if (name := cells.get("NodeName", "")).upper() == "DEFAULT":
            usual |= cells
        elif name:
            mine = [_of_node(one, usual | cells) for one in listed(name)]
            mine = [replace(one, down=one.down or down.get(one.name, "")) for one in mine]
            names += [one.name for one in mine]
            yield from mine
        elif (partition := cells.get("PartitionName", "")) and partition.upper() != "DEFAULT":
            nodes = cells.get("Nodes", "")
            if cells.get("State", "UP").upper() in ("DOWN", "INACTIVE") or nodes in ("(null)", ""):
                continue
            for one in names if nodes.upper() == "ALL" else listed(nodes):
                yield ListedHost(one, {}, partitions=(partition,), bare=True)


_BLOCK: Final = r"[ \t]*(?:NodeName|PartitionName|DownNodes)="
_KEYS: Final = {
    key.lower(): key
    for key in (
        "NodeName", "PartitionName", "DownNodes", "Nodes", "State", "Gres", "CfgTRES", "CPUEfctv", "CPUTot", "CPUs",
        "Procs", "Boards", "Sockets", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore", "RealMemory",
        "ActiveFeatures", "AvailableFeatures", "Features", "Feature", "Partitions",
    )
}  # fmt: skip
"""Keys that are read; slurm.conf(5) takes them in any case."""


def _blocks(text: str) -> Iterator[dict[str, str]]:
    """Yield the cells of each node, partition and DownNodes.

    In slurm.conf these are the cells of a line, comments and texts in quotes apart. What scontrol shows goes on in
    lines behind, which are indented.
    """
    shown = re.search(r"\b(?:CPUTot|TotalNodes|TotalCPUs)=", text)
    behind = rf"(?:\n(?!{_BLOCK})[ \t]{'*' if shown else '+'}\S.*)*"
    for block in re.findall(rf"(?im)^{_BLOCK}.*{behind}", re.sub(r"\\\r?\n", " ", text)):
        told = block if shown else re.sub(r'"[^"\n]*"', '""', re.sub(r"(?<!\\)#.*", "", block))
        cells: dict[str, str] = {}
        for key, value in re.findall(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", told):
            cells.setdefault(_KEYS.get(key.lower(), key), value)
        yield cells


_PER_SOCKET: Final = frozenset({"Sockets", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore"})


def _of_node(name: str, cells: Mapping[str, str]) -> ListedHost:
    gpus, devices = gres(cells.get("Gres", ""))
    if not gpus:
        gpus, _ = gres(cells.get("CfgTRES", ""))
    cpus = next((_number(cells[key]) for key in ("CPUEfctv", "CPUTot", "CPUs", "Procs") if key in cells), math.nan)
    if math.isnan(cpus) and not _PER_SOCKET.isdisjoint(cells):  # slurm.conf(5)
        sockets = ("Sockets",) if "Sockets" in cells else ("Boards", "SocketsPerBoard")
        cpus = math.prod(_number(cells.get(key, 1)) for key in (*sockets, "CoresPerSocket", "ThreadsPerCore"))
    configured = "CPUTot" not in cells  # slurm.conf, where UNKNOWN is the default of a state
    down = "" if configured and cells.get("State", "").upper() == "UNKNOWN" else state(cells.get("State", ""))
    features = next(
        (cells[key] for key in ("ActiveFeatures", "AvailableFeatures", "Features", "Feature") if key in cells), ""
    )
    return ListedHost(
        name, gpus, cpus, _number(cells.get("RealMemory", "nan")) / 1024, _words(cells.get("Partitions", "")),
        _words(features), down=down, devices=devices,
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().rstrip("*") for word in text.split(",") if word.strip().rstrip("*") not in ("", "(null)"))


def _number(text: object) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\+?\s*", str(text))
    return float(match[1]) if match else math.nan


_DATE: Final = re.compile(r"\s*[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d")
"""The line that `sinfo --long` has above its header."""
_CUT: Final = re.compile(r"(?:^|,)gpu(?::[^:,()]*[^\d:,()][^:,()]*)?:?$")
"""GPUs without a number, which sinfo always tells: the end of a cell that was cut."""
_SINFO: Final = {
    "NODELIST": "name", "HOSTNAMES": "name", "PARTITION": "partition", "STATE": "state", "STATELONG": "state",
    "STATECOMPLETE": "state", "STATECOMPACT": "state", "CPUS": "cpus", "MEMORY": "memory", "GRES": "gres",
    "AVAIL_FEATURES": "features", "ACTIVE_FEATURES": "features", "FEATURES": "features", "FEATURES_ACT": "features",
    "AVAIL_FE": "", "AVAIL": "avail",
}  # fmt: skip


def _sinfo_columns(head: str) -> tuple[str | None, list[str]] | None:
    """Return separator and columns of a header of sinfo; None if it is none."""
    for separator in ("|", ",", ";", "\t", None):
        names = [name.strip().upper() for name in head.split(separator)]
        if {"NODELIST", "HOSTNAMES"} & set(names) and len(names) > 1:
            return separator, [_SINFO.get(name, "") for name in names]
    return None


def _of_sinfo(
    text: str, columns: tuple[str | None, list[str]], head: str, file: Path
) -> Iterator[ListedHost]:  # fmt: skip
    """Yield the hosts of sinfo's rows; a row may have several."""
    separator, names = columns
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line == head or _DATE.match(line):
            continue
        cells = [cell.strip() for cell in line.split(separator, len(names) - 1)]
        if len(cells) != len(names) and separator is None:  # -O cuts cells at the width of their columns
            cells = _cells_below(head, line)
        told = cells[names.index("gres")] if len(cells) == len(names) and "gres" in names else ""
        if len(cells) != len(names) or _CUT.search(told):
            raise InputError(
                f"{file}: line {number} is {shortened(line)!r}, whose cells were cut; expected {len(names)} whole "
                "ones: sinfo -N -o '%N|%P|%t|%c|%m|%G|%f', or -O with widths such as Gres:80."
            )
        row = dict(zip(names, cells, strict=True))
        gpus, devices = gres(row.get("gres", ""))
        host = ListedHost(
            "", gpus, _number(row.get("cpus")), _number(row.get("memory")) / 1024, _words(row.get("partition", "")),
            _words(row.get("features", "")), down=state(row.get("state", "")), devices=devices, bare="gres" not in row,
        )  # fmt: skip
        yield from (replace(host, name=name) for name in listed(row["name"]))


def _cells_below(head: str, line: str) -> list[str]:
    """Return the cells of a line where the columns of its header begin."""
    begins = [match.start() for match in re.finditer(r"\S+", head)]
    return [line[first:last].strip() for first, last in zip(begins, [*begins[1:], None], strict=True)]


# --- JSON: Slurm's and Kubernetes'


def _of_json(content: Any, file: Path) -> list[ListedHost]:
    parts = content if isinstance(content, list) else [content]
    found: list[ListedHost] = []
    for part in (part for part in parts if isinstance(part, Mapping)):
        listed_ = part.get("items")
        items = listed_ if isinstance(listed_, list) else [part] if part.get("kind") == "Node" else []
        nodes = [item for item in items if isinstance(item, Mapping) and item.get("kind", "Node") == "Node"]
        found += [_of_kubernetes(node) for node in nodes]
        for key, read in (("nodes", _of_json_node), ("sinfo", _of_json_sinfo), ("partitions", _of_json_partition)):
            rows = part.get(key)
            for item in rows if isinstance(rows, list) else []:
                found += read(item) if isinstance(item, Mapping) else []
    if not found:
        raise InputError(f"{file} has no hosts; expected {EXPECTED}.")
    return found


def _texts(value: object) -> str:
    """Return a value as text with commas: newer versions of Slurm write lists."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _of_json_node(item: Mapping[str, Any]) -> list[ListedHost]:
    gpus, devices = gres(_texts(item.get("gres")))
    if not gpus:
        gpus, _ = gres(_texts(item.get("tres")))
    states = "+".join(filter(None, (_texts(item.get("state")).replace(",", "+"), _texts(item.get("state_flags")))))
    features = _texts(item.get("active_features") or item.get("features"))
    return [ListedHost(
        str(item.get("name") or item.get("hostname") or ""), gpus,
        _number(item.get("effective_cpus") or item.get("cpus")), _number(item.get("real_memory")) / 1024,
        _words(_texts(item.get("partitions"))), _words(features), down=state(states), devices=devices,
    )]  # fmt: skip


def _of_json_sinfo(item: Mapping[str, Any]) -> list[ListedHost]:
    part = {key: item[key] if isinstance(item.get(key), Mapping) else {} for key in
            ("node", "nodes", "cpus", "memory", "gres", "features", "partition")}  # fmt: skip
    gpus, devices = gres(_texts(part["gres"].get("total")))
    host = ListedHost(
        "", gpus, _number(part["cpus"].get("minimum")), _number(part["memory"].get("minimum")) / 1024,
        _words(_texts(part["partition"].get("name"))),
        _words(_texts(part["features"].get("active") or part["features"].get("total"))),
        down=state(_texts(part["node"].get("state")).replace(",", "+")), devices=devices,
    )  # fmt: skip
    return [replace(host, name=name) for name in listed(_texts(part["nodes"].get("nodes")))]


def _of_json_partition(item: Mapping[str, Any]) -> list[ListedHost]:
    nodes = item.get("nodes")
    names = nodes.get("configured") if isinstance(nodes, Mapping) else nodes
    return [
        ListedHost(name, {}, partitions=(str(item.get("name", "")),), bare=True) for name in listed(_texts(names))
    ]  # fmt: skip


def _of_kubernetes(item: Mapping[str, Any]) -> ListedHost:
    metadata, spec, status = (
        item[key] if isinstance(item.get(key), Mapping) else {} for key in ("metadata", "spec", "status")
    )
    labels = metadata.get("labels") or {}
    has = status.get("allocatable") or status.get("capacity") or {}
    kind = next((str(labels[label]) for label in TYPE_LABELS if labels.get(label)), "")
    amounts = {name: quantity(has[name]) or 0.0 for name in has}
    slices = requested_gpus({name: n for name, n in amounts.items() if MIG_RESOURCE.match(name)})
    whole = requested_gpus({name: n for name, n in amounts.items() if not MIG_RESOURCE.match(name)})
    part = part_by_labels(labels)
    there = _number(labels.get("nvidia.com/gpu.count") or "nan")
    if slice_of(kind) is None and 0 < there < whole * part:  # a plugin that divides GPUs, as HAMi's
        part = there / whole
    ready = [one.get("status") for one in status.get("conditions") or () if one.get("type") == "Ready"]
    down = "cordoned" if spec.get("unschedulable") else "NotReady" if ready and ready[0] != "True" else ""
    taints = [f"{one.get('key')}={one.get('value') or ''}:{one.get('effect')}" for one in spec.get("taints") or ()]
    return ListedHost(
        str(metadata.get("name") or ""), {whole_type(kind): round(whole * part + slices, 9)},
        quantity(has.get("cpu", "")) or math.nan, (quantity(has.get("memory", "")) or math.nan) / 2.0**30,
        taints=tuple(taints), down=down,
        devices=tuple(name for name in has if "/" in name and not is_known(name) and quantity(has[name])),
        divided=part < 1,
    )  # fmt: skip


# --- tables

_COLUMNS: Final = {
    "name": ("sn", "node", "node_name", "nodename", "name", "hostname", "host", "machine", "machine_id", "server"),
    "gpus": (
        "gpu", "gpus", "num_gpu", "num_gpus", "gpu_num", "n_gpus", "gpu_count", "cap_gpu", "gpu_capacity_num",
        "number_of_gpus", "gpus_per_node", "gpus_per_host",
    ),
    "type": ("model", "gpu_type", "gpu_model", "device_type", "gpu_spec", "type"),
    "cpus": (
        "cpu_milli", "cpus", "cpu", "cpu_num", "num_cpu", "cap_cpu", "cores", "vcpus", "ncpus", "num_cpus", "n_cpus",
        "cpu_count", "cpu_cores",
    ),
    "memory_gb": (
        "memory_mib", "memory_mb", "real_memory", "memory_gb", "memory_gib", "cap_mem", "memory", "mem", "mem_gb",
        "ram_gb", "ram",
    ),
    "partition": ("partition", "partitions", "vc", "vc_name", "queue", "virtual_cluster"),
    "state": ("state", "status"),
    "features": ("features", "feature"),
    "count": ("count", "quantity", "n_nodes", "num_nodes", "node_count", "nodes", "n_hosts", "num_hosts", "hosts"),
}  # fmt: skip
"""What a column of a node table means, by its name."""
_SCALE: Final = {"cpu_milli": 1e-3, "memory_mib": 1 / 1024, "memory_mb": 1 / 1024, "real_memory": 1 / 1024}
_PAI: Final = ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu")
"""The columns of Alibaba's pai_machine_spec.csv, which has no header."""
MAX_HOSTS: Final = 100_000
"""The most hosts that a row of a node table may stand for."""
HELIOS_GPUS: Final = 8
"""GPUs of a host of Helios, whose files tell GPUs of virtual clusters alone."""


_THOUSANDS: Final = {"K": 1000.0}
_GB: Final = {"B": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_AMOUNT: Final = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)(\.\d*)?\s*\+?\s*(?:([KMGT])i?)?(B?)", re.IGNORECASE)


def _amount(cell: str, units: Mapping[str, float], *, otherwise: float) -> float:
    """Return a cell as a number by its own unit, or times `otherwise` where it has none; NaN if it is none.

    >>> [_amount(cell, _GB, otherwise=1 / 1024) for cell in ("512GiB", "1,024 GB", "300G", "2048", "many")]
    [512.0, 1024.0, 300.0, 2.0, nan]
    """
    match = _AMOUNT.fullmatch(cell.strip())
    if match is None:
        return math.nan
    whole, part, prefix, byte = match.groups()
    unit = (prefix or byte or "").upper()
    return float(whole.replace(",", "") + (part or "")) * (units.get(unit, math.nan) if unit else otherwise)


def _apart(text: str, head: str) -> tuple[str, str]:
    """Return a text and its first line; columns that spaces align, as kubectl's custom ones, with tabs between."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if not rows or len(rows[0]) < 2 or re.search(r"[,;\t]", text) or {len(row) for row in rows} != {len(rows[0])}:
        return text, head
    lines = ["\t".join("" if cell == "<none>" else cell for cell in row) for row in rows]
    return "\n".join(lines), lines[0]


def _of_table(text: str, head: str, file: Path) -> Iterator[ListedHost]:
    """Yield the hosts of a node table."""
    lines = [line for line in text.splitlines() if line.strip()]
    separator = max((",", ";", "\t"), key=head.count)
    names = [re.sub(r"\W+", "_", name.strip().strip('"').lower()).strip("_") for name in head.split(separator)]
    if names[:2] == ["date", "total"] and len(names) > 2:
        yield from _of_helios(lines, head.split(separator))
        return
    bare = len(names) == len(_PAI) and all(re.fullmatch(r"\d+([._]\d+)?", name) for name in names[2:])
    names = list(_PAI) if bare else names
    found = {key: column for key, known in _COLUMNS.items() if (column := next((c for c in known if c in names), None))}
    if not {"name", "gpus"} <= found.keys():
        raise InputError(f"{file}: its first line is {shortened(head)!r}; expected {EXPECTED}.")
    table = list(csv.reader(lines if bare else lines[1:], delimiter=separator))
    places = [names.index(found[key]) for key in ("gpus", "count") if key in found]
    for number, (cells, is_sum) in enumerate(zip(table, _sums(table, places), strict=True), start=1 if bare else 2):
        if len(cells) != len(names):
            raise InputError(f"{file}: row {number} has {len(cells)} cells; expected {len(names)}, as its header.")
        if is_sum:
            yield ListedHost(cells[0].strip(), {}, total=True)
        else:
            yield from _of_row(dict(zip(names, cells, strict=True)), found, f"{file}: row {number}")


def _of_row(row: Mapping[str, str], found: Mapping[str, str], where: str) -> Iterator[ListedHost]:
    """Yield the hosts of a row of a node table; `found` are its columns by what they mean."""
    gpus = _number(row[found["gpus"]] or 0)
    if math.isnan(gpus):
        raise InputError(f"{where}: {found['gpus']} is {row[found['gpus']]!r}; expected a number of GPUs.")
    amounts = {key: _amount(row.get(found.get(key, ""), ""), units, otherwise=_SCALE.get(found.get(key, ""), 1.0))
               for key, units in (("cpus", _THOUSANDS), ("memory_gb", _GB))}  # fmt: skip
    said = {key: row.get(found.get(key, ""), "").strip() for key in ("type", "partition", "features", "state")}
    alike = _number(row.get(found.get("count", ""), 1))
    if not (0 <= alike <= MAX_HOSTS and alike % 1 == 0):
        raise InputError(f"{where}: {found['count']} is {row[found['count']]!r}; expected a number of hosts.")
    name = row[found["name"]].strip()
    for i in range(int(alike)):
        yield ListedHost(
            f"{name}-{i}" if alike > 1 else name, {said["type"]: gpus}, amounts["cpus"], amounts["memory_gb"],
            _words(said["partition"]), _words(said["features"]), down=state(said["state"]),
        )  # fmt: skip


def _sums(table: Sequence[Sequence[str]], places: Sequence[int]) -> Bools:
    """Return which rows sum up others by the columns at some places, (N,)."""
    columns = [[_number(cells[place]) if place < len(cells) else math.nan for cells in table] for place in places]
    return totals([(*cells, "")[0] for cells in table], [np.array(column) for column in columns])


def _of_helios(lines: Sequence[str], names: Sequence[str]) -> Iterator[ListedHost]:
    """Yield the hosts of Helios' cluster_gpu_number.csv: those of the day on which there were most GPUs."""
    rows = [line.split(",") for line in lines[1:]]
    most = max(rows, key=lambda row: _number(row[1]))
    for vc, cell in zip(names[2:], most[2:], strict=True):
        n = 0 if math.isnan(_number(cell)) else int(_number(cell))
        for i in range(-(-n // HELIOS_GPUS)):
            yield ListedHost(f"{vc}-{i}", {"": float(min(HELIOS_GPUS, n - i * HELIOS_GPUS))}, partitions=(vc,))
