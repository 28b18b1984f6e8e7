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

ON_HOST = "a reply of a program on hosts: as it is written there with Python alone, and as it is decoded here"
SAME_IDEA = {
    "Deployed": ON_HOST,
    "Dialled": ON_HOST,
    "EchoPort": ON_HOST,
    "HostFacts": ON_HOST,
    "Looked": ON_HOST,
    "Poured": ON_HOST,
    "Swept": ON_HOST,
    "Torch": ON_HOST,
    "Hello": "the first message of a connection: between members of a job, and to an agent",
    "TrainingLog": "the numbers of a training while it goes on: of a job's model, and of a policy",
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

MOST_LINES, MOST_CODE_LINES = 400, 40
"""Of a module, and of the body of a function without its docstring."""
COMPILED = ("njit", "_njit", "vectorize", "guvectorize")
"""Decorators of functions that may be longer: a kernel in one piece is one loop over its data."""
MATHEMATICS = "labkit.solvers."
"""Modules whose functions may be longer: a derivation in one piece is easier to check."""
NOT_YET_SPLIT = {
    "labkit.notebook.run",
    "labkit.testbed.run.backend",
    "labkit.testbed.run.remote_job",
}
"""Modules that are still to be divided."""
NOT_YET_SHORT = {"labkit.cli_train.train_policy"}
"""Functions that are still to be divided."""


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


def test_a_module_has_a_few_pages() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in SOURCES.items()}
    assert {name: n for name, n in lines.items() if n > MOST_LINES and name not in NOT_YET_SPLIT} == {}


def test_a_function_fits_on_a_screen() -> None:
    found = {}
    for name, tree in TREES.items():
        if name.startswith(MATHEMATICS):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _compiled(node):
                whole, n = f"{name}.{node.name}", _code_lines(node)
                if n > MOST_CODE_LINES and whole not in NOT_YET_SHORT:
                    found[whole] = n
    assert found == {}


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body, comments and blank lines too, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None and len(function.body) > 1 else function.body
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1


def _compiled(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a decorator compiles a function: `@njit`, `@njit(cache=True)`, `@numba.njit`."""
    called = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return any(ast.unparse(each).rpartition(".")[2] in COMPILED for each in called)
