"""The gallery: each function draws one picture and is printed below it; `make docs` makes the page, tests run them all.

The first line of a docstring is the heading, the rest says what to see. A `# section:` comment begins a section.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

import labkit
from labkit.elastic import models
from labkit.elastic.data import dataset
from labkit.experiment import waiting
from labkit.experiment.flows import random_flows
from labkit.experiment.racks import step_times_by_racks
from labkit.placers import ByNetwork
from labkit.plots.utilisation import gpu_hours, plot_gpu_hours
from labkit.schedulers.base import asked
from labkit.schedulers.dl2.shown import decisions
from labkit.workloads.describe import arrivals, durations, sizes

# section: Compare schedulers


def mean_jct() -> Any:
    """Mean JCT of six schedulers.

    The bar is the mean, the white tick the median and the dot the 95th percentile.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,las,drf,tetris,optimus")
    return runs.plot.bars()


def distribution() -> Any:
    """Distribution of the JCT.

    Two schedulers with one median can differ in the tail. Click a name in a notebook to single it out.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,las,optimus")
    return runs.plot.cdf()


def own_scheduler() -> Any:
    """Your own scheduler against the shipped ones.

    A scheduler of your own is drawn in the strongest ink.
    """

    class SmallestFirst:
        def schedule(self, snapshot: labkit.Snapshot) -> labkit.Placement:
            waiting = snapshot.waiting
            smallest_first = waiting[snapshot.table.gpus[waiting].argsort(kind="stable")]
            return ByNetwork().place(snapshot, asked(snapshot, smallest_first))

    runs = labkit.compare("demo", cluster="demo", schedulers=["fifo", "srtf", SmallestFirst()])
    return runs.plot.cdf()


def fairness() -> Any:
    """Finish-time fairness.

    Themis' measure: the JCT over the JCT that a job would have with an equal share of the cluster.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,drf")
    return runs.plot.fairness()


def time_of_jobs() -> Any:
    """How jobs spend their time.

    Preemption and resizing cost seconds here: elastic schedulers pay for what they gain.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,optimus", restart_s=60, rescale_s=20)
    return runs.plot.overheads()


def over_load() -> Any:
    """Mean JCT over the arrival rate.

    The same jobs arrive faster and faster. Schedulers differ where the cluster fills up.
    """
    rates = [0.5, 1.0, 1.5, 2.0]
    grid = labkit.Grid(trace="demo", cluster="demo", schedulers=["fifo", "las", "srtf"], arrival_rate=rates)
    table = labkit.sweep(grid, workers=0, progress=False)
    return labkit.plots.plot_jct_by_load(table, load="Arrival-rate factor")


# section: Show that a difference is real


def paired_differences() -> Any:
    """Paired differences over seeds.

    Each seed draws another trace; every scheduler gets the same one. An interval without 0 is significant.
    """
    trace, schedulers = "poisson(60, per_hour=40)", ["fifo", "las", "srtf"]
    grid = labkit.Grid(trace=trace, cluster="no_network(2)", schedulers=schedulers, seeds=range(8))
    table = labkit.sweep(grid, workers=0, progress=False)
    return labkit.plots.plot_sweep_differences(table, base="fifo")


def means_over_seeds() -> Any:
    """Means over seeds.

    Intervals of means overlap even where one scheduler wins on every seed: look at the paired differences, too.
    """
    trace, schedulers = "poisson(60, per_hour=40)", ["fifo", "srtf"]
    grid = labkit.Grid(trace=trace, cluster="no_network(2)", schedulers=schedulers, seeds=range(8))
    table = labkit.sweep(grid, workers=0, progress=False)
    return labkit.plots.plot_sweep_means(table)


def an_option() -> Any:
    """One option of a scheduler, swept.

    The threshold of las, at which a job falls into the second queue.
    """
    rows = []
    for hours in (0.25, 0.5, 1, 2, 4, 8):
        run = labkit.simulate("demo", cluster="demo", scheduler=f"las(threshold_gpu_s={3600 * hours})")
        rows.append({"hours": hours, "jct_h": run.summary["mean_jct_s"] / 3600, "scheduler": "las"})
    return labkit.plots.plot_lines(
        pd.DataFrame(rows), x="hours", y="jct_h", line="scheduler", points=True,
        axes=("Threshold (GPU-hours)", "Mean JCT (h)"), heading="The threshold of las",
    )  # fmt: skip


# section: See what happened


def gantt() -> Any:
    """Gantt chart of a run.

    One row per job. The line is the time in the system, a bar the time with tasks, its shade the GPUs held.
    """
    run = labkit.simulate("demo", cluster="demo", scheduler="srtf")
    return run.plot.gantt()


def gantt_of_two() -> Any:
    """Gantt charts of two runs.

    On one axis of time and one scale of GPUs.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,optimus")
    return runs.plot.gantt()


def machines() -> Any:
    """How full each machine is."""
    run = labkit.simulate("demo", cluster="demo", scheduler="tetris")
    return run.plot.machines()


def gpus_in_use() -> Any:
    """GPUs in use over time.

    GPUs are a cost: higher is not better.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,optimus")
    return runs.plot.utilisation()


def types_of_gpu() -> Any:
    """Which types of GPU jobs get.

    Gavel's heterogeneity-aware policy against the version that sees one kind of GPU.
    """
    runs = labkit.compare("gavel-small", cluster="gavel-8-16-24", schedulers="gavel_las,gavel_las_agnostic")
    return plot_gpu_hours(gpu_hours({run.info.scheduler: run for run in runs}))


def failures() -> Any:
    """A cluster whose machines fail.

    Machines fail every six hours on average; jobs lose what they did since their last checkpoint.
    """
    run = labkit.simulate("demo", cluster="demo", scheduler="srtf", mtbf_s=6 * 3600, mttr_s=600, checkpoint_s=1800)
    return run.plot.gantt()


# section: Know the trace


def durations_of_traces() -> Any:
    """Durations of the jobs of three traces."""
    traces = {name: labkit.read(name) for name in ("demo", "philly-like", "dl2-small")}
    return labkit.plots.plot_durations(durations(traces))


def gpu_sizes() -> Any:
    """Small jobs are many, large jobs use the GPUs."""
    return labkit.plots.plot_sizes(sizes(labkit.read("philly-like")))


def arrival_patterns() -> Any:
    """Patterns of arrival.

    All four have one mean rate.
    """
    return labkit.plots.plot_arrivals(arrivals(per_hour=20, seed=4))


def queueing_theory() -> Any:
    """Waiting grows without bound.

    One GPU, first come first served: simulated means beside the formula of Pollaczek and Khinchine.
    """
    drawn = waiting.durations(1000)
    waits = waiting.waits(drawn, (0.5, 0.7, 0.8))
    return labkit.plots.plot_lines(
        waiting.curves(drawn), x="load", y="wait", line="durations", dots=waits.rename(columns={"simulated": "wait"}),
        axes=("Offered load", "Mean wait (in mean durations)"), heading="Waiting against offered load",
    )  # fmt: skip


# section: Know the cluster


def fat_tree() -> Any:
    """A fat tree."""
    return labkit.plots.plot_topology(labkit.topology.fat_tree(4))


def bcube() -> Any:
    """BCube."""
    return labkit.plots.plot_topology(labkit.topology.bcube(4, 1))


def link_rates() -> Any:
    """What random flows get in three networks.

    Max-min fair shares, over all shortest paths or over one of them.
    """
    clusters = {name: labkit.build(name) for name in ("fat_tree(4)", "vl2(4, 4)", "bcube(4, 1)")}
    return labkit.plots.plot_bars(
        random_flows(clusters, seed=0).round(3), x="mean", y="way", panel="cluster", colour="share",
        axis="Mean rate (Gbps)", heading="Mean rate of random flows",
    )  # fmt: skip


def racks() -> Any:
    """What a job loses when it is spread over racks."""
    steps = step_times_by_racks(["resnet-50", "vgg-16"])
    return labkit.plots.plot_lines(
        steps, x="racks", y="step_s", line="uplinks", panel="model", points=True, ticks=[0, 1, 2, 4, 8],
        axes=("Racks of a job (0: one machine)", "Step time (s)"), heading="Step time over racks",
    )  # fmt: skip


# section: Learned schedulers


def decisions_of_dl2() -> Any:
    """The decisions of DL2 in one slot.

    Each column is a decision: the probability of a task for each job, and the choice.
    """
    jobs = labkit.workloads.dl2_jobs("short_48n", pattern="google", seed=1)
    experiment = labkit.Experiment.of(jobs, cluster="dl2-16n", cadence=labkit.every_slot(1200.0))
    policy = labkit.make("dl2(weights='dl2-fitted')")
    session = experiment.session(policy)
    while len(session.snapshot().jobs) < 8:
        session.step(policy.schedule(session.snapshot()))
    return labkit.plots.plot_decisions(decisions(session.snapshot(), "dl2-fitted"))


def forwarded_jobs() -> Any:
    """Jobs that MARL's schedulers forward to other pods."""
    run = labkit.simulate("marl_jobs(load=5)", cluster="marl-4x20", scheduler="load_balance", interference="calibrated")
    return labkit.plots.plot_forwarding(labkit.results.forwarding(run.events, run.jobs, run.cluster))


def gavel_policies() -> Any:
    """Three of Gavel's policies.

    Jobs differ in how much a faster GPU helps them.
    """
    runs = labkit.compare("gavel-small", cluster="gavel-8-16-24", schedulers="gavel_las,gavel_ftf,gavel_makespan")
    return runs.plot.bars()


# section: DLRover and the elastic runtime


def tuned_job() -> Any:
    """DLRover finds the resources of a job."""
    run = labkit.simulate(
        "dlrover-small", cluster="dlrover-512", scheduler="dlrover", first=4, measure_every_s=30.0
    )  # fmt: skip
    return labkit.plots.plot_tuning(run.events, run.jobs)


def losses() -> Any:
    """One worker and two train the same model.

    The losses are equal to the last bit: one line lies on the other.
    """
    curves = {}
    for workers in (1, 2):
        model, data, loss = models.build("digits"), dataset("digits", n=512), models.loss("digits")
        result = labkit.train(model, data=data, loss=loss, steps=60, batch=64, lr=0.1, workers=workers, servers=1)
        curves[f"workers: {workers}"] = result.losses
    return labkit.plots.plot_convergence(curves)


# section: For a paper


def in_one_column() -> Any:
    """A figure in the width of a column.

    3.35 inches with labels and legend, no type below 7 pt, colours that differ in grey.
    """
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,las,drf,tetris,optimus")
    return labkit.plots.for_paper(runs.plot.cdf())


def gantt_for_paper() -> Any:
    """Gantt charts that fit a page."""
    runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,optimus")
    return labkit.plots.for_paper(runs.plot.gantt(), columns=2)
