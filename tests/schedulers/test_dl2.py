"""The scheduler DL2: the network in compiled code, its weights in files, and what it decides."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from labkit.core import InputError, Jobs, Snapshot
from labkit.core.draft import PS, WORKER
from labkit.experiment import Experiment, Session, every_slot
from labkit.experiment.caveats import Caveat
from labkit.learning.dl2 import Policy, mean_jct, task_features
from labkit.schedulers import make
from labkit.schedulers.dl2 import DL2, Weights, load, network, shipped
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.keeping import keep
from labkit.schedulers.dl2.policy import BEST, NOTHING, decide
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS

SLOT_S = 1200.0


def weights(seed: int = 0, *, stop: float = 0.0, scale: float = 1.0) -> Weights:
    """Return a policy that was not trained."""
    torch.manual_seed(seed)
    made = Policy(len(DL2_MODELS), 16)
    with torch.no_grad():
        made.worth.weight.normal_(0, scale)
        made.stop.fill_(stop)
    return Weights(made.net(), tuple(DL2_MODELS), SLOT_S, "not trained")


def scheduler(kept: Weights, folder: Path) -> DL2:
    kept.save(folder / "w.safetensors")
    return DL2(weights=str(folder / "w.safetensors"), fallback=None)  # untrained weights have no fallback


def experiment(seed: int, cluster: str = "dl2-16n") -> Experiment:
    jobs = dl2_jobs("short_48n", seed=seed, pattern="google")
    return Experiment.of(jobs, cluster=cluster, cadence=every_slot(SLOT_S))


def jct_slots(made: Experiment, chosen: object) -> float:
    """Return the mean JCT of a run, in slots."""
    return made.run(chosen).summary["mean_jct_s"] / SLOT_S


@given(st.integers(0, 1000), st.integers(0, 16), st.integers(0, 16), st.integers(0, len(DL2_MODELS) - 1))
def test_the_compiled_network_is_the_one_that_learned(seed: int, n_ps: int, n_workers: int, model: int) -> None:
    torch.manual_seed(seed)
    net = Policy(len(DL2_MODELS), 16)
    with torch.no_grad():
        net.worth.weight.normal_()
    seen = torch.rand(1, network.n_inputs(len(DL2_MODELS)))
    seen[0, : len(DL2_MODELS)] = 0
    seen[0, model] = 1
    held = torch.from_numpy(task_features(np.array([n_ps]), np.array([n_workers])))
    expected = net(seen, torch.zeros(1, dtype=torch.int64), held).detach().numpy()[0]
    made = net.net()
    desk = network.desk_of(made, seen.numpy(), np.array([model], np.int32))
    network.evaluate(made, desk, 0, n_ps, n_workers)
    np.testing.assert_allclose(desk.worth[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cluster", ["dl2-8n", "dl2-48n"])
def test_a_session_goes_as_its_training_did(seed: int, cluster: str, tmp_path: Path) -> None:
    """Any policy, trained or not: compiled episodes and a session have the same mean JCT."""
    kept = weights(seed, scale=0.3)
    (trained,) = mean_jct(kept, lambda s: experiment(s, cluster), [seed])
    assert jct_slots(experiment(seed, cluster), scheduler(kept, tmp_path)) == pytest.approx(trained, rel=1e-9)


def test_every_job_has_a_worker_and_a_server_first_and_what_stopping_is_worth_ends_a_slot(tmp_path: Path) -> None:
    jobs = Jobs.of(
        arrival_s=[0.0] * 3, total_steps=[1e6] * 3, model=["resnet-50", "wlm", "resnet-50"], n_workers=1, n_ps=1,
        max_workers=16, max_ps=16, worker_demand=[[1, 2, 0]] * 3, ps_demand=[[0, 2, 0]] * 3, samples_per_step=1.0,
        steps_per_epoch=100.0, duration_s=1e6,
    )  # fmt: skip
    made = Experiment.of(jobs, cluster="dl2-6n")
    snapshot = Session(made.simulator(), cadence=every_slot(SLOT_S)).snapshot()
    placement = scheduler(weights(stop=1e6), tmp_path).schedule(snapshot)
    assert sorted(zip(placement.job.tolist(), placement.role.tolist(), strict=True)) == [
        (job, role) for job in range(3) for role in (WORKER, PS)
    ]
    assert placement.count.tolist() == [1] * 6
    full = scheduler(weights(stop=-1e6), tmp_path).schedule(snapshot)
    held = full.count @ np.where(full.role[:, None] == WORKER, jobs.worker_demand[0], jobs.ps_demand[0])
    assert held[1] == 48, "nothing is worth stopping for, so all cores are taken"


def test_models_that_training_has_not_met_are_told_and_scheduled(tmp_path: Path) -> None:
    jobs = Jobs.of(
        arrival_s=[0.0, 0.0], total_steps=[1e4] * 2, model=["vgg-16", "mine"], n_workers=1, max_workers=4, n_ps=1,
        max_ps=4, worker_demand=[[1, 2, 0]] * 2, ps_demand=[[0, 2, 0]] * 2, duration_s=1e4,
    )  # fmt: skip
    made = Experiment.of(jobs, cluster="dl2-6n", speed="recorded")
    with pytest.warns(Caveat, match=r"its training has met no mine; it decides .*labkit train-policy"):
        run = made.run(scheduler(weights(), tmp_path))
    assert run.summary["n_unfinished"] == 0


@pytest.mark.parametrize("name", shipped())
def test_shipped_weights_say_how_they_were_made(name: str) -> None:
    kept = load(name)
    assert "labkit train-policy dl2 " in kept.source
    assert kept.slot_s == SLOT_S
    assert (Path(network.__file__).parent / "weights" / f"{name}.safetensors").stat().st_size < 200_000


@pytest.mark.parametrize(("cluster", "most"), [("dl2-48n", 1.01), ("dl2-16n", 0.96), ("dl2-8n", 0.96)])
def test_the_shipped_policy_is_below_optimus_where_resources_bind(cluster: str, most: float) -> None:
    """On the speeds that ship and seeds that it has not seen; docs/dl2.md has the figures on measured ones."""
    ours, theirs = [], []
    for seed in range(1, 11):
        made = experiment(seed, cluster)
        ours.append(jct_slots(made, "dl2"))
        theirs.append(jct_slots(made, "optimus"))
    assert np.mean(ours) <= most * np.mean(theirs)


# --- files


def test_weights_come_back_from_a_file(tmp_path: Path) -> None:
    kept = weights()
    kept.save(tmp_path / "w.safetensors")
    again = load(tmp_path / "w.safetensors")
    assert (again.models, again.slot_s, again.source) == (kept.models, kept.slot_s, kept.source)
    for mine, other in zip(kept.net, again.net, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


ABOUT = {"policy": "dl2", "version": "2", "models": json.dumps(DL2_MODELS), "slot_s": "1200.0", "source": ""}


@pytest.mark.parametrize(
    ("tensors", "about", "told"),
    [
        ({"x": np.zeros(2, np.float32)}, ABOUT, r"it holds x; expected bias, .*Train it again: labkit train-policy"),
        (weights().net._asdict(), {**ABOUT, "version": "0"}, r"policy 'dl2', version '0'; expected 'dl2', '2'"),
        (weights().net._asdict(), {**ABOUT, "models": '["a", "b"]'}, r"seen is of shape \(31, 16\); expected \(13,"),
        (
            weights().net._replace(stop=np.full(1, np.nan, np.float32))._asdict(), ABOUT,
            r"stop holds a number that is not finite",
        ),
        (weights().net._asdict(), ABOUT | {"models": "{"}, r"its models is '\{', which cannot be read\."),
        (weights().net._asdict(), ABOUT | {"models": "[1]"}, r"its models is '\[1\]', which cannot be read"),
        (weights().net._asdict(), ABOUT | {"slot_s": "-3"}, r"its slot_s is '-3', which cannot be read"),
        (weights().net._asdict(), {k: v for k, v in ABOUT.items() if k != "slot_s"}, r"it does not tell its slot_s\."),
    ],
)  # fmt: skip
def test_files_with_something_else_are_told_in_one_line(tensors, about, told, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(tensors, path, metadata=about)
    with pytest.raises(InputError, match=told) as refused:
        load(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_file_of_weights_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="not a safetensors file"):
        make(f"dl2(weights='{tmp_path}/w.safetensors')")
    with pytest.raises(InputError, match=r"none\.safetensors: there is no such file; expected weights of a policy\."):
        make(f"dl2(weights='{tmp_path}/none.safetensors')")
    with pytest.raises(InputError, match=r"unknown weights of dl2 'dl3'\. Did you mean 'dl2'\?"):
        make("dl2(weights='dl3')")


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_no_job_starves_under_the_shipped_policy(seed: int) -> None:
    """Each job that is there holds a worker and a server while there is room for one of each for all."""
    made = experiment(seed, "dl2-16n")
    run = made.run("dl2(fallback=None)")
    assert run.summary["n_unfinished"] == 0
    assert run.summary["mean_queueing_s"] <= SLOT_S


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), stop=st.sampled_from([-1e6, 0.0, 1e6]), n_nodes=st.sampled_from([6, 8, 16]))
def test_no_job_starves_whatever_the_network_says_even_where_not_all_find_room(
    seed: int, stop: float, n_nodes: int
) -> None:
    """Without a fallback: arrivals alone decide which jobs get tasks, and no later job takes an earlier one's room."""
    wild, modest = weights(seed, stop=stop, scale=3.0), weights(seed, stop=1e6)
    session = experiment(seed, f"dl2-{n_nodes}n").session("drf")
    for _ in range(60):
        if session.done:
            break
        jobs = (snapshot := session.snapshot()).jobs
        served = given_by(wild, snapshot).any(axis=(1, 2))
        np.testing.assert_array_equal(served, given_by(modest, snapshot).any(axis=(1, 2)))  # first gangs, and no more
        for j in np.flatnonzero(~served):
            later = np.flatnonzero(served & (jobs.arrival_s > jobs.arrival_s[j]))
            assert not (jobs.gang_demand[later] >= jobs.gang_demand[j]).all(axis=1).any()
        session.step(keep(snapshot, given_by(wild, snapshot)))


def given_by(policy: Weights, snapshot: Snapshot) -> np.ndarray:
    """Return how many workers and servers each job that is there gets in each device group, (J, 2, G)."""
    batch = draft_of(snapshot, policy.models)
    assert decide(batch, 0, SLOT_S, policy.net, BEST, NOTHING, np.random.default_rng(0))
    return batch.placed[0]


@pytest.mark.parametrize("chosen", ["'dl2'", "'dl2-fitted'", "('dl2', 'dl2-fitted')"])
def test_it_is_told_no_speed_and_no_true_length(chosen: str) -> None:
    """Two worlds that declare the same and differ in all that is true: the first decision is the same."""
    jobs = dl2_jobs("short_48n", seed=5, pattern="google").take(np.arange(20))
    jobs = jobs.with_columns(arrival_s=np.zeros(20))
    longer = jobs.with_columns(true_steps=jobs.total_steps * np.random.default_rng(0).uniform(0.2, 5.0, 20))
    one, other = (
        make(f"dl2(weights={chosen})").schedule(made.session("drf").snapshot())
        for made in (
            Experiment.of(jobs, cluster="dl2-16n", cadence=every_slot(SLOT_S)),
            Experiment.of(longer, cluster="dl2-16n", speed="recorded", cadence=every_slot(SLOT_S)),
        )
    )
    for column in ("job", "role", "group", "count"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
    assert one.count.sum() > 3 * 20
