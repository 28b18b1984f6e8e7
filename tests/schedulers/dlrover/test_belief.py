"""What is believed of jobs whose truth has any form: plans against the exhaustive best, and what measurements do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks._dlrover_rivals import Falling, Oracle, Silent, Spinning
from benchmarks._dlrover_truths import of_work, truths
from benchmarks.dlrover import COLD, LIMITS, chosen_of
from labkit.experiment.run import simulate
from labkit.schedulers import make
from labkit.schedulers.dlrover.belief import CLIFF, believe, candidates, cores_of, rows_of
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.front import PlanLimits
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules
from labkit.schedulers.dlrover.stages import JobState, Observation, Stage, look
from labkit.simulator import Overheads
from labkit.speed.bottleneck import WORK
from tests.schedulers.dlrover.test_scheduler import jobs_of

NAMED = {truth.name: truth for truth in truths()}
SLOW = Overheads(start_s=120, restart_s=120, rescale_s=120)


def of(kind: type[Falling]) -> str:
    return f"{kind.__module__}:{kind.__name__}"


@pytest.mark.parametrize("name", NAMED)
def test_plans_are_good_whatever_the_form_of_the_truth(name):
    """Issue 31: a median of 0.90 after 8 samples, 0.95 after 2 of the published form; of three seeds here."""
    told = np.median([chosen_of(NAMED[name], seed) for seed in range(3)], axis=0)
    assert told[-1] >= 0.80
    if NAMED[name].published:
        assert told[1] >= 0.95


def test_measurements_count_more_than_any_form_near_the_plan_that_was_measured():
    """Three plans were measured without noise: they are expected to be as fast, within what noise may do."""
    truth = NAMED["falls with contention: / (1 + (n / 20)^2)"]
    plans = [COLD, Plan(33, 2, 11, 12), Plan(17, 3, 4, 16)]
    samples = [replace(truth, noise=0.0).measured(plan, np.random.default_rng(0), 0) for plan in plans]
    belief = believe(samples)
    expected = belief.speeds(rows_of(plans))
    assert expected == pytest.approx([sample.speed for sample in samples], rel=0.25)
    assert expected[2] > expected[1], "more workers were slower, and are believed to be"


def test_cliffs_are_considered_once_there_are_four_samples():
    """Of the first plans they would make worse ones; with four samples there is something to see them by."""
    truth, rng = NAMED["falls with contention: / (1 + (n / 20)^2)"], np.random.default_rng(0)
    plans = [COLD, Plan(33, 2, 11, 12), Plan(17, 3, 4, 16), Plan(8, 6, 4, 16)]
    samples = [truth.measured(plan, rng, k) for k, plan in enumerate(plans)]
    with_cliffs = [bool((believe(samples[:n]).hypotheses[:, 8] == CLIFF).any()) for n in (1, 2, 3, 4)]
    assert with_cliffs == [False, False, False, True]


def test_a_cliff_is_found_with_the_rest_of_the_samples():
    """0.6 of the speed beyond 64 cores: without hypotheses of cliffs the median of these seeds is below 0.90."""
    truth = of_work("cliff", WORK["wide-deep"], factor=lambda n, w, p, s: np.where(n * w + p * s > 64, 0.6, 1.0))
    assert np.median([chosen_of(truth, seed)[-1] for seed in range(200, 205)]) >= 0.95


def test_what_is_believed_follows_from_the_samples_alone():
    samples = [NAMED["noise of 50%"].measured(COLD, np.random.default_rng(1), k) for k in range(3)]
    plans = candidates(LIMITS)
    assert np.array_equal(believe(samples).speeds(plans), believe(samples).speeds(plans))


def test_fronts_rise_and_trials_keep_to_the_cores_that_there_are():
    samples = [NAMED["servers spin"].measured(COLD, np.random.default_rng(2), 0)]
    belief = believe(samples)
    rows, speed = belief.frontier(PlanLimits(100, 20, 8, 32))
    assert (np.diff(cores_of(rows)) > 0).all()
    assert (np.diff(speed) > 0).all()
    assert cores_of(rows).max() <= 100
    plan, gain, _ = belief.trial(LIMITS, 12.0, cores=50)
    assert plan.cores <= 50
    assert gain >= 0


@pytest.mark.parametrize("name", ["metrics never come", "falls with contention: / (1 + (n / 20)^2)", "workers spin"])
def test_a_plan_that_is_tried_is_expected_to_make_half_of_the_present_speed(name):
    """A live job was slowed to a tenth for ten seconds by a plan that hardly promised more; now there is a bound."""
    for seed in range(3):
        rng, samples = np.random.default_rng(seed), []
        plan = COLD
        for k in range(4):
            samples.append(NAMED[name].measured(plan, rng, k))
            belief = believe(samples)
            now = belief.frontier(LIMITS)[1][-1]
            tried, gain, expected = belief.trial(LIMITS, float(now))
            assert gain == 0 or expected >= 0.5 * now
            plan = tried if gain else plan
    assert belief.trial(LIMITS, 1e6)[1] == 0, "nothing is tried where nothing is expected to come near"


def test_few_tasks_are_preferred_where_processes_share_a_machine():
    samples = [Sample(Plan(1, 0.3, 1, 0.3), 30.0, 0.3, 0.25)]
    rows, _ = believe(samples).frontier(PlanLimits(0.6, 8, 2, 0.6, 0.03, few=True))
    assert cores_of(rows).max() <= 0.6 + 1e-9
    assert rows[-1, 0] + rows[-1, 2] <= 3


def test_a_final_plan_is_watched_and_sampled_again_once_its_speed_stays_another():
    sample = Sample(COLD, 12.0, 2.5, 5.7)
    state, rules = JobState(Stage.FINAL, COLD, 0.0, samples=(sample,)), Rules()
    said = []
    for k in range(3):
        state, came = look(state, Observation(replace(sample, speed=9.0), 100.0 + k, 900.0), rules, now_s=100.0 + k)
        said.append(came)
    assert said == ["", "", "sampled"]
    assert [each.speed for each in state.samples] == [9.0], "the newest one stands for that plan"
    back, came = look(state, Observation(replace(sample, speed=9.2), 200.0, 900.0), rules, now_s=200.0)
    assert (came, back.n_off) == ("", 0)


def test_a_job_whose_speed_falls_with_its_size_ends_below_well_tuned_gangs():
    """Issue 31: at most 1.15 x the JCT of the tuned gang, with changes of 120 s; it was 3.1 x."""
    jobs, options = jobs_of(["wide-deep"], steps=200_000), {"speed": of(Falling), "overheads": SLOW}
    tuned = simulate(jobs, cluster="dlrover-512", scheduler="static(tuned=True)", **options)
    brain = simulate(jobs, cluster="dlrover-512", scheduler=make("dlrover"), **options)
    assert brain.summary["mean_jct_s"] <= 1.15 * tuned.summary["mean_jct_s"]
    assert any("predicted, -" in why for why in brain.decisions["reason"]), "it says by how much it was wrong"


def test_a_job_that_keeps_its_plan_says_how_wrong_the_prediction_was():
    """Its last plan is three times as fast as was predicted, and the prediction follows the measurement."""
    options = {"cluster": "dlrover-512", "speed": of(Silent), "overheads": SLOW}
    decisions = simulate(jobs_of(["wide-deep"], steps=400_000), scheduler=make("dlrover"), **options).decisions
    last = decisions.iloc[-1]
    assert "predicted, +" in last["reason"]
    assert "it keeps its plan" in last["reason"]
    assert last["predicted_steps_per_s"] == pytest.approx(float(last["reason"].split()[0]), rel=0.1)


@pytest.mark.parametrize("kind", [Falling, Spinning])
def test_several_jobs_come_close_to_an_oracle_that_knows_the_truth(kind):
    """Issue 31: 16 jobs at most 1.1 x the better of Optimus and tuned gangs; here four, and the oracle as a bound."""
    jobs = jobs_of(["wide-deep", "xdeepfm"] * 2, arrival_s=[0, 0, 600, 600], steps=[300_000, 60_000] * 2)
    runs = {
        name: simulate(jobs, cluster="dlrover-512", scheduler=each, speed=of(kind)).summary["mean_jct_s"]
        for name, each in {
            "brain": make("dlrover"), "optimus": make("optimus"), "tuned": make("static(tuned=True)"),
            "oracle": Oracle(kind),
        }.items()
    }  # fmt: skip
    assert runs["brain"] <= 1.1 * min(runs["optimus"], runs["tuned"])
    assert runs["oracle"] <= 1.05 * runs["brain"]


def test_a_short_job_is_not_changed_for_what_it_cannot_win():
    """A change takes 120 s, and the job a minute and a half as it is."""
    jobs = jobs_of(["wide-deep"], steps=2_500, n_workers=8, n_ps=4)
    record = simulate(jobs, cluster="dlrover-512", scheduler=make("dlrover"), overheads=SLOW)
    assert len(record.decisions) == 1
