"""QSSF: its order against an oracle, the published quirk against a second reading, predictions by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import simulate
from labkit.core import InputError, Jobs
from labkit.schedulers import make
from labkit.schedulers.qssf import Qssf, predicted_s
from labkit.topology import no_network
from labkit.topology.servers import Server


def pool(n):
    return no_network(1, servers=Server("pool", sockets=((n, 64, 512),)))


def helios(rows, n_gpus):
    """Return the ends of (arrival, seconds, GPUs) as the policy of Helios' simulator has them, second by second."""
    queue, running, free, ends, priority, now, came = [], {}, n_gpus, {}, {}, 0, 0
    while len(ends) < len(rows):
        for job in [job for job, end in running.items() if end == now]:
            ends[job], free = now, free + rows[job][2]
            del running[job]
        new = 0
        while came < len(rows) and rows[came][0] <= now:
            queue.append(came)
            came, new = came + 1, new + 1
        queue.sort(key=lambda job: rows[job][2])
        if len(queue) > new:
            for job in queue:
                priority.setdefault(job, rows[job][1] * rows[job][2])
            queue.sort(key=lambda job: priority[job])
        while queue and rows[queue[0]][2] <= free:
            job = queue.pop(0)
            running[job], free = now + rows[job][1], free - rows[job][2]
        now += 1
    return [ends[job] for job in range(len(rows))]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 40), st.sampled_from([1, 2, 4])), min_size=2, max_size=25
    )
)
def test_published_qssf_is_helios_policy_read_again(rows):
    rows = sorted(rows, key=lambda row: row[0])
    arrival_s, seconds, gpus = zip(*rows, strict=True)
    jobs = Jobs.of(arrival_s=arrival_s, total_steps=seconds, duration_s=seconds, n_workers=gpus)
    run = simulate(jobs, cluster=pool(4), scheduler="qssf(predict='declared',published=True)")
    theirs = helios(rows, 4)
    ours = run.table["completion_s"].tolist()
    # equal priorities of jobs that began to wait in one tick come in any order in ours: the sums say the same
    if len({a * b for _, a, b in rows}) == len(rows) and len(set(arrival_s)) == len(rows):
        assert ours == theirs


def test_the_least_gpu_time_goes_first():
    jobs = Jobs.of(arrival_s=[0, 1, 2, 3], total_steps=100, duration_s=[50, 30, 20, 100], n_workers=[4, 2, 4, 1])
    run = simulate(jobs, cluster=pool(4), scheduler="qssf(predict='declared')")
    assert run.table["completion_s"].tolist() == [50.0, 80.0, 100.0, 200.0]


def test_a_prediction_is_the_decayed_mean_of_the_nearest_kind_that_has_ended():
    """Jobs 0 to 3 ended in this order: user a's model x took 10, 20 and 40 s, user b's y 100 s."""
    jobs = Jobs.of(
        arrival_s=[0, 0, 0, 0, 200, 200, 200], total_steps=1, duration_s=[10, 20, 40, 100, 5, 5, 5],
        user=list("aaabaab"), model=["x", "x", "x", "y", "x", "z", "q"],
    )  # fmt: skip
    snapshot_of = {}

    class Spy(Qssf):
        def schedule(self, snapshot):
            if len(snapshot.ended) == 4 and not snapshot_of:
                asked = np.array([4, 5, 6], np.int32)
                snapshot_of["s"] = predicted_s(snapshot, snapshot.ended, asked, decay=0.5)
            return super().schedule(snapshot)

    simulate(jobs, cluster=pool(8), scheduler=Spy())
    of_a = (0.25 * 10 + 0.5 * 20 + 40) / 1.75
    assert snapshot_of["s"] == pytest.approx([of_a, of_a, 100.0])


def test_history_is_worth_about_as_much_as_declared_durations_where_users_repeat_themselves():
    rng = np.random.default_rng(0)
    user = rng.integers(0, 8, 300)
    seconds = np.exp(rng.normal(3 + 0.5 * user, 0.2))
    jobs = Jobs.of(
        arrival_s=np.cumsum(rng.exponential(seconds.mean() / 8, 300)), total_steps=seconds, duration_s=seconds,
        user=[f"u{u}" for u in user],
    )  # fmt: skip
    mean_s = {
        name: simulate(jobs, cluster=pool(8), scheduler=name).summary["mean_jct_s"]
        for name in ("fifo", "qssf", "qssf(predict='declared')")
    }
    assert mean_s["qssf(predict='declared')"] <= mean_s["qssf"] < mean_s["fifo"]


def test_bad_options_are_named():
    with pytest.raises(InputError, match="decay is 0; expected a part"):
        make("qssf", decay=0)
    with pytest.raises(InputError, match="Did you mean 'history'"):
        make("qssf", predict="histor")
