"""The figure of a job that configures itself: its numbers, and that it is drawn."""

from __future__ import annotations

import labkit
from labkit.core import Jobs
from labkit.core.events import Kind
from labkit.core.resources import amounts
from labkit.live.signals import Signal, Signals
from labkit.plots.theme import as_svg
from labkit.plots.training import change_marks, cores_curve, plot_tuning, predicted_curve, speed_curve


def test_speed_cores_and_marks_are_those_of_the_run() -> None:
    jobs = Jobs.of(
        arrival_s=[0.0], model="xdeepfm", total_steps=[20_000], n_workers=8, n_ps=4, max_workers=30, max_ps=8,
        sync=False, worker_demand=amounts(cpus=20, memory_gb=4), ps_demand=amounts(cpus=8, memory_gb=8),
    )  # fmt: skip
    run = labkit.simulate(jobs, cluster="dlrover-512", scheduler="dlrover", measure_every_s=30)
    speed = speed_curve(run.events, 0)
    given, used = cores_curve(run.events, jobs, 0)
    marks = change_marks(run.events, 0)
    assert speed["steps_per_s"].is_monotonic_increasing
    assert speed["time_s"].iloc[-1] == run.events["time_s"][-1]
    assert marks["number"].tolist() == [str(i + 1) for i in range(len(marks))]
    assert marks["time_s"].tolist() == sorted(set(run.decisions["time_s"]))
    assert given.groupby("time_s")["cores"].sum().iloc[1] == 200
    assert set(used["role"]) == {"workers", "PSs"}
    told = run.decisions.dropna(subset="predicted_steps_per_s")
    predicted = predicted_curve(run.events, 0)
    assert predicted["steps_per_s"].tolist()[:-1] == told["predicted_steps_per_s"].tolist(), "until the next decision"
    last = speed["steps_per_s"].iloc[-1]
    assert abs(predicted["steps_per_s"].iloc[-1] / last - 1) < 0.1, "the brain fits the form of this truth"
    signals = Signals(jobs, run.cluster)
    signals.fold(run.events[run.events["kind"] != Kind.COMPLETED])
    assert signals.latest[Signal.PREDICTED] == predicted["steps_per_s"].iloc[-1], "the live view has the same line"
    assert signals.latest[Signal.THROUGHPUT] == last
    assert "Steps per second" in as_svg(plot_tuning(run.events, jobs).to_dict())
