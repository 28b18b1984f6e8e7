"""What the text of a script shows before it trains: its loop over a job, another one, what its body carries on."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType

from labkit.core.errors import InputError

NOT_SURE = ast.If | ast.While | ast.FunctionDef | ast.ClassDef | ast.Lambda
"""What need not be run."""


def _tree(path: str) -> ast.Module:
    """Return the syntax of a file that runs; of one that is not there, nothing."""
    linecache.checkcache(path)
    return _parsed("".join(linecache.getlines(path)))


@lru_cache(8)
def _parsed(text: str) -> ast.Module:
    """Return the syntax of a text; of one that is no Python, such as a cell with commands, nothing."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # running the file reports the error
        return ast.Module([], [])


def has_loop(path: Path) -> bool:
    """Return whether a file is a script with a loop over `labkit.elastic(...)`."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""  # a pipe would be waited for
    except (OSError, ValueError):
        return False
    return any(map(_is_job, ast.walk(_parsed(text))))


def _is_job(node: ast.AST) -> bool:
    """Return whether a node is a `with` of `labkit.elastic(...)`."""
    items = node.items if isinstance(node, ast.With) else []
    called = [item.context_expr.func for item in items if isinstance(item.context_expr, ast.Call)]
    return any("elastic" in (getattr(each, "attr", ""), getattr(each, "id", "")) for each in called)


def check_one_loop(path: str, line: int) -> None:
    """Raise InputError if the `with` at a line of a script has its loop in another one, which would begin it again."""
    inside = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.With) and node.lineno == line]
    names = {getattr(item.optional_vars, "id", "") for node in inside for item in node.items}
    outer = [each for node in inside for each in ast.walk(node) if isinstance(each, ast.For | ast.While)]
    for inner in (each for loop in outer for each in ast.walk(loop) if each is not loop):
        if isinstance(inner, ast.For) and names & set(_iterated(inner.iter)):
            raise InputError(
                f"{Path(path).name}, line {inner.lineno}: the loop over the job lies in another loop; expected one "
                "loop over all epochs: labkit.elastic(..., epochs=10), and job.epoch in it."
            )


def _iterated(node: ast.expr) -> Iterator[str]:
    """Yield the names that a loop goes through: of job, enumerate(job) and tqdm(job) "job"."""
    if isinstance(node, ast.Name):
        yield node.id
    for each in node.args if isinstance(node, ast.Call) else ():
        yield from _iterated(each)


def check_last_loop(frame: FrameType | None) -> None:
    """Raise InputError if a script goes on to another job after the one that begins in a frame, or in a loop."""
    while frame is not None and "site-packages" not in (path := frame.f_code.co_filename):
        nodes = list(ast.walk(_tree(path)))
        jobs = {each.name for each in nodes if isinstance(each, ast.FunctionDef) and any(map(_is_job, ast.walk(each)))}
        if line := next(_further(_tree(path).body, frame, jobs), 0):
            raise InputError(
                f"{Path(path).name}, line {line}: another labkit.elastic(...), or the same again, after line "
                f"{frame.f_lineno}; expected one in a script. Give each a script of its own, the later with torch.load "
                "of what the earlier saved; or run it by python, alone."
            )
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back


def _further(block: Iterable[ast.stmt], frame: FrameType, jobs: set[str]) -> Iterator[int]:
    """Yield the lines of jobs that surely follow the statement of a block in which a frame is."""
    passed = False
    for node in block:
        if passed:
            yield from (line for line, each in _sure(node) if _is_job(each) or _calls(each, jobs))
        if node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            passed = not isinstance(node, ast.FunctionDef | ast.ClassDef)
            if isinstance(node, ast.For | ast.While) and node.lineno >= frame.f_code.co_firstlineno:
                yield node.lineno
            for field in ("body", "orelse", "finalbody"):
                yield from _further(getattr(node, field, []), frame, jobs)


def _sure(node: ast.AST, line: int = 0) -> Iterator[tuple[int, ast.AST]]:
    """Yield a node and what is run with it, each with its line."""
    line = getattr(node, "lineno", line)
    if not isinstance(node, NOT_SURE):
        yield line, node
        for each in ast.iter_child_nodes(node):
            yield from _sure(each, line)


def _calls(node: ast.AST, functions: set[str]) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions


def carried(path: str, line: int) -> frozenset[str]:
    """Return the variables that the body of the loop around a line reads before it sets them, and those of `global`."""
    return _carried(_tree(path), line)


@lru_cache(8)
def _carried(tree: ast.Module, line: int) -> frozenset[str]:
    nodes = list(ast.walk(tree))
    loops = [each for each in nodes if isinstance(each, ast.For | ast.While) and each.lineno <= line]
    loop = [each for each in loops if line <= (each.end_lineno or 0)][-1:]
    declared = {name for each in nodes if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    put = {name for each in loop if isinstance(each, ast.For) for name, _ in _names(each.target)}
    read = set[str]()
    for name, is_set in (pair for each in loop for node in each.body for pair in _names(node)):
        if is_set:
            put.add(name)
        elif name not in put:
            read.add(name)
    return frozenset(read & put | declared)


def _names(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the names of a statement, and whether each is set, in about the order of their evaluation."""
    if hasattr(node, "body"):
        for each in ast.iter_child_nodes(node):
            yield from _names(each)
        return
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, False
    own = {name for each in ast.walk(node) if isinstance(each, ast.comprehension) for name, _ in _names(each.target)}
    found = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id not in own]
    yield from sorted(((each.id, isinstance(each.ctx, ast.Store)) for each in found), key=lambda pair: pair[1])
