"""The networks of MARL as published, without torch: edge-conditioned convolutions, encoder, actor (sec. IV).

An inner layer with edge features e (3,), one linear layer F(e) = sum_k e_k W_k + W_0 and the mean over in-edges [1]_:

    a_i = (1 / |N(i)|) sum_j F(e_ji) h_j + b,    h_i' = ReLU(W [h_i || a_i]).

F is linear, so the sum is (3 + 1) weighted sums of h_j and one product with [W_0; W_1; W_2; W_3]: no weights per edge.

References
----------
.. [1] Simonovsky and Komodakis, "Dynamic edge-conditioned filters in convolutional neural networks on graphs", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import kernel
from reproductions.marl.graphs import N_EDGE, N_KINDS, Form, Graph, Numbers
from reproductions.marl.slot import AgentView

Params = Mapping[str, Numbers]

SCALE_FREE: Final = (1 / 8, 1 / 4)
"""Cores and GPUs that are free, brought to about 1."""
SCALE_TASKS: Final = 1 / 2
SCALE_DEMAND: Final = 1 / 4
NEVER: Final = -1e9
"""The score of what is not allowed."""


def shapes(form: Form) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a network, and their shapes."""
    told: dict[str, tuple[int, ...]] = {}
    n_in = form.n_node
    for k in range(form.inner_layers):
        told |= _layer(f"inner.{k}", n_in, form.width)
        n_in = form.width
    told |= _two("encoder", form.n_seen, form.n_encoder, form.n_state)
    for k in range(form.n_layers_of_state - 1):
        told |= _layer(f"inter.{k}", form.n_state, form.n_state)
    told |= _two("critic", form.n_whole, form.n_hidden, 1)
    if form.head == "flat":
        return told | _two("actor", form.n_whole, form.n_hidden, form.n_places + form.n_agents)
    told |= _two("place", form.n_whole + form.width, form.n_hidden, 1)
    return told | _two("elsewhere", 2 * form.n_whole, form.n_hidden, 1)


def _layer(name: str, n_in: int, n_out: int) -> dict[str, tuple[int, ...]]:
    filters = {f"{name}.filter": ((N_EDGE + 1) * n_in, n_out), f"{name}.bias": (n_out,)}
    return filters | {f"{name}.weight": (n_in + n_out, n_out)}


def _two(name: str, n_in: int, n_hidden: int, n_out: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one hidden layer and a linear one."""
    hidden = {f"{name}.first": (n_in, n_hidden), f"{name}.first_bias": (n_hidden,)}
    return hidden | {f"{name}.last": (n_hidden, n_out), f"{name}.last_bias": (n_out,)}


@kernel
def gather(h: Numbers, source: Ints, first: Ints, edges: Numbers) -> Numbers:
    """Return the mean over the edges into each node of h, e_1 h, e_2 h and e_3 h, (V, 4 F); 0 without edges."""
    n, f = len(first) - 1, h.shape[1]
    out = np.zeros((n, (edges.shape[1] + 1) * f), np.float32)
    for v in range(n):
        begin, end = first[v], first[v + 1]
        for e in range(begin, end):
            s = source[e]
            for i in range(f):
                if h[s, i] != 0:
                    out[v, i] += h[s, i]
                    for k in range(edges.shape[1]):
                        out[v, (k + 1) * f + i] += edges[e, k] * h[s, i]
        if end > begin:
            out[v] /= np.float32(end - begin)
    return out


def layer(params: Params, name: str, h: Numbers, graph: Graph, edges: Numbers) -> Numbers:
    """Return the next layer's features of all nodes, (V, F')."""
    around = gather(h, graph.source, graph.first, edges) @ params[f"{name}.filter"] + params[f"{name}.bias"]
    return np.maximum(np.hstack([h, around]) @ params[f"{name}.weight"], np.float32(0))


def two(params: Params, name: str, x: Numbers) -> Numbers:
    """Return what one hidden layer of ReLU and a linear one make of x, (..., F')."""
    hidden = np.maximum(x @ params[f"{name}.first"] + params[f"{name}.first_bias"], np.float32(0))
    out: Numbers = hidden @ params[f"{name}.last"] + params[f"{name}.last_bias"]
    return out


def scaled(nodes: Numbers) -> Numbers:
    """Return features of places brought to about 1, (P, R + 2 J)."""
    out = nodes * np.float32(SCALE_TASKS)
    out[..., :N_KINDS] = nodes[..., :N_KINDS] * np.array(SCALE_FREE, np.float32)
    return np.asarray(out, np.float32)


def scaled_task(task: Numbers, form: Form) -> Numbers:
    """Return C with its numbers brought to about 1, (..., M + R + 2)."""
    at = 1 + len(form.models)
    out = task.copy()
    out[..., at:] *= np.float32(SCALE_DEMAND)
    return out


def encode(params: Params, form: Form, seen: AgentView, graph: Graph, edges: Numbers) -> tuple[Numbers, Numbers]:
    """Return h0 of a scheduler (D,), and the embeddings of its places, (P, W): the inner graph and the encoder."""
    h = np.zeros((graph.n_nodes, form.n_node), np.float32)
    h[: graph.n_places] = scaled(seen.nodes)
    for k in range(form.inner_layers):
        h = layer(params, f"inner.{k}", h, graph, edges)
    places = h[: graph.n_places]
    about = places.ravel() if form.head == "flat" else np.concatenate([places.mean(axis=0), places.max(axis=0)])
    demands = seen.demands.ravel() * np.float32(SCALE_DEMAND)
    whole = np.concatenate([seen.models.ravel(), demands, about, scaled_task(seen.task, form)])
    return np.maximum(two(params, "encoder", whole), np.float32(0)), places


def states(params: Params, form: Form, told: Numbers, inter: Graph, edges: Numbers) -> Numbers:
    """Return s = h0 || h1 || h2 of each scheduler, (N, 3 D), from what each told the others, h0 (N, D)."""
    parts = [told]
    h = np.zeros((inter.n_nodes, form.n_state), np.float32)
    h[: len(told)] = told
    for k in range(form.n_layers_of_state - 1):
        h = layer(params, f"inter.{k}", h, inter, edges)
        parts.append(h[: len(told)])
    return np.hstack(parts)


def scores(params: Params, form: Form, whole: Numbers, places: Numbers, agent: int) -> Numbers:
    """Return the score of each action of a scheduler, (P + N,): places, then schedulers."""
    mine = whole[agent]
    if form.head == "flat":
        return two(params, "actor", mine)
    to_place = two(params, "place", np.hstack([np.broadcast_to(mine, (len(places), len(mine))), places]))[:, 0]
    to_agent = two(params, "elsewhere", np.hstack([np.broadcast_to(mine, whole.shape), whole]))[:, 0]
    return np.concatenate([to_place, to_agent])


def value(params: Params, whole: Numbers, agent: int) -> float:
    """Return what the critic expects of a scheduler's state."""
    return float(two(params, "critic", whole[agent])[0])


def chances(score: Numbers, mask: Bools) -> Floats:
    """Return the chance of each action, the softmax over those that are allowed."""
    worth = np.where(mask, score.astype(np.float64), NEVER)
    share = np.exp(worth - worth.max()) * mask
    return np.asarray(share / share.sum())
