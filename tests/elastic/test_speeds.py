"""Dealing by measured speed: a straggler gets fewer shards, and comes back when it is fast again."""

from __future__ import annotations

import numpy as np

from labkit.elastic.controller.data_assignment import FRESH, ShardBalance


def steps(speeds: ShardBalance, per_s: dict[str, float], *, n: int, noise: float = 0.0) -> int:
    """Play n steps with workers of some speeds; return how often shards were dealt anew."""
    rng, again = np.random.default_rng(0), 0
    for _ in range(n):
        for worker, (first, last) in speeds.ranges.items():
            seconds = (last - first) / per_s[worker] * rng.uniform(1, 1 + noise) if last > first else 0.0
            speeds.measured(worker, n_shards=last - first, seconds=seconds)
        if speeds.uneven():
            speeds.dealt(list(per_s), n_shards=16)
            again += 1
    return again


def dealt(speeds: ShardBalance) -> dict[str, int]:
    return {worker: last - first for worker, (first, last) in speeds.ranges.items()}


def test_a_worker_of_a_quarter_of_the_speed_gets_about_a_fifth_of_the_shards() -> None:
    speeds = ShardBalance()
    speeds.dealt(["fast", "slow"], n_shards=16)
    assert dealt(speeds) == {"fast": 8, "slow": 8}
    assert steps(speeds, {"fast": 4.0, "slow": 1.0}, n=20) == 1
    assert dealt(speeds) == {"fast": 13, "slow": 3}


def test_noise_is_no_reason_to_deal_anew() -> None:
    speeds = ShardBalance()
    speeds.dealt(["a", "b", "c"], n_shards=16)
    assert steps(speeds, {"a": 1.0, "b": 1.0, "c": 1.0}, n=200, noise=0.3) == 0


def test_one_long_step_is_no_reason_to_deal_anew() -> None:
    """Any worker may have to wait once, for a disk or a file: its speed is a mean of its steps, not the last one."""
    speeds = ShardBalance()
    speeds.dealt(["a", "b"], n_shards=16)
    steps(speeds, {"a": 1.0, "b": 1.0}, n=FRESH)
    assert steps(speeds, {"a": 1.0, "b": 0.5}, n=1) == 0


def test_nothing_is_dealt_anew_before_every_worker_was_measured_some_times() -> None:
    speeds = ShardBalance()
    speeds.dealt(["fast", "slow"], n_shards=16)
    assert steps(speeds, {"fast": 9.0, "slow": 1.0}, n=FRESH - 1) == 0
    assert steps(speeds, {"fast": 9.0, "slow": 1.0}, n=1) == 1


def test_a_worker_without_shards_is_tried_again() -> None:
    speeds = ShardBalance()
    speeds.dealt(["fast", "slow"], n_shards=16)
    steps(speeds, {"fast": 100.0, "slow": 1.0}, n=10)
    assert dealt(speeds)["slow"] == 0
    steps(speeds, {"fast": 100.0, "slow": 100.0}, n=200)
    assert dealt(speeds)["slow"] >= 7


def test_the_speed_of_a_newcomer_is_taken_for_the_mean() -> None:
    speeds = ShardBalance()
    speeds.dealt(["a"], n_shards=16)
    steps(speeds, {"a": 3.0}, n=5)
    speeds.dealt(["a", "new"], n_shards=16)
    assert dealt(speeds) == {"a": 8, "new": 8}
