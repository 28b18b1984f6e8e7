"""What a reader takes from a figure is true: labels at their marks, one axis for what is compared, no survivors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from labkit import simulate
from labkit.core import InputError, Jobs
from labkit.plots.fidelity import PALETTE
from labkit.plots.gantt import NO_GPU, plot_gantt_stack
from labkit.plots.jct import plot_jct_bars, plot_jct_cdf
from labkit.plots.palette import PREFERRED
from labkit.plots.report import _cards, _lead, runs_table, write_report
from labkit.plots.sweep import plot_sweep, plot_sweep_differences
from labkit.plots.theme import as_svg, line_legend, name_axis
from labkit.plots.utilisation import plot_utilisation
from labkit.results import RunRecord, run_table, sweep_differences
from labkit.topology import build, no_network

from .runs import record, records
from .test_sweep import table_of

LONG = "gavel_las(round_s=60.0, space_sharing=True, estimate=0.5)"


def cut_short(scheduler: str) -> RunRecord:
    """Return a run that was stopped when a third of its jobs were done: the quick ones."""
    whole = record(scheduler)
    done_s = np.sort(whole.table["completion_s"])[len(whole.jobs) // 3]
    return replace(whole, events=whole.events[whole.events["time_s"] <= done_s])


def layers(chart) -> list[dict]:
    return chart.to_dict()["layer"]


def field(layer: dict, channel: str) -> str | None:
    return layer["encoding"].get(channel, {}).get("field")


def test_each_number_of_the_jct_bars_stands_at_its_own_mark():
    texts = {field(layer, "text"): field(layer, "x") for layer in layers(plot_jct_bars(run_table(records())))
             if "text" in layer["encoding"]}  # fmt: skip
    assert texts == {"says": "mean", "says_p95": "p95"}


def test_a_short_job_is_not_at_0_where_the_unit_is_days():
    jct_s = [0.4, 9.0, 30 * 86400.0]
    curve = pd.DataFrame({"scheduler": "fifo", "jct_s": jct_s, "fraction": [1 / 3, 2 / 3, 1.0]})
    spec = plot_jct_cdf(curve).to_dict()
    drawn = [row["jct"] for rows in spec["datasets"].values() for row in rows if "jct" in row]
    assert drawn == pytest.approx([each / 86400 for each in jct_s], rel=1e-4)


def test_one_slow_scheduler_does_not_choose_the_unit_of_all():
    times = {f"{name}_jct_s": [7200.0, 7200.0, 40 * 86400.0] for name in ("mean", "median", "p95")}
    shown = pd.DataFrame({"label": ["a", "b", "c"], **times, "n_done": 1, "n_trace": 1})
    (rows,) = plot_jct_bars(shown).to_dict()["datasets"].values()
    assert rows[0]["says"] == "120 min, 1.00x"


def test_the_axis_of_the_jct_bars_begins_at_0_and_holds_every_mark():
    spec = plot_jct_bars(run_table(records())).to_dict()
    (rows,) = spec["datasets"].values()
    (domain,) = [layer["encoding"]["x"]["scale"]["domain"] for layer in spec["layer"]
                 if "domain" in (layer["encoding"]["x"].get("scale") or {})]  # fmt: skip
    assert domain[0] == 0
    assert domain[1] > max(row[name] for row in rows for name in ("mean", "median", "p95"))


def test_a_run_that_was_cut_short_has_no_bar_and_is_the_best_of_nothing():
    runs = [record("fifo"), cut_short("srtf"), record("drf")]
    assert runs[1].summary["mean_jct_s"] < min(run.summary["mean_jct_s"] for run in (runs[0], runs[2]))
    spec = plot_jct_bars(run_table(runs)).to_dict()
    (rows,) = spec["datasets"].values()
    (its,) = [row for row in rows if row["label"] == "srtf"]
    assert its["mean"] == its["p95"] == 0
    assert its["says"] == f"no bar: {runs[1].n_done} of {len(runs[1].jobs)} jobs done"
    assert not any(row["says"].endswith("1.00x") for row in rows if row["label"] == "srtf")
    assert not any("srtf" in card.note for card in _cards(runs))
    told = runs_table(runs)
    assert list(told.pale) == [False, True, False]
    assert [cell.text for cell in told.rows[1][1]][:5] == ["–"] * 5
    assert not any(cell.best for cell in told.rows[1][1])


def test_distributions_of_a_report_leave_out_runs_that_were_cut_short_and_say_so(tmp_path):
    text = write_report([record("fifo"), cut_short("srtf")], tmp_path / "r.html").read_text()
    assert text.count("because not all of its jobs completed: srtf") == 4, (
        "three figures, and what the report concludes"
    )


def test_gpus_held_are_not_praised(tmp_path):
    told = runs_table(records())
    held = list(told.headings).index("GPUs held")
    assert not any(cells[held].best for _, cells in told.rows)
    assert not any("tilisation" in heading for heading in told.headings)
    assert "ighest utilisation" not in write_report(records(), tmp_path / "r.html").read_text()


def test_gantt_charts_below_each_other_have_one_axis_of_time_and_one_scale_of_colours():
    runs = {"fifo": record("fifo"), "short": record("drf", n=10)}
    spec = plot_gantt_stack(runs).to_dict()
    x = [layer["encoding"]["x"]["scale"]["domain"] for chart in spec["vconcat"] for layer in chart["layer"]]
    gpus = [chart["layer"][1]["encoding"]["color"]["condition"]["scale"]["domain"] for chart in spec["vconcat"]]
    assert len({tuple(each) for each in x}) == 1
    assert len({tuple(each) for each in gpus}) == 1


def test_jobs_without_gpus_have_a_colour_of_their_own_that_the_figure_explains():
    jobs = Jobs.of(
        arrival_s=[0, 0], total_steps=60, duration_s=60, worker_demand=np.array([[0, 1, 1], [1, 1, 1]], float)
    )
    spec = plot_gantt_stack({"fifo": simulate(jobs, cluster=no_network(1), scheduler="fifo")}).to_dict()
    (chart,) = spec["vconcat"]
    assert "brown: holds tasks and no GPU" in " ".join(chart["title"]["subtitle"])
    assert chart["layer"][1]["encoding"]["color"]["value"] == NO_GPU
    assert NO_GPU in as_svg(spec)


def test_a_sweep_shows_differences_seed_by_seed_with_their_intervals():
    rows = table_of()
    spec = plot_sweep(rows).to_dict()
    assert len(spec["vconcat"]) == 2
    data = pd.concat([pd.DataFrame(part) for part in plot_sweep_differences(rows).to_dict()["datasets"].values()])
    (apart,) = sweep_differences(rows).to_dict("records")
    drawn = data[data["mean"].notna()]
    assert drawn[["mean", "low", "high"]].to_numpy(float).ravel() == pytest.approx(
        np.array([apart["mean"], apart["low"], apart["high"]]) / _unit(rows), abs=1e-4
    )
    seeds = rows.pivot_table(index="seed", columns="scheduler", values="mean_jct_s")
    expected = ((seeds["srtf"] - seeds["fifo"]) / _unit(rows)).to_numpy()
    assert data["value"].dropna().to_numpy() == pytest.approx(expected, abs=1e-4)


def _unit(rows: pd.DataFrame) -> float:
    """Return the seconds of the unit in which the means are drawn, and so their differences."""
    from labkit.core.text import time_unit

    return time_unit(rows.groupby("scheduler")["mean_jct_s"].mean().median())[0]


def test_long_names_go_on_in_the_next_line_and_are_not_cut():
    run = replace(record("fifo"), info=replace(record("fifo").info, scheduler=LONG))
    svg = as_svg(plot_jct_bars(run_table([run, record("srtf")])).to_dict())
    for part in ("gavel_las(round_s=60.0,", "space_sharing=True,", "estimate=0.5)"):
        assert f">{part}<" in svg
    assert name_axis([LONG]).to_dict()["labelLimit"] == 0
    assert line_legend([LONG]).to_dict()["columns"] == 1


def test_colours_of_jobs_are_not_those_of_schedulers():
    def rgb(colour: str) -> np.ndarray:
        return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], float)

    apart = {
        (job, name): np.linalg.norm(rgb(job) - rgb(own)) for job, (name, own) in product(PALETTE, PREFERRED.items())
    }
    assert min(apart.values()) > 24, min(apart, key=apart.get)


def test_a_report_says_which_speeds_it_rests_on(tmp_path):
    jobs = Jobs.of(arrival_s=[0], total_steps=60, duration_s=60)
    run = simulate(jobs, cluster=build("gavel-8-16-24"), scheduler="fifo", speed="recorded")
    assert "speeds: the trace's own durations; all 3 device types equally fast" in _lead([run])


def test_fidelity_comes_last_with_what_it_rests_on(tmp_path):
    pair = (record("fifo"), record("srtf"))
    text = write_report(records(), tmp_path / "r.html", pair=pair, pair_note="Scaled by one job.").read_text()
    assert text.index("Run by run</h2>") < text.index("Gap of mean JCT") < text.index("Provenance</h2>")
    assert text.index("Scaled by one job.") < text.index("Gap of mean JCT")


def test_no_runs_are_refused_in_one_line():
    for draw in (lambda: plot_utilisation({}), lambda: run_table([])):
        with pytest.raises(InputError, match="is empty; expected"):
            draw()
