"""The cheat sheet: one page of commands and calls. `make docs` makes a PDF of it; a test reads each command."""

from __future__ import annotations

from html import escape
from typing import Final

COLUMNS: Final = (
    (
        ("Compare", (
            "labkit compare demo --cluster demo",
            "labkit compare demo --schedulers 'srtf,las(quantum_s=60)'",
            "labkit compare demo --arrival-rate 2 --report report.html",
            "labkit compare mine.csv --cluster 'fat_tree(8)'",
            "labkit compare 'poisson(60, per_hour=40)' --seeds 10",
            "labkit compare mine.csv --windows 10 --of 5000",
            "labkit compare demo --schedulers fifo,mine.py:Mine",
        )),
        ("Options of every simulation", (
            "--slot 600         decide every ten minutes",
            "--first 5000       the first jobs alone",
            "--restart 60       seconds to load a checkpoint",
            "--rescale 20       seconds to change a gang",
            "--mtbf 86400 --mttr 600 --checkpoint 1800",
            "--interference calibrated",
            "--quotas vision=8,*=4",
            "--scenario mine.toml",
        )),
        ("Many runs", (
            "labkit sweep --trace demo --schedulers fifo,srtf --folder s",
            "   --set arrival_rate=1,2 --seeds 10 --figure s.pdf",
            "labkit tune las --trace demo --param quantum_s=60:3600:log",
        )),
    ),
    (
        ("Traces, clusters, schedulers", (
            "labkit traces list",
            "labkit traces fetch philly",
            "labkit traces info demo",
            "labkit traces check mine.csv --cluster demo",
            "labkit traces import mine.csv",
            "labkit clusters",
            "labkit schedulers",
        )),
        ("After a run", (
            "labkit simulate demo --scheduler srtf",
            "labkit runs list",
            "labkit report srtf-demo-0 --out srtf.html",
            "labkit figure srtf-demo-0 --kind gantt --out g.pdf --check",
            "labkit paper fifo-demo-0 srtf-demo-0 --out paper",
            "labkit watch srtf-demo-0 --browser",
        )),
        ("Machines", (
            "labkit bed up --hosts 3",
            "labkit doctor --inventory hosts.toml",
            "labkit deploy testbed --scheduler optimus",
            "labkit attach optimus-testbed-0",
            "labkit fidelity optimus-testbed-0",
            "labkit profile --trace testbed",
        )),
        ("Train", (
            "labkit train cnn --steps 300 --at 100:+1ps",
            "labkit train-policy dl2 --cluster dl2-16n --out m.safetensors",
        )),
    ),
    (
        ("Python", (
            "import labkit",
            "jobs = labkit.read('demo')",
            "run = labkit.simulate(jobs, cluster='demo', scheduler='srtf')",
            "run.summary['mean_jct_s']; run.table",
            "runs = labkit.compare(jobs, cluster='demo')",
            "runs.plot.bars(); runs.plot.cdf(); run.plot.gantt()",
        )),
        ("Sweeps", (
            "grid = labkit.Grid(trace='demo', cluster='demo',",
            "    schedulers=['fifo', 'srtf'], arrival_rate=[1, 2])",
            "table = labkit.sweep(grid)",
            "labkit.plots.plot_sweep(table)",
        )),
        ("A scheduler", (
            "labkit new scheduler smallest_first",
            "class Mine:",
            "    def schedule(self, snapshot):",
            "        waiting = snapshot.waiting       # numbers of jobs",
            "        t = snapshot.table               # columns of jobs",
            "        order = t.gpus[waiting].argsort(kind='stable')",
            "        return ByNetwork().place(",
            "            snapshot, requested_gangs(snapshot, waiting[order]))",
        )),
        ("Words", (
            "JCT    job completion time: completion - arrival",
            "gang   all tasks of a job, placed whole or not at all",
            "bound  mean JCT that no scheduler can beat",
            "rho    JCT / JCT with an equal share (finish-time fairness)",
        )),
    ),
)  # fmt: skip
"""Columns of sections of lines."""
PAGE: Final = (842.0, 595.0)
"""Width and height of A4 on its side, in points."""
MARGIN, HEAD, LINE, SECTION = 30.0, 62.0, 15.5, 30.0
MOST: Final = 64
"""Letters that fit a column."""


def as_svg() -> str:
    """Return the page as SVG, in points."""
    width, height = PAGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}"><rect width="{width:g}" height="{height:g}" fill="white"/>',
        _text("labkit", MARGIN, 38, size=20, weight="bold", family="sans-serif"),
        _text(
            "simulate, compare and run schedulers of deep-learning clusters",
            MARGIN + 74,
            38,
            size=10,
            family="sans-serif",
        ),
    ]
    step = (width - 2 * MARGIN) / len(COLUMNS)
    for number, sections in enumerate(COLUMNS):
        x, y = MARGIN + number * step, HEAD
        for heading, lines in sections:
            parts.append(_text(heading, x, y + 8, size=10, weight="bold", family="sans-serif", fill="#1f4e8c"))
            for line in lines:
                y += LINE
                parts.append(_text(line, x, y + 11, size=6.7))
            y += SECTION
    return "".join([*parts, "</svg>"])


def as_pdf() -> bytes:
    """Return the page as PDF."""
    import vl_convert

    return vl_convert.svg_to_pdf(as_svg())


def lowest() -> float:
    """Return how far down the longest column reaches, in points."""
    return HEAD + max(sum(LINE * len(lines) + SECTION for _, lines in sections) for sections in COLUMNS)


def _text(
    said: str, x: float, y: float, *, size: float, weight: str = "normal", family: str = "monospace", fill: str = "#111"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" font-family="{family}" fill="{fill}" '
        f'xml:space="preserve">{escape(said)}</text>'
    )
