"""A real run beside its simulation: the figures, and the report that tells the gap by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit.plots import fidelity
from labkit.plots.fidelity import PALETTE, job_colours, plot_explained, plot_fidelity, plot_gantts
from labkit.plots.report import write_report
from labkit.plots.theme import as_svg
from labkit.results import RunRecord, explained, fidelity_summary, gap_parts, job_fidelity, lanes

from .runs import record

HOSTILE = "<script>alert(1)</script>"


@cache
def real(*, n: int = 8, hostile: str = "") -> RunRecord:
    """A run said to be of a testbed: that of a simulation in which all takes a fifth longer."""
    run = record("drf", n=n, hostile=hostile)
    rows = run.events.copy()
    rows["time_s"] = run.jobs.arrival_s[rows["job"]] + 1.2 * (rows["time_s"] - run.jobs.arrival_s[rows["job"]])
    rows = rows[np.argsort(rows["time_s"], kind="stable")]
    return replace(run, info=replace(run.info, run="real", backend="testbed"), events=rows)


def predicted(*, n: int = 8, hostile: str = "") -> RunRecord:
    return record("drf", n=n, hostile=hostile)


def table(**given: object) -> pd.DataFrame:
    return job_fidelity(real(**given), predicted(**given))  # type: ignore[arg-type]


def test_the_line_of_right_predictions_goes_from_corner_to_corner():
    spec = plot_fidelity(table()).to_dict()
    line, points = spec["layer"][:2]
    ends = spec["datasets"][line["data"]["name"]]
    assert all(end["x"] == end["y"] for end in ends)
    domain = points["encoding"]["x"]["scale"]["domain"]
    assert domain == points["encoding"]["y"]["scale"]["domain"] == [end["x"] for end in ends]
    assert spec["width"] == spec["height"]


def test_axes_are_logarithmic_where_the_longest_job_is_twenty_times_the_shortest():
    made = table()
    made["real_jct_s"] = made["simulated_jct_s"] = np.linspace(10, 150, len(made))
    kind = [plot_fidelity(made).to_dict()["layer"][1]["encoding"][axis]["scale"]["type"] for axis in "xy"]
    assert kind == ["linear", "linear"]
    made.loc[0, "real_jct_s"] = 5.0
    kind = [plot_fidelity(made).to_dict()["layer"][1]["encoding"][axis]["scale"]["type"] for axis in "xy"]
    assert kind == ["log", "log"]


def test_a_job_has_one_colour_in_both_gantt_charts_and_both_share_the_axis_of_time():
    spec = fidelity.gantts(real(), predicted()).to_dict()
    bars = [layer for chart in spec["vconcat"] for layer in chart["layer"] if "color" in layer["encoding"]]
    assert len({str(bar["encoding"]["color"]["scale"]) for bar in bars}) == 1
    assert len({str(bar["encoding"]["x"]["scale"]["domain"]) for bar in bars}) == 1
    titles = [chart["title"]["text"] for chart in spec["vconcat"]]
    assert titles == ["Real: drf (testbed)", "Simulated: drf (simulator)"]
    assert as_svg(spec).startswith("<svg")


def test_many_jobs_begin_the_colours_anew():
    scale = job_colours([f"j{i}" for i in range(12)]).to_dict()
    assert scale["range"][10:] == list(PALETTE[:2])


def test_the_bars_say_the_parts_and_the_title_their_sum():
    made = explained(table(), gap_parts(real(), predicted()))
    svg = as_svg(plot_explained(made).to_dict())
    assert f"{made.loc['all', 'percent']:+.1f}%" in svg
    for part in made.index.drop("all"):
        assert part in svg


def test_figures_of_no_jobs_can_be_drawn():
    none = table().iloc[:0]
    empty = {"a": lanes(real()).iloc[:0]}
    for chart in (plot_fidelity(none), plot_gantts(empty, {"a": real().table.iloc[:0]})):
        assert as_svg(chart.to_dict()).startswith("<svg")


def test_a_report_of_a_testbed_run_and_its_simulation_tells_the_gap(tmp_path: Path):
    text = write_report([predicted(), real()], tmp_path / "report.html").read_text()
    assert "Gap of mean JCT" in text
    assert "What explains the gap" in text
    assert "Real: drf (testbed)" in text
    assert "drf (testbed)" in text
    gap = fidelity_summary(real(), predicted())["gap_percent"]
    assert f"{gap:+.1f}%" in text


def test_a_report_of_runs_that_do_not_predict_each_other_tells_none(tmp_path: Path):
    other = replace(predicted(), info=replace(predicted().info, scheduler="fifo"))
    for number, runs in enumerate([[predicted(), record("fifo", n=8)], [real(), other], [real(), record("drf", n=9)]]):
        assert "Gap of mean JCT" not in write_report(runs, tmp_path / f"{number}.html").read_text()


def test_two_simulations_are_compared_where_that_is_asked_for(tmp_path: Path):
    runs = (predicted(), replace(predicted(), info=replace(predicted().info, run="other")))
    text = write_report(runs, tmp_path / "report.html", pair=runs).read_text()
    assert "Gap of mean JCT" in text


@pytest.mark.parametrize("as_what", [fidelity.as_html, fidelity.as_text])
def test_tables_say_every_part_every_job_and_the_gap(as_what):
    said = as_what(fidelity_summary(real(), predicted()), table(), explained(table(), gap_parts(real(), predicted())))
    for word in ("other gangs", "finishing", "job-0003", "gap +"):
        assert word in said


def test_hostile_names_are_text(tmp_path: Path):
    given = {"hostile": HOSTILE}
    runs = (real(**given), predicted(**given))
    jobs = job_fidelity(*runs)
    html = fidelity.as_html(fidelity_summary(*runs), jobs, explained(jobs, gap_parts(*runs)))
    assert "<script" not in html
    assert HOSTILE not in write_report(runs, tmp_path / "report.html").read_text()
