"""slurm starts jobs as slurmctld did: its rules on small cases, and five records of a real Slurm 22.05."""

import json
from pathlib import Path

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.schedulers import make
from labkit.schedulers.gang_room import neighbours
from labkit.topology import no_network
from labkit.topology.machine_files import inventory, machines
from labkit.topology.servers import Server
from labkit.workloads.readers import read

FOUR = Server("four", ((4, 16, 64),))
CLUSTER = no_network(4, servers=FOUR).with_partitions(
    {"a": ["m0", "m1"], "b": ["m2", "m3"], "all": ["m0", "m1", "m2", "m3"]}
)


def starts(jobs: Jobs, scheduler: str = "slurm", cluster=CLUSTER, **options) -> list[float]:
    """Return when each job first started, in seconds."""
    return labkit.simulate(jobs, scheduler=scheduler, cluster=cluster, **options).table["first_start_s"].tolist()


def some(arrival_s, duration_s, gpus, **columns) -> Jobs:
    """Return rigid jobs of so many GPUs."""
    return Jobs.of(arrival_s=arrival_s, total_steps=duration_s, duration_s=duration_s, n_workers=gpus, **columns)


def test_what_does_not_fit_stops_its_partition_in_the_main_pass_and_backfill_passes_it_later() -> None:
    # 1 holds half of a; 2 wants all of it; 3 fits beside and ends before: only a backfill pass, every 30 s, starts it
    jobs = some([0, 5, 5], [1000, 100, 100], [4, 8, 4], partition="a", limit_s=[1200, 200, 200])
    assert starts(jobs) == [0, 1000, 30]
    assert starts(jobs.with_columns(partition=["a", "a", "b"])) == [0, 1000, 5]


def test_a_blocked_partition_keeps_others_off_its_machines() -> None:
    jobs = some([0, 5, 5], [1000, 100, 100], [4, 8, 12], partition=["a", "a", "all"], limit_s=[1200, 200, 200])
    assert starts(jobs) == [0, 1000, 30]  # three machines are free, one of them is a's: a backfill pass takes it
    eight = np.array([4, 8, 8], np.int32)
    assert starts(jobs.with_columns(n_workers=eight, max_workers=eight)) == [0, 1000, 5]


def test_plans_rest_on_time_limits_not_on_durations() -> None:
    # the third job would end before 1 does, but its limit reaches beyond the plan of 2
    jobs = some([0, 5, 5], [1000, 100, 100], [4, 8, 4], partition="a", limit_s=[1200, 200, 1200])
    assert starts(jobs) == [0, 1000, 1100]


def test_every_waiting_job_has_a_plan_not_the_first_alone() -> None:
    # 2 and 3 wait for all of a; 4 fits beside 1 and ends before 2 would start: under both; 5 would put off 3 alone
    jobs = some([0, 1, 2, 3], [1000, 500, 500, 1300], [4, 8, 8, 4], partition="a", limit_s=[1000, 500, 500, 1300])
    assert starts(jobs)[1:] == [1000, 1500, 2000]


def test_a_job_that_a_reservation_will_keep_from_its_machines_does_not_start_there() -> None:
    kept = {"maint": {"hosts": ["m0", "m1"], "start_s": 500, "end_s": 800}}
    jobs = some([0, 0], [100, 100], [4, 8], partition="a", limit_s=[600, 100])
    assert starts(jobs, reservations=kept) == [810, 0]  # by the backfill pass after its end
    assert starts(jobs, "fifo", reservations=kept)[0] == 0


def test_a_job_that_only_a_reservation_keeps_back_stops_none() -> None:
    kept = {"maint": {"hosts": ["m1"], "start_s": 500, "end_s": 800}}
    jobs = some([0, 1], [100, 100], [8, 4], partition="a", nodes=[2, 1], limit_s=[600, 100])
    assert starts(jobs, reservations=kept) == [810, 1]


def test_quality_of_service_and_age_order_jobs_from_the_next_period_on() -> None:
    jobs = some([0, 1, 2, 301], [1000, 100, 100, 100], [16, 16, 16, 16], qos=["", "", "high", "high"], limit_s=1000)
    assert starts(jobs) == [0, 1000, 1100, 1200]
    ranked = "slurm(priority='multifactor', qos=1000, qos_factors={'high': 1})"
    assert starts(jobs, ranked) == [0, 1200, 1000, 1100]
    assert starts(jobs, "slurm(priority='multifactor', age=1000, max_age_s=3600)") == [0, 1000, 1100, 1200]


def test_fair_share_puts_first_who_used_least() -> None:
    jobs = some([0, 1, 2], [1000, 100, 100], [16, 16, 16], user=["ada", "ada", "bob"], limit_s=1000)
    assert starts(jobs) == [0, 1000, 1100]
    assert starts(jobs, "slurm(priority='multifactor', fair_share=1000)") == [0, 1100, 1000]


def test_gangs_sit_on_the_shortest_run_of_neighbours_that_suffices() -> None:
    assert neighbours(np.array([1, 1, 0, 1, 0, 1, 1, 1], bool), 1) == [3]
    assert neighbours(np.array([1, 1, 0, 1, 0, 1, 1, 1], bool), 3) == [5, 6, 7]
    assert neighbours(np.array([1, 1, 0, 1, 0, 1, 1, 1], bool), 4) == [0, 5, 6, 7]


def test_quiet_months_cost_no_pass_each_half_minute() -> None:
    month_s = 30 * 86_400.0
    jobs = some([0, 1], [month_s, 100], [16, 16], limit_s=[month_s, 100])
    record = labkit.simulate(jobs, scheduler="slurm", cluster=CLUSTER)
    assert record.table["first_start_s"].tolist() == [0, month_s]
    assert len(record.decisions) < 20


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": "fair"}, "priority of slurm"), ({"bf_interval_s": 0}, "bf_interval_s is 0; expected seconds > 0"),
        ({"bf_max_job_test": -1}, "bf_max_job_test is -1; expected a number >= 0"),
    ],
)  # fmt: skip
def test_odd_options_are_refused_in_one_line(options: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        make("slurm", **options)


MULTIFACTOR = "slurm(priority='multifactor', age=1000, qos=10000, qos_factors={'high': 10}, max_age_s=3600)"


def judged(folder: Path, tmp_path: Path) -> tuple[float, float, float]:
    """Return recorded and simulated mean wait of a record, and the median error of a job, in seconds."""
    hosts = tmp_path / f"{folder.name}.toml"
    hosts.write_text(inventory(machines([folder / "nodes.txt"]), source="nodes.txt")[0], encoding="utf-8")
    jobs, scheduler, rules = read(folder / "sacct.txt"), "slurm", {}
    if folder.name.startswith("Z"):  # with qualities of service, and maintenance that was announced on the way
        first = json.loads((folder / "submitted.jsonl").read_text(encoding="utf-8").splitlines()[0])["at"]
        window = {"start_s": 4000 - first, "end_s": 6400 - first, "known_s": 1200 - first}
        rules = {"reservations": {"maint": {"hosts": "n3", "running": "finish", **window}}}
        scheduler = MULTIFACTOR
    table = labkit.simulate(jobs, scheduler=scheduler, cluster=str(hosts), **rules).table
    recorded_s = jobs.recorded_start_s - jobs.arrival_s
    error_s = np.abs(table["queueing_s"].to_numpy() - recorded_s)
    return float(recorded_s.mean()), float(table["queueing_s"].mean()), float(np.median(error_s))


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_waits_of_a_real_slurm_are_met_within_five_percent_on_average_and_ten_on_each(tmp_path, shared_data) -> None:
    found = {name: judged(shared_data(f"slurm/{name}"), tmp_path) for name in ("X1", "X2", "Y1", "Z1", "Z2")}
    recorded_s, simulated_s, median_s = np.array(list(found.values())).T
    assert np.abs(simulated_s / recorded_s - 1).max() <= 0.10, found
    assert abs(simulated_s.mean() / recorded_s.mean() - 1) <= 0.05, found
    assert median_s.max() <= 60, found
