"""What each policy does, on examples that can be worked by hand, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.schedulers.gavel import policies
from labkit.schedulers.gavel.allox import Allox, queue
from labkit.schedulers.gavel.cost import Cost
from labkit.schedulers.gavel.fifo import Fifo
from labkit.schedulers.gavel.ftf import Ftf
from labkit.schedulers.gavel.gandiva import Gandiva
from labkit.schedulers.gavel.greedy import NEVER, NOWHERE, ROOM, join_gangs, start_gangs
from labkit.schedulers.gavel.isolated import Isolated
from labkit.schedulers.gavel.las import Las
from labkit.schedulers.gavel.makespan import Makespan
from labkit.schedulers.gavel.problem import Allocation, Problem, Sharing
from labkit.schedulers.gavel.proportional import Proportional
from labkit.schedulers.gavel.sjf import Sjf
from labkit.schedulers.gavel.slo import Slo
from labkit.schedulers.gavel.strategy_proof import StrategyProof
from labkit.schedulers.gavel.throughput import Throughput

ALL = sorted(policies())
PAPER = Problem.of([[40, 10], [12, 4], [100, 50]], capacity=[1, 1])
"""Three jobs on a V100 and a K80 (Narayanan et al., OSDI 2020, sec. 4.1)."""


def pair_up(n_jobs: int, speed: float | list[float], *, n_columns: int = 1) -> Sharing:
    """Return that all pairs of jobs have the same speeds together."""
    shared = np.zeros((n_jobs, n_jobs, n_columns))
    shared[:] = speed
    return Sharing(np.arange(n_jobs, dtype=np.int32), shared)


# --- worked examples


def test_the_papers_three_jobs_get_the_papers_shares_and_8_percent_more_than_isolated() -> None:
    answer = Las().allocate(PAPER)
    np.testing.assert_allclose(answer.share, [[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]], atol=0.01)
    assert (answer.speed(PAPER) / Isolated().allocate(PAPER).speed(PAPER)).min() == pytest.approx(1.09, abs=0.01)


@pytest.mark.parametrize("aware", [True, False])
def test_four_jobs_of_weights_3_1_1_1_all_run_all_the_time_on_four_gpus(aware: bool) -> None:
    problem = Problem.of([[1.0]] * 4, capacity=[4], weight=[3, 1, 1, 1])
    answer = Las(aware=aware).allocate(problem)
    np.testing.assert_allclose(answer.share.ravel(), 1.0, atol=1e-9)
    assert answer.value == pytest.approx(1 / 3)  # the level of the first round: weights 3 to 1


def test_weights_divide_a_full_cluster() -> None:
    problem = Problem.of([[1.0]] * 4, capacity=[1], weight=[3, 1, 1, 1])
    np.testing.assert_allclose(Las().allocate(problem).share.ravel(), np.array([3, 1, 1, 1]) / 6)


def test_a_gang_of_two_gets_half_the_time_of_a_single_job() -> None:
    problem = Problem.of([[1.0], [1.0]], capacity=[1], n_gpus=[2, 1])
    np.testing.assert_allclose(Las().allocate(problem).share.ravel(), [0.25, 0.5])


def test_makespan_is_all_work_over_all_gpus_on_one_type() -> None:
    problem = Problem.of([[2.0], [1.0], [1.0]], capacity=[2], steps_left=[40, 30, 10])
    answer = Makespan().allocate(problem)
    assert answer.value == pytest.approx(30)  # one job alone takes that long; 20 + 30 + 10 GPU-seconds on 2 GPUs too


def test_makespan_swaps_jobs_to_the_types_that_suit_them() -> None:
    problem = Problem.of([[4.0, 1.0], [1.0, 4.0]], capacity=[1, 1], steps_left=8)
    assert Makespan().allocate(problem).value == pytest.approx(2)
    agnostic = Makespan(aware=False).allocate(problem)
    assert agnostic.value == pytest.approx(2)  # what it believes
    assert (problem.steps_left / agnostic.speed(problem)).max() > 2.5  # what it is


def test_finish_time_fairness_of_new_equal_jobs_is_1() -> None:
    problem = Problem.of([[1.0]] * 4, capacity=[2], steps_left=[10, 20, 30, 40])
    answer = Ftf().allocate(problem)
    assert answer.value == pytest.approx(1)
    np.testing.assert_allclose(answer.share.ravel(), 0.5, atol=1e-6)


def test_finish_time_fairness_helps_jobs_that_have_waited() -> None:
    problem = Problem.of([[1.0], [1.0]], capacity=[1], steps_left=100, age_s=[300, 0])
    share = Ftf().allocate(problem).share.ravel()
    assert share[0] > 2 * share[1]


def test_finish_time_fairness_knows_what_was_done_so_far() -> None:
    alike = Problem.of([[1.0], [1.0]], capacity=[1], steps_left=100, age_s=[300, 0], isolated_s=[300, 0])
    answer = Ftf().allocate(alike)
    np.testing.assert_allclose(answer.share.ravel(), 0.5, atol=1e-6)
    assert answer.value == pytest.approx(1)


def test_maximum_throughput_gives_all_to_the_fastest() -> None:
    problem = Problem.of([[10.0], [9.0]], capacity=[1])
    answer = Throughput().allocate(problem)
    assert answer.share.tolist() == [[1.0], [0.0]]
    assert (answer.value, answer.bound) == (10.0, pytest.approx(10.0))


def test_maximum_normalised_throughput_counts_no_steps_of_small_models_twice() -> None:
    problem = Problem.of([[100.0, 90.0], [10.0, 1.0]], capacity=[1, 1])
    np.testing.assert_allclose(Throughput().allocate(problem).share, [[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(Throughput(normalised=True).allocate(problem).share, [[0.0, 1.0], [1.0, 0.0]])


def test_least_cost_uses_cheap_gpus_and_leaves_dear_ones_idle() -> None:
    problem = Problem.of([[2.0, 1.0], [2.0, 1.0]], capacity=[1, 1], price=[5, 1])
    answer = Cost().allocate(problem)
    np.testing.assert_allclose(answer.share.sum(axis=0), [0.0, 1.0])
    assert (answer.value, answer.bound) == (pytest.approx(1), pytest.approx(1))


def test_the_published_sum_of_speeds_over_prices_uses_dear_gpus_too() -> None:
    problem = Problem.of([[2.0, 1.0], [2.0, 1.0]], capacity=[1, 1], price=[5, 1])
    answer = Cost(objective="sum").allocate(problem)
    np.testing.assert_allclose(answer.share.sum(axis=0), [1.0, 1.0])
    assert answer.value == pytest.approx(1.4)


def test_a_tight_slo_buys_a_dear_gpu_and_no_more_of_it_than_needed() -> None:
    problem = Problem.of([[2.0, 1.0]], capacity=[1, 1], price=[5, 1], steps_left=60, slo_left_s=[40])
    answer = Slo().allocate(problem)
    np.testing.assert_allclose(answer.share, [[0.5, 0.5]], atol=1e-6)
    assert answer.gap <= 1e-6
    assert not len(answer.unmet)


def test_slos_that_cannot_be_met_are_told_and_the_others_kept() -> None:
    problem = Problem.of(
        [[1.0], [1.0], [1.0], [1.0]], capacity=[1], steps_left=60, slo_left_s=[30, 80, 90, -5], price=2.0
    )
    answer = Slo().allocate(problem)
    assert answer.unmet.tolist() == [0, 2, 3]  # 60 steps in 30 s; not beside the second one; over already
    assert answer.share[1, 0] == pytest.approx(0.75)
    assert answer.share.sum() == pytest.approx(1.0)  # what is left is given out


def test_a_later_slo_that_fits_is_kept_after_one_that_does_not() -> None:
    problem = Problem.of([[1.0]] * 3, capacity=[1], steps_left=[60, 60, 20], slo_left_s=[80, 90, 100])
    assert Slo().allocate(problem).unmet.tolist() == [1]


def test_strategy_proof_halves_what_two_equal_jobs_would_have() -> None:
    problem = Problem.of([[1.0], [1.0]], capacity=[1])
    answer = StrategyProof().allocate(problem)
    np.testing.assert_allclose(answer.share.ravel(), 0.25, atol=1e-6)  # alone, the other one would have twice as much
    assert answer.value == pytest.approx(0.5)


def test_no_job_gains_by_telling_a_wrong_speed_to_the_strategy_proof_policy() -> None:
    honest = StrategyProof().allocate(PAPER).speed(PAPER)
    for j in range(3):
        for wrong in (0.5, 0.8, 1.3, 3.0):
            told = PAPER.speed.copy()
            told[j, 0] *= wrong
            answer = StrategyProof().allocate(replace(PAPER, speed=told))
            assert answer.speed(PAPER)[j] <= honest[j] * (1 + 1e-6)


def test_proportional_gives_equal_time_and_isolated_equal_gpus() -> None:
    problem = Problem.of([[1.0], [1.0]], capacity=[2], n_gpus=[3, 1])
    np.testing.assert_allclose(Proportional().allocate(problem).share.ravel(), [0.5, 0.5])
    np.testing.assert_allclose(Isolated().allocate(problem).share.ravel(), [1 / 3, 1.0])


# --- whole gangs


def test_fifo_gives_each_the_fastest_type_that_is_left_in_order_of_arrival() -> None:
    problem = Problem.of([[3.0, 1.0], [9.0, 1.0], [9.0, 9.0]], capacity=[1, 1])
    assert Fifo().allocate(problem).share.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_fifo_waits_behind_a_gang_that_does_not_fit_now() -> None:
    problem = Problem.of([[1.0]] * 3, capacity=[4], n_gpus=[2, 4, 1])
    assert Fifo().allocate(problem).share.ravel().tolist() == [1.0, 0.0, 0.0]
    assert Fifo(backfill=True).allocate(problem).share.ravel().tolist() == [1.0, 0.0, 1.0]


def test_fifo_does_not_wait_for_ever_behind_a_gang_that_fits_nowhere() -> None:
    problem = Problem.of([[1.0]] * 2, capacity=[4], n_gpus=[5, 1])
    assert Fifo().allocate(problem).share.ravel().tolist() == [0.0, 1.0]


def test_shortest_job_first_goes_by_seconds_on_the_fastest_type() -> None:
    problem = Problem.of([[1.0, 1.0], [10.0, 1.0]], capacity=[1, 0], steps_left=[20, 100])
    assert Sjf().allocate(problem).share.tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_agnostic_fifo_spreads_a_backlog_over_all_types() -> None:
    problem = Problem.of(np.ones((60, 3)), capacity=[8, 16, 24])
    answer = Fifo(aware=False).allocate(problem)
    assert answer.share.sum(axis=0).tolist() == [8, 16, 24]
    assert answer.value == 48


def test_agnostic_fifo_keeps_a_job_where_it_runs() -> None:
    problem = Problem.of(np.ones((3, 3)), capacity=[1, 1, 1])
    before = Allocation(share=np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    share = Fifo(aware=False).allocate(replace(problem, before=before)).share
    np.testing.assert_array_equal(share.argmax(axis=1), [1, 2, 0])


def test_agnostic_fifo_draws_every_type_equally_often() -> None:
    problem = Problem.of(np.ones((3000, 3)), capacity=[3000, 3000, 3000])
    share = Fifo(aware=False).allocate(problem).share
    assert abs(share.mean(axis=0) - 1 / 3).max() < 0.04


def test_fifo_shares_gpus_where_both_together_are_fast_enough() -> None:
    problem = Problem.of([[1.0]] * 3, capacity=[1], sharing=pair_up(3, 0.8))
    answer = Fifo().allocate(problem)
    assert answer.pairs.tolist() == [[0, 1]]
    assert answer.value == 2
    assert not len(Fifo(packing_threshold=1.7).allocate(problem).pairs)
    assert not len(Fifo(aware=False).allocate(problem).pairs)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("aware", [False, True])
def test_the_kernels_of_fifo_do_what_their_plain_twins_do(aware: bool, backfill: bool, published: bool) -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        n_jobs, n_types = int(rng.integers(1, 25)), int(rng.integers(1, 4))
        speed = rng.uniform(0.1, 9, (n_jobs, n_types)) * (rng.random((n_jobs, n_types)) < 0.8)
        n_gpus = rng.choice([1.0, 2.0, 4.0, 8.0], n_jobs)
        capacity = rng.integers(1, 7, n_types).astype(float)
        held = rng.integers(-1, n_types, n_jobs).astype(np.int32)
        draw = rng.random(n_jobs)
        order = rng.permutation(n_jobs).astype(np.int32)
        kind = np.arange(n_jobs, dtype=np.int32)
        shared = rng.uniform(0, 9, (n_jobs, n_jobs, n_types))
        args = (order, speed, n_gpus, np.eye(n_types), capacity, aware, backfill, held, draw, published)
        column = start_gangs(*args)
        np.testing.assert_array_equal(column, plain_start(*args))
        plain_column = column.copy()
        pairs, of_pair = join_gangs(order, column, speed, n_gpus, kind, shared, 1.2, backfill)
        assert list(zip(map(tuple, pairs.tolist()), of_pair.tolist(), strict=True)) == plain_join(
            order, plain_column, speed, n_gpus, shared, backfill
        )
        np.testing.assert_array_equal(column, plain_column)


def plain_start(order, speed, n_gpus, use, capacity, aware, backfill, held, draw, published):
    left, column = capacity.copy(), np.full(len(order), NOWHERE)
    for j in order:
        need = n_gpus[j] * use
        fits = np.flatnonzero((speed[j] > 0) & (need <= left + ROOM).all(axis=1))
        if not len(fits):
            ever = ((speed[j] > 0) & (need <= capacity + ROOM).all(axis=1)).any()
            column[j] = NOWHERE if ever else NEVER
            passes = (need <= left + ROOM).all(axis=1).any() if published else not ever
            if not (passes or backfill):
                break
            continue
        if aware:
            column[j] = fits[speed[j, fits].argmax()]
        else:
            column[j] = held[j] if held[j] in fits else fits[int(draw[j] * len(fits))]
        left -= need[column[j]]
    return column


def plain_join(order, column, speed, n_gpus, shared, backfill):
    joined = []
    for j in [j for j in order if column[j] == NOWHERE]:
        gains = {}
        for other in order:
            v = column[other]
            if v < 0 or n_gpus[other] != n_gpus[j]:
                continue
            both = (shared[j, other, v], shared[other, j, v], speed[j, v])
            if min(both) > 0:
                gains[int(other)] = both[0] / speed[j, v] + both[1] / speed[other, v]
        mate = max(gains, key=gains.get, default=-1)
        if mate >= 0 and gains[mate] > 1.2:
            joined.append(((min(int(j), mate), max(int(j), mate)), int(column[mate])))
            column[mate] = NOWHERE
        elif not backfill:
            break
    return joined


# --- AlloX and Gandiva


def test_allox_is_the_best_of_all_queues() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        seconds = rng.uniform(1, 9, (5, 2))
        *_, total_s = queue(seconds, np.array([1, 2]))
        assert total_s == pytest.approx(best_sum(seconds, [0, 1, 1]))


def best_sum(seconds: np.ndarray, server_kind: list[int]) -> float:
    """Return the least sum of completion times over all assignments; on one server the shortest go first."""
    from itertools import product

    totals = []
    for chosen in product(range(len(server_kind)), repeat=len(seconds)):
        total = 0.0
        for server, kind in enumerate(server_kind):
            mine = np.sort(seconds[np.array(chosen) == server, kind])
            total += np.cumsum(mine).sum()
        totals.append(total)
    return min(totals)


def test_allox_does_not_preempt() -> None:
    problem = Problem.of([[1.0], [1.0]], capacity=[1], steps_left=[1000, 1])
    before = Allocation(share=np.array([[1.0], [0.0]]))
    assert Allox().allocate(problem).share.ravel().tolist() == [0.0, 1.0]
    assert Allox().allocate(replace(problem, before=before)).share.ravel().tolist() == [1.0, 0.0]


def test_allox_starts_gangs_at_the_heads_while_they_fit_and_holds_room_for_one_that_does_not() -> None:
    problem = Problem.of([[2.0], [4.0], [1.0]], capacity=[4], n_gpus=[2, 4, 1], steps_left=[2, 400, 100])
    answer = Allox().allocate(problem)
    assert answer.gpus_in_use(problem).sum() <= 4
    assert answer.share.ravel().tolist() == [1.0, 0.0, 0.0]


def test_allox_looks_at_the_oldest_only() -> None:
    problem = Problem.of([[1.0]] * 4, capacity=[1], steps_left=[9, 8, 7, 6], age_s=[30, 20, 10, 0])
    assert Allox(alpha=0.5).allocate(problem).share.ravel().tolist() == [0.0, 1.0, 0.0, 0.0]
    assert Allox().allocate(problem).share.ravel().tolist() == [0.0, 0.0, 0.0, 1.0]


def test_gandiva_pairs_jobs_when_they_do_not_all_fit() -> None:
    problem = Problem.of([[1.0]] * 4, capacity=[1], sharing=pair_up(4, 0.7))
    answer = Gandiva().allocate(problem)
    assert sorted(answer.pairs.ravel().tolist()) == [0, 1, 2, 3]
    np.testing.assert_allclose(answer.pair_share, 0.5)
    assert not answer.share.any()


def test_gandiva_keeps_good_pairs_and_drops_bad_ones() -> None:
    sharing = pair_up(4, 0.3)
    sharing.speed[0, 1] = sharing.speed[1, 0] = 0.9
    problem = Problem.of([[1.0]] * 4, capacity=[1], sharing=sharing)
    before = Allocation(
        share=np.zeros((4, 1)), pairs=np.array([[0, 1], [2, 3]], np.int32), pair_share=np.ones((2, 1)) / 2
    )
    for number in range(5):
        pairs = Gandiva().allocate(replace(problem, before=before, number=number)).pairs.tolist()
        assert [0, 1] in pairs
    lone = replace(problem, before=replace(before, pairs=before.pairs[1:], pair_share=before.pair_share[1:]))
    tried = {str(sorted(Gandiva().allocate(replace(lone, number=n)).pairs.tolist())) for n in range(20)}
    assert len(tried) > 1


def test_gandiva_pairs_only_gangs_of_one_size_that_can_share() -> None:
    problem = Problem.of([[1.0]] * 4, capacity=[1], n_gpus=[1, 2, 1, 2], sharing=pair_up(4, 0.7))
    assert sorted(Gandiva().allocate(problem).pairs.tolist()) == [[0, 2], [1, 3]]
    assert not len(Gandiva().allocate(replace(problem, sharing=pair_up(4, 0.0))).pairs)


# --- columns that are not types


SPREAD = Problem.of(  # consolidated v100 and k80, the same spread, and gangs over both
    [[8, 2, 4, 1.9, 0], [3, 1, 3, 1, 0], [0, 0, 0, 0, 6.0]],
    capacity=[4, 4],
    use=[[1, 0], [0, 1], [1, 0], [0, 1], [0.5, 0.5]],
    n_gpus=[4, 1, 8],
)


@pytest.mark.parametrize("name", ALL)
def test_every_policy_takes_spread_gangs_and_gangs_over_several_types(name: str) -> None:
    answer = policies()[name]().allocate(SPREAD)
    assert answer.share.shape == SPREAD.speed.shape
    assert (answer.share.sum(axis=1) <= 1 + 1e-9).all()
    assert (answer.gpus_in_use(SPREAD) <= SPREAD.capacity + 1e-6).all()
    assert (answer.share[SPREAD.speed == 0] == 0).all()


def test_an_equal_share_counts_each_type_once() -> None:
    share = Isolated().allocate(SPREAD).share
    np.testing.assert_allclose(share, [[1 / 3, 1 / 3, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0, 0, 0, 0, 1 / 3]])


# --- what there is


@pytest.mark.parametrize("name", ALL)
def test_a_type_without_gpus_is_left_out_and_jobs_that_need_it_wait(name: str) -> None:
    problem = Problem.of([[0, 2.0], [3.0, 1.0], [1.0, 0]], capacity=[2, 0], sharing=pair_up(3, 0.9, n_columns=2))
    answer = policies()[name]().allocate(problem)
    assert answer.share.shape == (3, 2)
    assert not answer.share[0].any()
    assert not answer.share[:, 1].any()
    assert (answer.gpus_in_use(problem) <= problem.capacity + 1e-9).all()
    assert answer.speed(problem)[1:].sum() > 0


@pytest.mark.parametrize("name", ALL)
def test_no_jobs_is_no_shares(name: str) -> None:
    no_jobs = Problem.of(np.empty((0, 2)), capacity=[1, 1])
    assert policies()[name]().allocate(no_jobs).share.shape == (0, 2)


@pytest.mark.parametrize("name", ALL)
def test_the_same_problem_gets_the_same_answer(name: str) -> None:
    rng = np.random.default_rng(0)
    problem = Problem.of(rng.uniform(1, 9, (12, 3)), capacity=[2, 3, 1], n_gpus=rng.choice([1, 2], 12))
    policy = policies()[name]
    np.testing.assert_array_equal(policy().allocate(problem).share, policy().allocate(problem).share)


# --- what is refused


@pytest.mark.parametrize("name", ALL)
def test_a_job_that_runs_nowhere_is_named(name: str) -> None:
    problem = replace(Problem.of([[1.0, 0], [0, 0], [0, 1]], capacity=[1, 1]), job=np.array([4, 17, 30], np.int32))
    with pytest.raises(InputError, match="job 17 has no speed on any of 2 columns; expected steps/s > 0"):
        policies()[name]().allocate(problem)


@pytest.mark.parametrize("name", ALL)
def test_a_cluster_without_gpus_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"the capacity is \[0.0, 0.0\]; expected GPUs of each type >= 0"):
        policies()[name]().allocate(Problem.of([[1.0, 2.0]], capacity=[0, 0]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"speed": np.array([[np.nan, 1.0]])}, "job 0 has speed nan on column 0"),
        ({"speed": np.array([[-1.0, 1.0]])}, "job 0 has speed -1.0 on column 0"),
        ({"n_gpus": np.array([0.0])}, "job 0 has n_gpus 0.0; expected GPUs of its gang > 0"),
        ({"capacity": np.array([np.nan, 1.0])}, "the capacity is"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(columns: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Las().allocate(replace(Problem.of([[1.0, 2.0]], capacity=[1, 1]), **columns))


def test_misspelt_options_are_told_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"unknown tie 'lexmin'. Did you mean 'leximin'"):
        Las(tie="lexmin")
    with pytest.raises(InputError, match=r"unknown objective 'ratios'. Did you mean 'ratio'"):
        Cost(objective="ratios")
    with pytest.raises(InputError, match="reference is column 3; there are columns 0 to 1"):
        Ftf(aware=False, reference=3).allocate(PAPER)
    with pytest.raises(InputError, match="alpha is 0"):
        Allox(alpha=0)
    with pytest.raises(InputError, match="threshold is -1"):
        Gandiva(threshold=-1)
    with pytest.raises(InputError, match=r"packing_threshold is 0\.5"):
        Fifo(packing_threshold=0.5).allocate(PAPER)
