"""The placement policy: nothing is placed where it does not fit, names of machines do not matter, files are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import simulate
from labkit.core import InputError, Jobs, Kind
from labkit.core.resources import CPUS, GPUS, amounts
from labkit.core.snapshot import Snapshot
from labkit.experiment import Experiment
from labkit.experiment.caveats import Caveat
from labkit.schedulers import make
from labkit.schedulers.marl.candidates import SLACK, GangRequest, candidate_buffer, candidates
from labkit.schedulers.marl.network import FEATURES, WAITING, Net, Scene, best_of, desk_of, gang_of, plain, weigh
from labkit.schedulers.marl.scenes import declared_speed, scene_of
from labkit.schedulers.marl.weights import FILES, TrainedFor, Weights, load, shipped
from labkit.simulator import Faults
from labkit.speed.interference.levels import level
from labkit.speed.what_if import learned, put, renew
from labkit.topology import build
from labkit.workloads import catalogue
from labkit.workloads.catalogue import DL2_MODELS
from labkit.workloads.expressions import trace

CLUSTER = build("vl2(4, 2, per_rack=3, gbps=(10, 20, 40))")


def net_of(seed: int, *, n_agents: int = 1) -> Net:
    """Return a network of random weights that never waits."""
    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=part.shape) for part in plain(4, 5, n_agents)]
    return Net(*drawn[:5], plain(4, 5, n_agents).wait, np.full(n_agents, 3.0))


def scene(seed: int, order: np.ndarray | None = None) -> Scene:
    """Return a crowded scene on 2 pods of 3 machines; `order`: which machine stands in the place of which.

    No two groups have as many cores free or in use: ties go to the machine with the lower number.
    """
    jobs = trace("marl_jobs(load=5, n_pods=2, n_slots=4)", seed=seed).declared.as_if_true()
    made = scene_of(
        jobs, CLUSTER, runs_on=np.ones((len(jobs), 1), np.bool_), speed=declared_speed(jobs, CLUSTER)
    )  # fmt: skip
    place = np.arange(CLUSTER.n_machines) if order is None else order
    uneven = np.random.default_rng(seed + 1).uniform(0, 0.01, CLUSTER.n_groups)
    at = 2 * np.repeat(place, 2) + np.arange(CLUSTER.n_groups) % 2
    made.room.free[at, CPUS] -= uneven
    rng, slow, others = np.random.default_rng(seed), learned(*net_of(seed)[:2]), np.zeros(len(jobs), np.int64)
    for job in range(8):
        gang, groups = gang_of(made, job), []
        for t in range(gang.n_workers + gang.n_ps):
            demand = gang.worker if t < gang.n_workers else gang.ps
            turn = rng.permutation(CLUSTER.n_groups)
            there = 2 * place[turn // 2] + turn % 2
            fits = [int(g) for g in there if (made.room.free[g] + SLACK >= demand).all()]
            if not fits:
                break
            made.room.free[fits[0]] -= demand
            groups.append(fits[0])
        if len(groups) == gang.n_workers + gang.n_ps:
            put(made.facts, made.tasks, job, np.array(groups, np.int64), gang.n_workers)
            renew(made.facts, slow, made.tasks, job, others)
    made.tasks.cores[at] += uneven
    return made


def weighed(made: Scene, net: Net, job: int) -> Any:
    desk = desk_of(made)
    n_top = weigh(made, learned(net.seen, net.out), net, job, 0.0, 0.0, 1, 3, False, desk)
    return desk, n_top


@settings(max_examples=settings().max_examples // 3)
@given(seed=st.integers(0, 1000))
def test_every_placement_that_is_weighed_finds_room_in_one_pod_and_is_another(seed: int) -> None:
    made = scene(seed)
    for job in range(8, 14):
        desk, _ = weighed(made, net_of(seed), job)
        gang = gang_of(made, job)
        n, seen = gang.n_workers + gang.n_ps, set()
        for c in range(desk.placements.n[0]):
            groups, taken = desk.placements.group[c, :n], np.zeros_like(made.room.free)
            for t, g in enumerate(groups):
                taken[g] += gang.worker if t < gang.n_workers else gang.ps
            assert (taken <= made.room.free + SLACK).all()
            assert set(CLUSTER.partition[CLUSTER.group_machine[groups]]) == {desk.placements.pod[c]}
            workers, servers = groups[: gang.n_workers], groups[gang.n_workers :]
            seen.add((tuple(sorted(workers)), tuple(sorted(servers))))
        assert len(seen) >= 0.5 * desk.placements.n[0]


@given(seed=st.integers(0, 1000))
def test_what_a_placement_is_worth_does_not_depend_on_the_order_of_machines(seed: int) -> None:
    rng, net = np.random.default_rng(seed), net_of(seed)
    order = np.concatenate([rng.permutation(3), 3 + rng.permutation(3)])
    one, other = scene(seed), scene(seed, order)
    for job in range(8, 12):
        (desk, n), (desk2, m) = weighed(one, net, job), weighed(other, net, job)
        assert (n > 0) == (m > 0)
        if n:
            assert desk2.logit[best_of(desk2, m)] == pytest.approx(desk.logit[best_of(desk, n)], rel=1e-6)


def test_a_gang_that_no_even_split_holds_is_placed_all_the_same():
    made = scene(0)
    made.room.free[:] = 0.0
    for g, gpus in ((0, 2.0), (2, 1.0), (4, 1.0)):
        made.room.free[g] = [gpus, 16.0, 100.0]
    gang = GangRequest(np.array([1.0, 2.0, 0.0]), np.array([0.0, 2.0, 0.0]), 4, 1, np.ones(1, np.bool_))
    found = candidate_buffer(8)
    order = np.array([[0, 1, 2]], np.int64)
    candidates(made.room, gang, 0, np.zeros(12, np.bool_), order, 24, found)
    assert found.n[0] == 1
    assert sorted(found.group[0, :4].tolist()) == [0, 0, 2, 4]


def test_a_job_that_does_not_fit_at_home_is_forwarded_and_one_that_may_not_leave_stays():
    jobs = trace("marl_jobs(load=5, n_pods=2, n_slots=4)", seed=3)
    made = Experiment.of(jobs, cluster=CLUSTER, interference="calibrated")
    for options, everybody in (({"forwards": True}, False), ({"forwards": False}, False)):
        run = made.run(make("marl", **options))
        assert run.summary["n_completed"] == len(jobs) if "n_completed" in run.summary else True
        assert everybody is False


@settings(max_examples=5)
@given(seed=st.integers(0, 100))
def test_the_same_weights_decide_on_any_number_of_pods(seed: int) -> None:
    for cluster, n_pods in (("fat_tree(4)", 4), ("no_network(6)", 1), ("vl2(4, 6, per_rack=2)", 6)):
        jobs = trace(f"marl_jobs(load=1, n_slots=2, n_pods={n_pods}, most_workers=2, most_ps=2)", seed=seed)
        run = Experiment.of(jobs, cluster=cluster, interference="calibrated").run("marl")
        assert np.isfinite(run.table["jct_s"]).all()


def test_shipped_weights_tell_where_they_come_from():
    assert "marl" in shipped()
    for name in shipped():
        assert load(name).source.startswith("labkit train-policy marl")


def test_weights_come_back_as_they_were(tmp_path):
    net = Net(*(part.astype(np.float32).astype(np.float64) for part in net_of(1, n_agents=3)))
    Weights(net, "here", TrainedFor.of(None)).save(tmp_path / "a.safetensors")
    again = load(tmp_path / "a.safetensors")
    assert again.source == "here"
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(net, again.net, strict=True))


def saved(tmp_path: Any, *, about: dict[str, str], **tensors: Any) -> str:
    from safetensors.numpy import save_file

    parts = {name: np.asarray(part, np.float32) for name, part in (plain()._asdict() | tensors).items()}
    path = str(tmp_path / "b.safetensors")
    save_file({name: part for name, part in parts.items() if part.size}, path, metadata=about)
    return path


MARL = {"policy": "marl", "version": FILES.version}


@pytest.mark.parametrize(
    ("about", "tensors", "told"),
    [
        ({"policy": "dl2", "version": FILES.version}, {}, "policy 'dl2', version '2'; expected 'marl', '2'"),
        ({"policy": "marl", "version": "0"}, {}, "version '0'; expected 'marl', '2'"),
        (MARL, {"out": np.zeros(3)}, "seen is of shape (6, 16); expected (6, 3)"),
        (MARL, {"first": np.zeros((1, 3, 16))}, f"expected (1, {len(FEATURES)}, 16)"),
        (MARL, {"wait": np.full((1, len(WAITING)), np.nan)}, "wait holds a number that is not finite"),
        (MARL, {"sharp": np.zeros(0)}, "it holds bias, first, last, out, seen, wait; expected"),
    ],
)
def test_weights_of_something_else_are_refused_in_a_line(tmp_path, about, tensors, told) -> None:
    with pytest.raises(InputError) as refused:
        load(saved(tmp_path, about=about, **tensors))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_names_and_options_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"weights of marl 'mar'\. Did you mean 'marl'"):
        make("marl", weights="mar")
    (tmp_path / "c.safetensors").write_text("nothing")
    with pytest.raises(InputError, match="not a safetensors file"):
        make("marl", weights=str(tmp_path / "c.safetensors"))


def test_a_snapshot_is_left_as_it_was():
    jobs = trace("marl_jobs(load=2, n_pods=2, n_slots=3)", seed=1)
    session = Experiment.of(jobs, cluster=CLUSTER, interference="calibrated").session(scheduler := make("marl"))
    snapshot: Snapshot = session.snapshot()
    free = snapshot.free.copy()
    first, second = scheduler.schedule(snapshot), scheduler.schedule(snapshot)
    assert np.array_equal(snapshot.free, free)
    assert np.array_equal(first.group, second.group)
    assert free[:, GPUS].sum() > 0


# --- a job is not forgotten, not sent on, and not judged by another interference


def gangs(rows: list[tuple[float, str, float, int, int, int]]) -> Jobs:
    """Return jobs of (arrival, model, seconds alone, workers, servers, home), as marl_jobs has them."""
    arrival_s, names, lasts_s, workers, servers, home = (list(column) for column in zip(*rows, strict=True))
    known = [catalogue.model(name) for name in names]
    step_s = [m.compute_s / w + 2 * m.bytes / p * 8e-9 / 128 for m, w, p in zip(known, workers, servers, strict=True)]
    return Jobs.of(
        arrival_s=arrival_s, model=names, duration_s=lasts_s, n_workers=workers, n_ps=servers, home=home,
        total_steps=np.maximum(1.0, np.round(np.array(lasts_s) / step_s)), ps_demand=amounts(cpus=2),
        worker_demand=amounts(gpus=1, cpus=2),
    )  # fmt: skip


@pytest.mark.parametrize("scheduler", ["marl", "look_ahead_pods(patience=1.01)"])
def test_a_job_that_finds_room_is_not_left_in_the_queue_until_something_else_happens(scheduler):
    """Two jobs of ten hours hold half of each pod; nothing else happens before they end."""
    jobs = gangs(
        [(0, "resnext-110", 36_000, 2, 2, 0), (0, "resnext-110", 36_000, 2, 2, 1), (60, "resnet-50", 600, 2, 1, 0)]
    )
    run = simulate(jobs, cluster="pods(2, 1)", scheduler=scheduler, speed="step-time", interference="calibrated")
    assert run.table["queueing_s"].iloc[2] <= 2 * 600 + 1


@pytest.mark.parametrize("scheduler", ["marl", "look_ahead_pods", "even_pods"])
def test_no_job_is_forwarded_twice_not_even_after_its_machine_failed(scheduler):
    for seed in range(3):
        jobs = trace("marl_jobs(load=2, n_pods=4, per_slot=3, n_slots=6)", seed=seed)
        faults = Faults(20_000.0, 600.0, 60.0)
        made = Experiment.of(
            jobs, cluster="pods(4, 2)", speed="step-time", interference="calibrated", seed=seed, faults=faults
        )  # fmt: skip
        rows = made.run(scheduler).events
        sent = rows["job"][rows["kind"] == Kind.FORWARDED]
        assert len(sent)
        assert len(set(sent.tolist())) == len(sent)


def measured_as(level_name: str, path: Path) -> Path:
    """Write measurements of the eight models beside others, and of a load generator, of the truth that a level is."""
    known, rng, rows = level(level_name), np.random.default_rng(0), []
    assert known is not None
    assert known.uses is not None
    for i in range(120):
        name, beside = str(rng.choice(DL2_MODELS)), rng.choice(DL2_MODELS, 1 + i % 3).tolist() if i % 2 else []
        mine, theirs = known.uses[name], [known.uses[other] for other in beside]
        cores = sum(use.worker_cores for use in theirs) if beside else float(rng.uniform(0.5, 14))
        moved = sum(use.pcie_gbps for use in theirs)
        slower = known.model.slowdown(mine.worker_cores, mine.pcie_gbps, co_cpu_cores=cores, co_pcie_gbps=moved)
        rows.append((name, "+".join(beside), mine.worker_cores, mine.pcie_gbps, cores, moved, 1.0, float(slower)))
    columns = "job,co_runners,cpu_cores,pcie_gbps,co_cpu_cores,co_pcie_gbps,alone_s,shared_s"
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_the_same_truth_from_a_file_is_worth_as_much_as_by_name(tmp_path):
    same, over_even = measured_as("calibrated", tmp_path / "same.csv"), []
    for seed in (1, 2):
        jobs = trace("marl_jobs(load=5, n_pods=2, per_slot=1.5, n_slots=16)", seed=seed)
        made = Experiment.of(jobs, cluster="pods(2, 10)", speed="step-time", interference=same)
        with pytest.warns(Caveat, match=r"trained with the interference 'calibrated', and this run has 'same.csv'"):
            mine = made.run("marl").summary["mean_jct_s"]
        over_even.append(mine / made.run("even").summary["mean_jct_s"])
    assert np.mean(over_even) < 0.98


def test_weights_keep_the_interference_of_their_training(tmp_path):
    weights = load("marl")
    assert weights.trained == TrainedFor.of(level("calibrated"), [build("marl-4x20")])
    weights.save(tmp_path / "mine.safetensors")
    assert load(tmp_path / "mine.safetensors").trained == weights.trained
    FILES.write(tmp_path / "odd.safetensors", weights.net._asdict(), interference="x", truth="y", use="-1")
    with pytest.raises(InputError, match="its use is '-1', which cannot be read"):
        load(tmp_path / "odd.safetensors")


def test_gangs_with_more_placements_than_are_weighed_are_told():
    jobs = gangs([(0, "resnet-50", 600, 8, 8, 0), (0, "resnet-50", 600, 2, 2, 0)])
    for name in ("marl", "look_ahead_pods"):
        said = make(name).cautions(jobs, build("pods(2, 24)"), None)
        assert not said
        assert make(name).cautions(jobs, build("pods(4, 24)"), None)[0].startswith("1 jobs have gangs of up to 7,776")
