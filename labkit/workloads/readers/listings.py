"""Jobs as blocks of attributes, as `scontrol show job` and `qstat -f` print them: attributes by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from labkit.workloads.readers.base import each_line

_SCONTROL: Final = re.compile(r"\s*JobId=\d+ ")
_PAIR: Final = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s+[A-Z][\w/:]*=|\s*$)")
_IN_JOBCOMP: Final = {"Name": "JobName", "NodeCnt": "NumNodes", "Tres": "TRES"}
"""Attributes that Slurm's log of completed jobs (jobcomp/filetxt) names otherwise."""
_QSTAT: Final = re.compile(r"\s*Job Id:\s*(\S+)\s*")
_SAME_IN_RECORDS: Final = {
    "Job_Name": "jobname", "Account_Name": "account", "stime": "start", "start_time": "start", "comp_time": "end",
    "obittime": "end",
}  # fmt: skip
"""Attributes of qstat that have other names in PBS' accounting records."""


def looks_like_scontrol(head: str) -> bool:
    """Return whether a text begins as `scontrol show job` prints it, or Slurm's log of completed jobs."""
    return _SCONTROL.match(head) is not None


def looks_like_qstat(head: str) -> bool:
    """Return whether a text begins as `qstat -f` prints it, also in JSON."""
    return _QSTAT.match(head) is not None or (head.lstrip().startswith("{") and '"pbs_server"' in head)


def scontrol_jobs(text: str) -> list[tuple[int, dict[str, str]]]:
    r"""Return the jobs of `scontrol show job`, with or without -o: the line of each, and its attributes.

    >>> scontrol_jobs("JobId=7 JobName=a b\n   JobState=RUNNING Reason=None\n")
    [(1, {'JobId': '7', 'JobName': 'a b', 'JobState': 'RUNNING', 'Reason': 'None'})]
    """
    found = list[tuple[int, dict[str, str]]]()
    for number, line in each_line(text):
        if _SCONTROL.match(line):
            found.append((number, {}))
        if found:
            for name, value in _PAIR.findall(line):
                found[-1][1].setdefault(name, value)
    return [
        (number, {_IN_JOBCOMP.get(name, name): value for name, value in told.items() if value not in ("(null)", "N/A")})
        for number, told in found
    ]


def qstat_jobs(text: str) -> list[tuple[int, str, dict[str, str]]]:
    r"""Return the jobs of `qstat -f`: the line of each, its id, and its attributes by the names of accounting records.

    >>> qstat_jobs("Job Id: 7.srv\n    queue = gpu\n    exec_host = a/0+\n\tb/0\n")
    [(1, '7.srv', {'queue': 'gpu', 'exec_host': 'a/0+b/0'})]
    """
    found, last = list[tuple[int, str, dict[str, str]]](), ""
    for number, line in each_line(text):
        if (job := _QSTAT.fullmatch(line)) is not None:
            found.append((number, job[1], {}))
        elif found and line.startswith("\t") and last:  # a long value goes on
            found[-1][2][last] += line.strip()
        elif found and " = " in line:
            last, _, value = line.strip().partition(" = ")
            found[-1][2][last] = value
    return [(number, job, _as_recorded(told)) for number, job, told in found]


def qstat_entries(content: Mapping[str, Any]) -> list[tuple[int, str, dict[str, str]]]:
    """Return the jobs of `qstat -f -F json`, else as `qstat_jobs`."""
    jobs = content.get("Jobs")
    listed = jobs.items() if isinstance(jobs, Mapping) else ()
    return [
        (i, job, _as_recorded(dict(_leaves(told)))) for i, (job, told) in enumerate(listed, 1) if isinstance(told, dict)
    ]


def _leaves(told: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in told.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value)


def _as_recorded(told: Mapping[str, str]) -> dict[str, str]:
    owner = told.get("euser") or told.get("Job_Owner", "").partition("@")[0]
    recorded = {_SAME_IN_RECORDS.get(name, name): value for name, value in told.items()}
    return recorded | ({"user": owner} if owner else {})
