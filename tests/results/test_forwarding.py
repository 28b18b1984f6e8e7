"""Jobs forwarded between pods: counted by hand, in a run, its report and its figure."""

from __future__ import annotations

import numpy as np
import pytest

import labkit
from labkit.core import Jobs, Kind
from labkit.plots.decisions import plot_forwarding
from labkit.plots.report import write_report
from labkit.results import RunRecord, forwarding, load
from labkit.topology import fat_tree


def record(folder=None) -> RunRecord:
    """Pod 0 is full, so that two of its jobs go to pod 3; pod 2's job stays."""
    jobs = Jobs.of(
        arrival_s=[0, 10, 20, 30, 40], duration_s=1000.0, total_steps=1000, home=[0, 1, 2, 0, 0],
        n_workers=[16, 12, 8, 4, 4], worker_demand=np.array([1.0, 1.0, 0.0]),
    )  # fmt: skip
    return labkit.simulate(jobs, cluster=fat_tree(4), scheduler="even_pods", speed="recorded", runs=folder)


def test_the_matrix_counts_the_jobs_forwarded_between_each_two_pods():
    run = record()
    table = forwarding(run.events, run.jobs, run.cluster)
    sent = table.pivot_table(index="home", columns="pod", values="n_jobs").to_numpy()
    assert sent.tolist() == [[0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert table.query("home == 0 and pod == 3")["fraction"].item() == pytest.approx(2 / 3)  # three arrived at pod 0
    assert table.query("home == 3")["fraction"].isna().all()  # none did at pod 3
    assert run.summary["n_forwarded"] == 2
    assert run.table["n_forwarded"].tolist() == [0, 0, 0, 1, 1]


def test_a_recording_without_these_events_is_read_and_counts_none(tmp_path):
    run = record(tmp_path)
    kept = load(tmp_path / run.info.run)
    assert kept.summary["n_forwarded"] == 2
    old = run.events[run.events["kind"] != Kind.FORWARDED]
    assert forwarding(old, run.jobs, run.cluster)["n_jobs"].sum() == 0


def test_the_figure_has_a_cell_for_each_pair_of_pods_and_the_report_shows_it(tmp_path):
    run = record()
    chart = plot_forwarding(forwarding(run.events, run.jobs, run.cluster))
    assert len(next(iter(chart.to_dict()["datasets"].values()))) == 16
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "jobs forwarded from pod to pod" in page
    assert "Forwarded" in page


def test_a_report_of_runs_without_pods_says_nothing_of_them(tmp_path):
    jobs = Jobs.of(arrival_s=[0, 5], duration_s=10.0, total_steps=10, worker_demand=np.array([1.0, 1.0, 0.0]))
    run = labkit.simulate(jobs, cluster="demo", scheduler="fifo", speed="recorded")
    assert "orward" not in write_report([run], tmp_path / "report.html").read_text().split("<script")[0]
