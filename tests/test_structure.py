"""The structure that readers rely on: no circles, one owner for each public class name, modules of a few pages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx

from tests.conftest import FAST, LONGEST, SLOW

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCES = {
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): path
    for package in ("labkit", "reproductions")
    for path in sorted((ROOT / package).rglob("*.py"))
}

SAME_IDEA = {
    "Recorded": "what a trace recorded: durations, as speeds; starts, as a scheduler",
    "Hello": "the first message of a connection: between members of a job, and to an agent",
    "TrainingLog": "the numbers of a training while it continues: of a job's model, and of a policy",
    "Form": "what a published network sees and may do: DL2's and MARL's",
    "How": "how a policy chooses actions, in each learned system",
    "Job": "a job of a trace, and the training of it in processes",
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

MOST_LINES, MOST_CODE_LINES = 700, 40
"""Of a module, and of the body of a function without its docstring."""
NO_TESTS_OF_THEIR_OWN = {"templates": "text that tests of commands use", "testing": "used by all tests"}
COMPILED = ("kernel", "inner")
"""Decorators of functions that may be longer: a kernel in one piece is one loop over its data."""
MATHEMATICS = "labkit.solvers."
"""Modules whose functions may be longer: a derivation in one piece is easier to check."""
NOT_YET_SHORT: set[str] = set()
"""Functions that are still to be divided."""


ACCESSORS = [(f"labkit.results.{name}", "labkit.plots.of_runs") for name in ("record", "comparison")]
"""The two imports against the layers, when they are called: `run.plot.gantt()`, `compare(...).plot.cdf()`."""


@dataclass(frozen=True, slots=True)
class Module:
    """What is asked of a module: its syntax tree is not kept, as those of all would slow down what comes after."""

    imports: tuple[str, ...]
    classes: tuple[str, ...]
    """Public ones."""
    first_line: str
    functions: tuple[tuple[str, int], ...]
    """Name and code lines of each one that is not compiled."""

    @classmethod
    def of(cls, path: Path) -> Module:
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        return cls(
            tuple(name for node in nodes for name in _imported(node)),
            tuple(n.name for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")),
            (ast.get_docstring(tree) or "").partition("\n")[0],
            tuple(
                (node.name, _code_lines(node))
                for node in nodes
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _compiled(node)
            ),
        )


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        return [each if each in SOURCES else node.module for each in whole]
    return []


@cache
def modules() -> dict[str, Module]:
    return {name: Module.of(path) for name, path in SOURCES.items()}


def test_no_module_imports_itself_over_others_not_even_for_types() -> None:
    graph = nx.DiGraph((name, other) for name, module in modules().items() for other in module.imports)
    graph.remove_edges_from(ACCESSORS)
    circles = [sorted(part) for part in nx.strongly_connected_components(graph.subgraph(SOURCES)) if len(part) > 1]
    assert circles == []


def test_a_public_class_name_has_one_owner_or_stands_for_one_idea() -> None:
    owners = defaultdict(list)
    for name, module in modules().items():
        for each in module.classes:
            owners[each].append(name)
    shared = {name: where for name, where in owners.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SAME_IDEA} == {}
    assert set(SAME_IDEA) <= set(shared), "a name that is not shared any more needs no reason"


def test_a_module_opens_with_one_line_that_says_what_it_is() -> None:
    first = {name: module.first_line for name, module in modules().items()}
    assert {name: line for name, line in first.items() if len(line) <= 10 or not line.endswith((".", "?"))} == {}


def test_a_module_has_a_few_pages() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in SOURCES.items()}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_a_function_fits_on_a_screen() -> None:
    found = {
        f"{name}.{function}": n
        for name, module in modules().items()
        if not name.startswith(MATHEMATICS)
        for function, n in module.functions
        if n > MOST_CODE_LINES
    }
    assert {whole: n for whole, n in found.items() if whole not in NOT_YET_SHORT} == {}
    assert set(NOT_YET_SHORT) <= set(found), "a function that is short by now needs no exemption"


@cache
def names_of_tests() -> set[str]:
    """Return the names of all test functions, as `core/test_jobs.py::test_a_claim`."""
    return {
        f"{path.relative_to(HERE).as_posix()}::{name}"
        for path in HERE.rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }


def test_each_entry_of_the_lists_of_slow_and_fast_tests_names_tests() -> None:
    starts = {entry: entry.partition("[")[0] for entry in (*SLOW, *FAST, *LONGEST)}
    assert [entry for entry, start in starts.items() if not any(n.startswith(start) for n in names_of_tests())] == []
    assert [one for one in SLOW if any(one.startswith(other) for other in SLOW if other != one)] == []
    assert [start for start in FAST if start.startswith(SLOW)] == [], "a slow file is not fast"


def test_what_make_test_must_find_is_found_by_tests_that_are_not_slow() -> None:
    named = re.findall(r"`([\w/]+\.py::\w+)`", (ROOT / "docs" / "why" / "two-suites.md").read_text())
    assert len(named) > 10
    assert [name for name in named if name not in names_of_tests() or name.startswith(SLOW)] == []


def test_each_part_of_labkit_has_a_fast_test() -> None:
    parts = {path.parent.name for path in (ROOT / "labkit").glob("*/__init__.py")} - set(NO_TESTS_OF_THEIR_OWN)
    assert parts <= {start.partition("/")[0] for start in FAST}


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body, comments and blank lines too, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None and len(function.body) > 1 else function.body
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1


def _compiled(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a decorator compiles a function: `@kernel`, `@inner(error_model="numpy")`."""
    called = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return any(ast.unparse(each).rpartition(".")[2] in COMPILED for each in called)
