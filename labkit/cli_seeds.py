"""`labkit compare --seeds N`: schedulers on the same seeds, and how sure their differences are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from labkit.cli_swept import exit_if_failed, seeds_of, tell
from labkit.core.errors import InputError, unknown
from labkit.core.text import labelled

USUAL: Final = {
    "speed": "auto", "interference": "none", "load": 1.0, "throughputs": None, "strict": False, "slot_s": None,
    "first": None, "start_s": 0.0, "restart_s": 0.0, "rescale_s": 0.0,
    "overheads": None, "troubles": "none", "sharding": "dynamic", "quotas": None, "reservations": None,
    "drop_too_large": False, "any_type": False,
}  # fmt: skip
"""Options of runs, and their values where nothing was typed."""


def _called(schedulers: str) -> list[str]:
    """Return what some schedulers are called: by their labels, or as they are named."""
    from labkit.experiment.asked import schedulers_of

    return [label or plain for label, plain in map(labelled, map(str, schedulers_of(schedulers)))]


def refuse_unknown_base(against: str | None, schedulers: str) -> None:
    """Raise if the scheduler that others are to be compared with is none of them.

    Raises
    ------
    InputError
        With the nearest name.
    """
    if against is not None and against not in (names := _called(schedulers)):
        raise unknown("scheduler to compare --against", against, names)


def compare_on_seeds(
    trace: str,
    *,
    format: str | None,
    cluster: str,
    schedulers: str,
    seeds: str,
    against: str | None,
    report: Path | None,
    runs: Path | None,
    workers: int | None,
    as_json: bool,
    command: str,
    usual: str = "",
    left_out: Mapping[str, float],
    **options: Any,
) -> None:
    """Simulate, print a row per scheduler and what they show, and write the report.

    `usual` is a line to print above: which cluster was taken, if none was named.

    Raises
    ------
    InputError
        If `against` is none of the schedulers; or as `labkit.sweep`.
    """
    from labkit.experiment.asked import schedulers_of
    from labkit.experiment.caveats import Caveat
    from labkit.experiment.seeded import compare_on_seeds as run_all
    from labkit.results.conclusion import over_seeds
    from labkit.results.record import arrivals
    from labkit.workloads.expressions import trace as jobs_of

    given = {name: value for name, value in options.items() if value != USUAL[name]}
    jobs = trace if format is None else jobs_of(trace, format=format)
    if odd := next((name for name, value in left_out.items() if value), None):
        raise InputError(f"{odd} does not go with --seeds; leave it out, or take a single --seed.")
    chosen = [str(name) for name in schedulers_of(schedulers)]
    refuse_unknown_base(against, schedulers)
    base = against or _called(schedulers)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if as_json else "default", Caveat)
        found = run_all(
            jobs, cluster=cluster, schedulers=chosen, seeds=seeds_of(seeds), runs=runs, records=report is not None,
            workers=workers, progress=not as_json, **given,
        )  # fmt: skip
    faster = arrivals(float(options["load"]))
    if faster and not as_json:
        print(f"{trace}{faster}")
    if usual and not as_json:
        print(usual)
    tell(found.table, metric="mean_jct_s", base=base, as_json=as_json)
    if not as_json:
        print("\n".join(over_seeds(found.table)))
    if report is not None and found.records:
        from labkit.plots.report import write_report

        written = write_report(
            found.records, report, title=f"Trace {trace}{faster}, cluster {cluster}", command=command,
            seeds=found.table,
            base=base
        )  # fmt: skip
        if not as_json:
            print(f"report: {written.resolve()}")
    exit_if_failed(found.table, keys=("scheduler", "seed"))
