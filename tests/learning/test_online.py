"""Learning online: what it learns on, what it keeps, and that a loss that is no number ends it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from labkit.core import InputError
from labkit.experiment import Experiment, every_slot
from labkit.experiment.caveats import Caveat
from labkit.learning import online
from labkit.learning.online import HORIZON, WARM_UP, policy_of
from labkit.results.notes import notes
from labkit.schedulers import make
from labkit.schedulers.dl2 import load
from labkit.workloads import dl2_jobs
from tests.hang import HANG_S

SLOT_S = 1200.0


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def experiment(seed: int = 1, cluster: str = "dl2-16n") -> Experiment:
    jobs = dl2_jobs("short_48n", seed=seed, pattern="google")
    return Experiment.of(jobs, cluster=cluster, cadence=every_slot(SLOT_S), seed=seed)


def test_the_network_that_learns_begins_as_the_one_that_was_trained():
    kept = load("dl2")
    for mine, theirs in zip(policy_of(kept).net(), kept.net, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_a_run_changes_the_weights_keeps_them_and_the_next_run_begins_anew(tmp_path):
    path = tmp_path / "learned.safetensors"
    made = make(f"dl2(learns=True, learned='{path}')")
    with pytest.warns(Caveat, match="it draws its actions and changes its weights while it runs; they go to"):
        first = experiment().run(made)
    learned, began = load(path), load("dl2")
    assert first.summary["n_unfinished"] == 0
    assert made._learner.n_updates > 1
    assert learned.source.startswith(began.source)
    assert f"then {made._learner.n_updates} updates online, once per slot, by dl2(learns=True)" in learned.source
    assert any((mine != theirs).any() for mine, theirs in zip(learned.net, began.net, strict=True))
    with pytest.warns(Caveat):
        again = experiment().run(made)
    assert again.summary["mean_jct_s"] == first.summary["mean_jct_s"], "same seed, same draws"
    assert any("draws its actions" in note for note in notes([first]))


def test_a_slot_is_judged_by_how_long_its_own_jobs_stay(tmp_path):
    made = make("dl2(learns=True, fallback=None)")
    session = experiment().session(made)
    judged: list[tuple[list[int], int, np.ndarray]] = []
    learner = made._learner
    judge = learner._judge

    def note(slot) -> None:
        judged.append((slot.jobs.tolist(), slot.n_slots, slot.stayed.copy()))
        judge(slot)

    learner._judge = note
    active: list[set[int]] = []
    while not session.done:
        snapshot = session.snapshot()
        active.append(set(snapshot.jobs.number.tolist()))
        session.step(made.schedule(snapshot))
    assert len(judged) > 20
    starts = {tuple(sorted(jobs)): at for at, jobs in reversed(list(enumerate(active)))}
    for jobs, n_slots, stayed in judged:
        assert n_slots <= HORIZON
        at = starts[tuple(sorted(jobs))]
        candidates = [a for a in range(at, len(active)) if active[a] == set(jobs)]
        counts = [[sum(job in after for after in active[a + 1 : a + 1 + n_slots]) for job in jobs] for a in candidates]
        assert stayed.tolist() in counts


def test_nothing_is_changed_before_the_critic_has_seen_some_slots():
    made = make("dl2(learns=True, fallback=None)")
    session = experiment().session(made)
    for _ in range(WARM_UP):
        session.step(made.schedule(session.snapshot()))
    assert made._learner.n_updates == 0


def test_a_loss_that_is_not_finite_ends_the_learning_with_the_last_good_weights(monkeypatch):
    made = make("dl2(learns=True)")
    whole, good = online._loss, []

    def breaks(policy, part, better):
        loss = whole(policy, part, better)
        if made._learner.n_updates < 2:
            return loss
        good.append(made._learner.net)
        return loss * float("nan")

    monkeypatch.setattr(online, "_loss", breaks)
    with (
        pytest.warns(UserWarning, match="the loss of update 3 online is not finite; .* of update 2"),
        pytest.warns(Caveat),
    ):
        run = experiment().run(made)
    assert made._learner.n_updates == 2
    for mine, theirs in zip(made._learner.net, good[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert run.summary["n_unfinished"] == 0


def test_torch_is_loaded_only_where_it_learns():
    told = (
        "import sys, json; from labkit.schedulers import make; make('dl2'); before = 'torch' in sys.modules; "
        "make('dl2(learns=True)'); print(json.dumps([before, 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=HANG_S)
    assert json.loads(done.stdout) == [False, True]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("learned='x.safetensors'", "learned is 'x.safetensors', and it does not learn; give it learns=True, too"),
        ("learns=True, learned='x.txt'", r"x\.txt ends in '\.txt'; expected \.safetensors"),
        ("learns=True, learned='/proc/x.safetensors'", "/proc: nothing can be written there"),
        ("learns=1", "learns is 1; expected True or False"),
    ],
)
def test_options_that_cannot_be_are_told_in_one_line(options: str, told: str):
    with pytest.raises(InputError, match=told) as refused:
        make(f"dl2({options})")
    assert "\n" not in str(refused.value)
