"""What it costs to have every block followed, and what it saves when a server is killed: a model of 100 MB.

2 workers, 2 servers, momentum, next to no computing: nothing hides behind what is pushed twice. Jobs with and without
followers take turns; at the end of each a server is killed.

python -m benchmarks standby
"""

from __future__ import annotations

import os
import signal
from statistics import median

from benchmarks import Row, size
from labkit.elastic import Result, start
from labkit.elastic.measure import waits
from labkit.elastic.trial import table

COMMAND = "python -m benchmarks standby"
MB, STEPS, ROUNDS, WARM = size(100, short=1), 80, size(3, short=1), 10
KILLED_AT = 60


def rows() -> list[Row]:
    """Return the time of a step, and what a killed server costs, with and without followers."""
    done: dict[bool, list[Result]] = {False: [], True: []}
    for number in range(ROUNDS):
        for standby in (False, True) if number % 2 else (True, False):
            done[standby].append(run(standby=standby))
    found = []
    for standby, results in done.items():
        name = "with followers" if standby else "without followers"
        step_ms = median(1e3 * usual_s(result) for result in results)
        faults = [result.faults.iloc[0] for result in results]
        found += [
            Row(f"a step of 100 MB, {name}", round(step_ms, 1), "ms, median", None, False, COMMAND),
            Row(f"a killed server, {name}, steps lost", median(f["lost_steps"] for f in faults), "steps, median",
                0 if standby else None, False, COMMAND),
            Row(f"a killed server, {name}, recover", round(median(f["recover_s"] for f in faults), 2), "s, median",
                2 if standby else None, False, COMMAND),
        ]  # fmt: skip
    return found


def usual_s(result: Result) -> float:
    """Return the usual time of a step before anything happened."""
    return float(waits(result.events).query(f"{WARM} < version < {KILLED_AT}")["step_s"].median())


def run(*, standby: bool) -> Result:
    """Train, and kill a server on the way."""
    options = {"steps": STEPS, "batch": 8, "shards": 2, "optimizer": "momentum", "lr": 0.1, "save_every": 20}
    with start(*table(MB), workers=2, servers=2, standby=standby, **options) as job:
        pids: dict[str, int] = {}
        for event in job.events():
            if event["event"] == "started":
                pids[event["name"]] = event["pid"]
            if event["event"] == "loss" and event["version"] >= KILLED_AT and "ps-0" in pids:
                os.kill(pids.pop("ps-0"), signal.SIGKILL)
        return job.wait()


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:60s} {row.value:10} {row.unit}")
