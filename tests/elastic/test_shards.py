"""Shards: exactly once per epoch in the ledger whatever happens, in an order that depends on (seed, epoch) alone."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from copy import deepcopy
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.codec import to_json
from labkit.elastic.shards import (
    Commit,
    Fate,
    JournalError,
    LedgerError,
    PendingRange,
    PoisonShardError,
    ReturnReason,
    ShardLease,
    ShardService,
    ShardStatus,
    deal,
    logical_batches,
    order,
    prove,
    samples_between,
)
from labkit.elastic.shards.book import SavedShards, parsed
from labkit.elastic.shards.service import n_minibatches


def drain(
    service: ShardService, *, workers: int = 1, now_s: float = 0.0, speed: float | None = None
) -> list[ShardLease]:
    """Let workers take turns until all is done, and return the leases in order."""
    leases: list[ShardLease] = []
    turns = iter(range(3 * service.plan.n_samples * service.plan.epochs + 10))
    while not service.over:
        assert next(turns, None) is not None, f"never ends: {service.state()}"
        for worker in range(workers):
            if (lease := service.lease(worker, now_s=now_s, speed=speed)) is not None:
                leases.append(lease)
                assert service.commit(lease.token, now_s=now_s) is Fate.COMMITTED
    return leases


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def saved_and_read(state: SavedShards) -> SavedShards:
    found = parsed(to_json(state))
    assert found == state
    return found


def simulate(service: ShardService, speeds: dict[str, float], *, told: bool = False) -> dict[str, tuple[int, float]]:
    """Train on a simulated clock, and return samples and last commit of each worker."""
    done = dict.fromkeys(speeds, (0, 0.0))
    ready: dict[str, tuple[float, ShardLease | None]] = dict.fromkeys(speeds, (0.0, None))
    while not service.over:
        worker = min(ready, key=lambda each: ready[each][0])
        now_s, lease = ready[worker]
        if lease is not None:
            assert service.commit(lease.token, now_s=now_s) is Fate.COMMITTED
            done[worker] = done[worker][0] + lease.size, now_s
        lease = service.lease(worker, now_s=now_s, speed=speeds[worker] if told else None)
        ready[worker] = now_s + (0.05 if lease is None else lease.size / speeds[worker]), lease
    return done


# Order -------------------------------------------------------------------------------------------------------------


def test_the_order_never_changes_between_versions_of_numpy():
    """Numpy keeps the streams of bit generators (NEP 19), which the keys are; digests were computed with 2.4.6."""
    digests = [hashlib.sha256(order(100_003, 7, epoch).tobytes()).hexdigest()[:16] for epoch in range(2)]
    assert digests == ["cd76ebef5685e63c", "5efc16c702d8cfe5"]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 64, 65, 1000])
def test_the_order_holds_every_sample_once(n):
    assert sorted(order(n, 3, 1).tolist()) == list(range(n))


def test_the_order_of_billions_of_samples_needs_neither_their_time_nor_their_memory():
    """Criteo-1TB has 4.4 billion; before, each worker sorted all of them, 114 GB, before its first step."""
    n, start = 4_400_000_000, 3_000_000_007
    tracemalloc.start()
    found = samples_between(start, start + 40_000, n_samples=n, seed=1, epoch=2)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 64 << 20
    assert len(np.unique(found)) == 40_000
    assert 0 <= found.min() < n // 100
    assert n - n // 100 < found.max() < n
    assert samples_between(start + 70, start + 90, n_samples=n, seed=1, epoch=2).tolist() == found[70:90].tolist()


def test_seed_and_epoch_give_other_orders_and_every_place_is_as_likely():
    orders = np.array([order(16, seed, epoch) for seed, epoch in product(range(60), range(60))])
    assert len(np.unique(orders, axis=0)) == len(orders)
    seen = np.array([np.bincount(column, minlength=16) for column in orders.T])
    expected = len(orders) / 16
    assert ((seen - expected) ** 2 / expected).sum() == pytest.approx(225, abs=5 * np.sqrt(2 * 225))  # chi2, 15 * 15


def test_without_shuffle_samples_come_as_they_lie():
    service = ShardService(10, base_shard=4, shuffle=False, seed=5, epochs=2)
    assert np.concatenate([service.indices(row) for row in drain(service)]).tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_order_is_the_same_for_any_number_of_workers(workers):
    """Matrix S1."""
    service = ShardService(1000, epochs=2, seed=11, base_shard=16)
    drain(service, workers=workers)
    service.prove()
    rows = sorted(service.ledger)
    consumed = np.concatenate([service.indices(row) for row in rows])
    assert consumed.tolist() == [*order(1000, 11, 0).tolist(), *order(1000, 11, 1).tolist()]


# Sizes and edges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 5 * 32 - 1, 5 * 32, 5 * 32 + 1])
@pytest.mark.parametrize("overlap", [False, True])
def test_counts_are_exact_at_the_edges(n, overlap):
    """Matrix S4; DLRover floors the number of shards in one place and ceils it in another (facts 1.5)."""
    service = ShardService(n, epochs=3, base_shard=32, overlap=overlap)
    leases = drain(service, workers=2)
    assert len(leases) == 3 * -(-n // 32)
    assert service.completed()
    assert service.n_committed == 3 * n
    service.prove()
    assert service.lease(0, now_s=9.0) is None


def test_fifty_thousand_and_one_shards_in_one_epoch():
    """Matrix S4; more than 50,000 shards make DLRover cut an epoch into several (facts 1.5)."""
    service = ShardService(50_001 * 2, base_shard=2)
    assert len(drain(service)) == 50_001
    service.prove()
    assert len(to_json(service.state())) < 1000


def test_the_next_epoch_waits_for_the_last_commit():
    service = ShardService(64, epochs=2, base_shard=32)
    first, second = service.lease("a", now_s=0.0), service.lease("b", now_s=0.0)
    service.commit(second.token, now_s=1.0)
    assert service.lease("b", now_s=1.0) is None
    assert not service.over
    service.commit(first.token, now_s=1.0)
    assert service.lease("b", now_s=1.0).epoch == 1


def test_with_overlap_the_next_epoch_begins_when_all_is_leased():
    service = ShardService(64, epochs=2, base_shard=32, overlap=True, lease_s=3.0)
    for worker in "ab":
        service.lease(worker, now_s=0.0)
    later = service.lease("c", now_s=1.0)
    assert (later.epoch, later.start) == (1, 0)
    back = service.lease("c", now_s=3.5)
    assert (back.epoch, back.start) == (0, 0)
    service.commit(later.token, now_s=3.5)
    service.commit(back.token, now_s=3.5)
    drain(service, now_s=4.0)
    service.prove()


# Speed -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [False, True])
def test_a_worker_four_times_as_fast_gets_four_times_the_samples_and_all_end_together(told):
    """Matrix S2: speeds 1:4 give samples 1:4, within 20%."""
    service = ShardService(200_000, base_shard=32, epochs=1, lease_s=10.0)
    done = simulate(service, {"slow": 100.0, "fast": 400.0}, told=told)
    assert done["fast"][0] / done["slow"][0] == pytest.approx(4, rel=0.02)
    assert abs(done["fast"][1] - done["slow"][1]) < 2 * 32 / 100
    service.prove()


def test_five_workers_of_different_speeds_end_within_two_minibatches_of_the_slowest():
    service = ShardService(300_000, base_shard=32, lease_s=10.0)
    done = simulate(service, {"a": 100.0, "b": 200.0, "c": 400.0, "d": 900.0, "e": 55.0})
    ends = [end for _, end in done.values()]
    assert max(ends) - min(ends) < 2 * 32 / 55
    assert max(ends) < 1.01 * 300_000 / 1655


def test_a_straggler_that_slows_down_gets_fewer_samples_from_then_on():
    service = ShardService(10**9, base_shard=10)
    sizes, now_s = [], 0.0
    for lease_no in range(14):
        lease = service.lease("a", now_s=now_s)
        sizes.append(lease.size)
        now_s += lease.size / (100 if lease_no < 7 else 20)
        service.commit(lease.token, now_s=now_s)
    assert sizes[0] == 10
    assert sizes[6] == 300  # 3 s of 100 samples per second
    assert sizes[13] == pytest.approx(60, abs=10)


def test_leases_have_some_seconds_of_work_and_at_most_64_minibatches():
    service = ShardService(10**9, base_shard=32, target_s=3.0)
    assert service.lease("a", now_s=0.0, speed=1e9).size == 64 * 32
    assert service.lease("a", now_s=0.0, speed=640).size == 60 * 32
    assert service.lease("a", now_s=0.0, speed=0.1).size == 32


def test_the_speed_of_a_worker_that_holds_two_leases_is_not_halved():
    service = ShardService(10**9, base_shard=10, lease_s=100)
    held = [service.lease("a", now_s=0.0), service.lease("a", now_s=0.0)]
    now_s = 0.0
    for _ in range(20):
        lease = held.pop(0)
        now_s += lease.size / 50
        service.commit(lease.token, now_s=now_s)
        held.append(service.lease("a", now_s=now_s))
    assert service.speeds["a"] == pytest.approx(50)


def test_what_came_back_counts_as_work_that_waits_near_the_end_of_an_epoch():
    service = ShardService(3200, base_shard=32)
    while service.lease("a", now_s=0.0, speed=1e6) is not None:
        pass
    service.leave("a")
    assert service.lease("b", now_s=0.0, speed=1e6).size == 3200 / 2


def test_a_worker_of_unknown_speed_counts_as_the_mean_of_the_others():
    told = {"speed": 640.0, "waiting": 50 * 32, "base_shard": 32, "target_s": 3.0, "most": 64}
    assert n_minibatches(others=[160.0, None], **told) == 14  # half of 50 * 640 / (640 + 160 + 400)


def test_a_worker_that_left_or_let_a_lease_expire_has_no_share_of_what_waits():
    service = ShardService(3200, base_shard=32, lease_s=3.0)
    idle = service.lease("idle", now_s=0.0, speed=1e6)
    service.commit(idle.token, now_s=1.0)
    service.lease("gone", now_s=0.0, speed=1e6)
    service.leave("idle")
    service.expire(now_s=4.0)
    assert service.speeds == {}


# Expiry and fencing ------------------------------------------------------------------------------------------------


def test_an_expired_range_goes_first_and_the_late_token_is_refused_and_counted():
    """Matrix S2; DLRover accepts the late report and refuses the true owner's (facts 1.5, defect 2)."""
    service = ShardService(1000, base_shard=32, lease_s=3.0)
    lost = service.lease("slow", now_s=0.0)
    assert service.lease("b", now_s=3.0).start == 32  # not yet: the deadline itself is in time
    taken = service.lease("b", now_s=3.001)
    assert (taken.start, taken.end) == (lost.start, lost.end)
    assert service.commit(lost.token, now_s=3.1) is Fate.EXPIRED
    assert service.commit(taken.token, now_s=3.2) is Fate.COMMITTED
    assert service.commit(lost.token, now_s=3.3) is Fate.EXPIRED
    assert service.counts == {"expired": 2}
    assert [row.worker for row in service.ledger] == ["b"]


def test_a_commit_after_the_deadline_counts_until_the_service_has_noticed():
    service = ShardService(64, base_shard=32, lease_s=3.0)
    lease = service.lease("a", now_s=0.0)
    assert service.commit(lease.token, now_s=50.0) is Fate.COMMITTED
    assert service.expire(now_s=60.0) == ()


def test_renewal_keeps_a_lease_and_tells_what_is_lost():
    service = ShardService(1000, base_shard=32, lease_s=3.0)
    first = service.lease("a", now_s=0.0)
    second = service.lease("a", now_s=2.0)
    assert service.expire(now_s=4.0) == (first,)
    assert service.renew("a", now_s=4.0) == (second.token,)
    assert service.renew_token(first.token, now_s=4.0) is Fate.EXPIRED
    assert service.renew_token(second.token, now_s=5.0) is Fate.HELD
    assert service.next_expiry_s == 8.0
    assert service.expire(now_s=8.0) == ()
    assert service.renew("nobody", now_s=8.0) == ()


def test_the_same_commit_again_changes_nothing():
    service = ShardService(64, base_shard=32)
    lease = service.lease("a", now_s=0.0)
    before = [service.commit(lease.token, now_s=1.0), service.state(ledger=True)]
    assert [service.commit(lease.token, now_s=2.0), service.state(ledger=True)] == before
    assert service.counts == {"again": 1}


@pytest.mark.parametrize("token", [0, 7, -1, 1 << 70, 1 << 40, "0", None, 1.5, True, (1,)])
def test_tokens_that_were_never_given_are_refused(token):
    service = ShardService(64, base_shard=32)
    assert service.commit(token, now_s=0.0) in (Fate.UNKNOWN, Fate.STALE)
    assert service.fail(token, reason="?") in (Fate.UNKNOWN, Fate.STALE)
    assert service.n_committed == 0


def test_part_of_a_lease_can_be_committed_and_the_rest_goes_on():
    service = ShardService(320, base_shard=32, lease_s=3.0)
    lease = service.lease("a", now_s=0.0, speed=80)
    assert lease.size == 5 * 32
    assert service.commit(lease.token, now_s=0.5, until=64, step=1) is Fate.COMMITTED
    assert service.commit(lease.token, now_s=0.5, until=64, step=1) is Fate.COMMITTED
    assert service.fate(lease.token) is Fate.HELD
    service.leave("a")
    rest = service.lease("b", now_s=1.0, speed=1000)
    assert (rest.start, rest.end) == (64, 160)
    assert service.commit(lease.token, now_s=1.0, until=96) is Fate.LEFT
    drain(service, now_s=99.0)
    service.prove()


def test_a_worker_that_leaves_gives_back_and_is_not_held_to_blame():
    service = ShardService(64, base_shard=32, max_tries=1)
    lease = service.lease("a", now_s=0.0)
    assert service.leave("a") == (lease,)
    assert service.leave("a") == ()
    assert service.speeds == {}
    assert service.lease("a", now_s=0.0).faults == ()


def test_what_is_not_a_worker_or_a_speed_or_a_step_is_refused_before_anything_changes():
    records: list[Any] = []
    service = ShardService(64, base_shard=32, journal=records.append)
    lease = service.lease("a", now_s=0.0)
    before = service.state(ledger=True)
    for speed in (0, -1.0, float("nan"), float("inf"), "fast"):
        with pytest.raises(InputError, match=r"worker b says that it does .* samples per second; expected a number"):
            service.lease("b", now_s=0.0, speed=speed)
    for worker in (None, 1.5, ["a"], True):
        with pytest.raises(InputError, match="expected the number or the name of a worker"):
            service.lease(worker, now_s=0.0)
    with pytest.raises(InputError, match="commits up to position 33; expected a whole number up to 32"):
        service.commit(lease.token, now_s=0.0, until=33)
    with pytest.raises(InputError, match="commits step 'x'"):
        service.commit(lease.token, now_s=0.0, step="x")
    assert service.state(ledger=True) == before
    assert len(records) == 2


# Poison ------------------------------------------------------------------------------------------------------------


def fail_all_tries(service: ShardService) -> PendingRange:
    """Let workers a, b and c fail the first range."""
    for worker in "abc":
        lease = service.lease(worker, now_s=0.0)
        assert lease.start == 0
        assert service.fail(lease.token, reason=f"row 17 is no number ({worker})") is Fate.FAILED
    return PendingRange(lease.epoch, lease.start, lease.end)


def test_a_range_that_fails_three_times_stops_the_job_by_name():
    """Matrix S3; DLRover drops it and is complete (facts 1.5, defect 1)."""
    service = ShardService(96, base_shard=32)
    fail_all_tries(service)
    with pytest.raises(PoisonShardError) as error:
        service.lease("d", now_s=0.0)
    assert str(error.value) == (
        "samples 0 to 31 of the order of epoch 0 failed 3 times (a: row 17 is no number (a); b: row 17 is no number "
        "(b); c: row 17 is no number (c)). Look at these samples, or set such ranges aside with poison='set_aside'."
    )
    assert service.status is ShardStatus.POISONED
    assert not service.over
    assert not service.completed()


def test_poison_outlives_a_checkpoint():
    service = ShardService(96, base_shard=32)
    fail_all_tries(service)
    again = ShardService.from_state(saved_and_read(service.state()), generation=1)
    with pytest.raises(PoisonShardError):
        again.lease("d", now_s=0.0)
    assert again.status is ShardStatus.POISONED
    again.prove()


def test_poison_set_aside_is_never_complete():
    service = ShardService(96, base_shard=32, poison="set_aside", epochs=2)
    bad = fail_all_tries(service)
    drain(service, workers=2)
    assert service.over
    assert service.status is ShardStatus.SET_ASIDE
    assert not service.completed()
    assert [piece[:3] for piece in service.set_aside] == [bad[:3]]
    assert service.n_committed == 2 * 96 - 32
    service.prove()
    with pytest.raises(LedgerError, match="sample 0 of the order of epoch 0 was never committed"):
        prove(service.ledger, n_samples=96, epochs=2)


def test_one_broken_worker_poisons_nothing_while_others_work():
    service = ShardService(3200, base_shard=32, lease_s=3.0)
    now_s = 0.0
    while not service.over:
        good = service.lease("good", now_s=now_s)
        for _ in range(3):
            if (lease := service.lease("broken", now_s=now_s)) is not None:
                service.fail(lease.token, reason="its GPU fell off the bus")
        if good is not None:
            service.commit(good.token, now_s=now_s)
    assert service.completed()


def test_a_worker_that_failed_a_range_goes_on_with_another():
    service = ShardService(96, base_shard=32)
    service.fail(service.lease("a", now_s=0.0).token, reason="?")
    assert [service.lease(worker, now_s=0.0).start for worker in "aba"] == [32, 0, 64]


def test_both_parts_of_a_range_that_is_cut_keep_its_tries():
    service = ShardService(10**6, base_shard=32)
    whole = service.lease("a", now_s=0.0, speed=32)
    service.fail(whole.token, reason="?")
    parts = [service.lease(worker, now_s=0.0, speed=1) for worker in "bc"]
    assert [(part.start, part.end, len(part.faults)) for part in parts] == [(0, 32, 1), (32, 64, 1)]


def test_a_failed_range_goes_back_to_its_worker_when_no_other_one_is_there():
    service = ShardService(32, base_shard=32)
    for _ in range(3):
        service.fail(service.lease("only", now_s=0.0).token, reason="r" * 10_000)
    assert len(str(service.poison)) < 1000
    with pytest.raises(PoisonShardError, match="failed 3 times"):
        service.lease("only", now_s=0.0)


def test_expiries_count_as_tries():
    service = ShardService(32, base_shard=32, lease_s=1.0, max_tries=2)
    for worker, now_s in (("a", 0.0), ("b", 2.0)):
        service.lease(worker, now_s=now_s)
    with pytest.raises(PoisonShardError, match=r"\(a: its lease expired; b: its lease expired\)"):
        service.lease("c", now_s=4.0)


# Checkpoint and journal --------------------------------------------------------------------------------------------


def busy(journal: list[Any]) -> ShardService:
    """Return a service to which everything has happened."""
    service = ShardService(2000, base_shard=16, epochs=3, journal=journal.append, lease_s=3.0, poison="set_aside")
    for worker in ("a", "b", 3):
        service.lease(worker, now_s=0.0)
    service.renew("a", now_s=1.0)
    for token in (1, 0):
        service.commit(token, now_s=2.5, step=4)
    service.expire(now_s=3.5)
    lease = service.lease("a", now_s=4.0, speed=50.5)
    service.commit(lease.token, now_s=4.5, until=lease.start + 1)
    service.lease(3, now_s=4.6)
    service.leave(3)
    for worker in "bcd":
        service.fail(service.lease(worker, now_s=5.0).token, reason="bad")
    service.resume(now_s=0.0)
    service.lease("e", now_s=1.0)
    return service


def test_state_and_journal_give_an_equal_service_by_way_of_json():
    records: list[Any] = []
    service = busy(records)
    assert {record[1] for record in records} == {
        "opened", "leased", "renewed", "committed", "lost", "resumed"
    }  # fmt: skip
    full = saved_and_read(service.state(ledger=True))
    assert ShardService.from_state(full).state(ledger=True) == full
    assert ShardService.replay(through_json(records)).state(ledger=True) == full
    short = ShardService.from_state(saved_and_read(service.state()))
    assert short.state() == service.state()
    assert sum(row.end - row.start for row in short.ledger) == service.n_committed
    for again in (service, ShardService.from_state(full), ShardService.replay(records), short):
        again.leave("e")
        drain(again, workers=2, now_s=10.0)
        again.prove()


def test_every_prefix_of_a_journal_is_a_service_that_can_be_finished():
    records: list[Any] = []
    busy(records)
    for length in range(1, len(records) + 1):
        service = ShardService.replay(through_json(records[:length]))
        service.resume(now_s=0.0)
        drain(service, workers=2, now_s=100.0)
        service.prove()


def test_a_journal_with_a_missing_doubled_or_swapped_record_is_refused():
    records: list[Any] = []
    busy(records)
    for place, record in enumerate(records[:-1]):
        without, doubled = records[:place] + records[place + 1 :], [*records[: place + 1], *records[place:]]
        if record[1] == "renewed":
            assert ShardService.replay(without).n_committed == ShardService.replay(doubled).n_committed
            continue
        with pytest.raises(JournalError, match=f"record {place + 1} of the journal"):
            ShardService.replay(without)
        if record[1] != "opened":
            with pytest.raises(JournalError, match=f"record {place + 2} of the journal"):
                ShardService.replay(doubled)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ((1, "committed", 0, 32, 0.0, -1), ": 0$"),
        ((1, "leased", 5, "a", 0, 0, 32, 0.0, None), "a lease has token 5; expected 0"),
        ((1, "leased", 0, "a", 0, 32, 64, 0.0, None), "were leased but did not wait"),
        ((1, "leased", 0, "a", 1, 0, 32, 0.0, None), "were leased but did not wait"),
        ((1, "leased", 0, "a", 0, 0, 97, 0.0, None), "were leased but did not wait"),
        (
            (
                1,
                "sung",
            ),
            "sung",
        ),
        ((1,), "unpack|out of range"),
        (("x", "leased"), "leased"),
        (7, "not subscriptable"),
        ((1, "leased", 0), "missing"),
    ],
)
def test_records_that_cannot_be_are_told_by_line(record, said):
    records: list[Any] = []
    ShardService(96, epochs=2, journal=records.append)
    with pytest.raises(JournalError, match=f"record 2 of the journal, .*({said})"):
        ShardService.replay([*records, record])


def test_a_journal_without_its_beginning_is_refused():
    with pytest.raises(JournalError, match="the journal has no records"):
        ShardService.replay([])
    with pytest.raises(JournalError, match="a journal begins with what was opened"):
        ShardService.replay([(1, "resumed", 0.0)])


def test_the_record_comes_first_and_a_journal_that_cannot_write_changes_nothing():
    """Matrix C1: a full disk."""
    full = False

    def write(record: Any) -> None:
        if full:
            raise OSError(28, "No space left on device")

    service = ShardService(96, base_shard=32, journal=write)
    lease = service.lease("a", now_s=0.0)
    before, full = service.state(ledger=True), True
    for call in (
        lambda: service.lease("b", now_s=0.0),
        lambda: service.commit(lease.token, now_s=1.0),
        lambda: service.fail(lease.token, reason="?"),
        lambda: service.renew("a", now_s=1.0),
        lambda: service.expire(now_s=9.0),
        lambda: service.leave("a"),
        lambda: service.resume(now_s=0.0),
    ):
        with pytest.raises(OSError, match="No space left"):
            call()
        assert service.state(ledger=True) == before
    full = False
    assert service.expire(now_s=9.0) == (lease,)


def test_going_back_to_a_checkpoint_takes_commits_back_and_fences_all_older_tokens():
    """Matrix C3: model and queue of one version; tokens given after the checkpoint are never given again."""
    service = ShardService(320, base_shard=32)
    service.leave(service.lease("left", now_s=0.0).worker)
    early = service.lease("a", now_s=0.0)
    saved = saved_and_read(service.state())
    late = service.lease("b", now_s=0.0)
    service.commit(late.token, now_s=0.5)
    back = ShardService.from_state(saved, generation=service.generation + 1)
    assert back.n_committed == 0
    again = back.lease("c", now_s=1.0)
    assert (again.start, again.faults) == (0, ())
    assert [back.commit(lease.token, now_s=1.0) for lease in (early, late)] == [Fate.STALE, Fate.STALE]
    assert back.counts == {"stale": 2}
    assert back.commit(again.token, now_s=1.0) is Fate.COMMITTED
    drain(back)
    assert back.state().lost == ()
    back.prove()


def test_a_journal_goes_on_across_a_return_to_a_checkpoint():
    records: list[Any] = []
    service = ShardService(320, base_shard=32, journal=records.append)
    drain(service)
    saved = busy([]).state()
    back = ShardService.from_state(saved, generation=5, journal=records.append)
    back.lease("z", now_s=0.0)
    assert ShardService.replay(through_json(records)).state(ledger=True) == back.state(ledger=True)


def test_saved_states_that_were_cut_changed_or_belong_elsewhere_are_refused():
    whole = busy([]).state(ledger=True)
    with pytest.raises(InputError, match="is of a dataset of 2000 samples; this one has 1999"):
        ShardService.from_state(whole, n_samples=1999)
    with pytest.raises(InputError, match="generation 0 has been used; expected a number above 0"):
        ShardService.from_state(whole, generation=0)
    state = json.loads(to_json(whole))
    for name in state:
        if name != "ledger":
            with pytest.raises(JournalError, match=f"not a saved shard queue: SavedShards.{name}: Field required;"):
                parsed(json.dumps({each: value for each, value in state.items() if each != name}).encode())
    changed: list[tuple[dict[str, Any], str]] = [
        ({"cursor": "5"}, "cursor is '5': Input should be a valid integer"),
        ({"n_tokens": -4}, "n_tokens is -4: Input should be greater"),
        ({"generation": None}, "generation is None: Input"),
        ({"format": "labkit shards 0"}, "format is 'labkit shards 0': Input should be 'labkit shards 1'"),
        ({"held": [[1]]}, r"held\.0"),
        ({"lost": [[0, "eaten"]]}, r"lost\.0\.1 is 'eaten': Input should be"),
        ({"plan": {**state["plan"], "colour": 1}}, r"plan\.colour is 1: Unexpected"),
        ({"plan": {**state["plan"], "base_shard": 0}}, "plan is .*base_shard is 0; expected a whole number from 1"),
    ]
    for change, what in changed:
        with pytest.raises(JournalError, match=rf"^not a saved shard queue: SavedShards\.{what}.* of labkit\.$"):
            parsed(json.dumps({**state, **change}).encode())
    contradictions: list[dict[str, Any]] = [
        {"cursor": 5000}, {"epoch": 9}, {"todo": [[0, 3, 9, []], [0, 8, 12, []]]}, {"todo": [[0, 1990, 1999, []]]},
        {"todo": [[0, 3, 3, []]]}, {"dead": [[5, 0, 3, []]]},
    ]  # fmt: skip
    for change in contradictions:
        with pytest.raises(InputError):
            ShardService.from_state(parsed(json.dumps({**state, **change}).encode()))
    for nothing in (b"null", b"3", b"[]", b'"{}"', b"", b"{"):
        with pytest.raises(JournalError, match="not a saved shard queue"):
            parsed(nothing)


def test_a_state_of_a_checkpoint_of_an_earlier_labkit_is_read():
    """Its ledger is left out, and times may be whole numbers."""
    text = """{
        "format": "labkit shards 1", "generation": 0, "n_tokens": 9, "n_records": 18, "epoch": 0, "cursor": 80,
        "todo": [], "plan": {"n_samples": 96, "epochs": 3, "seed": 0, "shuffle": true, "base_shard": 16, "lease_s": 3,
                 "max_tries": 3, "overlap": false, "poison": "set_aside", "target_s": 3.0, "most_minibatches": 64},
        "held": [[3, "a", 0, 33, 48, 3.0, [[3, "its lease expired"]], null], [8, "e", 0, 64, 80, 4, [], 1.0]],
        "dead": [[0, 48, 64, [["b", "bad"], ["c", "bad"]]]], "lost": [[2, "expired"], [4, "left"]],
        "workers": [["a", 3.5, null], ["e", null, null]]
    }"""
    service = ShardService.from_state(parsed(text.encode()))
    assert [(row.start, row.end, row.token) for row in service.ledger] == [(0, 33, -1)]
    assert [lease.faults for lease in service.held] == [(ReturnReason(3, "its lease expired"),), ()]
    assert service.fate(2) is Fate.EXPIRED


def test_a_clock_that_starts_from_zero_ends_leases_of_the_old_one_in_time():
    service = ShardService(96, base_shard=32, lease_s=3.0)
    lease = service.lease("a", now_s=1000.0)
    service.resume(now_s=0.0)
    assert service.expire(now_s=3.0) == ()
    assert [each.token for each in service.expire(now_s=3.1)] == [lease.token]


def test_after_a_restart_leases_run_anew_and_no_speed_is_measured_across_the_gap():
    service = ShardService(10**6, base_shard=10, lease_s=3.0)
    service.commit(service.lease("a", now_s=999.0, speed=50).token, now_s=1000.0)
    lease = service.lease("a", now_s=1000.0, speed=50)
    for clock_s in (5.0, 5000.0):
        service.resume(now_s=clock_s)
        assert service.next_expiry_s == clock_s + 3.0
    service.commit(lease.token, now_s=5000.1)
    assert service.speeds == {"a": 50}
    service.resume(now_s=5.0)
    lease = service.lease("a", now_s=6.0, speed=50)
    service.commit(lease.token, now_s=6.0 + lease.size / 100)
    assert service.speeds["a"] == pytest.approx(2 / (1 / 50 + 1 / 100))


# Ledger ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, 0, 4), (0, 5, 8)], "sample 4 of the order of epoch 0 was never committed"),
        ([(0, 1, 8)], "sample 0 of the order of epoch 0 was never"),
        ([(0, 0, 7)], "sample 7 of the order of epoch 0 was never"),
        ([(0, 0, 8), (1, 0, 3)], "sample 3 of the order of epoch 1 was never"),
        ([], "sample 0 of the order of epoch 0 was never"),
        (
            [(0, 0, 8), (0, 2, 3), (0, 4, 8)],
            r"sample 2 of .* committed twice: by worker w0 \(token 0\) and by worker w1",
        ),
        ([(0, 0, 8), (1, 0, 8), (2, 0, 3), (2, 2, 4)], "sample 2 of the order of epoch 2 was committed twice"),
        ([(1, 0, 8), (0, 0, 8)], "worker w1 .* committed samples of epoch 0 after epoch 1 had begun"),
        ([(0, 0, 9)], "positions 0 to before 9 of epoch 0; expected some of 0 to before 8"),
        ([(0, 3, 3)], "row 0 of the ledger"),
        ([(-1, 0, 3)], "row 0 of the ledger"),
    ],
)
def test_a_ledger_that_is_wrong_is_told_how(rows, said):
    with pytest.raises(LedgerError, match=said):
        prove([Commit(*row, f"w{place}", place) for place, row in enumerate(rows)], n_samples=8, epochs=2)


@given(st.data())
def test_the_proof_is_right_about_random_ledgers(data):
    """Against counting each sample."""
    ends = st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(1, 3))
    drawn = data.draw(st.lists(ends, max_size=8))
    if data.draw(st.booleans()):
        cuts = data.draw(st.lists(st.integers(1, 5), unique=True).map(sorted))
        edges = [0, *cuts, 6]
        drawn = [(epoch, start, end - start) for epoch in (0, 1) for start, end in pairwise(edges)]
    rows = [Commit(epoch, start, min(start + n, 6), "w", place) for place, (epoch, start, n) in enumerate(drawn)]
    count = np.zeros((2, 6), int)
    for row in rows:
        count[row.epoch, row.start : row.end] += 1
    right = (count[0] == 1).all() and (count[1] <= 1).all()
    try:
        prove(rows, n_samples=6, epochs=1, barrier=False)
    except LedgerError:
        assert not right
    else:
        assert right


# Synchronous batches -----------------------------------------------------------------------------------------------


def test_logical_batches_cut_the_order_whatever_the_number_of_workers():
    cut = logical_batches(1000, batch=64, n_shards=8, seed=4, epoch=2)
    assert cut.shape == (15, 8, 8)
    assert cut.ravel().tolist() == order(1000, 4, 2)[:960].tolist()


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4), st.integers(0, 5))
def test_carried_tails_give_every_sample_once_per_epoch(n_samples, each, n_shards, epochs):
    batch = each * n_shards
    if batch > n_samples:
        return
    steps = [
        logical_batches(n_samples, batch=batch, n_shards=n_shards, seed=1, epoch=epoch, tail="carry").ravel()
        for epoch in range(epochs)
    ]
    taken = np.concatenate([np.empty(0, int), *steps])
    stream = np.concatenate([order(n_samples, 1, epoch) for epoch in range(epochs + 1)])
    assert taken.tolist() == stream[: len(taken)].tolist()
    assert len(taken) >= epochs * n_samples
    assert len(taken) - epochs * n_samples < batch


@pytest.mark.parametrize(
    ("n_samples", "batch", "n_shards", "said"),
    [
        (10, 32, 8, "the dataset has 10 samples, fewer than one batch of 32; take a batch of at most 10"),
        (0, 1, 1, "the dataset has 0 samples, fewer than one batch of 1"),
        (1000, 100, 8, "a batch of 100 samples cannot be cut into 8 equal logical shards; take a batch of 96 or 104"),
        (1000, 3, 8, "take a batch of 8"),
        (1000, 0, 8, "expected at least 1 of each"),
        (1000, 8, 0, "expected at least 1 of each"),
    ],
)
def test_batches_that_cannot_be_are_refused_with_what_would_do(n_samples, batch, n_shards, said):
    with pytest.raises(InputError, match=said):
        logical_batches(n_samples, batch=batch, n_shards=n_shards, seed=0, epoch=0)


def test_an_unknown_tail_is_refused():
    with pytest.raises(InputError, match="tail is 'dorp'; expected 'drop' or 'carry'"):
        logical_batches(10, batch=2, n_shards=2, seed=0, epoch=0, tail="dorp")


def compositions(n: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(n,)]
    return [(first, *rest) for first in range(n + 1) for rest in compositions(n - first, parts - 1)]


@given(st.integers(1, 9), st.lists(st.integers(1, 20).map(lambda tenths: tenths / 10), min_size=1, max_size=4))
def test_no_other_way_to_deal_makes_the_step_shorter(n_shards, speeds):
    """Against all ways to deal."""
    dealt = deal(n_shards, dict(enumerate(speeds)))
    assert [shard for worker in sorted(dealt) for shard in dealt[worker]] == list(range(n_shards))
    longest = max(len(dealt[worker]) / speed for worker, speed in enumerate(speeds))
    best = min(
        max(count / speed for count, speed in zip(counts, speeds, strict=True))
        for counts in compositions(n_shards, len(speeds))
    )
    assert longest == pytest.approx(best)


def test_dealing_does_not_depend_on_the_order_of_the_workers():
    speeds = {"b": 1.0, 2: 1.0, "a": 1.0, 10: 1.0}
    assert deal(6, speeds) == deal(6, dict(reversed(speeds.items())))
    assert deal(6, speeds) == {2: range(0, 2), 10: range(2, 4), "a": range(4, 5), "b": range(5, 6)}


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_speeds_that_are_none_are_refused(speed):
    with pytest.raises(InputError, match=r"the speed of worker 1 is .*; expected a number above 0"):
        deal(8, {0: 1.0, 1: speed})
    with pytest.raises(InputError, match="8 logical shards and no worker"):
        deal(8, {})


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        ({"n_samples": -1}, "n_samples is -1; expected a whole number from 0"),
        ({"n_samples": 1.5}, "n_samples is 1.5"),
        ({"epochs": 0}, "epochs is 0; expected a whole number from 1"),
        ({"base_shard": 0}, "base_shard is 0"),
        ({"max_tries": True}, "max_tries is True"),
        ({"lease_s": 0}, "lease_s is 0; expected seconds, above 0"),
        ({"lease_s": float("nan")}, "lease_s is nan"),
        ({"target_s": "3"}, "target_s is '3'"),
        ({"poison": "drop"}, "poison is 'drop'; expected 'stop' or 'set_aside'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings_, said):
    with pytest.raises(InputError, match=said):
        ShardService(**{"n_samples": 10, **settings_})


# Any interleaving --------------------------------------------------------------------------------------------------

WORKERS = st.sampled_from(["a", "b", 3])


class Interleaving(RuleBasedStateMachine):
    """A service against arrays that count each sample: leased by which token, committed how often."""

    @initialize(
        n=st.integers(0, 40),
        epochs=st.integers(1, 3),
        base=st.integers(1, 12),
        overlap=st.booleans(),
        poison=st.sampled_from(["stop", "set_aside"]),
        max_tries=st.integers(1, 3),
    )
    def open(self, n, epochs, base, overlap, poison, max_tries):
        self.records: list[Any] = []
        self.service = ShardService(
            n, epochs=epochs, base_shard=base, overlap=overlap, poison=poison, max_tries=max_tries, lease_s=3.0,
            most_minibatches=3, journal=self.records.append,
        )  # fmt: skip
        self.now_s = 0.0
        self.holder = np.full((epochs, n), -1)
        self.count = np.zeros((epochs, n), int)
        self.tries = np.zeros((epochs, n), int)
        self.leases: dict[int, tuple[int, int, int]] = {}  # token: epoch, start, end
        self.ends: dict[int, Fate] = {}
        self.deadline_s: dict[int, float] = {}
        self.worker: dict[int, Any] = {}
        self.saved: tuple[Any, Any] | None = None
        self.generation = 0

    def dead(self) -> np.ndarray:
        return self.tries >= self.service.plan.max_tries

    def end(self, token: int, fate: Fate) -> None:
        epoch, start, end = self.leases[token]
        mine = self.holder[epoch] == token
        assert mine[start:end].all() or fate is Fate.COMMITTED
        self.holder[epoch][mine] = -1
        self.tries[epoch][mine] += fate in (Fate.EXPIRED, Fate.FAILED)
        self.ends[token] = fate

    def expire(self) -> None:
        for token in [token for token in self.leases if token not in self.ends]:
            if self.deadline_s[token] < self.now_s:
                self.end(token, Fate.EXPIRED)

    @rule(worker=WORKERS, speed=st.none() | st.floats(0.5, 40))
    def lease(self, worker, speed):
        plan = self.service.plan
        self.expire()
        if plan.poison == "stop" and self.dead().any():
            with pytest.raises(PoisonShardError):
                self.service.lease(worker, now_s=self.now_s, speed=speed)
            return
        lease = self.service.lease(worker, now_s=self.now_s, speed=speed)
        free = (self.holder < 0) & (self.count == 0) & ~self.dead()
        if lease is None:
            open_epochs = plan.epochs if plan.overlap else self.service.epoch + 1
            waits = free[:open_epochs]
            failed_by_me = self.tries[:open_epochs][waits]
            others = [token for token in self.leases if token not in self.ends and self.worker[token] != worker]
            assert not waits.any() or ((failed_by_me > 0).any() and others)
            return
        assert lease.token not in self.leases
        assert 0 < lease.size <= 3 * plan.base_shard
        assert free[lease.epoch, lease.start : lease.end].all()
        earlier = self.count[: lease.epoch] + self.dead()[: lease.epoch]
        assert plan.overlap or (earlier == 1).all()
        assert lease.deadline_s == self.now_s + 3.0
        self.holder[lease.epoch, lease.start : lease.end] = lease.token
        self.leases[lease.token] = lease[2:5]
        self.deadline_s[lease.token], self.worker[lease.token] = lease.deadline_s, worker

    def token(self, data) -> int:
        return data.draw(st.sampled_from(sorted(self.leases)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), part=st.booleans())
    def commit(self, data, part):
        token = self.token(data)
        epoch, start, end = self.leases[token]
        until = data.draw(st.integers(start, end)) if part else None
        expected = self.ends.get(token, Fate.COMMITTED)
        assert self.service.commit(token, now_s=self.now_s, until=until) is expected
        if token in self.ends:
            return
        mine = slice(start, end if until is None else until)
        self.count[epoch, mine] += 1
        self.holder[epoch, mine] = -1
        if until in (None, end):
            self.end(token, Fate.COMMITTED)
        else:
            self.leases[token] = epoch, until, end

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def fail(self, data):
        token = self.token(data)
        assert self.service.fail(token, reason="bad row") is self.ends.get(token, Fate.FAILED)
        if token not in self.ends:
            self.end(token, Fate.FAILED)

    @rule(worker=WORKERS)
    def die(self, worker):
        mine = [token for token in self.leases if token not in self.ends and self.worker[token] == worker]
        assert [lease.token for lease in self.service.leave(worker)] == mine
        for token in mine:
            self.end(token, Fate.LEFT)

    @rule(worker=WORKERS)
    def renew(self, worker):
        mine = [token for token in self.leases if token not in self.ends and self.worker[token] == worker]
        assert list(self.service.renew(worker, now_s=self.now_s)) == mine
        self.deadline_s.update(dict.fromkeys(mine, self.now_s + 3.0))

    @rule(seconds=st.floats(0.1, 4.0), notice=st.booleans())
    def wait(self, seconds, notice):
        self.now_s += seconds
        if notice:
            self.service.expire(now_s=self.now_s)
            self.expire()

    @rule(full=st.booleans())
    def restore(self, full):
        state = self.service.state(ledger=True)
        again = ShardService.from_state(saved_and_read(self.service.state(ledger=full)), journal=self.records.append)
        assert again.state() == self.service.state()
        assert not full or again.state(ledger=True) == state
        self.service = again

    @rule(renewals=st.booleans())
    def crash(self, renewals):
        records = [record for record in self.records if renewals or record[1] != "renewed"]
        again = ShardService.replay(through_json(records))
        if renewals:
            assert again.state(ledger=True) == saved_and_read(self.service.state(ledger=True))
        again = ShardService.replay(records, journal=self.records.append)
        self.now_s = 0.0
        again.resume(now_s=0.0)
        self.deadline_s.update({token: 3.0 for token in self.leases if token not in self.ends})
        self.service = again

    @rule()
    def checkpoint(self):
        self.saved = saved_and_read(self.service.state()), deepcopy((self.count, self.tries))

    @precondition(lambda self: self.saved is not None)
    @rule()
    def go_back(self):
        self.generation += 1
        state, (count, tries) = deepcopy(self.saved)
        self.service = ShardService.from_state(state, generation=self.generation, journal=self.records.append)
        self.count, self.tries = count, tries
        self.holder[:] = -1
        self.ends = dict.fromkeys(self.leases, Fate.STALE)

    @invariant()
    def the_ledger_is_what_was_committed(self):
        if not hasattr(self, "service"):
            return
        assert (self.count <= 1).all()
        found = np.zeros_like(self.count)
        for row in self.service.ledger:
            found[row.epoch, row.start : row.end] += 1
        assert (found == self.count).all()
        assert self.service.n_committed == self.count.sum()
        whole = ((self.count == 1) | self.dead()).all()
        assert self.service.completed() == (self.count == 1).all()
        assert self.service.over == (whole and not (self.dead().any() and self.service.plan.poison == "stop"))
        self.service.prove()

    def teardown(self):
        if not hasattr(self, "service"):
            return
        for worker in ("a", "b", 3):
            self.service.leave(worker)
        if self.service.status is ShardStatus.POISONED:
            self.service.prove()
            return
        twin = ShardService.from_state(saved_and_read(self.service.state()))
        ends = [drain(each, now_s=self.now_s, workers=2, speed=100.0) for each in (twin, self.service)]
        assert ends[0] == ends[1]
        self.service.prove()
        aside = sum(piece.end - piece.start for piece in self.service.set_aside)
        assert self.service.n_committed == self.count.size - aside


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=50)
