"""A picture of a cluster: its machines, switches and links, tier by tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.cluster import Cluster
from labkit.plots.theme import INK, MUTED, WIDTH, title
from labkit.topology.export import inter_graph, to_networkx

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.DiGraph[str]

MAX_WHOLE: Final = 150
"""Clusters with more nodes are drawn pod by pod."""

MAX_PER_TIER: Final = 12
"""Of the switches between pods, so many of a tier are drawn, evenly chosen."""

SWITCH: Final = "switch"
PALETTE: Final = ("#2563d8", "#2b9f5c", "#d4345f", "#9254d6", "#0f9d9a", "#8a6d1d")
WORDS: Final = {"agg": "aggregation", "mid": "intermediate", "rack": "top-of-rack", "switch": ""}
COLUMNS: Final = ["name", "kind", "tier", "partition", "device_type", "n_gpus", "n_machines"]


@dataclass(frozen=True, eq=False, slots=True)
class TopologyLayout:
    """Where each node and link of a cluster is drawn."""

    nodes: pd.DataFrame
    """name, kind, tier, partition, device_type, n_gpus, n_machines, x, y (both 0 to 1)."""
    links: pd.DataFrame
    """One row per cable: low, high, gbps, tier, x, y, x2, y2."""
    tiers: pd.DataFrame
    """One row per row of the picture: tier, y, label, note."""
    notes: tuple[str, ...]
    """What the picture leaves out, in words."""


def topology_layout(cluster: Cluster) -> TopologyLayout:
    """Return where to draw what: every node of a small cluster; pods and some switches between them of a large one.

    `cluster`: any cluster; without a network its machines stand in a grid.

    Returns
    -------
    TopologyLayout
        Numbers to draw, and what they leave out.
    """
    if cluster.network is None:
        return _grid(cluster)
    by_pod = len(cluster.network.nodes) > MAX_WHOLE and int(cluster.partition.max()) > 0
    graph = inter_graph(cluster) if by_pod else to_networkx(cluster)
    nodes = _nodes(graph, cluster)
    shown = _place(pd.concat([_thin_tier(tier, by_pod=by_pod) for _, tier in nodes.groupby("tier")]))
    links = _links(graph, shown)
    notes = [*_notes(graph, nodes, shown)] if by_pod else []
    return TopologyLayout(shown, links, _tiers(nodes, shown, links), tuple(notes))


def plot_topology(cluster: Cluster) -> alt.LayerChart:
    """Return a picture of a cluster, machines at the bottom; wider links carry more."""
    layout = topology_layout(cluster)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 1.32]))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.08, 1.08]))
    text = alt.Chart(layout.tiers).transform_calculate(x="1.02").encode(x=x, y=y)
    layers = [
        _ink_links(layout.links, x, y),
        _ink_nodes(layout.nodes, x, y),
        text.mark_text(align="left", dy=-7, color=INK, fontSize=12).encode(text="label"),
        text.mark_text(align="left", dy=8, color=MUTED, fontSize=11).encode(text="note"),
    ]
    height = 60 + 85 * len(layout.tiers)
    chart: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        title=title(str(cluster), *layout.notes), width=WIDTH, height=height
    )
    return chart


def _ink_links(links: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    widest = 3.0 if len(links) <= 100 else 1.4
    width = alt.Scale(type="sqrt", domain=[0, float(links["gbps"].max()) if len(links) else 1.0], range=[0.3, widest])
    chart: alt.Chart = (
        alt.Chart(links)
        .mark_rule(color=MUTED, opacity=float(np.clip(60 / max(len(links), 1), 0.25, 0.6)))
        .encode(x=x, y=y, x2="x2", y2="y2", tooltip=["low:N", "high:N", "gbps:Q"])
        .encode(strokeWidth=alt.StrokeWidth("gbps:Q", scale=width, legend=None))
    )
    return chart


def _ink_nodes(nodes: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    types = [kind for kind in dict.fromkeys(nodes["device_type"]) if kind]
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(types))]
    legend = alt.Legend(orient="bottom", title=None, values=types)
    colour = alt.Scale(domain=[*types, ""], range=[*colours, "#9aa5b4"])
    shape = alt.Scale(domain=["machine", "pod", SWITCH], range=["circle", "circle", "square"])
    chart: alt.Chart = (
        alt.Chart(nodes)
        .mark_point(filled=True, opacity=1, stroke="white", strokeWidth=1, size=_point_size(nodes))
        .encode(x=x, y=y, tooltip=COLUMNS)
        .encode(color=alt.Color("device_type:N", scale=colour, legend=legend))
        .encode(shape=alt.Shape("kind:N", scale=shape, legend=None))
    )
    return chart


def _nodes(graph: Graph, cluster: Cluster) -> pd.DataFrame:
    """Return one row per node of the graph: a machine, a pod or a switch."""
    nodes = pd.DataFrame([{"n_gpus": 0.0, **data, "name": name} for name, data in graph.nodes.items()])
    first = np.searchsorted(cluster.group_machine, np.arange(cluster.n_machines))
    types = np.array([*cluster.device_types, "mixed"])[cluster.group_type[first]]
    machines, pods = nodes["kind"] == "machine", nodes["kind"] == "pod"
    nodes["n_machines"], nodes["device_type"] = machines.astype(int), ""
    nodes.loc[machines, "device_type"] = types[: int(machines.sum())]
    of_pod = pd.Series(types).groupby(cluster.partition)
    if pods.any():
        where = nodes.loc[pods, "partition"]
        nodes.loc[pods, "n_machines"] = of_pod.size().loc[where].to_numpy()
        one = of_pod.first().where(of_pod.first() == of_pod.last(), "mixed")
        nodes.loc[pods, "device_type"] = one.loc[where].to_numpy()
    return nodes[COLUMNS]


def _thin_tier(tier: pd.DataFrame, *, by_pod: bool) -> pd.DataFrame:
    """Return at most MAX_PER_TIER switches of a tier between pods; machines and pods stay."""
    if not by_pod or len(tier) <= MAX_PER_TIER or (tier["kind"] != SWITCH).any():
        return tier
    return tier.iloc[np.linspace(0, len(tier) - 1, MAX_PER_TIER).round().astype(int)]


def _place(nodes: pd.DataFrame) -> pd.DataFrame:
    """Return the nodes with x evenly spread in each tier, and y by tier."""
    rank = nodes.groupby("tier").cumcount()
    count = nodes.groupby("tier")["tier"].transform("size")
    levels = np.unique(nodes["tier"])
    height = np.searchsorted(levels, nodes["tier"]) / max(len(levels) - 1, 1)
    return nodes.assign(x=(rank + 0.5) / count, y=height).reset_index(drop=True)


def _links(graph: Graph, nodes: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cable between nodes of different tiers that are drawn."""
    at: dict[str, dict[str, Any]] = {row["name"]: row for row in nodes.to_dict("records")}  # type: ignore[misc]
    rows: list[dict[str, Any]] = [
        {"low": a, "high": b, "gbps": data["gbps"], "tier": data["tier"]}
        | {"x": at[a]["x"], "y": at[a]["y"], "x2": at[b]["x"], "y2": at[b]["y"]}
        for (a, b), data in graph.edges.items()
        if a in at and b in at and at[a]["tier"] < at[b]["tier"]
    ]
    return _link_frame(rows)


def _link_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    numbers = ["gbps", "tier", "x", "y", "x2", "y2"]
    return pd.DataFrame(rows, columns=["low", "high", *numbers]).astype(dict.fromkeys(numbers, float))


def _tiers(nodes: pd.DataFrame, shown: pd.DataFrame, links: pd.DataFrame) -> pd.DataFrame:
    """Return a label and a note for each row of the picture."""
    rows = []
    for tier, members in nodes.groupby("tier"):
        kind, n = members["kind"].iloc[0], len(members)
        gbps = links.loc[links["tier"] == tier, "gbps"]
        below = f"{_range(gbps)} Gbps each link" if len(gbps) else f"{_range(members['n_gpus'])} GPUs each"
        word = f"{_stem(members['name'].iloc[0])} {kind}" if kind == SWITCH else kind
        size = f" of {_range(members['n_machines'])} machines" if kind == "pod" else ""
        label = f"{n:,} {word.strip()}{'' if n == 1 else 'es' if kind == SWITCH else 's'}{size}"
        y = shown.loc[shown["tier"] == tier, "y"].iloc[0]
        rows.append({"tier": tier, "y": y, "label": label, "note": below})
    return pd.DataFrame(rows)


def _notes(graph: Graph, nodes: pd.DataFrame, shown: pd.DataFrame) -> list[str]:
    """Return the notes on switches and links that a picture pod by pod leaves out."""
    notes = ["drawn pod by pod: a circle stands for the machines of a pod and the switches inside it"]
    for tier, members in nodes.groupby("tier"):
        drawn = int((shown["tier"] == tier).sum())
        if drawn < len(members):
            notes.append(f"{drawn} of {len(members):,} {_stem(members['name'].iloc[0])} switches are drawn")
    level = dict(zip(nodes["name"], nodes["tier"], strict=True))
    if any(level[a] == level[b] for a, b in graph.edges):
        notes.append("links from pod to pod are not drawn")
    return notes


def _range(values: pd.Series[Any]) -> str:
    """Return one number, or from which to which.

    >>> _range(pd.Series([2.0, 8.0])), _range(pd.Series([4]))
    ('2 to 8', '4')
    """
    low, high = float(values.min()), float(values.max())
    return f"{low:,g}" if low == high else f"{low:,g} to {high:,g}"


def _stem(name: str) -> str:
    """Return the name of a node without its number.

    >>> _stem("agg17"), _stem("level2-3")
    ('aggregation', 'level-2')
    """
    stem = name.split("-")[0].replace("level", "level-") if "-" in name else name.rstrip("0123456789")
    return WORDS.get(stem, stem)


def _grid(cluster: Cluster) -> TopologyLayout:
    """Return machines in rows, in order; there are no links."""
    n = cluster.n_machines
    n_columns = min(n, max(12, int(np.ceil(np.sqrt(6 * n)))))
    n_rows = int(np.ceil(n / n_columns))
    nodes, place = _nodes(to_networkx(cluster), cluster), np.arange(n)
    nodes = nodes.assign(x=(place % n_columns + 0.5) / n_columns, y=1 - (place // n_columns + 0.5) / n_rows)
    links = _link_frame([])
    label = f"{n:,} machine{'' if n == 1 else 's'}, no network"
    note = f"{_range(nodes['n_gpus'])} GPUs each"
    return TopologyLayout(nodes, links, pd.DataFrame({"tier": [0], "y": [0.5], "label": [label], "note": [note]}), ())


def _point_size(nodes: pd.DataFrame) -> float:
    """Return an area that keeps the fullest row apart."""
    fullest = int(nodes.groupby("y").size().max())
    return float(np.clip((0.55 * WIDTH / 1.32 / fullest) ** 2, 10, 220))
