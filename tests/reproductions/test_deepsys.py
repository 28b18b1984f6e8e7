"""DeepSys: what its predictor has learned, where it puts tasks, how it is trained, and which weights it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.core import InputError, Kind
from labkit.schedulers import make
from labkit.topology import presets
from reproductions.deepsys.placer import FILES, N_FEATURES, MachineTasks, Predictor, features, load
from reproductions.deepsys.training import fit, history
from tests.schedulers.pods.test_partitioned import CLUSTER, gangs, pods_of, run


def beside(*tasks: float) -> MachineTasks:
    return MachineTasks(np.array(tasks), np.array(tasks) / 2, np.array(tasks) / 10)


def test_what_the_network_sees_of_a_gang_by_hand() -> None:
    """Two workers and a PS: machine 1 has a worker, machine 3 a worker and the PS, beside 2 tasks of others."""
    workers, servers = np.array([[0, 1.0, 0, 1]]), np.array([[0, 0.0, 0, 1]])
    seen = features(2, workers, servers, beside(8, 0, 8, 2))[0]
    assert seen[:9].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert seen[9:13].tolist() == [0.5, 0.25, 0.5, 0.5]  # workers, PSs, machines; one of two pairs is local
    assert seen[13:18].tolist() == [0.25, 0.25, 0.25, 0.25, 0.2]  # machine 3: two tasks of others, one a worker
    assert seen[18:23].tolist() == [0.25, 0, 0, 0, 0]
    assert not seen[23:33].any()
    assert seen[33:].tolist() == [0.25, 0.2]


def test_the_shipped_predictor_knows_that_neighbours_and_distance_slow_a_gang_down() -> None:
    """Two workers and a PS of vgg-16, whose gradients are the largest of the catalogue."""
    together, apart = np.array([[2.0, 0, 0, 0]]), np.array([[1.0, 1, 0, 0]])
    server, far = np.array([[1.0, 0, 0, 0]]), np.array([[0.0, 0, 1, 0]])
    kind = 1
    alone = load()(features(kind, together, server, beside(0, 0, 0, 0)))[0]
    assert alone == pytest.approx(1.0, abs=0.1)
    assert load()(features(kind, apart, far, beside(0, 0, 0, 0)))[0] < alone - 0.1
    assert load()(features(kind, together, server, beside(4, 0, 0, 0)))[0] < alone - 0.1


def test_a_gang_goes_whole_to_an_empty_machine() -> None:
    jobs = gangs([2, 2], [1, 1], n_ps=[2, 2], ps_demand=np.array([0.0, 2.0, 0.0]), model="resnet-50")
    rows = run(jobs, "deepsys")
    placed = rows[rows["kind"] == Kind.PLACED]
    machines = {job: set(CLUSTER.group_machine[placed["group"][placed["job"] == job]].tolist()) for job in (0, 1)}
    assert [len(used) for used in machines.values()] == [1, 1]
    assert not machines[0] & machines[1]
    assert {pod for _, pod in pods_of(rows)} == {1}


def test_a_seed_gives_the_same_weights_and_they_predict_better_than_the_mean(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        rng = np.random.default_rng(3)
        seen, speeds = history(40, cluster=presets.build("marl-4x20"), interference="calibrated", rng=rng)
        assert seen.shape == (len(speeds), N_FEATURES)
        assert (speeds > 0).all()
        assert (speeds < 1 + 1e-9).all()
        made.append(fit(seen, speeds, epochs=15, rng=rng))
    made[0].save(tmp_path / "mine.safetensors")
    for a, b in zip(made[0].layers, made[1].layers, strict=True):
        assert a[0].tobytes() == b[0].tobytes()
    again = load(str(tmp_path / "mine.safetensors"))
    assert ((again(seen) - speeds) ** 2).mean() < 0.7 * speeds.var()
    np.testing.assert_allclose(again(seen), made[0](seen), atol=1e-4)


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights of deepsys is 'mine'; expected the path of a \.safetensors file"):
        make("deepsys(weights=mine)")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(FILES.find("deepsys").read_bytes()[:100])
    with pytest.raises(InputError, match="not a safetensors file"):
        make("deepsys", weights=str(broken))
    layers = [(np.zeros((3, 3)), np.zeros(3)), (np.zeros((3, 3)), np.zeros(3)), (np.zeros((3, 1)), np.zeros(1))]
    other = tmp_path / "other.safetensors"
    Predictor(tuple(layers)).save(other)
    with pytest.raises(InputError, match=f"expected finite ones from {N_FEATURES} features"):
        make("deepsys", weights=str(other))
