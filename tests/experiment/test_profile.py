"""What is measured before a run is the speed model's figure, of each kind of job, gang and device type by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.life import Profile
from labkit.core.protocols import SpeedModel
from labkit.core.resources import Bools, Floats, amounts
from labkit.core.running import Running
from labkit.experiment.profile import measure_profile
from labkit.speed.gavel import GavelSpeed
from labkit.speed.recorded import Recorded
from labkit.testing.scenes import SharedSpeeds
from labkit.topology import no_network
from labkit.topology.presets import build
from labkit.topology.servers import Server
from labkit.workloads.gavel import Throughputs

MODELS = ("A", "B")
N_GPUS = np.array([1, 2, 4, 6], np.int32)
ALONE = np.array(
    [
        [[10.0, 4.0], [18.0, 8.0], [32.0, 14.0], [40.0, 18.0]],  # A: by GPUs, on v100 and p100
        [[3.0, 5.0], [6.0, 9.0], [0.0, 16.0], [0.0, 20.0]],  # B cannot run on four v100
    ]
)
APART = np.array([10.0, 15.0, 21.0, 25.0])
"""A on v100, spread."""


def table(*, spread: bool = False, pairs: bool = True) -> Throughputs:
    """Return figures of two models; beside each other on one GPU A runs at 0.5 and 0.6, B at 0.7 and 0.8 of alone."""
    alone = np.concatenate([ALONE, np.stack([APART, ALONE[1, :, 0]])[:, :, None]], axis=2) if spread else ALONE
    types = ("v100", "p100", "v100_unconsolidated") if spread else ("v100", "p100")
    shared = np.full((2, 4, 2, len(types)), np.nan)
    shared[:, 0, :, :2] = ALONE[:, 0, None, :] * np.array([[0.5, 0.6], [0.7, 0.8]])[:, :, None]
    shared[:, 1:] = 0.0  # as in Gavel's file, nobody shares several GPUs
    return Throughputs(types, MODELS, N_GPUS, alone, shared if pairs else None)


def cluster() -> Cluster:
    """Return two machines of two V100 and one of four P100."""
    v100 = Server("two", sockets=((2, 64, 256),), device_type="v100")
    return no_network(3, servers=[(2, v100), (1, Server("four", sockets=((4, 64, 256),), device_type="p100"))])


def jobs_of(*gangs: tuple[str, int], **columns: object) -> Jobs:
    """Return jobs (model, GPUs)."""
    return Jobs.of(
        arrival_s=np.arange(len(gangs), dtype=float),
        total_steps=100.0,
        duration_s=100.0,
        model=[model for model, _ in gangs],
        n_workers=[n for _, n in gangs],
        **columns,
    )


def profile_of(jobs: Jobs, *, pairs: bool = True, speed: SpeedModel | None = None) -> Profile:
    where = cluster()
    return measure_profile(jobs, where, speed=speed or GavelSpeed(jobs, where, throughputs=table()), pairs=pairs)


# --- alone


def test_jobs_of_one_model_and_gang_are_one_kind_and_are_measured_once() -> None:
    profile = profile_of(jobs_of(("A", 1), ("B", 1), ("A", 1), ("A", 2), ("B", 1)))
    kind = profile.kind.tolist()
    assert kind[0] == kind[2]
    assert kind[1] == kind[4]
    assert len({kind[0], kind[1], kind[3]}) == 3 == len(profile.alone)
    assert profile.alone[profile.kind].tolist() == [[10, 4], [3, 5], [10, 4], [18, 8], [3, 5]]


def test_workers_with_other_demands_are_another_kind() -> None:
    two_gpus_each = amounts(gpus=2, cpus=1)
    jobs = jobs_of(("A", 1), ("A", 1), worker_demand=np.stack([amounts(gpus=1, cpus=1), two_gpus_each]))
    profile = profile_of(jobs)
    assert profile.alone[profile.kind].tolist() == [[10, 4], [18, 8]]


def test_a_gang_that_does_not_fit_or_cannot_run_has_speed_0() -> None:
    profile = profile_of(jobs_of(("B", 4), ("A", 4), ("A", 6)))
    assert profile.alone[profile.kind].tolist() == [[0, 16], [32, 14], [0, 0]]  # six GPUs of a type are nowhere


def test_fits_tells_which_gangs_one_machine_holds() -> None:
    profile = profile_of(jobs_of(("A", 1), ("A", 2), ("A", 4)))
    assert profile.fits[profile.kind].tolist() == [[True, True], [True, True], [False, True]]


# --- spread over machines


def test_gangs_of_several_workers_are_measured_spread_as_well() -> None:
    # Gavel, sec. 3.1, "Placement sensitivity": consolidated and unconsolidated figures
    jobs = jobs_of(("A", 1), ("A", 2), ("B", 2))
    speed = GavelSpeed(jobs, cluster(), throughputs=table(spread=True), placement=True)
    profile = profile_of(jobs, speed=speed)
    assert profile.alone[profile.kind].tolist() == [[10, 4], [18, 8], [6, 9]]
    assert profile.apart[profile.kind].tolist() == [[10, 4], [15, 8], [6, 9]]  # one P100 machine: no way to spread


def test_where_spreading_costs_nothing_apart_is_alone() -> None:
    profile = profile_of(jobs_of(("A", 1), ("A", 2), ("A", 4), ("B", 4)))
    assert np.array_equal(profile.apart, profile.alone)


# --- mixed types


def test_a_gang_larger_than_any_type_is_measured_on_all_of_them() -> None:
    profile = profile_of(jobs_of(("A", 6), ("A", 4), ("A", 1)))
    assert profile.mixed[profile.kind].tolist() == [18, 0, 0]  # as fast as its slowest device type, p100


def test_a_mixture_leaves_out_the_types_on_which_a_job_cannot_run() -> None:
    profile = profile_of(jobs_of(("B", 6)))
    assert profile.mixed.tolist() == [0]  # six P100 are not there, and it cannot run on V100


# --- pairs


def test_pairs_are_the_tables_figures_in_both_directions() -> None:
    profile = profile_of(jobs_of(("B", 1), ("A", 1)))
    b, a = profile.kind
    assert profile.shared is not None
    assert profile.shared[a, a] == pytest.approx([10 * 0.5, 4 * 0.5])
    assert profile.shared[a, b] == pytest.approx([10 * 0.6, 4 * 0.6])
    assert profile.shared[b, a] == pytest.approx([3 * 0.7, 5 * 0.7])
    assert profile.shared[b, b] == pytest.approx([3 * 0.8, 5 * 0.8])


def test_kinds_with_other_gangs_are_never_measured_together() -> None:
    profile = profile_of(jobs_of(("A", 1), ("A", 2), ("B", 2), ("A", 4)))
    one, two, other, four = profile.kind
    assert profile.shared is not None
    measured = ~np.isnan(profile.shared)
    assert measured[two, other].all()
    assert measured[four, four].all()
    for a, b in ((one, two), (one, other), (two, four)):
        assert not measured[a, b].any()
        assert not measured[b, a].any()


def test_pairs_on_a_type_that_does_not_hold_the_gang_are_not_measured() -> None:
    small = no_network(2, servers=[(1, Server(f"{n}{kind}", sockets=((n, 9, 9),), device_type=kind))
                                   for kind, n in (("v100", 2), ("p100", 4))])  # fmt: skip
    jobs = jobs_of(("A", 4), ("A", 1))
    profile = measure_profile(jobs, small, speed=GavelSpeed(jobs, small, throughputs=table()), pairs=True)
    four, one = profile.kind
    assert profile.shared is not None
    assert np.isnan(profile.shared[four, four]).tolist() == [True, False]
    assert np.isnan(profile.shared[one, one]).tolist() == [False, False]


def test_without_being_asked_or_without_knowledge_there_are_no_pairs() -> None:
    jobs = jobs_of(("A", 1), ("B", 1))
    assert profile_of(jobs, pairs=False).shared is None
    assert profile_of(jobs, speed=GavelSpeed(jobs, cluster(), throughputs=table(pairs=False))).shared is None
    assert profile_of(jobs, speed=Recorded(jobs, cluster())).shared is None


class Crowded:
    """Gavel's speeds, divided by the number of jobs that run anywhere."""

    local = False
    pairs = True

    def __init__(self, speed: GavelSpeed) -> None:
        self._speed = speed

    def speeds(self, running: Running) -> Floats:
        rates: Floats = self._speed.speeds(running) / len(running.job)
        return rates

    def runs_on(self) -> Bools:
        return self._speed.runs_on()

    def durations_s(self) -> Floats:
        return self._speed.durations_s()


def test_where_speeds_depend_on_all_that_runs_only_the_measured_ones_run() -> None:
    jobs = jobs_of(("A", 1), ("B", 1), ("A", 2))
    alone = GavelSpeed(jobs, cluster(), throughputs=table())
    plain, crowded = profile_of(jobs, speed=alone), profile_of(jobs, speed=Crowded(alone))
    assert np.array_equal(crowded.alone, plain.alone)
    assert np.array_equal(crowded.apart, plain.apart)
    assert crowded.shared is not None
    assert plain.shared is not None
    assert np.array_equal(crowded.shared, plain.shared / 2, equal_nan=True)  # the two of a pair, and nobody else


def test_all_of_gavels_pairs_come_out_as_they_stand_in_its_file(shared_data) -> None:
    path = shared_data("gavel/simulation_throughputs.json")
    raw, read = json.loads(path.read_text()), Throughputs.read(path)
    jobs, where = jobs_of(*((model, 1) for model in read.models)), build("gavel-36x3")
    profile = measure_profile(jobs, where, speed=GavelSpeed(jobs, where, throughputs=read), pairs=True)
    assert profile.shared is not None
    for t, kind in enumerate(where.device_types):
        keys = [f"('{model}', 1)" for model in jobs.model_names()]
        alone = [raw[kind][key]["null"] for key in keys]
        pairs = [[raw[kind][key][other][0] for other in keys] for key in keys]
        assert profile.alone[profile.kind, t].tolist() == alone
        assert profile.shared[np.ix_(profile.kind, profile.kind)][:, :, t].tolist() == pairs


def test_a_job_without_gpus_that_fits_elsewhere_only_is_measured_there() -> None:
    """Device types are those of GPUs: what runs on none of a type's may still have its cores."""
    small, large = Server("small", sockets=((1, 4, 16),), device_type="k80"), Server("large", sockets=((4, 16, 64),))
    cluster = no_network(2, servers=[(1, small), (1, large)])
    jobs = Jobs.of(
        arrival_s=[0, 0], total_steps=60, duration_s=60, n_workers=4, worker_demand=np.array([[0, 3, 0], [1, 3, 0.0]])
    )
    k80 = np.array([kind == "k80" for kind in cluster.device_types])
    speed = SharedSpeeds(jobs, cluster, runs_on=np.array([k80, ~k80]))
    found = measure_profile(jobs, cluster, speed=speed, pairs=False)
    assert found.alone[found.kind].tolist() == [k80.astype(float).tolist(), (~k80).astype(float).tolist()]
    assert found.mixed.tolist() == [0, 0]
