"""The benchmark of learned schedulers: rules and policies on seeds that no training draws, as a table in Markdown.

python -m benchmarks.learned                                        # all settings, rules and policies
python -m benchmarks.learned "mine=policy.py:Mine" --kind dl2       # one's own, beside them
python -m benchmarks.learned --speeds config_speed.txt              # DL2's measured speeds, too

Seeds follow from a word (`--word`; who judges chooses one that nobody knew) and lie below 1,000,000, where training
begins.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from labkit.core.errors import LabkitError
from labkit.core.text import labelled
from labkit.experiment import Experiment, Scenario
from labkit.experiment.caveats import Caveat
from labkit.results.sweeps import interval

MOST_SEED: Final = 1_000_000
WORD: Final = "public"
GOOGLE: Final = "dl2_jobs('short_48n', pattern='google')"
SLOTS: Final = {"slot_s": 1200.0}
SETTINGS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "dl2": {
        "6 nodes": {"trace": GOOGLE, "cluster": "dl2-6n", **SLOTS},
        "8 nodes": {"trace": GOOGLE, "cluster": "dl2-8n", **SLOTS},
        "16 nodes": {"trace": GOOGLE, "cluster": "dl2-16n", **SLOTS},
        "48 nodes": {"trace": GOOGLE, "cluster": "dl2-48n", **SLOTS},
        "16 nodes, Poisson": {"trace": "dl2_jobs('short_48n', pattern='poisson')", "cluster": "dl2-16n", **SLOTS},
        "8 nodes, rescales of 60 s": {"trace": GOOGLE, "cluster": "dl2-8n", "rescale_s": 60.0, **SLOTS},
        "8 nodes, epochs ±20%": {"trace": GOOGLE, "cluster": "dl2-8n", "epoch_error": 0.2, **SLOTS},
        "16 nodes, at events": {"trace": GOOGLE, "cluster": "dl2-16n"},
        "demo, at events": {"trace": "traces/demo.csv", "cluster": "demo"},
        "dlrover-small, at events (minutes)": {"trace": "traces/dlrover-small.csv", "cluster": "dlrover-512"},
    },
    "marl": {
        "calibrated": {"trace": "marl_jobs(load=5)", "cluster": "marl-4x20", "interference": "calibrated"},
        "mild": {"trace": "marl_jobs(load=5)", "cluster": "marl-4x20", "interference": "mild"},
        "uneven sockets": {
            "trace": "marl_jobs(load=5, per_slot=4, n_slots=10)", "cluster": "marl-4x20-uneven",
            "interference": "calibrated",
        },
        "BCube, 64 servers": {
            "trace": "marl_jobs(load=5, n_pods=8, per_slot=1.2)", "cluster": "bcube(4, 2)",
            "interference": "calibrated",
        },
    },
}  # fmt: skip
RIVALS: Final = {
    "dl2": ("srtf", "optimus", "slot_aware", "networks=dl2(weights=('dl2', 'dl2-fitted'))", "dl2"),
    "marl": ("even", "even_pods", "interference_aware", "network=marl(fallback=None)", "marl"),
}
"""Rules first; the last one is the policy that ships."""


def seeds_of(word: str, n: int) -> list[int]:
    """Return n seeds that follow from a word.

    >>> seeds_of("0.1", 3) == seeds_of("0.1", 3), max(seeds_of("0.1", 100)) < MOST_SEED
    (True, True)
    """
    digest = int.from_bytes(hashlib.sha256(f"labkit {word}".encode()).digest()[:8], "big")
    return sorted(np.random.default_rng(digest).choice(MOST_SEED, n, replace=False).tolist())


def measured(asked: dict[str, Any], names: Sequence[str], seeds: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the mean JCT of each scheduler on each seed over the bound of that seed; NaN where a run failed.

    Where no bound is known it is the mean JCT in minutes.
    """
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in seeds:
        experiment = Experiment.of(Scenario(**asked, seed=seed))
        for name in names:
            try:
                jct_s = experiment.run(labelled(name)[1], name="x").summary["mean_jct_s"]
            except LabkitError as error:
                print(f"{name}, seed {seed}: {error}", file=sys.stderr)
                jct_s = float("nan")
            bound_s = experiment.bound_jct_s
            found[name].append(jct_s / (bound_s if np.isfinite(bound_s) else 60.0))
    return {name: np.array(values) for name, values in found.items()}


def rows_of(
    kind: str, settings: dict[str, dict[str, Any]], names: Sequence[str], seeds: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a table: times the bound, and each policy against the best rule."""
    labels = [labelled(name)[0] or name for name in names]
    rules = [name for name in RIVALS[kind] if "=" not in name.split("(")[0] and name not in RIVALS]
    policies = [name for name in names if name not in rules]
    heads = [f"{labels[names.index(name)]} against it" for name in policies]
    yield "| " + " | ".join(["setting", "n", *labels, "best rule", *heads]) + " |"
    yield "|---" * (3 + len(labels) + len(heads)) + "|"
    for setting, asked in settings.items():
        one = str(asked["trace"]).endswith(".csv")
        found = measured(asked, names, seeds[:1] if one else seeds)
        best = min(rules, key=lambda name: found[name].mean())
        cells = [f"{found[name].mean():.3f}" for name in names]
        apart = [_apart(found[name], found[best]) for name in policies]
        yield "| " + " | ".join([setting, str(len(found[best])), *cells, f"`{best}`", *apart]) + " |"


def _apart(mine: np.ndarray[Any, Any], best: np.ndarray[Any, Any]) -> str:
    percent = 100 * (mine / best - 1)
    if len(percent) < 2:
        return f"{percent[0]:+.1f}%"
    _, low, high = interval(percent)
    return f"{percent.mean():+.1f}% ({low:+.1f} to {high:+.1f}), {(percent < 0).sum()} of {len(percent)}"


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned", description=__doc__)
    parser.add_argument("schedulers", nargs="*", help="one's own: label=file.py:Class, or any name that labkit takes")
    parser.add_argument("--kind", choices=list(SETTINGS), action="append", help="of settings; default: both")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--word", default=WORD, help="from which seeds follow")
    parser.add_argument("--speeds", help="a table of measured speeds for DL2's models: two more settings")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore", Caveat)
    for kind in asked.kind or SETTINGS:
        settings = dict(SETTINGS[kind])
        if kind == "dl2" and asked.speeds:
            settings |= {
                f"{n} nodes, measured speeds": settings[f"{n} nodes"] | {"throughputs": asked.speeds} for n in (8, 16)
            }
        print(f"\n{kind}: mean JCT over the bound\n")
        for line in rows_of(kind, settings, [*RIVALS[kind], *asked.schedulers], seeds_of(asked.word, asked.seeds)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
