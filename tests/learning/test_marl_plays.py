"""Plays of a trace on workers: the same bits as in one process, wherever they are; and workers that are lost."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.core.errors import InputError, LabkitError
from labkit.learning.marl.plays import Play, all_played
from labkit.learning.marl.settings import Setting
from labkit.learning.marl.trainer import Recipe, Trainer
from labkit.schedulers.marl.network import Net
from tests.dask_cluster import local_cluster

CLUSTER = "vl2(4, 2, per_rack=3, gbps=(10, 20, 40))"
TRACE = "marl_jobs(load=2, n_pods=2, n_slots=4, per_slot=2)"
SMALL = Recipe(n_lessons=1, n_rounds=2, n_draws=3, n_hidden=4, n_units=5, n_fits=5, n_epochs=2)


def trained(where: Any = None, recipe: Recipe = SMALL) -> tuple[Net, Trainer]:
    torch.set_num_threads(1)
    made = Trainer(Setting([CLUSTER], [TRACE]), seed=1, recipe=recipe, where=where)
    list(made.updates())
    return made.policy.net(), made


def same(one: Net, other: Net) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def here() -> tuple[Net, Trainer]:
    return trained()


def test_on_threads_the_weights_the_log_and_the_slots_are_the_same(here):
    with ThreadPoolExecutor(3) as pool:
        net, made = trained(pool)
    assert same(net, here[0])
    assert made.slots == here[1].slots


def test_on_processes_the_weights_are_the_same(here):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        net, _ = trained(pool)
    assert same(net, here[0])


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:tornado")
def test_on_a_dask_cluster_the_weights_are_the_same(here, dask):
    net, _ = trained(dask)
    assert same(net, here[0])


@pytest.fixture
def dask() -> Iterator[Any]:
    from labkit.experiment.on_dask import connect

    with local_cluster() as local, connect(local.scheduler_address) as client:
        yield client


class Dies:
    """Draws no trace: its process ends."""

    def __call__(self, rng: np.random.Generator) -> Any:
        os._exit(1)


def test_workers_that_are_lost_are_told_in_one_line(here):
    one = Play(here[0], None, 0, 0)  # type: ignore[arg-type]
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        pytest.raises(LabkitError, match=r"\Aworkers were lost while they played traces \(BrokenProcessPool\)[^\n]*\Z"),
    ):
        all_played(Dies(), [one], where=pool)


def test_a_setting_goes_to_workers_by_content(tmp_path: Path):
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[[hosts]]\nname = "a"\ngpus = 8\ncpus = 64\nmemory_gb = 8\n')
    raw = pickle.dumps(Setting([str(hosts)], [TRACE]))
    hosts.unlink()
    scene, _ = pickle.loads(raw)(np.random.default_rng(0))
    assert len(scene.room.up) == 1


def test_a_training_goes_on_in_its_own_setting_alone(here):
    other = Trainer(Setting([CLUSTER], [TRACE], "mild"), seed=1, recipe=SMALL)
    with pytest.raises(InputError, match="has interference 'calibrated'; expected 'mild'"):
        other.go_on(here[1].state())


def test_a_head_for_each_pod_learns_from_its_own_jobs_alone():
    first = Trainer(Setting([CLUSTER], [TRACE]), seed=1, recipe=replace(SMALL, n_agents=2))
    start = first.policy.net()
    assert np.array_equal(start.first[0], start.first[1])  # they begin alike
    list(first.updates())
    end = first.policy.net()
    assert end.first.shape[0] == 2
    assert not np.array_equal(end.first[0], end.first[1])
    alone = Trainer(
        Setting([CLUSTER], [TRACE.replace("n_pods=2", "n_pods=1")]),
        seed=1,
        recipe=replace(SMALL, n_agents=2),
    )
    before = alone.policy.net()
    list(alone.updates())
    after = alone.policy.net()
    assert not np.array_equal(after.first[0], before.first[0])
    assert np.array_equal(after.first[1], before.first[1])  # no job arrived there
