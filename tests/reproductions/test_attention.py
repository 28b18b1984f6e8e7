"""Attention: what its network sees, which task it gives to which machine, and which weights it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Kind
from labkit.core.resources import GPUS
from labkit.schedulers import make
from labkit.testing import check_placer
from reproductions.attention.placer import (
    FILES,
    NO_NOTES,
    SHAPES,
    Attention,
    GangView,
    Net,
    Stand,
    load,
    notes_of,
    place,
    scores,
    see_machines,
)
from reproductions.deepsys.placer import FILES as OTHERS
from tests.schedulers.pods.test_partitioned import CLUSTER, gangs, pods_of, run

UNUSED = np.random.default_rng(0)
ABOUT = np.zeros(SHAPES["task"][0] - 6)


def net_of(rng: np.random.Generator) -> Net:
    return Net(**{name: rng.normal(size=shape) for name, shape in SHAPES.items()})


def stand_of(free: np.ndarray, *, n_machines: int) -> Stand:
    """Machines of two groups of 2 GPUs and 8 cores each."""
    capacity = np.tile([2.0, 8.0, 128.0], (2 * n_machines, 1))
    first = np.arange(0, 2 * n_machines + 1, 2)
    return Stand(free, capacity, first, np.zeros(n_machines), np.zeros(n_machines))


def gang_of(n_workers: int, n_ps: int, *, on: np.ndarray) -> GangView:
    return GangView(
        np.array([1.0, 2, 0]), np.array([0.0, 2, 0]), n_workers, n_ps, on, np.ones(len(on), np.bool_), ABOUT
    )


def test_what_is_seen_of_machines_by_hand() -> None:
    """Of a gang of 2 workers and 2 PSs one worker is on machine 0, where 3 GPUs and 5 cores are left beside others."""
    free = np.array([[1.0, 1, 128], [2, 4, 128], [2, 8, 128], [2, 8, 128], [0, 8, 128], [0, 8, 128]])
    stand = stand_of(free, n_machines=3)
    stand.tasks[0], stand.length[0] = 4, 2
    gang, seen = gang_of(2, 2, on=np.ones(6, np.bool_)), np.zeros((3, SHAPES["machine"][0]))
    own = np.array([[1.0, 0, 0], [0, 0, 0]])
    see_machines(stand, gang, np.arange(3), np.array([1, 2]), own, seen)
    assert seen[0].tolist() == [0.75, 5 / 16, 0.5, 0.5, 0.25, 0, 0, 0.5, 0.5, 0]
    assert seen[1].tolist() == [1, 1, 0.5, 0.5, 0, 0, 1, 0, 0, 1]
    assert seen[2].tolist() == [0, 1, 0.5, 0.5, 0, 0, 0, 0, 0, 1]  # no GPU for the worker that is left


@given(seed=st.integers(0, 10_000))
def test_scores_are_equivariant_over_machines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net, seen, task = net_of(rng), rng.random((7, SHAPES["machine"][0])), rng.random(SHAPES["task"][0])
    order = rng.permutation(7)
    np.testing.assert_allclose(scores(net, seen[order], task), scores(net, seen, task)[order], rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 10_000), draws=st.booleans())
def test_no_task_goes_where_there_is_no_room_and_a_gang_is_placed_whole_or_not_at_all(seed: int, draws: bool) -> None:
    """Whatever the weights; what was free is free again where a gang did not fit."""
    rng = np.random.default_rng(seed)
    free = np.column_stack([rng.integers(0, 3, 8), rng.integers(0, 9, 8), np.full(8, 128)]).astype(np.float64)
    on = rng.random(8) < 0.8
    before, stand = free.copy(), stand_of(free, n_machines=4)
    gang = gang_of(int(rng.integers(1, 5)), int(rng.integers(0, 5)), on=on)
    groups, notes = np.zeros(gang.n_workers + gang.n_ps, np.int64), notes_of(20, 4)
    fitted = place(net_of(rng), stand, gang, np.arange(4), groups, draws, rng, notes, 5)
    assert notes.n[0] == (len(groups) if fitted else 0)
    if not fitted:
        np.testing.assert_array_equal(free, before)
        return
    assert on[groups[: gang.n_workers]].all()
    taken = np.zeros_like(before)
    for t, group in enumerate(groups):
        taken[group] += gang.worker if t < gang.n_workers else gang.ps
        assert notes.fits[t, notes.action[t]]
        assert notes.action[t] == group // 2
    np.testing.assert_allclose(free, before - taken)
    assert (free >= 0).all()


def test_the_network_is_asked_of_the_pod_alone() -> None:
    """Machines outside are not looked at, though they are empty."""
    stand = stand_of(np.tile([2.0, 8.0, 128.0], (8, 1)), n_machines=4)
    groups = np.zeros(3, np.int64)
    gang = gang_of(2, 1, on=np.ones(8, np.bool_))
    assert place(net_of(np.random.default_rng(1)), stand, gang, np.array([2]), groups, False, UNUSED, NO_NOTES, 0)
    assert set(groups // 2) == {2}


def test_the_shipped_network_keeps_gangs_together_on_empty_machines() -> None:
    jobs = gangs([2, 2], [1, 1], n_ps=[2, 2], ps_demand=np.array([0.0, 2.0, 0.0]), model="resnet-50")
    rows = run(jobs, "attention")
    placed = rows[rows["kind"] == Kind.PLACED]
    machines = {job: set(CLUSTER.group_machine[placed["group"][placed["job"] == job]].tolist()) for job in (0, 1)}
    assert [len(used) for used in machines.values()] == [1, 1]
    assert not machines[0] & machines[1]
    assert {pod for _, pod in pods_of(rows)} == {1}
    assert placed["value"].sum() == jobs.n_workers.sum() + jobs.n_ps.sum()
    assert (CLUSTER.capacity[placed["group"], GPUS] > 0).all()


def test_it_keeps_what_every_placer_promises() -> None:
    check_placer(Attention())


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights of attention is 'mine'; expected the path of a \.safetensors file"):
        make("attention(weights=mine)")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(FILES.find("attention").read_bytes()[:100])
    with pytest.raises(InputError, match="not a safetensors file"):
        make("attention", weights=str(broken))
    with pytest.raises(InputError, match=r"policy 'deepsys'.*expected 'attention', '1'\. Train it again"):
        make("attention", weights=str(OTHERS.find("deepsys")))


@pytest.mark.parametrize("fault", ["shape", "name", "nan", "version"])
def test_weights_of_another_network_or_version_are_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    tensors, path = load()._asdict(), tmp_path / "other.safetensors"
    told = {
        "shape": r"query is of shape \(8, 8\); expected \(64, 32\)\. Train it again",
        "name": "it holds .*; expected .*key.*Train it again",
        "nan": "out holds a number that is not finite. Train it again",
        "version": "version '0'; expected 'attention', '1'. Train it again",
    }
    if fault == "shape":
        tensors["query"] = np.zeros((8, 8))
    elif fault == "name":
        del tensors["key"]
    elif fault == "nan":
        tensors["out"] = np.full(32, np.nan)
    FILES.__class__("attention", "0" if fault == "version" else "1", "").write(path, tensors)
    with pytest.raises(InputError, match=told[fault]) as refused:
        make("attention", weights=str(path))
    assert "\n" not in str(refused.value)
