"""Episodes that a session plays: what a policy learns from is what a simulation of the same scenario gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit.core.events import Events
from labkit.core.placement import Placement
from labkit.core.snapshot import Snapshot
from labkit.experiment.experiment import Experiment
from labkit.experiment.scenario import Scenario
from labkit.learning.dl2 import Policy, Recipe, Trainer
from labkit.learning.rollouts import (
    KEEPS,
    Branching,
    CompiledEpisodes,
    Recorder,
    SessionEpisodes,
    episodes_of,
    mean_spent_s,
)
from labkit.learning.settings import PLAIN, Setting, window
from labkit.results.record import RunRecord
from labkit.schedulers.dl2 import DL2
from labkit.schedulers.dl2.network import Net
from labkit.schedulers.dl2.policy import BEST, NOTHING, How, record
from labkit.schedulers.dl2.weights import Weights
from labkit.workloads.catalogue import DL2_MODELS

TRACE, CLUSTER, SLOT_S = "dl2_jobs('testbed_6n')", "dl2-6n", 300.0
ROOM = 20
BRANCHING = Branching(n_branches=2, n_slots=2, share=1.0)

kept = st.fixed_dictionaries(
    {"hosts": st.sampled_from(["m0", "m3"]), "start_s": st.sampled_from([0.0, 700.0, 3000.0])},
    optional={"users": st.just("user")},
).map(lambda one: {"upkeep": one | {"end_s": one["start_s"] + 2500.0}})
scenarios = st.fixed_dictionaries(
    {"seed": st.integers(0, 99)},
    optional={
        "quotas": st.sampled_from(["user=3", "user=6", "*=10"]), "reservations": kept,
        "load": st.sampled_from([0.5, 2.0]),
        "faults": st.tuples(st.sampled_from([4e3, 2e4]), st.sampled_from([200.0, 900.0])),
        "checkpoint_s": st.just(100.0), "start_s": st.just(25.0), "restart_s": st.just(40.0),
        "rescale_s": st.sampled_from([10.0, 350.0]), "epoch_error": st.just(0.2), "speed_error": st.just(0.2),
        "interference": st.just("calibrated"),
    },
)  # fmt: skip


def scenario_of(asked: dict[str, Any]) -> Scenario:
    """Return the scenario of what Hypothesis draws: parts of it go together."""
    fields = dict(asked)
    if "faults" in fields:
        fields["mtbf_s"], fields["mttr_s"] = fields.pop("faults")
    if "speed_error" in fields:
        fields["period_s"] = 500.0
    return Scenario.of(TRACE, cluster=CLUSTER, slot_s=SLOT_S, **fields)


def network() -> Net:
    """Return a network that was drawn, to which jobs are not all alike."""
    torch.manual_seed(0)
    policy = Policy(len(DL2_MODELS), 16)
    torch.nn.init.normal_(policy.worth.weight)
    return policy.net()


def episodes(scenario: Scenario) -> SessionEpisodes:
    return SessionEpisodes(lambda _: Experiment.of(scenario), slot_s=SLOT_S, models=DL2_MODELS, n_jobs=ROOM)


def simulated(scenario: Scenario, net: Net, folder: Path) -> RunRecord:
    """Return what `labkit.simulate` gives under the scheduler that decides by a network."""
    file = folder / "w.safetensors"
    Weights(net, tuple(DL2_MODELS), SLOT_S, "a test").save(file)
    return labkit.simulate(scenario, scheduler=DL2(weights=str(file), fallback=None))


def assert_same(one: Events, other: Events) -> None:
    assert len(one) == len(other)
    for name in one.dtype.names or ():
        assert np.array_equal(one[name], other[name], equal_nan=True), name


@given(asked=scenarios)
def test_an_episode_is_the_simulation_of_its_scenario_event_by_event(tmp_path_factory, asked) -> None:
    """All that a scenario says: quotas, reservations, failures, overheads, varying speeds, interference."""
    scenario, net = scenario_of(asked), network()
    session, policy = episodes(scenario).begin(0, net, BEST, NOTHING, np.random.default_rng(0))
    events, alike = session.run(policy), simulated(scenario, net, tmp_path_factory.mktemp("w"))
    assert_same(events, alike.events)
    assert mean_spent_s(session) == pytest.approx(alike.table["jct_s"].mean())


class Replaying:
    """A scheduler that decides as it is told, call by call; parts of a cluster share the list."""

    def __init__(self, placements: list[Placement]) -> None:
        self._placements = iter(placements)

    def __deepcopy__(self, memo: dict[int, Any]) -> Replaying:
        return self

    def schedule(self, snapshot: Snapshot) -> Placement:
        return next(self._placements)


class Watched(Recorder):
    """Keeps what the first branch of each decision placed on each part of the cluster."""

    kept: dict[tuple[int, bytes], Placement]

    def schedule(self, snapshot: Snapshot) -> Placement:
        placement = super().schedule(snapshot)
        if self.how == KEEPS:
            self.kept.setdefault((snapshot.number, snapshot.up.tobytes()), placement)
        return placement


@settings(max_examples=6)
@given(asked=scenarios)
def test_branching_leaves_an_episode_as_if_it_had_not_branched(asked) -> None:
    """A simulation of the decisions that were kept has the same events: forks share nothing that changes."""
    scenario, net = scenario_of(asked), network()
    played, rec = episodes(scenario), record(8000, n_jobs=ROOM, n_features=len(net.seen))
    policy = Watched(net, DL2_MODELS, SLOT_S, ROOM, rec, np.random.default_rng(0))
    policy.kept = {}
    session = Experiment.of(scenario).session(policy, on_stall="stop")
    while not session.done:
        session = played._branch(session, policy, BRANCHING)
    assert_same(session.log.rows, labkit.simulate(scenario, scheduler=Replaying([*policy.kept.values()])).events)


def small(scenario: Scenario = PLAIN, *, trace: str = TRACE, n_lessons: int = 1) -> Trainer:
    recipe = Recipe(n_lessons=n_lessons, n_rounds=1, n_envs=2, n_branches=2, n_slots=2, n_units=8, n_parts=2)
    setting = Setting([CLUSTER], [trace], scenario=scenario)
    torch.set_num_threads(1)
    return Trainer(setting, models=setting.models(), slot_s=SLOT_S, seed=1, recipe=recipe)


def learned(trainer: Trainer) -> list[np.ndarray]:
    for _ in trainer.updates():
        pass
    return list(trainer.policy.net())


def test_training_under_quotas_and_failures_repeats_bit_by_bit_and_is_not_that_without() -> None:
    hard = Scenario.of("", quotas="user=4", mtbf_s=4e3, mttr_s=900.0, slot_s=SLOT_S)
    one, again, plain = learned(small(hard)), learned(small(hard)), learned(small())
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one, again, strict=True))
    assert not any(np.array_equal(mine, theirs) for mine, theirs in zip(one, plain, strict=True) if theirs.size > 1)


def test_what_compiled_episodes_do_not_know_is_played_in_sessions_and_nothing_else() -> None:
    fields = {
        "load": 2.0, "epoch_error": 0.1, "any_type": True, "first": 5, "quotas": "user=4", "start_s": 3.0,
        "reservations": {"upkeep": {"hosts": "m0", "start_s": 0, "end_s": 9}}, "interference": "mild",
    }  # fmt: skip
    options: dict[str, Any] = {"n_envs": 1, "slot_s": SLOT_S, "models": DL2_MODELS, "n_jobs": 4}
    known = {
        name: isinstance(
            episodes_of(Setting([CLUSTER], [TRACE], scenario=Scenario.of("", **{name: value})), **options),
            CompiledEpisodes,
        )
        for name, value in fields.items()
    }
    assert [name for name, compiled in known.items() if compiled] == ["load", "epoch_error", "any_type", "first"]


def test_a_teacher_of_sessions_advises_as_the_compiled_one_does() -> None:
    """Both know all speeds: the one of a table, the other by measuring each gang, all of which fit this cluster."""
    plain = Setting(["dl2-16n"], [TRACE])
    how = How(draws=True, keeps=True, lookahead=6, obeys=True)
    told = []
    for made in (
        CompiledEpisodes(plain, n_envs=2, slot_s=SLOT_S, models=DL2_MODELS, n_jobs=ROOM),
        SessionEpisodes(plain, slot_s=SLOT_S, models=DL2_MODELS, n_jobs=ROOM),
    ):
        net = network()
        rec = record(200, n_jobs=ROOM, n_features=len(net.seen))
        mean = made.play([3, 4], net, how, rec, np.random.default_rng(0))
        n = int(rec.n[2])
        told.append((pytest.approx(mean), sorted(zip(rec.slot[:n].tolist(), rec.action[:n].tolist(), strict=True))))
    assert told[0] == told[1]
    assert len(told[0][1]) > 300


def test_windows_of_a_trace_are_in_order_and_those_held_out_are_met_by_no_episode() -> None:
    jobs = labkit.read("demo")
    learned_from, held = set[str](), set[str]()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        for out, ids in ((False, learned_from), (True, held)):
            some = window(jobs, rng, held_out=out)
            first = jobs.id.tolist().index(some.id[0])
            assert some.id.tolist() == jobs.id[first : first + len(some)].tolist()
            np.testing.assert_allclose(
                some.arrival_s, jobs.arrival_s[first : first + len(some)] - jobs.arrival_s[first]
            )
            ids.update(some.id.tolist())
    assert len(learned_from) == 60
    assert held == set(jobs.id.tolist()) - learned_from
