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
PLACERS: Final[dict[str, Placer]] = {
    "first_fit": FirstFit(),
    "pack": Pack(),
    "spread": Spread(),
    "even": Even(keep_order=True),
    "even, by demand": Even(),
}


def lines() -> Iterator[str]:
    """Return the lines of a table in Markdown: mean JCT in seconds of the default, and of each placer over it."""
    yield f"| trace | scheduler | default, mean JCT (s) | {' | '.join(PLACERS)} |"
    yield "|---" * (3 + len(PLACERS)) + "|"
    for trace, load, cluster in CASES:
        experiment = Experiment.of(scaled(read(TRACES / trace), load=load), cluster=cluster)
        for name in SCHEDULERS:
            default = experiment.run(name).summary["mean_jct_s"]
            jct_s = [
                experiment.run(make(name, placer=placer), name=name).summary["mean_jct_s"]
                for placer in PLACERS.values()
            ]
            told = " | ".join(f"{value / default:.2f}" for value in jct_s)
            yield f"| {Path(trace).stem}, load {load:g} | {name} | {default:,.0f} | {told} |"


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
