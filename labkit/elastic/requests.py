"""Requests to scale during a training, as text: `20:+1ps` at step 20, `5s:-1worker` after 5 seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.core.errors import InputError
from labkit.elastic.job import Job
from labkit.elastic.result import Result

_LINE = re.compile(r"(?P<when>\d+(?:\.\d+)?)(?P<unit>s?):(?P<n>[+-]\d+)(?P<what>ps|servers?|workers?)")


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """A change of the numbers of servers and workers, and its time.

    Attributes
    ----------
    when : float
        Completed steps, or seconds since training began.
    in_seconds : bool
        True: `when` is in seconds.
    servers, workers : int
        Change of their numbers.
    """

    when: float
    in_seconds: bool
    servers: int = 0
    workers: int = 0

    @classmethod
    def parse(cls, line: str) -> ScaleRequest:
        """Read a line.

        Raises
        ------
        InputError
            If it cannot be read.

        Examples
        --------
        >>> ScaleRequest.parse("5s:-1worker")
        ScaleRequest(when=5.0, in_seconds=True, servers=0, workers=-1)
        """
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise InputError(
                f"'{line}' cannot be read; expected STEP:+1ps or SECONDSs:-1worker, e.g. 20:+1ps, 5s:+2ps."
            )
        n, unit = int(found["n"]), found["unit"]
        if found["what"].startswith("worker"):
            return cls(float(found["when"]), unit == "s", workers=n)
        return cls(float(found["when"]), unit == "s", servers=n)


def most_servers(servers: int, requests: Iterable[ScaleRequest]) -> int:
    """Return the most servers that a job may have at one time.

    >>> most_servers(1, map(ScaleRequest.parse, ("10:+2ps", "20:-1ps", "5s:+1worker")))
    3
    """
    return servers + sum(max(request.servers, 0) for request in requests)


def follow(job: Job, requests: Iterable[ScaleRequest], *, strategy: str, told: object = None) -> Result:
    """Run a job to its end, and send each request when it is due.

    Parameters
    ----------
    told : callable, optional
        Takes each event.
    """
    todo = sorted(requests, key=lambda request: request.when)
    began = None
    for event in job.events():
        if began is None and event["event"] == "began":
            began = event["time"]
        if event["event"] == "loss" and began is not None:
            step, seconds = event["version"] + 1, event["time"] - began
            due = [r for r in todo if r.when <= (seconds if r.in_seconds else step)]
            for request in due:
                job.scale(servers=request.servers, workers=request.workers, strategy=strategy)
            todo = [r for r in todo if r not in due]
        if callable(told):  # last: a picture takes its time to draw
            told(event)
    return job.wait()
