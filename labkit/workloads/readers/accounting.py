"""Accounting of other batch systems, and Slurm's own database, as the columns of sacct: SlurmDB dumps, PBS, LSF."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import TraceTable, any_text_of, each_line, json_of
from labkit.workloads.readers.ledger import Read
from labkit.workloads.readers.listings import looks_like_qstat, qstat_entries, qstat_jobs
from labkit.workloads.readers.sacct import accounted
from labkit.workloads.readers.sacct_files import COLUMNS
from labkit.workloads.readers.submit_line import with_throttle

if TYPE_CHECKING:
    from labkit.workloads.readers.line_repair import Record

Rows = list[tuple[int, dict[str, Any]]]
"""Line of each row, and its cells by sacct's names of columns."""


def _table(
    path: Path, rows: Rows, *, text: str, lost: Mapping[str, int], doubts: Sequence[str], expected: str
) -> TraceTable:
    """Return rows as sacct's table, with lines that are no rows by reason, and what else is to be known."""
    import pandas as pd

    if not rows:
        gone = "".join(f", {n:,} {reason}" for reason, n in lost.items())
        raise TraceError(f"{path}: it has no job that ran{gone}; expected {expected}.")
    names = [name for name in COLUMNS if any(name in cells for _, cells in rows)]
    made = {name: [cells.get(name) for _, cells in rows] for name in names}
    frame = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in made.items()})
    table = TraceTable(path, frame, text=text, header=False, lines=[line for line, _ in rows])
    table.lost, table.doubts = {reason: n for reason, n in lost.items() if n}, [doubt for doubt in doubts if doubt]
    return table


# --- SlurmDB

SLURMDB: Final = ("id_job", "time_submit", "time_start", "time_end", "tres_alloc")
"""Columns without which a table is not slurmdbd's job_table."""

_SLURMDB_EXPECTED: Final = (
    "slurmdbd's job_table: a dump (mysqldump slurm_acct_db), or a table with the columns " + ", ".join(SLURMDB)
)
_TRES: Final = {"1": "cpu", "2": "mem", "3": "energy", "4": "node", "5": "billing", "6": "fs/disk", "7": "vmem",
                "8": "pages"}  # fmt: skip
_FIRST_GRES: Final = 1001
_STATES: Final = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL",
                  "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")  # fmt: skip
"""States by their numbers; higher bits of the column are flags."""
_UNSET: Final = frozenset({"", "NULL", "\\N", "None", "nan", "4294967294", "4294967295", "-1"})
_CREATE: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?[`\"]?(\w+)[`\"]? \((.*?)\n\)", re.DOTALL)
_INSERT: Final = re.compile(r"INSERT (?:IGNORE )?INTO [`\"]?(\w+)[`\"]?\s*(\([^()]*\))?\s*VALUES\s*")
_VALUES: Final = re.compile(r"\((?:'(?:[^'\\]|\\.|'')*'|[^'()])*\)")
_CELL: Final = re.compile(r"'((?:[^'\\]|\\.|'')*)'|([^,]+)|(?<=,)(?=,)", re.DOTALL)


def read_slurmdb(path: str | Path) -> Jobs:
    """Return the GPU jobs of slurmdbd's database, a dump or a table of it (MIT Supercloud's slurm-log.csv is one)."""
    return slurmdb(path).jobs


def slurmdb(path: str | Path) -> Read:
    """Return the jobs of slurmdbd's database, and what became of its rows."""
    path = Path(path)
    text, doubt = any_text_of(path, expected=_SLURMDB_EXPECTED)
    dumped = looks_like_dump(text[: 1 << 16])
    tables, n_cut = _dumped(text) if dumped else ({"job_table": _separated(path, text)}, 0)
    names = {cells["id"]: f"{cells.get('type')}{'/' * bool(_set(cells.get('name')))}{_set(cells.get('name')) or ''}"
             for _, cells in tables.get("tres_table", [])}  # fmt: skip
    qos = {cells.get("id"): cells.get("name") for _, cells in tables.get("qos_table", [])}
    rows, lost = list[tuple[str, int, dict[str, str]]](), Counter({"with a wrong number of cells": n_cut})
    users: dict[tuple[str, str], str] = {}
    for name, listed in tables.items():
        cluster = name.removesuffix("job_table").removesuffix("assoc_table").rstrip("_")
        if name.endswith("assoc_table"):
            users |= {(cluster, cells.get("id_assoc", "")): cells.get("user", "") for _, cells in listed}
        for line, cells in listed if name.endswith("job_table") else ():
            if cells.get("deleted") == "1":
                lost["that were deleted"] += 1
            else:
                rows.append((cluster, line, cells))
    tres, guess = _named_tres([cells for _, _, cells in rows], names)
    made = [(line, _of_slurmdb(cells, cluster, tres, users, qos)) for cluster, line, cells in rows]
    table = _table(path, made, text=text, lost=lost, doubts=[doubt, guess], expected=_SLURMDB_EXPECTED)
    return accounted(table, path, remedy="tres_alloc tells GPUs where slurm.conf has AccountingStorageTRES=gres/gpu")


def looks_like_dump(head: str) -> bool:
    """Return whether a text begins like a dump of MySQL or MariaDB."""
    return re.search(r"-- (?:MySQL|MariaDB) dump|INSERT INTO [`\"]?\w*job_table", head) is not None


def _dumped(text: str) -> tuple[dict[str, list[tuple[int, dict[str, str]]]], int]:
    """Return the rows of each table of a dump that tells something of jobs, with their lines; and how many are cut."""
    columns = {name: re.findall(r"^\s*[`\"](\w+)[`\"]", body, re.MULTILINE) for name, body in _CREATE.findall(text)}
    found: dict[str, list[tuple[int, dict[str, str]]]] = {}
    line, counted, n_cut = 1, 0, 0
    for insert in _INSERT.finditer(text):
        name = insert[1]
        line, counted = line + text.count("\n", counted, insert.start()), insert.start()
        if not name.endswith(("job_table", "assoc_table", "tres_table", "qos_table")):
            continue
        header = re.findall(r"\w+", insert[2]) if insert[2] else columns.get(name, [])
        at, rows = insert.end(), found.setdefault(name, [])
        while (values := _VALUES.match(text, at)) is not None:
            cells = [_unquoted(match) for match in _CELL.finditer(values[0][1:-1])]
            n_cut += len(cells) != len(header)
            if len(cells) == len(header):
                rows.append((line + text.count("\n", counted, at), dict(zip(header, cells, strict=True))))
            at = values.end()
            while at < len(text) and text[at] in ", \r\n\t":
                at += 1
    return found, n_cut


def _unquoted(match: re.Match[str]) -> str:
    if match[1] is None:
        return (match[2] or "").strip()
    return re.sub(r"\\(.)", r"\1", match[1].replace("''", "'")) or ""


def _separated(path: Path, text: str) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of job_table as a table with a header, separated by tabs, commas or bars."""
    import csv

    lines = list(each_line(text))
    separator = max("\t,|;", key=lines[0][1].count)
    read = csv.reader((line for _, line in lines), delimiter=separator)
    header = [name.strip() for name in next(read)]
    if missing := [name for name in SLURMDB if name not in header]:
        raise TraceError(f"{path}: line 1: column {', '.join(missing)} is missing; expected {_SLURMDB_EXPECTED}.")
    numbered: Iterator[Record] = ((lines[min(read.line_num, len(lines)) - 1][0], cells) for cells in read)
    return [(line, dict(zip(header, cells, strict=False))) for line, cells in numbered]


def _named_tres(rows: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the names of resources by their numbers, and what was guessed of them."""
    if names:
        return {**_TRES, **names}, ""
    seen = Counter(number for cells in rows for number, _ in _numbered(cells) if int(number) >= _FIRST_GRES)
    asked = Counter(
        number
        for cells in rows
        for number, amount in _numbered(cells)
        if int(number) >= _FIRST_GRES and amount in re.findall(r"gpu(?::[A-Za-z][\w.-]*)?[:=](\d+)", _gres(cells))
    )
    likely = asked or seen
    if not likely:
        return dict(_TRES), ""
    gpu = max(sorted(likely), key=lambda number: likely[number])
    why = "by gres_alloc" if asked else "it is the most frequent of them" if len(seen) > 1 else "it is the only one"
    return {**_TRES, gpu: "gres/gpu"}, f"resource {gpu} of tres_alloc counts as GPUs ({why}; tres_table is not there)."


def _gres(cells: Mapping[str, str]) -> str:
    return f"{cells.get('gres_alloc', '')},{cells.get('gres_req', '')}"


def _numbered(cells: Mapping[str, str]) -> list[tuple[str, str]]:
    return re.findall(r"(\d+)=(\d+)", cells.get("tres_alloc") or "")


def _set(value: object) -> str | None:
    """Return a cell that says something; None for those that stand for nothing."""
    return None if value is None or str(value) in _UNSET else str(value)


def _of_slurmdb(
    cells: Mapping[str, str], cluster: str, tres: Mapping[str, str], users: Mapping[tuple[str, str], str],
    qos: Mapping[str | None, str | None],
) -> dict[str, Any]:  # fmt: skip
    """Return a row of job_table as sacct shows it."""

    def moment(name: str) -> float | None:
        value = _set(cells.get(name))
        return float(value) if value and float(value) > 0 else None

    state = int(_set(cells.get("state")) or 0) & 0xFF
    start_s, end_s = moment("time_start"), moment("time_end")
    idle_s = moment("time_suspended") or 0.0
    ran_s = None if start_s is None or end_s is None else end_s - start_s
    if ran_s is not None and idle_s < ran_s:  # a moment, where it is suspended now
        ran_s -= idle_s
    minutes = _set(cells.get("timelimit"))
    user = (
        users.get((cluster, cells.get("id_assoc", "")), "") or _set(cells.get("id_user")) or _set(cells.get("account"))
    )
    amounts = {name: re.sub(r"(\d+)=", lambda match: f"{tres.get(match[1], 'gres/other' + match[1])}=", told)
               for name, told in ((key, _set(cells.get(key)) or "") for key in ("tres_alloc", "tres_req"))}  # fmt: skip
    return {
        "JobID": _identity(cells), "Cluster": cluster or _set(cells.get("cluster")),
        "Submit": moment("time_submit"), "Eligible": moment("time_eligible"), "Start": start_s, "End": end_s,
        "ElapsedRaw": ran_s,
        "State": _STATES[state] if state < len(_STATES) else "UNKNOWN",
        "AllocTRES": amounts["tres_alloc"], "ReqTRES": amounts["tres_req"], "ReqCPUS": _set(cells.get("cpus_req")),
        "User": user, "Account": _set(cells.get("account")), "Partition": _set(cells.get("partition")),
        "JobName": _set(cells.get("job_name")) or _set(cells.get("job_type")),
        "Timelimit": f"{minutes}:00" if minutes else None, "NNodes": _set(cells.get("nodes_alloc")),
        "NodeList": re.sub(r"^\['(.*)'\]$", r"\1", cells.get("nodelist", "")).replace("', '", ","),
        "QOS": qos.get(cells.get("id_qos"), _set(cells.get("id_qos"))), "Priority": _set(cells.get("priority")),
        "Constraints": _set(cells.get("constraints")),
        "SubmitLine": with_throttle(_set(cells.get("submit_line")), cells.get("array_max_tasks")),
        "Restarts": _set(cells.get("restart_cnt")), "Licenses": _set(cells.get("licenses")),
    }  # fmt: skip


def _identity(cells: Mapping[str, str]) -> str:
    """Return a job's id in sacct's form: 12, 12_3 of an array, 12+1 of a heterogeneous job."""
    array, task = _set(cells.get("id_array_job")), _set(cells.get("id_array_task"))
    het = _set(cells.get("het_job_id")) or _set(cells.get("pack_job_id"))
    offset = _set(cells.get("het_job_offset")) or _set(cells.get("pack_job_offset"))
    if array not in (None, "0") and task is not None:
        return f"{array}_{task}"
    if array not in (None, "0") and _set(cells.get("array_task_str")):
        return f"{array}_[{cells['array_task_str']}]"
    if het not in (None, "0") and offset is not None:
        return f"{het}+{offset}"
    return cells.get("id_job", "")


# --- PBS

_PBS: Final = re.compile(r"(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d);(\w+);([^;]*);(.*)")
_PBS_DATE: Final = "%m/%d/%Y %H:%M:%S"
_PBS_PAIR: Final = re.compile(r'([\w.]+)=("[^"]*"|\S*)')
_PBS_EXPECTED: Final = (
    "accounting records of PBS or Torque: date;E;job;user=... start=... end=..., or what `qstat -xf` prints"
)
_QSTAT_STATES: Final = {"R": "RUNNING", "E": "COMPLETING", "S": "SUSPENDED", "U": "SUSPENDED"}
_QSTAT_TIME: Final = "%a %b %d %H:%M:%S %Y"
_ARRAYS: Final = "of arrays, whose tasks count each for itself"


def read_pbs(path: str | Path) -> Jobs:
    """Return the GPU jobs of accounting records of PBS Professional, OpenPBS or Torque."""
    return pbs(path).jobs


def looks_like_pbs(line: str) -> bool:
    """Return whether a line is an accounting record of PBS."""
    return _PBS.fullmatch(line.strip()) is not None


def pbs(path: str | Path) -> Read:
    """Return the jobs of accounting records of PBS, and what became of these."""
    path = Path(path)
    text, doubt = any_text_of(path, expected=_PBS_EXPECTED)
    if looks_like_qstat(text[: 1 << 16]):
        rows, lost = _of_qstat(path, text)
    else:
        rows, lost = _of_records(text)
    table = _table(path, rows, text=text, lost=lost, doubts=[doubt], expected=_PBS_EXPECTED)
    return accounted(
        table, path, remedy="PBS tells GPUs in exec_vnode, Resource_List.ngpus, select or nodes=...:gpus=N"
    )


def _of_qstat(path: Path, text: str) -> tuple[Rows, Counter[str]]:
    """Return the jobs of `qstat -f` that started: as they ended, or as long as they had run."""
    json = text.lstrip().startswith("{")
    jobs = qstat_entries(json_of(path, text, expected=_PBS_EXPECTED)) if json else qstat_jobs(text)
    rows, lost = Rows(), Counter[str]()
    for number, job, told in jobs:
        if "[]" in job:
            lost[_ARRAYS] += 1
        elif "start" not in told:
            lost["never started (queued or held)"] += 1
        else:
            state = _QSTAT_STATES.get(told.get("job_state", ""))
            row = _of_pbs(job, told)
            rows.append((number, row | ({"State": state} if state else {"End": row["End"] or _qstat_end(told)})))
    return rows, lost


def _qstat_end(told: Mapping[str, str]) -> str | None:
    """Return when a job of qstat ended that is over: after its walltime, where nothing tells it."""
    walltime_s = _seconds(told.get("resources_used.walltime", ""))
    try:
        start = datetime.strptime(told["start"], _QSTAT_TIME)
    except ValueError:
        return None
    return None if walltime_s is None else (start + timedelta(seconds=walltime_s)).strftime(_QSTAT_TIME)


def _of_records(text: str) -> tuple[Rows, Counter[str]]:
    """Return attempts by accounting records, and lines that are none by reason."""
    attempts, lost = _Attempts(), Counter[str]()
    for number, line in each_line(text):
        match = _PBS.fullmatch(line.strip())
        if match is None:
            lost["that are no records"] += 1
        elif "[]" in match[3]:
            lost[_ARRAYS] += 1
        elif not attempts.take(number, *match.groups()):
            lost[f"of other events ({match[2]})"] += 1
    return attempts.all(), lost


_STOPS: Final = {"R": "REQUEUED", "A": "CANCELLED"}
"""Records without attributes, as Torque has them, with which an attempt is over: rerun, and aborted by the server."""


class _Begun(NamedTuple):
    """An attempt that has started: the line and the date of its record, and what that tells."""

    number: int
    date: str
    cells: dict[str, Any]

    def until(self, date: str | None, state: str) -> tuple[int, dict[str, Any]]:
        """Return its row, ended by the date of another record; dates are local, starts in seconds since 1970."""
        end_s = None
        if date is not None:
            ran = datetime.strptime(date, _PBS_DATE) - datetime.strptime(self.date, _PBS_DATE)
            end_s = float(self.cells["Start"]) + ran.total_seconds()
        return self.number, {**self.cells, "End": end_s, "State": state}


class _Attempts:
    """The attempts of jobs, by one record of PBS after the other."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.begun: dict[str, _Begun] = {}
        self.ready: dict[tuple[str, Any], Any] = {}  # when a job could first start; one that runs again is queued anew

    def take(self, number: int, date: str, kind: str, job: str, message: str) -> bool:
        """Return whether a record starts or ends an attempt, and note that."""
        told = {key: value.strip('"') for key, value in _PBS_PAIR.findall(message)}
        if kind in ("S", "E", "R") and told.get("start", "0") != "0":
            cells = _of_pbs(job, told, requeued=kind == "R")
            cells["Eligible"] = self.ready.setdefault((job, cells["Submit"]), cells["Eligible"])
            before = self.begun.pop(job, None)
            if before is not None and before.cells["Start"] != cells["Start"]:
                self.rows.append(before.until(None, "REQUEUED"))
            if kind == "S":
                self.begun[job] = _Begun(number, date, cells)
            else:
                self.rows.append((number, cells))
        elif kind in _STOPS and job in self.begun:
            self.rows.append(self.begun.pop(job).until(date, _STOPS[kind]))
        else:
            return False
        return True

    def all(self) -> Rows:
        """Return all attempts; those that nothing ends run until the last moment."""
        last_s = max((float(cells[key]) for _, cells in self.rows for key in ("End", "Start") if cells[key]), default=0)
        for one in self.begun.values():
            ran_s = max(0.0, last_s - float(one.cells["Start"]))
            self.rows.append((one.number, {**one.cells, "State": "RUNNING", "ElapsedRaw": ran_s}))
        return self.rows


def _of_pbs(job: str, attributes: Mapping[str, str], *, requeued: bool = False) -> dict[str, Any]:
    """Return a record of PBS in sacct's columns."""
    number, _, server = job.partition(".")
    code = attributes.get("Exit_status", "0")
    hosts = dict.fromkeys(re.findall(r"(?:^|\+)\(?([\w.-]+?)(?=[/:+)]|$)", attributes.get("exec_host", "")))
    kind = attributes.get("Resource_List.gpu_type") or attributes.get("Resource_List.gpu_model") or ""
    gpus, typed = _pbs_gpus(attributes), f":{kind.lower()}" if kind else ""
    memory = re.fullmatch(r"(\d+)([kmgt]?)b", attributes.get("Resource_List.mem", "").lower())
    parts = {
        "cpu": _pbs_cores(attributes),
        "mem": f"{memory[1]}{memory[2].upper()}" if memory and memory[2] else "",
        "node": attributes.get("Resource_List.nodect", ""),
        f"gres/gpu{typed}": f"{gpus}" if gpus else "",
    }
    end = attributes.get("end", "")
    return {
        "JobID": re.sub(r"\[(\d+)\]", r"_\1", number).replace("[]", ""), "Cluster": server,
        "Submit": attributes.get("ctime") or attributes.get("qtime"), "Start": attributes.get("start"),
        "End": end if end != "0" else None,
        "Eligible": attributes.get("etime") if attributes.get("etime") != "0" else None,
        "ElapsedRaw": None if end not in ("", "0") else _seconds(attributes.get("resources_used.walltime", "")),
        "State": "REQUEUED" if requeued else "COMPLETED" if code == "0" else "FAILED",
        "AllocTRES": ",".join(f"{name}={amount}" for name, amount in parts.items() if amount),
        "User": attributes.get("user"), "Account": attributes.get("account") or attributes.get("project"),
        "Partition": attributes.get("queue"), "JobName": attributes.get("jobname"), "NodeList": ",".join(hosts),
        "NNodes": attributes.get("Resource_List.nodect"), "Timelimit": attributes.get("Resource_List.walltime"),
    }  # fmt: skip


def _pbs_gpus(attributes: Mapping[str, str]) -> int:
    """Return GPUs as allocated (exec_vnode), or as asked for: in all, by chunk, or on each node (Torque)."""
    if given := re.findall(r"ngpus=(\d+)", attributes.get("exec_vnode", "")):
        return sum(map(int, given))
    if (whole := attributes.get("Resource_List.ngpus", "")).isdigit():
        return int(whole)
    each_node = _of_chunks(attributes, "n?gpus")
    alone = next((attributes[key] for key in ("Resource_List.gpus", "Resource_List.gpu") if key in attributes), "")
    return each_node or (int(alone) if alone.isdigit() else 0)


def _pbs_cores(attributes: Mapping[str, str]) -> str:
    """Return cores as Torque allocated them, or as asked for by chunk, or in all; else a core for each slot of a host.

    Torque ignores `ncpus` where `nodes` is given.
    """
    slots = re.findall(r"/(?:\d+\*(\d+)|([\d,-]+))", attributes.get("exec_host", ""))
    n_slots = sum(int(n) if n else sum(_span(part) for part in listed.split(",")) for n, listed in slots)
    return (
        attributes.get("total_execution_slots", "")
        or str(_of_chunks(attributes, "ppn|ncpus") or "")
        or attributes.get("Resource_List.ncpus", "")
        or str(n_slots or "")
    )


def _span(numbers: str) -> int:
    """Return how many numbers a range has: 8 of "0-7"."""
    first, _, last = numbers.partition("-")
    return int(last) - int(first) + 1 if first and last else 1


def _of_chunks(attributes: Mapping[str, str], name: str) -> int:
    """Return the sum of an amount of each node or chunk that was asked for."""
    chunks = f"{attributes.get('Resource_List.select', '')}+{attributes.get('Resource_List.nodes', '')}".split("+")
    counted = [(re.match(r"(\d+)(?=:|$)", chunk), re.search(rf"(?:^|:)(?:{name})=(\d+)", chunk)) for chunk in chunks]
    return sum((int(n[1]) if n else 1) * int(each[1]) for n, each in counted if each)


def _seconds(span: str) -> float | None:
    parts = [float(part) for part in span.split(":") if part.isdigit()]
    return sum(part * 60**i for i, part in enumerate(reversed(parts))) if parts else None


# --- LSF

_LSF_CELL: Final = re.compile(r'"((?:[^"]|"")*)"|(\S+)')
_LSF_EXPECTED: Final = 'records of LSF\'s lsb.acct: "JOB_FINISH" "10.1" ...'
_LSF_HOSTS: Final = 22
"""Place of the number of hosts that were asked for, behind which these stand, and then those of execution [1]_.

References
----------
.. [1] IBM Spectrum LSF, lsb.acct(5).
"""
_LSF_USAGE: Final = 19
_LSF_GPUS: Final = re.compile(r"ngpus_(?:physical|shared|excl_[pt])=(\d+(?:\.\d+)?)")
"""GPUs of each host; older versions name them by their mode."""


def read_lsf(path: str | Path) -> Jobs:
    """Return the GPU jobs of LSF's lsb.acct."""
    return lsf(path).jobs


def looks_like_lsf(line: str) -> bool:
    """Return whether a line is a record of lsb.acct."""
    return line.lstrip().startswith('"JOB_FINISH"')


def lsf(path: str | Path) -> Read:
    """Return the jobs of LSF's lsb.acct, and what became of its records."""
    path = Path(path)
    text, doubt = any_text_of(path, expected=_LSF_EXPECTED)
    rows, lost = Rows(), Counter[str]()
    for number, line in each_line(text):
        cells = [quoted if plain == "" else plain for quoted, plain in _LSF_CELL.findall(line)]
        if not looks_like_lsf(line):
            lost["of other events"] += 1
        elif (row := _of_lsf(cells)) is None:
            lost[f"that are cut off (the first on line {number}: {len(cells)} fields)"] += 1
        else:
            rows.append((number, row))
    per_host = "GPUs of LSF are those of each host (ngpus_physical), times the hosts of a job." if rows else ""
    table = _table(path, rows, text=text, lost=lost, doubts=[doubt, per_host], expected=_LSF_EXPECTED)
    return accounted(table, path, remedy="LSF tells GPUs in resource requirements: rusage[ngpus_physical=N]")


def _of_lsf(cells: Sequence[str]) -> dict[str, Any] | None:
    """Return a record of LSF in sacct's columns; None where it is cut off."""
    try:
        asked = int(cells[_LSF_HOSTS])
        n_hosts = int(cells[at := _LSF_HOSTS + asked + 1])
        slots = [re.fullmatch(r"(?:(\d+)\*)?(.*)", host) for host in cells[at + 1 : at + 1 + n_hosts]]
        hosts = [match[2] for match in slots if match]
        n_slots = sum(int(match[1] or 1) for match in slots if match)
        status, name = int(cells[at + n_hosts + 1]), cells[at + n_hosts + 3]
        rest = cells[at + n_hosts + 5 + _LSF_USAGE :]  # mailUser, projectName, exitStatus, most processors, ...
        index = int(rest[6])
    except (IndexError, ValueError):
        return None
    needs = [cell for cell in (cells[13], *rest) if _LSF_GPUS.search(cell)]
    machines = dict.fromkeys(hosts)
    gpus = _lsf_gpus(needs[-1], len(machines)) if needs else 0.0
    start = cells[10] if cells[10] != "0" else None
    parts = {"cpu": f"{n_slots or int(cells[6])}", "node": f"{len(machines)}", "gres/gpu": f"{gpus:g}" if gpus else ""}
    return {
        "JobID": f"{cells[3]}_{index}" if index > 0 else cells[3], "Submit": cells[7],
        "Eligible": cells[8] if cells[8] != "0" else cells[7], "Start": start, "End": cells[2],
        "State": "COMPLETED" if status == 64 else "FAILED", "User": cells[11], "Partition": cells[12],
        "AllocTRES": ",".join(f"{key}={amount}" for key, amount in parts.items() if amount) if start else "",
        "JobName": re.sub(r"\[.*$", "", name) or cells[12], "Account": rest[1], "NodeList": ",".join(machines),
        "NNodes": f"{len(machines)}",
    }  # fmt: skip


def _lsf_gpus(needs: str, n_hosts: int) -> float:
    """Return the GPUs of a job: on each host, or of each part of a compound requirement, 2*{...} + 4*{...}."""
    parts = re.findall(r"(\d+)\s*\*\s*\{([^}]*)\}", needs)
    if parts:
        return sum(int(n) * float(found[1]) for n, text in parts if (found := _LSF_GPUS.search(text)))
    found = _LSF_GPUS.search(needs)
    return float(found[1]) * max(n_hosts, 1) if found else 0.0
