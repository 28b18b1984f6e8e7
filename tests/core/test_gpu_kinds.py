"""Slices of MIG, memory and modes of GPUs: geometry against placements one by one, runs against what types offer."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Cluster, InputError, Jobs
from labkit.core.device_types import may_run_on
from labkit.core.devices import refuse_slices
from labkit.core.events import Kind
from labkit.core.gpu_kinds import CARDS, GpuKind, SliceableGpu, refuse_geometry
from labkit.core.resources import GPUS
from labkit.experiment import Experiment, Session, at_events
from labkit.experiment.profile import measure_profile
from labkit.results.files import read_cluster, write_cluster
from labkit.schedulers import make
from labkit.schedulers.gavel.prices import prices_of
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing.scenes import SharedSpeeds
from labkit.topology import from_inventory, no_network
from labkit.topology.servers import Server

MIXED = ("3g.20gb", "2g.10gb", "2g.10gb")
SOCKET = (2.0, 28.0, 140.0)


STARTS = {
    (4, 1, 1): (0, 1, 2, 3), (4, 2, 2): (0, 2), (4, 4, 4): (0,),
    (7, 1, 1): tuple(range(7)), (7, 1, 2): (0, 2, 4, 6), (7, 2, 2): (0, 2, 4), (7, 3, 4): (0, 4), (7, 4, 4): (0,),
    (7, 7, 8): (0,),
}  # fmt: skip
"""Slices of compute of a GPU and of a profile, its slices of memory -> where it may begin (`nvidia-smi mig -lgipp`)."""


def can_be_placed(card: SliceableGpu, profiles: tuple[str, ...], taken: frozenset[int] = frozenset()) -> bool:
    """Return whether slices of memory can be found for all profiles, by trying all ways."""
    if not profiles:
        return True
    first, rest = profiles[0], profiles[1:]
    for at in STARTS[card.compute, int(first[0]), card.profiles[first]]:
        mine = set(range(at, at + card.profiles[first]))
        if not mine & taken and can_be_placed(card, rest, taken | mine):
            return True
    return False


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_profiles_add_up_exactly_where_places_are_found_for_all(card: SliceableGpu) -> None:
    """Source: possible placements, NVIDIA, Multi-Instance GPU user guide."""
    for n in range(1, 8):
        for profiles in combinations_with_replacement(card.profiles, n):
            assert card.adds_up(profiles) == can_be_placed(card, profiles), profiles


def test_as_many_slices_of_one_profile_fit_as_nvidia_says() -> None:
    """Source: instances available, in the same guide."""
    most = {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
    for profile, n in most.items():
        assert CARDS[1].adds_up([profile] * n)
        assert not CARDS[1].adds_up([profile] * (n + 1))


def test_what_does_not_add_up_is_told_in_one_line() -> None:
    with pytest.raises(
        InputError, match=r"do not add up: 7 slices of compute and 9 of memory on one GPU \(A100 40GB\)"
    ):
        refuse_geometry(["3g.20gb", "3g.20gb", "1g.5gb"], where="host a")
    with pytest.raises(InputError, match=r"unknown MIG profile of host a '3g\.21gb'"):
        refuse_geometry(["3g.21gb"], where="host a")
    with pytest.raises(InputError, match=r"no GPU has all of the MIG profiles 1g\.5gb \+ 1g\.6gb"):
        refuse_geometry(["1g.5gb", "1g.6gb"], where="host a")
    with pytest.raises(InputError, match=r"gpu_memory_gb is 16; MIG cuts GPUs with 24 \(A30\)"):
        Server("s", (SOCKET,), gpu_memory_gb=16, mig=("1g.5gb",))
    refuse_geometry(["1g.10gb"] * 7, where="host a")  # of 80 GB
    with pytest.raises(InputError, match="14 of memory"):
        refuse_geometry(["1g.10gb"] * 7, memory_gb=40, where="host a")
    with pytest.raises(InputError, match=r"host a: MIG cuts no Tesla-V100; expected one of A30, A100 40GB"):
        refuse_geometry(["1g.5gb"], device_type="Tesla-V100", where="host a")
    with pytest.raises(InputError, match=r"unknown MIG profile of host a '3g\.20gb'.*Known: .*2g\.12gb"):
        refuse_geometry(["3g.20gb"], device_type="NVIDIA-A30", where="host a")
    refuse_geometry(["1g.10gb"] * 7, device_type="NVIDIA-A100-SXM4-80GB", where="host a")


def cut(**options: object) -> Cluster:
    """Return a machine with two GPUs that are cut, and one with two of 16 GB."""
    servers = [
        (1, Server("cut", (SOCKET,), "a100", mig=MIXED, **options)),  # type: ignore[arg-type]
        (1, Server("whole", (SOCKET,), "v100", gpu_memory_gb=16)),
    ]
    return no_network(2, servers=servers)


def test_slices_are_gpus_of_their_own_types_with_their_part_of_cores() -> None:
    cluster = cut()
    assert cluster.device_types == ("a100-3g.20gb", "a100-2g.10gb", "v100")
    assert cluster.capacity.tolist() == [[2, 12, 60], [4, 16, 80], [2, 28, 140]]
    assert cluster.gpu_kinds["a100-2g.10gb"] == GpuKind(10.0, False, "2g.10gb")
    assert cluster.n_machines == 2


def jobs_of(**columns: object) -> Jobs:
    n = max((len(column) for column in columns.values() if isinstance(column, list)), default=1)
    return Jobs.of(arrival_s=np.zeros(n), total_steps=100, duration_s=100, **columns)  # type: ignore[arg-type]


def started_s(jobs: Jobs, cluster: Cluster, name: str = "fifo(backfill=True)") -> list[float]:
    log = Experiment.of(jobs, cluster=cluster, speed="recorded").session(make(name)).run(make(name))
    rows = log[log["kind"] == Kind.STARTED]
    return [float(rows["time_s"][rows["job"] == j][0]) for j in range(len(jobs))]


def test_a_slice_is_for_jobs_that_name_its_profile() -> None:
    kinds = ["2g.10gb", "a100-3g.20gb", "a100", "", "!a100", "v100|3g.20gb"]
    found = may_run_on(jobs_of(device_type=kinds), cut())
    assert found.tolist() == [
        [False, True, False], [True, False, False], [False, False, True], [False, False, True], [False, False, True],
        [True, False, True],
    ]  # fmt: skip


def test_five_jobs_on_four_slices_start_at_0_and_100() -> None:
    for name in ("fifo", "srtf", "las", "easy", "slurm", "tetris", "gavel_las", "fifo(placer=fgd)"):
        assert sorted(started_s(jobs_of(device_type=["2g.10gb"] * 5), cut(), name)) == [0, 0, 0, 0, 100], name


def test_a_slice_is_shared_as_a_gpu_is_unless_it_is_exclusive() -> None:
    halves = jobs_of(device_type=["3g.20gb"] * 4, worker_demand=(0.5, 1, 0))
    assert started_s(halves, cut()) == [0, 0, 0, 0]
    with pytest.raises(InputError, match=r"job 0 asks for 0\.5 of a GPU of device type '3g\.20gb'; .*\(exclusive\)"):
        started_s(halves, cut(exclusive=True))


def test_no_two_jobs_are_measured_beside_each_other_on_gpus_that_belong_to_one_task() -> None:
    jobs, cluster = jobs_of(device_type=["", "3g.20gb"], worker_demand=(1, 1, 0)), cut(exclusive=True)
    shared = measure_profile(jobs, cluster, speed=SharedSpeeds(jobs, cluster), pairs=True).shared
    assert shared is not None
    assert np.isnan(shared[:, :, :2]).all()
    assert np.nanmax(shared[:, :, 2]) > 0


def test_a_slice_costs_its_part_of_its_gpu() -> None:
    """Source: 2 of 7 slices of compute, NVIDIA, Multi-Instance GPU user guide."""
    found = prices_of(("a100-2g.10gb", "a100", "a30-1g.6gb"), {"a100": 7.0, "a30-1g.6gb": 0.3}, policy=None)
    np.testing.assert_allclose(found, [2.0, 7.0, 0.3])


def test_a_part_of_a_gpu_has_as_large_a_part_of_its_memory() -> None:
    jobs = jobs_of(gpu_memory_gb=[16, 8, 9, 17], worker_demand=[(1, 1, 0), (0.5, 1, 0), (0.5, 1, 0), (1, 1, 0)])
    assert may_run_on(jobs, cut())[:, 2].tolist() == [True, True, False, False]
    with pytest.raises(InputError, match=r"job 3 needs 17 GB of memory on a GPU; .* v100 16\."):
        started_s(jobs.take([0, 1, 3]), cut())
    assert started_s(jobs_of(gpu_memory_gb=[1e3]), no_network(1)) == [0]  # of which nothing is known


def test_jobs_that_name_no_slice_are_told_those_there_are() -> None:
    only = no_network(1, servers=Server("cut", (SOCKET,), "a100", mig=MIXED))
    with pytest.raises(InputError, match=r"has slices alone; its device_type may be one of 3g\.20gb, 2g\.10gb\."):
        started_s(jobs_of(), only)
    exported = jobs_of(device_type="a100", worker_demand=(3 / 7, 1, 0))
    with pytest.raises(InputError, match=r"has slices of MIG \(3g\.20gb, 2g\.10gb\), .* leave mig out of the hosts"):
        started_s(exported, only)
    with pytest.raises(InputError, match=r"has slices of GPUs \(a100-3g\.20gb\); on machines a job is given whole"):
        refuse_slices(only)


def test_an_inventory_says_how_gpus_are_cut(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain = '[[hosts]]\nname = "a"\ngpus = 2\ncpus = 28\nmemory_gb = 140\ndevice_type = "a100"\nmig = '
    file = tmp_path / "hosts.toml"
    file.write_text(f"{plain}{list(MIXED)}\n")
    cluster = from_inventory(file)
    assert cluster.device_types == ("a100-3g.20gb", "a100-2g.10gb")
    write_cluster(tmp_path / "cluster.json", cluster)
    assert read_cluster(tmp_path / "cluster.json").gpu_kinds == cluster.gpu_kinds
    file.write_text(f'{plain}["4g.20gb", "4g.20gb"]\n')
    with pytest.raises(InputError, match=r"1 fault: host a: the MIG profiles 4g\.20gb \+ 4g\.20gb do not add up"):
        from_inventory(file)
    file.write_text(plain.replace("a100", "t4") + '["1g.5gb"]\n')
    with pytest.raises(InputError, match="1 fault: host a: MIG cuts no t4; expected one of A30"):
        from_inventory(file)


def test_types_of_one_name_with_other_memory_are_refused() -> None:
    servers = [(1, Server("s", (SOCKET,), "v100", gpu_memory_gb=gb)) for gb in (16.0, nan)]
    with pytest.raises(InputError, match="GPUs of device type 'v100' differ in memory or mode"):
        no_network(2, servers=servers)


@pytest.mark.parametrize("name", ["fifo(backfill=True)", "srtf", "las"])
@given(seed=st.integers(0, 2**32 - 1))
def test_no_task_is_on_gpus_that_it_may_not_have_and_compiled_runs_are_the_same(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, cluster = 20, cut()
    gpus = rng.choice([0.25, 0.5, 1, 1], n)
    jobs = Jobs.of(
        arrival_s=np.sort(rng.choice([0.0, 5, 30], n)), total_steps=rng.choice([10.0, 40], n), duration_s=20,
        worker_demand=np.stack([gpus, gpus, gpus * 0], axis=1), gpu_memory_gb=rng.choice([0.0, 2, 4, 8], n),
        device_type=rng.choice(["", "3g.20gb", "2g.10gb", "2g.10gb|v100"], n).tolist(),
    )  # fmt: skip
    allowed = may_run_on(jobs, cluster)
    jobs = jobs.take(allowed.any(axis=1))
    allowed = may_run_on(jobs, cluster)
    told = []
    for compiled in (False, True):
        simulator = Simulator(jobs, cluster, speed=Recorded(jobs, cluster))
        run = Session(simulator, cadence=at_events(), compiled=compiled, runs_on=allowed)
        told.append(run.run(make(name)))
    placed = told[0][told[0]["kind"] == Kind.PLACED]
    assert allowed[placed["job"], cluster.group_type[placed["group"]]].all()
    assert (jobs.worker_demand[placed["job"], GPUS] > 0).all()
    assert told[0].tobytes() == told[1].tobytes()
