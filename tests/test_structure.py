"""The structure that readers rely on: no circles, one owner for each public class name, modules of a few pages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]
SOURCES = {
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): path
    for path in sorted((ROOT / "labkit").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}

SAME_IDEA = {
    "Form": "what a published network sees and may do: DL2's and MARL's",
    "How": "how a policy chooses actions, in each learned system",
    "Job": "a job of a trace, and the training of it in processes",
    "Learned": "losses of an update, in each published learner",
    "Learner": "what learns, in each published system, and while a policy runs",
    "Net": "the weights of a policy as compiled code has them, in each learned system",
    "Policy": "the network of a policy as torch has it, in each learned system",
    "Published": "the switches of a paper's own form: DL2's and MARL's",
    "Recipe": "how a policy is trained, in each learned system",
    "Setting": "what a policy is trained on, in each learned system",
    "Trainer": "what trains a policy, in each learned system",
    "Weights": "a trained policy, in each learned system",
    "Fifo": "the scheduler and Gavel's policy of that name",
    "Las": "the scheduler and Gavel's policy of that name",
    "Sjf": "the scheduler and Gavel's policy of that name",
}
"""Public class names that several modules share, and the one idea that they stand for."""


def test_no_module_imports_itself_over_others_not_even_for_types() -> None:
    graph = nx.DiGraph()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                graph.add_edges_from((name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    graph.add_edge(name, whole if whole in SOURCES else node.module)
    circles = [sorted(part) for part in nx.strongly_connected_components(graph.subgraph(SOURCES)) if len(part) > 1]
    assert circles == []


def test_a_public_class_name_has_one_owner_or_stands_for_one_idea() -> None:
    owners = defaultdict(list)
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(name)
    shared = {name: where for name, where in owners.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SAME_IDEA} == {}
    assert set(SAME_IDEA) <= set(shared), "a name that is not shared any more needs no reason"
