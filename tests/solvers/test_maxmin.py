"""Max-min sharing against progressive filling in plain Python, and against what defines it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.solvers.maxmin import equal_share_rates, max_min_rates
from labkit.topology import bcube, fat_tree, vl2

BOTH = pytest.mark.parametrize("compiled", [True, False])


def progressive_filling(paths, capacity):
    """Textbook (Bertsekas and Gallager, 6.5.2): raise all rates together; a full link freezes its flows."""
    flows = [[int(link) for link in row if link < len(capacity)] for row in paths]
    rate = [math.inf if not links else None for links in flows]
    left = [float(c) for c in capacity]
    while None in rate:
        users = [0] * len(left)
        for links, r in zip(flows, rate, strict=True):
            for link in links if r is None else []:
                users[link] += 1
        level, tightest = min((left[link] / n, link) for link, n in enumerate(users) if n)
        for f, links in enumerate(flows):
            if rate[f] is None and tightest in links:
                rate[f] = level
                for link in links:
                    left[link] = max(left[link] - level, 0.0)
    return np.array(rate)


@st.composite
def shared_links(draw):
    n_links = draw(st.integers(1, 8))
    capacity = np.array(draw(st.lists(st.floats(0.1, 100), min_size=n_links, max_size=n_links)))
    flows = draw(st.lists(st.sets(st.integers(0, n_links - 1), max_size=4), max_size=12))
    paths = np.full((len(flows), 4), n_links, np.int32)
    for f, links in enumerate(flows):
        paths[f, : len(links)] = sorted(links)
    return paths, capacity


@BOTH
@given(shared_links())
def test_rates_are_those_of_progressive_filling(compiled, case):
    np.testing.assert_allclose(max_min_rates(*case, compiled=compiled), progressive_filling(*case), rtol=1e-9)


@BOTH
@pytest.mark.parametrize("cluster", [fat_tree(8), vl2(8, 4), bcube(4, 2)], ids=str)
def test_rates_on_topologies_are_those_of_progressive_filling(compiled, cluster):
    rng = np.random.default_rng(3)
    ends = rng.integers(0, cluster.n_machines, size=(2, 300), dtype=np.int32)
    paths = cluster.network.route(*ends, rng.integers(0, 2**31 - 1, 300, dtype=np.int32))
    case = paths, cluster.network.link_gbps
    np.testing.assert_allclose(max_min_rates(*case, compiled=compiled), progressive_filling(*case), rtol=1e-9)


@given(shared_links())
def test_rates_fit_the_links_and_every_flow_has_a_bottleneck(case):
    """Max-min fair means: feasible, and each flow crosses a full link on which no other flow is faster."""
    paths, capacity = case
    rates = max_min_rates(paths, capacity)
    on = np.zeros((len(paths), len(capacity)), bool)
    for f, row in enumerate(paths):
        on[f, row[row < len(capacity)]] = True
    finite = np.where(on.any(axis=1), rates, 0.0)
    load = on.T @ finite
    assert (load <= capacity * (1 + 1e-9)).all()
    full = load >= capacity * (1 - 1e-9)
    fastest = np.where(on, finite[:, None], 0.0).max(axis=0, initial=0.0)
    has_bottleneck = (on & full & (finite[:, None] >= fastest * (1 - 1e-9))).any(axis=1)
    assert (has_bottleneck == on.any(axis=1)).all()
    assert np.isinf(rates[~on.any(axis=1)]).all()


@given(shared_links())
def test_equal_share_never_exceeds_max_min(case):
    assert (equal_share_rates(*case) <= max_min_rates(*case) * (1 + 1e-9)).all()


def test_bertsekas_gallager_example_of_five_sessions():
    """After Data networks, sec. 6.5.2, capacities 1: sessions 2, 3, 5 get 1/3 of one link, 1 gets 2/3, 4 is alone."""
    paths = np.array([[0, 4], [0, 1], [1, 4], [3, 4], [1, 4]], np.int32)
    np.testing.assert_allclose(max_min_rates(paths, np.ones(4)), [2 / 3, 1 / 3, 1 / 3, 1, 1 / 3])


@BOTH
def test_links_without_limit_and_links_without_capacity(compiled):
    paths = np.array([[0, 1], [0, 2], [2, 3], [3, 3]], np.int32)
    rates = max_min_rates(paths, np.array([np.inf, 5.0, 0.0]), compiled=compiled)
    assert rates.tolist() == [5.0, 0.0, 0.0, np.inf]


def test_no_flows_have_no_rates():
    none = np.empty((0, 6), np.int32)
    assert max_min_rates(none, np.ones(3)).shape == equal_share_rates(none, np.ones(3)).shape == (0,)


@pytest.mark.parametrize("solve", [max_min_rates, equal_share_rates])
def test_wrong_links_and_capacities_are_refused(solve):
    with pytest.raises(InputError, match=r"links 0 to 3; expected \(flows, hops\) of links 0 to 2"):
        solve(np.array([[0, 3]], np.int32), np.ones(2))
    with pytest.raises(InputError, match="link 1 has capacity nan"):
        solve(np.array([[0, 1]], np.int32), np.array([1.0, np.nan]))
