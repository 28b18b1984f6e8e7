"""What it is worth to know speeds by device type: Gavel's policies over their agnostic twins, on traces that you name.

python -m benchmarks.agnostic --throughputs simulation_throughputs.json e13805.trace 51b7ef.trace

The table of docs/mechanisms.md; the traces are Gavel's, in its public repository below scheduler/traces.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from labkit.experiment import Experiment
from labkit.schedulers import available
from labkit.workloads import scaled
from labkit.workloads.readers import read

LOADS: Final = (1.0, 2.0, 4.0)
CLUSTER: Final = "gavel-8-16-24"


def policies() -> list[str]:
    """Return the names of all schedulers that have an agnostic twin."""
    known = available()
    return [name for name in known if f"{name}_agnostic" in known]


def lines(traces: Sequence[Path], *, throughputs: Path | None, loads: Sequence[float] = LOADS) -> Iterator[str]:
    """Return the lines of a table in Markdown: mean JCT of each aware policy over that of its agnostic twin."""
    yield f"| trace, jobs | load | {' | '.join(name.removeprefix('gavel_') for name in policies())} |"
    yield "|---" * (2 + len(policies())) + "|"
    for path in traces:
        jobs = read(path)
        for load in loads:
            experiment = Experiment.of(scaled(jobs, load=load), cluster=CLUSTER, throughputs=throughputs)
            told = []
            for name in policies():
                aware, agnostic = (experiment.run(n).summary["mean_jct_s"] for n in (name, f"{name}_agnostic"))
                told.append(f"{aware / agnostic:.3f} ({aware:,.0f} s)")
            yield f"| {path.stem}, {len(jobs)} | {load:g} | {' | '.join(told)} |"


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("traces", nargs="+", type=Path)
    asked.add_argument("--throughputs", type=Path)
    asked.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    given = asked.parse_args()
    for line in lines(given.traces, throughputs=given.throughputs, loads=given.loads):
        print(line, flush=True)
