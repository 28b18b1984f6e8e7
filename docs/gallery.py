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
from labkit.experiment.gavel_paper import CLUSTER, rented_jobs, three_teams
from labkit.experiment.motivation import motivation
from labkit.experiment.racks import step_times_by_racks
from labkit.learning.ablation import ablation
from labkit.placers import ByNetwork
from labkit.plots.utilisation import gpu_hours, plot_gpu_hours, shares
from labkit.schedulers.base import requested_gangs
from labkit.schedulers.dl2.shown import decisions
from labkit.schedulers.gavel.mechanism import PRICES
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
            return ByNetwork().place(snapshot, requested_gangs(snapshot, smallest_first))

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


def windows_of_a_trace() -> Any:
    """Confidence intervals on a recorded trace.

    A file has no seeds. Windows of the trace stand in for them; every scheduler gets the same ones.
    """
    schedulers, cluster = ["fifo", "las", "srtf"], "no_network(2, servers='dgx1')"
    grid = labkit.Grid(trace="philly-like", cluster=cluster, schedulers=schedulers, seeds=5, windows=5)
    table = labkit.sweep(grid, workers=0, progress=False)
    return labkit.plots.plot_sweep_differences(table, base="fifo")


def _standard(*settings: str) -> Any:
    rows = pd.read_csv("docs/assets/standard.csv")  # python -m benchmarks.standard writes it
    rows = rows[rows["setting"].isin(settings) & (rows["trouble"] == "none")]
    return labkit.plots.plot_matrix(
        rows.assign(case=rows["setting"] + ", " + rows["level"]), x="case", y="scheduler", value="over_base",
        axis=f"Mean JCT / {rows['scheduler'].iloc[0]}", heading="Schedulers by setting and arrival rate",
    )  # fmt: skip


def schedulers_of_fixed_gangs() -> Any:
    """Which scheduler, where gangs have a fixed size.

    Mean JCT over that of fifo in the standard benchmark, paired over five windows; a frame marks the lowest.
    """
    return _standard("philly-like", "philly", "alibaba-2023")


def schedulers_of_elastic_jobs() -> Any:
    """Which scheduler, where jobs can have more or fewer tasks.

    Mean JCT over that of fifo in the standard benchmark, paired over five seeds; a frame marks the lowest.
    """
    return _standard("poisson", "dl2")


def schedulers_of_gpu_types() -> Any:
    """Which scheduler, where there are several types of GPU.

    Mean JCT over that of fifo in the standard benchmark, paired over five seeds; a frame marks the lowest.
    """
    return _standard("gavel")


def schedulers_of_neighbours() -> Any:
    """Which scheduler, where jobs slow their neighbours.

    Mean JCT over that of even in the standard benchmark, paired over five seeds; a frame marks the lowest.
    """
    return _standard("marl")


# section: What if? One assumption, varied


def _mean_jct(option: str, values: list[Any], schedulers: str = "fifo,srtf,las", **options: Any) -> pd.DataFrame:
    """Return the mean JCT of schedulers on the demo trace for each value of an option: value, jct_h, scheduler."""
    asked = {"trace": "demo", "cluster": "demo", **options}
    grid = labkit.Grid(schedulers=schedulers.split(","), **asked, **{option: values})
    table = labkit.sweep(grid, workers=0, progress=False)
    return table.assign(value=table[option], jct_h=table["mean_jct_s"] / 3600)[["value", "jct_h", "scheduler"]]


def _lines(table: pd.DataFrame, *, axis: str, heading: str) -> Any:
    return labkit.plots.plot_lines(
        table, x="value", y="jct_h", line="scheduler", points=True, axes=(axis, "Mean JCT (h)"), heading=heading
    )


def what_if_preemption_costs() -> Any:
    """Preemption costs time.

    A job that was stopped loads its checkpoint first. las, which preempts most, loses its lead; srtf keeps most of it.
    """
    table = _mean_jct("restart_s", [0, 60, 300, 900, 1800])
    return _lines(table, axis="Overhead of a restart (s)", heading="Mean JCT over the cost of a restart")


def what_if_resizing_costs() -> Any:
    """Resizing costs time.

    Elastic schedulers change running gangs, and pay for each change.
    """
    table = _mean_jct("rescale_s", [0, 20, 60, 180], "srtf,drf,optimus")
    return _lines(table, axis="Overhead of a rescaling (s)", heading="Mean JCT over the cost of rescaling")


def what_if_decisions_are_rare() -> Any:
    """Decisions in slots.

    The longer the slot, the longer a job waits for the next decision.
    """
    table = _mean_jct("slot_s", [60, 300, 900, 1800, 3600])
    return _lines(table, axis="Slot (s)", heading="Mean JCT over the length of a slot")


def what_if_declarations_are_wrong() -> Any:
    """Users declare wrong lengths.

    srtf orders jobs by what was declared; las does not look at it. Here srtf hardly suffers.
    """
    table = _mean_jct("epoch_error", [0, 0.2, 0.5, 0.8])
    return _lines(table, axis="Relative error of declared epochs", heading="Mean JCT over wrong declarations")


def what_if_machines_fail() -> Any:
    """Machines fail.

    From left to right machines fail less often; a repair takes ten minutes.
    """
    table = _mean_jct("mtbf_s", [3600, 4 * 3600, 12 * 3600, 48 * 3600], mttr_s=600, checkpoint_s=1800)
    table = table.assign(value=table["value"] / 3600)
    return _lines(table, axis="Mean time between failures (h)", heading="Mean JCT over failures")


def what_if_neighbours_interfere() -> Any:
    """Neighbours slow each other.

    Interference of none, little, and as measured for the paper on MARL.
    """
    table = _mean_jct("interference", ["none", "mild", "calibrated"], "fifo,srtf,tetris")
    return labkit.plots.plot_bars(
        table, x="jct_h", y="scheduler", panel="value", axis="Mean JCT (h)", heading="Mean JCT over interference"
    )


def what_if_the_placer_differs() -> Any:
    """The same order of jobs, placed by three rules."""
    table = _mean_jct("placer", ["even", "pack", "spread"], "fifo,srtf")
    return labkit.plots.plot_bars(
        table, x="jct_h", y="scheduler", panel="value", axis="Mean JCT (h)", heading="Mean JCT by placer"
    )


def what_if_gangs_stay_together() -> Any:
    """Gangs that wait for few machines.

    A gang may wait for as few machines as it needs, prefer them, or be split.
    """
    table = _mean_jct("consolidate", ["wait", "prefer", "split"], "fifo,srtf")
    return labkit.plots.plot_bars(
        table, x="jct_h", y="scheduler", panel="value", axis="Mean JCT (h)", heading="Mean JCT by consolidation"
    )


def backfilling() -> Any:
    """Three kinds of first come, first served.

    With strict order a large job blocks all behind it. Backfilling lets small jobs pass; easy never delays the first.
    """
    runs = labkit.compare("philly-like", cluster="no_network(2, servers='dgx1')",
                          schedulers="fifo,easy,fifo(backfill=True)", first=100)  # fmt: skip
    return runs.plot.bars()


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


def parts_of_gpus() -> Any:
    """Which job holds which part of a GPU."""
    jobs = labkit.Jobs.of(
        arrival_s=[0, 60, 120, 300], total_steps=[900, 600, 600, 300], duration_s=600, worker_demand=(0.5, 1, 1)
    )
    run = labkit.simulate(jobs, cluster="no_network(1, servers='dgx1')", scheduler="fifo")
    return labkit.plots.plot_gpu_lanes(labkit.results.gpu_lanes(run))


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


def leaf_spine() -> Any:
    """Leaves and spines."""
    return labkit.plots.plot_topology(labkit.topology.leaf_spine(4, 2, 2))


def vl2() -> Any:
    """VL2."""
    return labkit.plots.plot_topology(labkit.topology.vl2(4, 4))


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


# section: Figures of the papers, drawn again


def optimus_loss() -> Any:
    """Optimus, Fig. 7: the loss curve of Seq2Seq.

    The published coefficients, 1 / (0.21 k + 1.07) + 0.07. The curve is the same by construction.
    """
    epochs = pd.Series(range(61))
    table = pd.DataFrame({"epoch": epochs, "loss": 1 / (0.21 * epochs + 1.07) + 0.07, "job": "Seq2Seq"})
    return labkit.plots.plot_lines(
        table, x="epoch", y="loss", line="job", axes=("Epoch", "Normalised loss"), heading="Loss of Seq2Seq"
    )


def marl_motivation() -> Any:
    """MARL, section II: neighbours slow jobs by about a third.

    The paper reports 30% when packed and 37% when spread by load. Same sign here; more for load balancing.
    """
    orders = motivation(n_orders=8).groupby(["rule", "order"], as_index=False, sort=False)["slowdown"].mean()
    table = labkit.results.means_by(orders.assign(slower=orders["slowdown"] - 1), "rule", value="slower")
    return labkit.plots.plot_bars(
        table, x="mean", y="rule", axis="Mean slowdown", heading="Slower than alone", number=".0%",
    )  # fmt: skip


def dl2_ablation() -> Any:
    """DL2, the recipe without one of its parts.

    The paper finds every part useful. Not all are here: docs/dl2.md has each claim with our sign.
    """
    parts = labkit.results.means_by(ablation("benchmarks/claims.json"), ["cluster", "recipe"], value="slots")
    return labkit.plots.plot_bars(
        parts, x="mean", y="recipe", panel="cluster", axis="Mean JCT (slots)", heading="Without one part", number=".1f",
    )  # fmt: skip


def gavel_teams() -> Any:
    """Gavel, Fig. 11: three teams with weights 1, 2 and 3.

    Each team makes progress by its weight, whatever number of jobs it has. Same sign as in the paper.
    """
    run = three_teams().run("gavel_hierarchical(entity_weight=[1, 2, 3], ideal=True)")
    return labkit.plots.plot_shares(shares(run, until_s=11 * 3600), what="Which team makes how much of the progress")


def gavel_cost() -> Any:
    """Gavel, section 7.3: the cheapest policy misses deadlines.

    A policy that knows the SLOs costs a little more and misses far fewer. Same sign as in the paper.
    """
    jobs = rented_jobs(n=40)
    made = labkit.Experiment.of(jobs, cluster=CLUSTER)
    names = ("gavel_throughput(fill=False)", "gavel_cost", "gavel_slo")
    runs = {name.partition("(")[0]: made.run(name) for name in names}
    return labkit.plots.plot_cost(labkit.plots.cost_table(runs, prices=PRICES, slo_s=jobs.slo_s))


def dlrover_gain() -> Any:
    """DLRover, section 6: configured jobs against tuned ones.

    DLRover tunes workers, servers and cores of every job; static keeps what users configured.
    """
    runs = labkit.compare("dlrover-small", cluster="dlrover-512", schedulers="static,dlrover", first=12)
    return runs.plot.bars()
