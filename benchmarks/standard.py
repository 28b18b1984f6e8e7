"""The standard benchmark of schedulers: frozen settings, every scheduler that suits them, paired runs, a bound.

python -m benchmarks.standard docs/assets/standard.csv            # all of it: writes the file that the page shows
python -m benchmarks.standard mine.csv "mine=first.py:First"      # yours alone, beside the base of each setting
python -m benchmarks.standard mine.csv "mine=first.py:First" --kind elastic --trouble none
python -m benchmarks.standard --check docs/assets/standard.csv --kind types     # run again, compare the checksums

A setting is never changed once it has been published; what is mended gets a new name. Public traces take part once they
were fetched (`labkit traces fetch philly`); they are not part of labkit.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd

import labkit
from labkit.results.sweeps import interval
from labkit.workloads.named_traces import PUBLIC, fetched

SEEDS: Final = 5
TROUBLES: Final[dict[str, dict[str, float]]] = {
    "none": {},
    "failures": {
        "mtbf_s": 172_800.0, "mttr_s": 3600.0, "checkpoint_s": 1800.0, "start_s": 30.0, "restart_s": 60.0,
        "rescale_s": 30.0,
    },
}  # fmt: skip
"""Nothing; or each machine fails every other day for an hour, and starts, restarts and rescalings take time."""
SCHEDULERS: Final[dict[str, tuple[str, ...]]] = {
    "fixed": (
        "fifo", "easy", "slurm", "sjf", "srtf", "qssf", "las", "tiresias", "tetris", "muri", "shockwave",
        "synergy", "gavel_las", "gavel_ftf", "gavel_makespan",
    ),
    "elastic": (
        "fifo", "srtf", "las", "tetris", "drf", "hesrpt", "afs", "pollux", "optimus", "autoscale",
        "slot_aware", "dl2", "dlrover", "lookahead",
    ),
    "types": (
        "fifo", "srtf", "las", "sia", "gavel_fifo", "gavel_sjf", "gavel_las", "gavel_las_agnostic", "gavel_ftf",
        "gavel_makespan", "gavel_throughput", "gavel_hierarchical", "gavel_proportional", "gavel_isolated",
        "gavel_allox", "gavel_gandiva", "gavel_gandiva_fair", "gavel_strategy_proof",
    ),
    "pods": (
        "even", "even_pods", "whole_gang", "load_balance", "kubernetes", "tetris_pods", "least_interference",
        "interference_aware", "marl", "look_ahead_pods",
    ),
}  # fmt: skip
"""Kind of setting -> schedulers that suit it; the first is the base. `pollux`, `lookahead` and `look_ahead_pods` know
true speeds, which others measure or fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Jobs on a cluster at three arrival rates: little queueing, about as much work as GPUs can do, and too much."""

    kind: str
    trace: str
    cluster: str
    rates: tuple[float, float, float]
    options: dict[str, Any] = field(default_factory=dict)

    def grid(self, schedulers: Sequence[str], level: str, trouble: str) -> labkit.Grid:
        """Return the runs at one arrival rate."""
        return labkit.Grid(
            schedulers=schedulers, trace=self.trace, cluster=self.cluster, seeds=SEEDS,
            arrival_rate=self.rates[LEVELS.index(level)], **self.options, **TROUBLES[trouble],
        )  # fmt: skip


LEVELS: Final = ("low", "binding", "overloaded")
SETTINGS: Final[dict[str, Setting]] = {
    "philly-like": Setting(
        kind="fixed", trace="philly-like", cluster="no_network(2, servers='dgx1')", rates=(0.5, 1, 2),
        options={"windows": SEEDS, "window_jobs": 100},
    ),
    "philly": Setting(
        kind="fixed", trace="philly", cluster="no_network(16, servers='dgx1')", rates=(0.1, 0.5, 2.5),
        options={"windows": SEEDS, "window_jobs": 200, "drop_too_large": True},
    ),
    "alibaba-2023": Setting(
        kind="fixed", trace="alibaba-2023", cluster="no_network(4, servers='dgx1')", rates=(0.2, 1, 5),
        options={"windows": SEEDS, "window_jobs": 200, "drop_too_large": True, "any_type": True},
    ),
    "poisson": Setting(
        kind="elastic", trace="poisson(80, per_hour=40)", cluster="no_network(8)", rates=(0.25, 1, 4)
    ),
    "dl2": Setting(
        kind="elastic", trace="dl2_jobs('short_48n', pattern='google')", cluster="dl2-16n", rates=(0.25, 1, 4),
        options={"slot_s": 1200.0},
    ),
    "gavel": Setting(
        kind="types", trace="gavel_jobs(120, mean_gap_s=1200)", cluster="gavel-8-16-24", rates=(0.5, 1, 4)
    ),
    "marl": Setting(
        kind="pods", trace="marl_jobs(load=5)", cluster="marl-4x20", rates=(0.5, 2, 4),
        options={"interference": "calibrated"},
    ),
}  # fmt: skip
"""Seeds are windows of a trace, where it is cut into them, or traces of their own."""
COLUMNS: Final = (
    "setting", "level", "trouble", "scheduler", "n", "over_bound", "over_base", "low", "high", "cpu_s", "checksum"
)  # fmt: skip


def rows_of(
    setting: str, level: str, trouble: str, schedulers: Sequence[str], *, workers: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each scheduler of one setting, arrival rate and trouble; the first is the base.

    `over_bound`: mean JCT over the bound, NaN where none is known; `over_base`, `low`, `high`: over the base, paired,
    with a 95% confidence interval; `cpu_s`: of all n runs; `checksum`: of their metrics.
    """
    grid = SETTINGS[setting].grid(schedulers, level, trouble)
    table = labkit.sweep(grid, workers=workers, progress=False)
    names = list(dict.fromkeys(table["scheduler"]))
    jct_s = table.pivot_table(index="seed", columns="scheduler", values="mean_jct_s", dropna=False)
    bound_s = table.groupby("seed")["bound_jct_s"].max()
    for name in names:
        mine = table[table["scheduler"] == name]
        ratio = (jct_s[name] / jct_s[names[0]]).dropna().to_numpy()
        values = (
            setting, level, trouble, name, len(ratio), float((jct_s[name] / bound_s).mean()), *interval(ratio),
            float(mine["cpu_s"].sum()), checksum(mine),
        )  # fmt: skip
        yield dict(zip(COLUMNS, values, strict=True))
        for error in dict.fromkeys(mine["error"][mine["error"] != ""]):
            print(f"{setting}, {level}, {trouble}, {name}: {error}", file=sys.stderr)


def checksum(runs: pd.DataFrame) -> str:
    """Return a digest of mean JCT and makespan of each seed, to nine digits; no reader takes it as a number."""
    told = [f"{seed} {jct:.9g} {end:.9g}" for seed, jct, end in runs[["seed", "mean_jct_s", "makespan_s"]].to_numpy()]
    return "sha256:" + hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def wanted(kinds: Sequence[str], troubles: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield settings, levels and troubles, those of public traces where these were fetched."""
    for name, setting in SETTINGS.items():
        if setting.kind not in kinds:
            continue
        if setting.trace in PUBLIC and fetched(setting.trace) is None:
            print(f"{name}: left out, as its trace is not here: labkit traces fetch {setting.trace}", file=sys.stderr)
            continue
        yield from ((name, level, trouble) for level in LEVELS for trouble in troubles)


def main(words: Sequence[str] | None = None) -> int:
    """Run, and write or compare; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standard", description=__doc__)
    parser.add_argument("file", type=Path, help="a CSV: what is written, or with --check what is compared")
    parser.add_argument("schedulers", nargs="*", help="your own: label=file.py:Class, or any name that labkit takes")
    parser.add_argument("--kind", choices=list(SCHEDULERS), action="append", help="of settings; default: all")
    parser.add_argument("--trouble", choices=list(TROUBLES), action="append", help="default: both")
    parser.add_argument("--workers", type=int, help="processes; default: one for each core")
    parser.add_argument("--check", action="store_true", help="run the rows of the file again, compare checksums")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore", UserWarning)  # notes on single runs
    kept = pd.read_csv(asked.file) if asked.check else pd.DataFrame(columns=list(COLUMNS))
    rows: list[dict[str, Any]] = []
    for setting, level, trouble in wanted(asked.kind or list(SCHEDULERS), asked.trouble or list(TROUBLES)):
        suited = SCHEDULERS[SETTINGS[setting].kind]
        chosen = [suited[0], *asked.schedulers] if asked.schedulers else suited
        rows += rows_of(setting, level, trouble, chosen, workers=asked.workers)
        if not asked.check:
            pd.DataFrame(rows).round(4).to_csv(asked.file, index=False)  # what is done is kept
        print(f"{setting}, {level}, {trouble}: done", file=sys.stderr)
    return _differ(kept, rows) if asked.check else 0


def _differ(kept: pd.DataFrame, rows: list[dict[str, Any]]) -> int:
    """Print the rows whose checksums differ from those in a file; return 1 if there are any, or nothing to compare."""
    keys = ["setting", "level", "trouble", "scheduler"]
    both = pd.DataFrame(rows, columns=list(COLUMNS)).merge(kept, on=keys, suffixes=("", "_kept"))
    other = both[both["checksum"] != both["checksum_kept"]]
    for row in other.to_dict("records"):
        print(f"{', '.join(row[key] for key in keys)}: {row['over_base']:.4f}, kept {row['over_base_kept']:.4f}")
    print(f"{len(both) - len(other)} of {len(both)} rows have the checksum of the file")
    return int(len(other) > 0 or not len(both))


if __name__ == "__main__":
    sys.exit(main())
