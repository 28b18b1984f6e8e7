"""MARL as published: convolution, networks, A2C, rewards, training and the environment. Sections are those of [1].

[1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", IEEE TNSM 2021.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from labkit.core import Jobs
from labkit.core.errors import InputError, LabkitError
from labkit.core.resources import amounts
from labkit.experiment import Experiment
from labkit.learning.training import Course, read_state
from labkit.topology import build
from reproductions.marl.episode import Episode, PlacementEnv, decide, rewards
from reproductions.marl.graphs import Form, graphs_of
from reproductions.marl.learner import Ecc, GraphBatch, Learner, Net, Wires, wires_of
from reproductions.marl.policy import shapes
from reproductions.marl.scheduler import PublishedMarl
from reproductions.marl.switches import Published
from reproductions.marl.trainer import Trainer

MODELS = ("resnet-50", "vgg-16", "wlm")
PODS = build("leaf_spine(2, 1, 2, gbps=(10, 20))")
SMALL = Published(n_epochs=2, n_jobs=6, width=4, n_state=8)


def experiment(rng: np.random.Generator) -> Experiment:
    n = 10
    jobs = Jobs.of(
        arrival_s=np.sort(rng.uniform(0, 7200, n)), total_steps=1000, duration_s=rng.uniform(600, 9000, n),
        n_workers=rng.integers(1, 4, n), n_ps=rng.integers(1, 3, n), worker_demand=amounts(gpus=1, cpus=2),
        ps_demand=amounts(cpus=2), home=rng.integers(0, 2, n), model=rng.choice(MODELS, n).tolist(),
    )  # fmt: skip
    return Experiment.of(jobs, cluster=PODS, speed="recorded")


def trainer(**switches: object) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(experiment, PODS, MODELS, seed=3, switches=replace(SMALL, **switches))


def some_graph(seed: int = 0, *, n: int = 9, e: int = 30) -> tuple[Wires, torch.Tensor]:
    """Return edges between 9 nodes, into the last of which there is none, and their features."""
    torch.manual_seed(seed)
    return Wires.between(torch.randint(n, (e,)), torch.randint(n - 1, (e,)), n_nodes=n), torch.rand(e, 3)


# --- the convolution (sec. IV-A)


def test_the_factored_convolution_is_the_one_with_weights_per_edge():
    """By definition: a_i = (1 / |N(i)|) sum_j F(e_ji) h_j + b, with F's outcome a matrix of each edge."""
    wires, edges = some_graph()
    layer, h = Ecc(5, 4), torch.randn(9, 5)
    blocks = layer.filter.reshape(4, 5, 4)  # W_0, W_1, W_2, W_3
    expected = torch.zeros(9, 4)
    for i in range(9):
        into = torch.nonzero(wires.target == i)[:, 0]
        for k in into.tolist():
            matrix = blocks[0] + sum(edges[k, c] * blocks[1 + c] for c in range(3))
            expected[i] += h[wires.source[k]] @ matrix / len(into)
    torch.testing.assert_close(layer.around(h, wires, edges), expected + layer.bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(h, wires, edges), torch.relu(torch.cat([h, expected], 1) @ layer.weight))


@pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params' parameter:DeprecationWarning")
def test_the_convolution_is_torch_geometrics_nnconv():
    """Simonovsky and Komodakis' layer as another library has it, with the mean over neighbours and no root weight."""
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed (labkit[dev])")
    wires, edges = some_graph(1)
    layer, h = Ecc(5, 4), torch.randn(9, 5)
    network = torch.nn.Linear(3, 5 * 4)
    other = geometric.NNConv(5, 4, network, aggr="mean", root_weight=False, bias=False)  # draws the network anew
    with torch.no_grad():
        blocks = layer.filter.reshape(4, 20)
        network.weight.copy_(blocks[1:].T)
        network.bias.copy_(blocks[0])
        theirs = other(h, torch.stack([wires.source, wires.target]), edges)
    torch.testing.assert_close(layer.around(h, wires, edges).detach(), theirs, rtol=1e-5, atol=1e-5)


def test_a_batch_of_graphs_is_convolved_as_one_by_one():
    wires, _ = some_graph()
    layer, h, edges = Ecc(5, 4), torch.randn(7, 9, 5), torch.rand(7, 30, 3)
    one_by_one = torch.stack([layer(h[b], wires, edges[b]) for b in range(7)])
    torch.testing.assert_close(layer(h, wires, edges), one_by_one)
    torch.testing.assert_close(layer(h, wires, edges[0]), torch.stack([layer(h[b], wires, edges[0]) for b in range(7)]))


def test_gradients_of_the_convolution_are_the_numerical_ones():
    wires, edges = some_graph(2)
    layer = Ecc(3, 2).double()
    h, edges = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True), edges.double().requires_grad_(True)
    parameters = tuple(layer.parameters())

    def run(h, edges, *given):
        named = dict(zip((name for name, _ in layer.named_parameters()), given, strict=True))
        return torch.func.functional_call(layer, named, (h, wires, edges))

    assert torch.autograd.gradcheck(run, (h, edges, *parameters))


# --- the networks


@pytest.mark.parametrize(
    "switches", [{}, {"level": "server"}, {"agents": "one"}, {"head": "flat"}, {"current_first": False}]
)
def test_the_network_without_torch_is_that_of_torch(switches):
    made = trainer(**switches)
    assert {name: part.shape for name, part in made.learner.nets[0].params().items()} == shapes(made.form)
    episode = Episode(experiment(np.random.default_rng(0)), made.graphs, made.weights(""), slot_s=1800.0)
    slot = episode.slot(np.random.default_rng(0))
    minds, told = episode.minds(slot), []
    batches = []
    while slot.task is not None:
        seen = slot.see()
        told.append(np.where(seen.mask, minds.scores(seen), -1e9))
        batches.append(seen)
        slot.take(int(told[-1].argmax()))
    agent = batches[0].agent
    mine = [k for k, seen in enumerate(batches) if seen.agent == agent]
    batch = GraphBatch.of([batches[k] for k in mine], told=minds.told, edges=minds.inner, inter_edges=minds.inter)
    (inner, n), (inter, m) = wires_of(made.graphs.inner[agent]), wires_of(made.graphs.inter)
    scores, _ = made.learner.nets[0](batch, inner, inter, n, m)
    np.testing.assert_allclose(scores.detach().numpy(), np.stack([told[k] for k in mine]), rtol=1e-4, atol=1e-5)


def test_actor_and_critic_have_one_hidden_layer_of_128_and_the_graphs_4_and_2_layers():
    form = Form(models=MODELS)
    net = Net(form)
    assert (len(net.inner), len(net.inter)) == (4, 2)
    assert net.place.first.shape[1] == net.elsewhere.first.shape[1] == net.critic.first.shape[1] == 128
    assert len(Net(replace(form, agents="one")).inter) == 0  # sec. VI-E


# --- rewards and updates (sec. IV-C)


def test_the_progress_of_each_job_sums_to_one():
    made, rng = trainer(), np.random.default_rng(5)
    episode = Episode(experiment(rng), made.graphs, made.weights(""), slot_s=1800.0)
    total = 0.0
    while not episode.over:
        slot, _ = decide(episode, rng, n_agents=2)
        gained = episode.end(slot)
        assert (gained >= -1e-12).all()
        total = total + gained
    np.testing.assert_allclose(total, 1.0, atol=1e-9)


def test_a_task_is_worth_its_jobs_progress_or_the_mean_of_its_pod_or_of_all():
    made, rng = trainer(), np.random.default_rng(6)
    episode = Episode(experiment(rng), made.graphs, made.weights(""), slot_s=1800.0)
    episode.skip()
    slot, did = decide(episode, rng, n_agents=2)
    gained, held = episode.end(slot), slot.held()
    assert did.n_tasks
    for kind in ("own", "pod", "all"):
        told = rewards(did, gained, made.graphs, slot, kind=kind)
        for agent in range(2):
            mine = {"own": gained[did.job[agent]], "pod": gained[held[agent]].mean() if held[agent] else 0,
                    "all": gained[held[0] + held[1]].mean()}[kind]  # fmt: skip
            np.testing.assert_allclose(told[agent], np.broadcast_to(mine, len(did.job[agent])), rtol=1e-5)


def test_a_task_is_worth_its_jobs_speed_however_long_the_job_is():
    """1 for a job that made in the interval what it would have made alone; a short one, if it was done."""
    made, rng = trainer(), np.random.default_rng(6)
    episode = Episode(experiment(rng), made.graphs, made.weights(""), slot_s=1800.0)
    episode.skip()
    slot, did = decide(episode, rng, n_agents=2)
    gained = np.minimum(1800.0 / slot.snapshot.table.duration_s, 1.0)
    for told in rewards(did, gained, made.graphs, slot, kind="speed", slot_s=1800.0):
        np.testing.assert_allclose(told, 1.0, rtol=1e-6)


def test_an_update_makes_what_was_worth_more_than_expected_more_probable():
    """The actor's gradient is that of -log pi(a|s) A(s, a)."""
    made, rng = trainer(entropy=0.0, discount=0.0, rate=1e-3), np.random.default_rng(7)
    episode = Episode(experiment(rng), made.graphs, made.weights(""), slot_s=1800.0)
    slot, did = decide(episode, rng, n_agents=2)
    while not did.n_tasks:
        episode.end(slot)
        slot, did = decide(episode, rng, n_agents=2)
    before = chances_of(made, did)
    for _ in range(3):
        made.learner.update(did, [np.full(len(action), 5.0, np.float32) for action in did.action])
    assert chances_of(made, did) > before


def chances_of(made, did) -> float:
    """Return the logarithm of the chance of what schedulers did, in all."""
    total = 0.0
    for agent, action in enumerate(did.action):
        if action:
            batch = GraphBatch.of(did.seen[agent], told=did.told, edges=did.inner, inter_edges=did.inter)
            (inner, n), (inter, m) = wires_of(made.graphs.inner[agent]), wires_of(made.graphs.inter)
            scores, _ = made.learner.nets[0](batch, inner, inter, n, m)
            total += float(torch.log_softmax(scores[:-1], 1)[torch.arange(len(action)), action].sum().detach())
    return total


@pytest.mark.parametrize("switches", [{}, {"shared": False}, {"agents": "one"}, {"head": "flat"}, {"level": "server"},
                                      {"reward": "pod", "clip": 1.0}])  # fmt: skip
def test_the_same_seed_gives_the_same_weights(switches):
    made = [trainer(**switches) for _ in range(2)]
    for each in made:
        for _ in each.updates():
            pass
    for one, other in zip(made[0].weights("").nets, made[1].weights("").nets, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert len(made[0].weights("").nets) == (2 if switches.get("shared") is False else 1)
    jobs = experiment(np.random.default_rng(9))
    scheduler = PublishedMarl(made[0].weights(""))
    jobs.session(scheduler).run(scheduler)


def test_a_number_that_is_not_finite_stops_the_training_and_the_last_good_weights_are_kept(tmp_path, monkeypatch):
    made, update = trainer(n_epochs=5), Learner.update
    good: list[np.ndarray] = []

    def poisoned(self, did, reward):
        if self.n_updates == 3:
            good[:] = [part.copy() for part in made.weights("").nets[0].values()]
            reward = [one * np.nan for one in reward]
        return update(self, did, reward)

    monkeypatch.setattr(Learner, "update", poisoned)
    with pytest.raises(LabkitError, match=r"the loss of step 4 is nan .*The weights are those before it"):
        Course(out=tmp_path / "w.safetensors", source="x", say=lambda _: None).run(made)
    kept = PublishedMarl(str(tmp_path / "w.safetensors"))._weights.nets[0]
    assert all(np.array_equal(a, b) for a, b in zip(good, kept.values(), strict=True))


def test_a_training_that_goes_on_is_the_one_that_was_not_stopped(tmp_path):
    whole = trainer()
    for _ in whole.updates():
        pass
    begun = trainer()
    begun.update()
    torch.save(begun.state(), tmp_path / "s.state")
    again = trainer().go_on(read_state(tmp_path / "s.state"))
    for _ in again.updates():
        pass
    mine, theirs = (each.weights("").nets[0] for each in (again, whole))
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    with pytest.raises(InputError, match=r"has rate 0\.0001; expected 0\.01"):
        trainer(rate=0.01).go_on(read_state(tmp_path / "s.state"))


def test_odd_switches_are_refused():
    with pytest.raises(InputError, match="discount is 2"):
        Published(discount=2)
    with pytest.raises(InputError, match="unknown level 'rack'"):
        Published(level="rack")
    uneven = replace(PODS, partition=np.array([0, 1, 1, 1], np.int32))
    with pytest.raises(InputError, match="head is flat, and pods have 2 to 6 places; take head=equivariant"):
        Published(head="flat").form(MODELS, graphs_of(uneven))


# --- the environment


def test_the_environment_is_one_of_gymnasium():
    env = PlacementEnv(experiment, PODS, MODELS, switches=SMALL)
    check_env(env, skip_render_check=True)


def test_an_episode_of_the_environment_is_worth_the_number_of_jobs():
    env, rng = PlacementEnv(experiment, PODS, MODELS, switches=SMALL), np.random.default_rng(0)
    for level in ("device", "server"):
        env = PlacementEnv(experiment, PODS, MODELS, switches=replace(SMALL, level=level))
        _, info = env.reset(seed=1)
        total, over = 0.0, False
        while not over:
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            _, reward, terminated, truncated, info = env.step(action)
            total, over = total + reward, terminated or truncated
        assert terminated
        assert total == pytest.approx(10)
