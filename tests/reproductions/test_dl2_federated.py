"""Several clusters learn one policy: the same wherever they are, each by its own traces, all with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.core import InputError
from labkit.experiment.on_dask import connect
from labkit.learning.settings import Setting
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.federated import APART, Federated
from reproductions.dl2.policy import FlatNet
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import Trainer
from tests.dask_cluster import local_cluster

SMALL = Published(n_jobs=6, n_units=12, n_taught=2, n_lessons=1, n_rounds=2, batch=16, replay=64, first_bundle=True,
                  clusters=2)  # fmt: skip
SETTING = Setting(["dl2-6n"], ["dl2_jobs('testbed_6n')"])


def federated(where: Any = "here", switches: Published = SMALL) -> Federated:
    torch.set_num_threads(1)
    return Federated(SETTING, DL2_MODELS, 300.0, seed=1, switches=switches, where=where)


def same(one: FlatNet, other: FlatNet) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def here() -> FlatNet:
    made = federated()
    assert [update.kind for update in made.updates()] == ["lesson", "round", "round"]
    return made.weights("").net


@pytest.fixture
def dask() -> Iterator[Any]:
    with local_cluster() as local, connect(local.scheduler_address) as client:
        yield client


def test_on_processes_the_weights_are_the_same(here):
    with federated("processes") as made:
        list(made.updates())
        assert same(made.weights("").net, here)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:tornado")
def test_on_a_dask_cluster_the_weights_are_the_same(here, dask):
    made = federated(dask)
    list(made.updates())
    assert same(made.weights("").net, here)


def test_an_update_is_the_mean_of_what_each_cluster_learned_by_itself():
    both = federated()
    begin = [part.copy() for part in both._parts or []]
    both.update()
    apart = []
    for seed in (1, 1 + APART):
        alone = Trainer(SETTING, DL2_MODELS, 300.0, seed=seed, switches=Published(
            n_jobs=6, n_units=12, n_taught=2, n_lessons=1, n_rounds=2, batch=16, replay=64, first_bundle=True
        ))  # fmt: skip
        parts = [*alone.learner.policy.parameters(), *alone.learner.value.parameters()]
        with torch.no_grad():
            for mine, part in zip(parts, begin, strict=True):
                mine.copy_(torch.from_numpy(part))
        alone.update()
        apart.append([part.detach().numpy().copy() for part in parts])
    for mean, one, other in zip(both._parts or [], *apart, strict=True):
        assert mean == pytest.approx((one + other) / 2, abs=1e-6)
    assert not np.array_equal(apart[0][0], apart[1][0]), "each has traces of its own"


def test_one_that_goes_on_ends_as_one_that_was_never_stopped(here, tmp_path: Path):
    first = federated()
    first.update()
    first.update()
    torch.save(first.state(), tmp_path / "state")
    second = federated().go_on(torch.load(tmp_path / "state", weights_only=True))
    list(second.updates())
    assert same(second.weights("").net, here)
    other = federated(switches=Published(clusters=3, warm_up="", n_jobs=6, n_units=12))
    with pytest.raises(InputError, match=r"has 2 clusters at once; expected 3"):
        other.go_on(torch.load(tmp_path / "state", weights_only=True))


def test_slots_are_counted_on_all_clusters_together():
    made = federated()
    told = list(made.updates())
    assert told[0].slots == 0
    assert made.slots == told[-1].slots > 2 * 10, "ten jobs arrive over more than ten slots, on each of two clusters"


def test_a_trainer_of_one_cluster_refuses_several():
    with pytest.raises(InputError, match=r"clusters is 2, and a Trainer has one; take a Federated"):
        Trainer(SETTING, DL2_MODELS, 300.0, switches=SMALL)
    with pytest.raises(InputError, match="where is 'there'; expected 'here', 'processes' or the client"):
        federated("there")
