"""`labkit demo`: six schedulers on a shipped trace, and three jobs that train on a laptop testbed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli.compare import DEMO_SCHEDULERS, all_but_failed, command_line, refuse_places, tell_failed
from labkit.cli.tables import print_finding, print_header, print_table
from labkit.core.errors import LabkitError
from labkit.experiment.scenario import Scenario
from labkit.system.progress import StageLines
from labkit.system.release import how_to_get

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from labkit.experiment.demo import Twins
    from labkit.results.record import RunRecord


def demo(
    folder: Annotated[Path, typer.Option(help="File for the report.")] = Path("reports"),
    testbed: Annotated[bool, typer.Option(help="Also train three jobs on a laptop testbed.")] = True,
    table: Annotated[bool, typer.Option(help="Print the table of schedulers, not only write it to the report.")] = True,
) -> None:
    """Compare six schedulers on a shipped trace, train three jobs on a laptop testbed, and write a report and a figure.

    The exit code is 1 if the testbed did not work; the rest is done even then.
    """
    from labkit.experiment.demo import CLUSTER

    with StageLines("comparing six schedulers") as lines:
        records = _demo_records(folder, lines)
    if table:
        print_header(records)
        print_table(records)
    twins = trained() if testbed else None
    command = command_line(["labkit", "demo", "--folder", str(folder), *([] if testbed else ["--no-testbed"])])
    pair, rests_on = ((twins.real, twins.simulated), twins.rests_on) if twins else (None, "")
    with StageLines("writing the report"):
        from labkit.plots.report import write_report

        written = write_report(
            records, folder / "demo.html", title=f"Schedulers on the trace demo, cluster {CLUSTER}", command=command,
            pair=pair, pair_note=rests_on,
        )  # fmt: skip
        figure = save_figure(records, folder / "demo.svg")
    print(f"report: {written.resolve()}\nfigure: {figure.resolve()}")
    print_finding(records)
    raise typer.Exit(0 if twins or not testbed else 1)


def _demo_records(folder: Path, lines: StageLines) -> list[RunRecord]:
    """Simulate, and say how many schedulers are done."""
    from labkit.experiment.demo import CLUSTER, trace

    refuse_places(folder / "demo.html", None)
    done: list[RunRecord] = []
    lines.detail = lambda: f"{len(done)} done"
    records, failed = all_but_failed(
        Scenario.of(trace(), cluster=CLUSTER), schedulers=DEMO_SCHEDULERS, after_each=done.append
    )
    if failed:
        tell_failed(failed)
    return records


def trained() -> Twins | None:
    """Train the jobs, and print what came out; where that does not work, say why in one line and return None."""
    from labkit.experiment.demo import train

    print()
    try:
        with StageLines("starting a laptop testbed") as lines:
            twins = train(lines)
    except ImportError as error:
        _refuse(f"the package {error.name or error} is missing; {how_to_get(error.name or '')}")
        return None
    except (LabkitError, OSError) as error:
        _refuse(str(error))
        return None
    show(twins)
    if n_left := int(twins.real.summary["n_unfinished"]):
        _refuse(f"{n_left} of {len(twins.real.jobs)} jobs were given up; {twins.notes[0] if twins.notes else ''}")
        return None
    return twins


def _refuse(why: str) -> None:
    print(f"labkit: nothing from the testbed in the report: {' '.join(why.split())}", file=sys.stderr)


def show(twins: Twins) -> None:
    """Print a row for each job: its JCT, there and in the simulation, and how it was rescaled; then the means."""
    from labkit.cli.tables import say
    from labkit.cli.tables import show as show_table
    from labkit.results import fidelity_summary
    from labkit.results.fidelity import without_drift

    show_table(table_of(twins))
    means = fidelity_summary(twins.real, twins.simulated)
    if means["n_jobs"]:
        real_s, simulated_s = means["real_mean_jct_s"], means["simulated_mean_jct_s"]
        said = f"gap {means['gap_percent']:+.1f}% to the simulated {simulated_s:.1f} s; {without_drift(means)}"
        say(f"The mean JCT was {real_s:.1f} s: {said}. {twins.rests_on}")


def table_of(twins: Twins) -> Table:
    """Return that table."""
    from labkit.cli.tables import new_table
    from labkit.results import rescalings

    table = new_table()
    for heading in ("job", "JCT (s)", "simulated (s)"):
        table.add_column(heading, justify="left" if heading == "job" else "right", no_wrap=True)
    table.add_column("rescaled while it trained")
    scaled = rescalings(twins.real.events)
    pairs = zip(twins.real.table.itertuples(), twins.simulated.table.itertuples(), strict=True)
    for real, simulated in pairs:
        mine = scaled[scaled["job"] == real.job]
        table.add_row(str(real.id), f"{real.jct_s:.2f}", f"{simulated.jct_s:.2f}", _in_words(mine))
    return table


def _in_words(scaled: pd.DataFrame) -> str:
    """Return when a job was rescaled, and to what."""

    def count(n: int, what: str) -> str:
        return f"{n} {what}{'s' if n != 1 else ''}"

    columns = (scaled[name].tolist() for name in ("time_s", "steps", "n_workers", "n_ps"))
    return ", then ".join(
        f"at {time_s:.1f} s (step {steps:.0f}) to {count(n_workers, 'worker')}, {count(n_ps, 'PS')}"
        for time_s, steps, n_workers, n_ps in zip(*columns, strict=True)
    )


def save_figure(records: list[RunRecord], path: Path) -> Path:
    """Draw the distribution of JCTs under each scheduler; return the file."""
    from labkit.plots.jct import plot_jct_cdf
    from labkit.results import jct_cdf, labels

    tables = {label: record.table for label, record in zip(labels(records), records, strict=True)}
    plot_jct_cdf(jct_cdf(tables)).save(path)
    return path
