"""The look-ahead oracle: what it steps over, which figures it reproduces, and that it is told to be one."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Role
from labkit.core.resources import amounts
from labkit.experiment import Experiment, every_slot
from labkit.experiment.caveats import Caveat
from labkit.placers import FirstFit
from labkit.schedulers import make
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import no_network
from labkit.topology.servers import server
from tests.schedulers import dl2

SLOT_S = 1200.0


def valley() -> Experiment:
    """Return a job that is no faster with 2 servers, and three times as fast with 3."""
    jobs = Jobs.of(
        arrival_s=[0.0], total_steps=6000, n_workers=1, n_ps=1, max_workers=1, max_ps=4, model=["m"],
        worker_demand=amounts(gpus=1, cpus=2), ps_demand=amounts(cpus=2),
    )  # fmt: skip
    table = SpeedTable.of(["m"] * 4, n_ps=[1, 2, 3, 4], n_workers=[1] * 4, samples_per_s=[10.0, 10.0, 30.0, 30.0])
    cluster = no_network(2)
    return Experiment.of(jobs, cluster=cluster, speed=MeasuredSpeed(jobs, cluster, table=table))


@pytest.mark.parametrize(("steps", "n_ps"), [(1, 1), (2, 3), (6, 3)])
def test_it_steps_over_gangs_that_are_no_faster_if_it_looks_far_enough(steps, n_ps):
    scheduler = make("lookahead", steps=steps, placer=FirstFit())
    placement = scheduler.schedule(valley().session(scheduler).snapshot())
    assert placement.count[placement.role == Role.PS].sum() == n_ps
    assert placement.count[placement.role == Role.WORKER].sum() == 1


def test_it_is_told_to_be_an_oracle_and_optimus_is_only_where_it_is_asked_to():
    experiment = valley()
    with pytest.warns(Caveat, match=r"^lookahead is an oracle: it knows the true speed"):
        record = experiment.run("lookahead")
    assert record.info.config["notes"][0].startswith("lookahead is an oracle")
    assert experiment.caveats(make("optimus"), name="optimus") == []
    assert len(experiment.caveats(make("optimus(oracle=True)"), name="optimus")) == 1


def test_it_cannot_decide_before_it_has_measured():
    experiment = valley()
    snapshot = experiment.session(make("fifo")).snapshot()
    with pytest.raises(InputError, match=r"^lookahead: it has measured no speeds of these jobs; call its begin"):
        make("lookahead").schedule(snapshot)


def test_a_look_of_no_task_is_refused():
    with pytest.raises(InputError, match=r"^lookahead: steps is 0; expected a number of tasks >= 1\.$"):
        make("lookahead(steps=0)")


def test_a_gain_that_there_is_not_is_refused():
    for name in ("lookahead", "optimus"):
        with pytest.raises(InputError, match=rf"^unknown gain of {name} 'sped'\. Did you mean 'speed'\?"):
            make(f"{name}(gain='sped')")


@pytest.mark.parametrize(("gain", "n_workers"), [("time", [6, 2]), ("speed", [4, 4])])
def test_relative_gains_do_not_draw_tasks_to_jobs_with_much_work_left(gain, n_workers):
    """Time t of a job with k workers is w / k^(1/2): equal savings want k ~ w^(2/3), equal factors know no w."""
    jobs = Jobs.of(
        arrival_s=[0.0, 0.0], total_steps=[16_000, 3_000], n_workers=1, n_ps=1, max_workers=8, max_ps=1,
        model=["m", "m"], worker_demand=amounts(gpus=1, cpus=1), ps_demand=amounts(),
    )  # fmt: skip
    counts = np.arange(1, 9)
    table = SpeedTable.of(["m"] * 8, n_ps=[1] * 8, n_workers=counts, samples_per_s=10 * counts**0.5)
    cluster = no_network(2)  # 8 GPUs
    experiment = Experiment.of(jobs, cluster=cluster, speed=MeasuredSpeed(jobs, cluster, table=table))
    scheduler = make("lookahead", gain=gain, placer=FirstFit())
    placement = scheduler.schedule(experiment.session(scheduler).snapshot())
    assert [placement.count[(placement.job == j) & (placement.role == Role.WORKER)].sum() for j in (0, 1)] == n_workers


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
@pytest.mark.parametrize(
    ("n", "scheduler", "slots"),
    [(48, "lookahead", 2.195), (48, "lookahead(steps=16)", 2.1927), (16, "lookahead", 2.491), (8, "lookahead", 3.751)],
)
def test_dl2s_short_jobs_come_to_what_a_prototype_found(n, scheduler, slots, shared_data):
    """On seeds 1 to 5, in slots; the prototype is no part of labkit. 48 machines do not bind, 8 do."""
    means = []
    for seed in range(1, 6):
        jobs, cluster = dl2.short_48n(seed, shared_data), no_network(n, servers=server("dl2"))
        model = dl2.speed(jobs, cluster, shared_data)
        experiment = Experiment.of(jobs, cluster=cluster, speed=model, cadence=every_slot(SLOT_S))
        means.append(experiment.run(scheduler).summary["mean_jct_s"] / SLOT_S)
    assert np.mean(means) == pytest.approx(slots, abs=1e-3)
