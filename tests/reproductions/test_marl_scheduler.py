"""MARL as published: graphs, what an agent sees, masks, forwarding, and files of weights. Sections are those of [1].

[1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", IEEE TNSM 2021.
"""

import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.resources import amounts
from labkit.experiment import Experiment
from labkit.experiment.session import Session
from labkit.schedulers import make
from labkit.testing import check_scheduler
from labkit.topology import build
from labkit.topology.export import inner_graph, inter_graph
from reproductions.marl.graphs import GROUP, SERVER, SWITCH, Form, graphs_of, relabelled
from reproductions.marl.policy import encode, shapes
from reproductions.marl.scheduler import MarlWeights, PublishedMarl, load_published
from reproductions.marl.slot import Declared, PlacementSlot

MODELS = ("resnet-50", "vgg-16", "wlm")


def weights(form: Form, *, n: int = 1, seed: int = 0) -> MarlWeights:
    rng = np.random.default_rng(seed)
    nets = [
        {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes(form).items()} for _ in range(n)
    ]
    return MarlWeights(tuple(nets), form, 1800.0, "drawn at random")


def some_jobs(n: int = 12, *, n_pods: int = 2, seed: int = 0, **columns: object) -> Jobs:
    rng = np.random.default_rng(seed)
    given_ = {
        "arrival_s": np.sort(rng.uniform(0, 3600, n)), "total_steps": 1000, "duration_s": rng.uniform(600, 7200, n),
        "n_workers": rng.integers(1, 4, n), "n_ps": rng.integers(1, 3, n), "worker_demand": amounts(gpus=1, cpus=2),
        "ps_demand": amounts(cpus=2), "home": rng.integers(0, n_pods, n), "model": rng.choice(MODELS, n).tolist(),
    }  # fmt: skip
    given_ |= columns
    return Jobs.of(**given_ | {"arrival_s": np.broadcast_to(given_["arrival_s"], n)})


PODS = "leaf_spine(2, 1, 2, gbps=(10, 20))"
"""Two racks of two four-GPU servers, each a pod."""


def session_of(jobs: Jobs, cluster: str = PODS) -> Session:
    experiment = Experiment.of(jobs, cluster=cluster, speed="recorded")
    return Session(experiment.simulator(), runs_on=experiment.speed.runs_on(), on_stall="stop")


def slot_of(session: Session, form: Form | None = None, **options: object) -> PlacementSlot:
    form, snapshot = form or Form(models=MODELS, n_jobs=6), session.snapshot()
    graphs = graphs_of(snapshot.cluster, level=form.level, agents=form.agents)
    return PlacementSlot(snapshot, graphs, Declared(snapshot.table, form), form, np.random.default_rng(0), **options)


# --- graphs (sec. IV-A, VI-A)


def test_the_fat_trees_inner_graph_has_411_nodes_and_1020_edges_and_the_inter_graph_2000_links():
    graphs = graphs_of(build("fat_tree(20)"))
    assert {(graph.n_nodes, graph.n_edges, graph.n_places) for graph in graphs.inner} == {(411, 1020, 200)}
    assert (graphs.n_agents, graphs.inter.n_nodes, graphs.inter.n_edges) == (20, 20 + 100, 2 * 2000)
    assert set(graphs.inner[0].gbps) == {128, 300, 10, 10 * 20}
    assert set(graphs.inter.gbps) == {40}


def test_vl2s_inner_graph_has_406_nodes():
    graphs = graphs_of(build("vl2(20, 20)"))
    assert {graph.n_nodes for graph in graphs.inner} == {200 + 200 + 5 + 1}


def test_a_server_level_graph_has_servers_and_switches():
    graph = graphs_of(build("fat_tree(20)"), level="server").inner[0]
    assert np.bincount(graph.kind, minlength=5).tolist() == [0, 0, 100, 11, 0]
    assert graph.kind[0] == SERVER
    assert len(graph.groups) == 200


def test_one_agent_has_all_groups_and_switches():
    graph = graphs_of(build("fat_tree(4)"), agents="one").inner[0]
    assert (graph.kind == GROUP).sum() == 32
    assert (graph.kind == SWITCH).sum() == 4 * (2 + 1) + 4  # edge switches, aggregation fused by pod, core


@pytest.mark.parametrize("what", ["fat_tree(4)", "vl2(4, 4, per_rack=3)", "bcube(3, 2)", PODS])
def test_graphs_are_those_of_networkx(what):
    cluster = build(what)
    graphs = graphs_of(cluster)
    for pod, mine in enumerate(graphs.inner):
        assert same_edges(mine, inner_graph(cluster, pod))
    assert same_edges(graphs.inter, inter_graph(cluster))


def same_edges(mine, theirs: nx.DiGraph) -> bool:
    told = sorted((round(d["gbps"], 6), d["tier"]) for _, _, d in theirs.edges(data=True))
    degrees = sorted(degree for _, degree in theirs.in_degree())
    edges = sorted(zip(mine.gbps.round(6).tolist(), mine.tier.tolist(), strict=True))
    return told == edges and degrees == sorted(np.diff(mine.first).tolist()) and len(theirs) == mine.n_nodes


def test_graphs_are_built_once():
    cluster = build("fat_tree(4)")
    assert graphs_of(cluster) is graphs_of(cluster)


def test_the_load_of_an_edge_is_what_its_links_carry_of_what_they_could():
    cluster = build("fat_tree(4, gbps=(10, 20, 40))")
    graph = graphs_of(cluster).inner[0]
    load = np.zeros(cluster.network.n_links)
    fused = np.bincount(graph.edge) == 2  # an edge switch reaches the fused one by two links
    one = graph.link[graph.edge == np.flatnonzero(fused)[0]][0]
    load[one] = 0.5
    features = graph.features(load, np.full(cluster.n_groups, 0.25))
    assert features[np.flatnonzero(fused)[0]].tolist() == pytest.approx([40 / 128, 0.25, 2 / 3])
    assert features[graph.bus, 1] == pytest.approx(0.25)


# --- what an agent sees (sec. IV-A)


def test_x_and_d_are_as_in_the_texts_examples():
    jobs = some_jobs(
        3, model=list(MODELS), n_workers=3, n_ps=2, worker_demand=amounts(gpus=1, cpus=3), ps_demand=amounts(cpus=2),
        arrival_s=[0, 1, 2],
    )  # fmt: skip
    told = Declared(jobs, Form(models=MODELS))
    assert told.models.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert told.demands.tolist() == [[3, 3, 1, 2, 2, 0]] * 3
    assert told.tasks[1, Role.WORKER].tolist() == [0, 0, 1, 0, 3, 3, 1]
    assert told.tasks[1, Role.PS].tolist() == [1, 0, 1, 0, 2, 2, 0]


def test_sizes_are_those_of_the_text():
    form = Form(models=tuple("abcdefgh"), n_jobs=64, head="flat", n_places=200, n_agents=20, width=16)
    assert form.n_node == 2 + 2 * 64
    assert form.n_seen == 512 + 384 + 3200 + 12  # X, D, H, C
    assert shapes(form)["actor.last"] == (128, 200 + 20)  # 219 actions, and itself, which is masked
    assert shapes(form)["critic.first"] == (form.n_whole, 128)
    assert form.n_whole == 3 * form.n_state


def test_a_node_shows_what_is_free_and_the_tasks_of_the_job_that_is_placed_first():
    session = session_of(some_jobs(2, arrival_s=0, n_workers=2, n_ps=1, home=0))
    slot = slot_of(session)
    assert slot.see().nodes[:, :2].tolist() == [[8, 2]] * 4
    slot.take(1)
    seen = slot.see()
    assert seen.nodes[:, :2].tolist() == [[8, 2], [6, 1], [8, 2], [8, 2]]
    assert seen.nodes[:, 2:4].tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    slot.take(1), slot.take(0)  # the second worker, and the PS
    assert slot.task.job == 1
    seen = slot.see()
    assert not seen.nodes[:, 2:4].any()
    assert seen.nodes[:, 4:6].tolist() == [[0, 1], [2, 0], [0, 0], [0, 0]]


def test_by_arrival_the_first_job_stays_first():
    session = session_of(some_jobs(2, arrival_s=0, n_workers=1, n_ps=0, home=0))
    slot = slot_of(session, Form(models=MODELS, n_jobs=6, current_first=False))
    slot.take(2)
    assert slot.see().nodes[:, 2].tolist() == [0, 0, 1, 0]


def test_an_unknown_model_is_refused():
    with pytest.raises(InputError, match=r"job 0 trains bert, which the network has not met; it knows resnet-50"):
        Declared(some_jobs(1, model="bert"), Form(models=MODELS))


# --- masks and forwarding (sec. IV-B)


@given(seed=st.integers(0, 10_000), level=st.sampled_from(["device", "server"]), elsewhere=st.booleans())
def test_a_mask_never_lets_a_task_through_that_finds_no_room_and_jobs_are_forwarded_once(seed, level, elsewhere):
    session, rng = session_of(some_jobs(30, seed=seed, arrival_s=0)), np.random.default_rng(seed)
    slot = slot_of(session, Form(models=MODELS, n_jobs=6, level=level), room_elsewhere=elsewhere)
    forwarded: dict[int, int] = {}
    while slot.task is not None:
        task, mask = slot.task, slot.mask
        n_places = slot.graphs.inner[task.agent].n_places
        assert not mask[n_places + task.agent]  # not to itself
        if task.job in forwarded:
            assert task.agent == forwarded[task.job]
            assert not mask[n_places:].any()
        action = int(rng.choice(np.flatnonzero(mask)))
        if action >= n_places:
            forwarded[task.job] = action - n_places
        slot.take(action)  # the trial refuses what does not fit
    session.step(slot.placement())  # and so does the backend
    gangs = session.snapshot().allocations
    assert np.isin(gangs["n_workers"], [0, *np.unique(session.backend.jobs.n_workers)]).all()
    whole = (gangs["n_workers"] == session.backend.jobs.n_workers) & (gangs["n_ps"] == session.backend.jobs.n_ps)
    assert (whole | ((gangs["n_workers"] == 0) & (gangs["n_ps"] == 0))).all()


def test_what_is_not_allowed_is_refused():
    slot = slot_of(session_of(some_jobs(1, arrival_s=0, home=0)))
    with pytest.raises(InputError, match=r"action 4 is not allowed here"):
        slot.take(4)  # to itself


def test_a_full_pod_leaves_forwarding_alone():
    session = session_of(some_jobs(3, arrival_s=0, n_workers=8, n_ps=0, home=0))
    slot = slot_of(session)
    while slot.task is not None and slot.task.job == 0:
        slot.take(int(np.flatnonzero(slot.mask)[0]))
    assert slot.task.job == 1
    assert np.flatnonzero(slot.mask).tolist() == [4 + 1]
    slot.take(5)
    assert slot.task.job == 2
    slot.take(5)  # pod 1 is still empty
    while slot.task is not None:
        assert (slot.task.agent, slot.task.job) == (1, 1)
        slot.take(int(np.flatnonzero(slot.mask)[0]))
    assert slot.placement().set_jobs.tolist() == [0, 1]  # job 2 found pod 1 full and waits


def test_one_agent_forwards_no_job():
    session = session_of(some_jobs(6, arrival_s=0))
    slot = slot_of(session, Form(models=MODELS, agents="one"))
    while slot.task is not None:
        assert len(slot.mask) == 8 + 1
        assert not slot.mask[-1]
        slot.take(int(np.flatnonzero(slot.mask)[0]))


# --- networks


@given(seed=st.integers(0, 1000))
def test_the_network_does_not_care_in_which_order_nodes_are_numbered(seed):
    """Permutation equivariance: places in another order have their embeddings in that order, and the state stays."""
    rng = np.random.default_rng(seed)
    graph, form = graphs_of(build("fat_tree(4)")).inner[1], Form(models=MODELS, n_jobs=3)
    net, slot = weights(form, seed=seed).net(0), slot_of(session_of(some_jobs(4, arrival_s=0)), form)
    nodes = rng.random((graph.n_places, form.n_node)).astype(np.float32)
    seen = replace(slot.see(), nodes=nodes)
    edges = rng.random((graph.n_edges, 3)).astype(np.float32)
    state, places = encode(net, form, seen, graph, edges)
    order = np.concatenate([rng.permutation(graph.n_places), graph.n_places + rng.permutation(graph.n_nodes - 8)])
    other = relabelled(graph, order)
    ends = {(int(a), int(b)): e for a, b, e in zip(graph.source, graph.target, edges, strict=True)}
    moved = np.stack([ends[int(order[a]), int(order[b])] for a, b in zip(other.source, other.target, strict=True)])
    again, elsewhere = encode(net, form, replace(seen, nodes=nodes[order[:8]]), other, moved)
    np.testing.assert_allclose(again, state, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(elsewhere, places[order[:8]], rtol=1e-4, atol=1e-4)


# --- the scheduler, and files


def test_it_is_a_scheduler():
    check_scheduler(Anyone())


class Anyone:
    """The published form with a network that knows the models of whatever jobs there are."""

    def schedule(self, snapshot):
        form = Form(models=tuple(snapshot.table.models), n_jobs=5, n_state=8, n_encoder=8, n_hidden=8, width=4)
        return PublishedMarl(weights(form)).schedule(snapshot)


@pytest.mark.parametrize(
    "form", [{}, {"level": "server"}, {"agents": "one"}, {"head": "flat", "n_places": 4, "n_agents": 2}]
)
def test_weights_decide_alike_after_they_were_saved(tmp_path, form):
    made = weights(Form(models=MODELS, n_jobs=6, **form))
    made.save(tmp_path / "w.safetensors")
    jobs = some_jobs(20)
    runs = [
        Experiment.of(jobs, cluster=PODS, speed="recorded").session(scheduler).run(scheduler)
        for scheduler in (PublishedMarl(made), make(f"marl(published=True, weights='{tmp_path}/w.safetensors')"))
    ]
    assert runs[0].tobytes() == runs[1].tobytes()
    kept = load_published(tmp_path / "w.safetensors")
    assert (kept.form, kept.slot_s, kept.source) == (made.form, 1800.0, "drawn at random")


def refusal(path) -> str:
    with pytest.raises(InputError) as told:
        load_published(path)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_other_files_are_refused_in_one_line(tmp_path):
    path, form = tmp_path / "w.safetensors", Form(models=MODELS)
    weights(form).save(path)
    tensors = load_file(path)
    about = {"policy": "marl as published", "version": "1", "form": json.dumps(json.loads(_about(path))), "n_nets": "1",
             "slot_s": "1800.0"}  # fmt: skip
    for change, told in (
        ({"policy": "dl2"}, "policy 'dl2', version '1'; expected 'marl as published', '1'. Train it"),
        ({"version": "0"}, "version '0'; expected"),
    ):
        save_file(tensors, path, metadata=about | change)
        assert told in refusal(path)
    save_file({k: v for k, v in tensors.items() if k != "0.critic.last"}, path, metadata=about)
    assert "it lacks 0.critic.last" in refusal(path)
    save_file(tensors | {"0.critic.last": tensors["0.critic.last"][1:]}, path, metadata=about)
    assert "0.critic.last is of shape (127, 1); expected (128, 1)" in refusal(path)
    save_file(tensors | {"0.critic.last": tensors["0.critic.last"] * np.nan}, path, metadata=about)
    assert "holds a number that is not finite" in refusal(path)
    assert "expected the path of a .safetensors file" in refusal(tmp_path / "w.pt")
    assert "not a safetensors file" in refusal(_garbage(tmp_path))


def _about(path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return file.metadata()["form"]


def _garbage(folder):
    path = folder / "g.safetensors"
    path.write_bytes(b"nothing of the kind")
    return path


def begun(scheduler, jobs: Jobs, cluster: str = PODS) -> str:
    experiment = Experiment.of(jobs, cluster=cluster, speed="recorded")
    with pytest.raises(InputError) as told:
        experiment.session(scheduler).run(scheduler)
    return str(told.value)


def test_runs_that_the_networks_are_not_for_are_refused():
    flat = Form(models=MODELS, head="flat", n_places=4, n_agents=2)
    assert "a flat head is for 2 pods of 4 places" in begun(PublishedMarl(weights(flat)), some_jobs(), "fat_tree(4)")
    two = PublishedMarl(weights(Form(models=MODELS), n=2))
    assert "the weights of 2 schedulers, one network each" in begun(two, some_jobs(), "fat_tree(4)")
    one = PublishedMarl(weights(Form(models=MODELS)))
    assert "job 2 arrives in pod 2; leaf_spine" in begun(one, some_jobs(n_pods=4, seed=1))
    assert "trains bert" in begun(one, some_jobs(model="bert"))
