"""Every classic scheduler with each placer on a few traces, against its default: the table of docs/baselines.md.

python -m benchmarks.baselines
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from labkit.core.protocols import Placer
from labkit.experiment import Experiment
from labkit.placers import Even, FirstFit, Pack, Spread
from labkit.schedulers import make
from labkit.workloads import scaled
from labkit.workloads.readers import read

TRACES: Final = Path(__file__).parents[1] / "traces"
CASES: Final = (
    ("demo.csv", 1.0, "demo"),
    ("demo.csv", 2.0, "demo"),
    ("philly-like.csv", 1.0, "demo"),
    ("gavel-small.trace", 1.0, "gavel-8-16-24"),
    ("dl2-small.csv", 1.0, "dl2-48n"),
)
"""Trace, load, cluster."""
SCHEDULERS: Final = ("fifo", "sjf", "srtf", "las", "drf", "tetris", "optimus")
MOVE: Final = ("srtf", "las")
"""Those that may place jobs anew that go on: `moves=True`."""
PLACERS: Final[dict[str, Placer]] = {
    "first_fit": FirstFit(),
    "pack": Pack(),
    "spread": Spread(),
    "even": Even(keep_order=True),
    "even, by demand": Even(),
}


def lines() -> Iterator[str]:
    """Return the lines of a table in Markdown: mean JCT in seconds of the default, and of the others over it."""
    yield f"| trace | scheduler | default, mean JCT (s) | {' | '.join(PLACERS)} | gangs wait | jobs move |"
    yield "|---" * (5 + len(PLACERS)) + "|"
    for trace, load, cluster in CASES:
        jobs = scaled(read(TRACES / trace), load=load)
        experiment, waiting = (Experiment.of(jobs, cluster=cluster, consolidate=how) for how in ("split", "wait"))
        for name in SCHEDULERS:
            default = experiment.run(name).summary["mean_jct_s"]
            jct_s = [
                experiment.run(make(name, placer=placer), name=name).summary["mean_jct_s"]
                for placer in PLACERS.values()
            ]
            jct_s.append(waiting.run(name).summary["mean_jct_s"])
            if name in MOVE:
                jct_s.append(experiment.run(f"{name}(moves=True)").summary["mean_jct_s"])
            told = " | ".join(f"{value / default:.2f}" for value in jct_s) + " |" * (name not in MOVE)
            yield f"| {Path(trace).stem}, arrival rate {load:g} | {name} | {default:,.0f} | {told} |"


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
