"""Muri: which jobs it pairs, against an exact matching, and what a pair is worth where all do not fit."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, Kind
from labkit.experiment.cadence import at_events
from labkit.experiment.session import Session
from labkit.schedulers import make
from labkit.schedulers.muri import Muri, matched
from labkit.simulator import Simulator
from labkit.testing import check_scheduler
from labkit.testing.scenes import SharedSpeeds
from labkit.topology import no_network
from labkit.topology.servers import Server


def worth_of(mate, kind, worth):
    """Return what pairs are worth in all."""
    return sum(worth[kind[a], kind[b]] for a, b in enumerate(mate) if b > a)


@given(
    n_kinds=st.integers(1, 6), n_jobs=st.integers(0, 14), seed=st.integers(0, 2**32 - 1), kept=st.sampled_from([0.5, 1])
)
def test_pairs_are_worth_nearly_as_much_as_those_of_an_exact_matching(n_kinds, n_jobs, seed, kept):
    rng = np.random.default_rng(seed)
    worth = rng.uniform(1.0, 2.0, (n_kinds, n_kinds)) * (rng.random((n_kinds, n_kinds)) < kept)
    worth = np.maximum(worth, worth.T)
    kind = rng.integers(0, n_kinds, n_jobs).astype(np.int32)
    mate = matched(kind, worth)
    paired = np.flatnonzero(mate >= 0)
    assert (mate[mate[paired]] == paired).all()
    assert (mate[paired] != paired).all()
    assert (worth[kind[paired], kind[mate[paired]]] > 0).all()
    graph = nx.Graph()
    for a in range(n_jobs):
        graph.add_weighted_edges_from((a, b, worth[kind[a], kind[b]]) for b in range(a) if worth[kind[a], kind[b]] > 0)
    best = sum(worth[kind[a], kind[b]] for a, b in nx.max_weight_matching(graph))
    assert 0.6 * best <= worth_of(mate, kind, worth) <= best + 1e-9


def test_of_one_kind_the_most_urgent_jobs_have_the_best_partners():
    worth = np.array([[0.0, 1.2, 1.8], [1.2, 0.0, 0.0], [1.8, 0.0, 0.0]])
    assert matched(np.array([0, 0, 1, 2], np.int32), worth).tolist() == [3, 2, 1, 0]


def run(scheduler, *, n_jobs, n_gpus):
    """Return the log of jobs of one GPU and 100 s each; beside another, a job makes 0.4 to 1 of its speed."""
    jobs = Jobs.of(arrival_s=np.zeros(n_jobs), total_steps=100, duration_s=100, n_workers=1, model=["vgg16"] * n_jobs)
    cluster = no_network(1, servers=Server("few", sockets=((n_gpus, 64, 512),)))
    speed = SharedSpeeds(jobs, cluster)
    session = Session(Simulator(jobs, cluster, speed=speed), cadence=at_events())
    scheduler._kind, scheduler._worth = np.zeros(n_jobs, np.int32), np.array([[1.4]])
    return session.run(scheduler)


def partners(rows):
    """Return the partner of each job when it was placed first."""
    placed = rows[rows["kind"] == Kind.PLACED]
    return {int(job): int(placed["partner"][placed["job"] == job][0]) for job in np.unique(placed["job"])}


def test_jobs_share_only_as_far_as_they_do_not_fit_otherwise():
    assert partners(run(Muri(), n_jobs=3, n_gpus=3)) == {0: -1, 1: -1, 2: -1}
    assert partners(run(Muri(), n_jobs=4, n_gpus=3)) == {0: 1, 1: 0, 2: -1, 3: -1}
    assert partners(run(Muri(), n_jobs=4, n_gpus=2)) == {0: 1, 1: 0, 2: 3, 3: 2}


def test_pairs_that_are_not_worth_it_are_not_made():
    first = partners(run(Muri(least_worth=1.5), n_jobs=4, n_gpus=2))
    assert set(first.values()) == {-1}


@pytest.mark.parametrize("known", [True, False])
def test_muri_passes_the_suite(known):
    check_scheduler(make("muri", known=known), seed=4)


def test_a_bad_worth_is_named():
    with pytest.raises(InputError, match="least_worth is -1"):
        make("muri", least_worth=-1.0)
