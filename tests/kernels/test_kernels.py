"""Compiled kernels: what they may be given, where they are kept, and that none is older than its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from labkit.cli import compile_kernels
from labkit.kernels import by_reference, inner, kernel, store, watching
from labkit.kernels.arrays import distinct_rows


@by_reference
class Columns(NamedTuple):
    steps: np.ndarray
    speed: np.ndarray
    factor: float


@inner
def _advance(columns, job, by_s):
    columns.steps[job] += columns.factor * columns.speed[job] * by_s


@kernel
def advance(columns, by_s):
    for job in range(len(columns.steps)):
        _advance(columns, job, by_s)
    return columns.steps.sum()


def test_kernels_read_and_write_the_columns_that_they_get_by_reference():
    columns = Columns(np.array([1.0, 2.0]), np.array([10.0, 20.0]), 0.5)
    references = [sys.getrefcount(each) for each in columns]
    assert advance(columns, 2.0) == 33
    assert columns.steps.tolist() == [11, 22]
    assert [sys.getrefcount(each) for each in columns] == references


def test_columns_of_another_type_are_another_signature():
    assert advance(Columns(np.array([1.0]), np.array([2], np.int32), 1.0), 1.0) == 3


def test_an_inner_kernel_that_python_calls_is_compiled_for_it():
    columns = Columns(np.zeros(1), np.ones(1), 0.5)
    _advance(columns, 0, 4.0)
    assert columns.steps.tolist() == [2]


@kernel
def _half(x: float, n: int) -> float:
    return x / 2 + n


def test_a_whole_number_for_a_floating_point_parameter_compiles_nothing_more():
    assert [_half(each, 1) for each in (3, 3.5, np.int32(3))] == [2.5, 2.75, 2.5]
    assert [_half(3.5, each) for each in (np.int8(1), np.int32(2))] == [2.75, 3.75]
    assert len(_half.signatures) == 1


PROGRAM = """
from typing import NamedTuple
import numpy as np
from labkit.kernels import inner, kernel, watching
{before}
BASE = {base}

@inner(fastmath={{"reassoc", "contract", "nsz"}})
def _more(x):
    {comment}
    return x + {more}

@kernel
def most(x):
    return _more(x) + BASE

@kernel
def other(x):
    return 2 * x

with watching.watched() as seen:
    print(most(1), other(1), end=" ")
print(seen.n_compiled)
"""


def ran(
    folder: Path, *, before: str = "", base: int = 10, comment: str = "", more: int = 1, **environment: str
) -> list[int]:
    """Run the program in a new process; return its results and how many kernels it compiled."""
    path = folder / "program.py"
    path.write_text(PROGRAM.format(before=before, base=base, comment=comment, more=more))
    env = os.environ | {store.NAMED: str(folder / "kept")} | environment
    done = subprocess.run([sys.executable, path], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return [int(number) for number in done.stdout.split()]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """Return a folder in which the program ran once, with the kernels that it compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    assert ran(folder) == [12, 2, 3]
    return folder


@pytest.fixture
def run(compiled, tmp_path):
    """Return a function that runs the program again in a new process."""
    shutil.copytree(compiled / "kept", tmp_path / "kept")
    return partial(ran, tmp_path)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_second_process_compiles_nothing(run, seed):
    """Another process has its sets in another order: options of a kernel are one."""
    assert run(PYTHONHASHSEED=seed) == [12, 2, 0]


def test_neither_comments_nor_the_place_in_a_file_compile_anything_again(run):
    assert run(comment='"""Return more."""', before="\n\nUNUSED = 3\n") == [12, 2, 0]
    assert run(comment="# and why", before="# a line more") == [12, 2, 0]


def test_an_edited_kernel_is_compiled_again_with_its_callers_alone(run):
    assert run(more=5) == [16, 2, 2]


def test_a_constant_that_a_kernel_uses_counts(run):
    assert run(base=20) == [22, 2, 2]


def test_a_damaged_file_is_compiled_again(run, tmp_path):
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert run() == [12, 2, 3]
    assert run() == [12, 2, 0]


def test_a_compilation_that_was_interrupted_leaves_nothing_that_is_read(run, tmp_path):
    for path in (tmp_path / "kept").iterdir():
        path.rename(path.with_name(f".{path.name}"))  # a scratch file's name begins so
    assert run() == [12, 2, 3]


def test_where_nothing_can_be_written_kernels_are_compiled_each_time_and_one_line_says_so(run, tmp_path, capfd):
    (tmp_path / "file").touch()
    for _ in range(2):
        assert run(**{store.NAMED: str(tmp_path / "file" / "below")}) == [12, 2, 3]
        (line,) = capfd.readouterr().err.splitlines()
        assert f"{tmp_path / 'file' / 'below'} cannot be written" in line
        assert f"export {store.NAMED}=FOLDER" in line


def test_what_everybody_could_write_to_is_not_loaded(run, tmp_path):
    (tmp_path / "kept").chmod(0o777)
    assert run() == [12, 2, 3]


def test_kernels_lie_beside_the_package_where_other_users_and_homes_find_them(monkeypatch, tmp_path):
    monkeypatch.delenv(store.NAMED, raising=False)
    monkeypatch.setattr(store, "PACKAGE_FOLDER", tmp_path / "package" / "__kernels__")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert store.folders(create=True)[0] == tmp_path / "package" / "__kernels__"
    monkeypatch.setattr(store, "PACKAGE_FOLDER", Path("/proc/__kernels__"))  # where nobody can make a folder
    assert store.folders(create=True) == [tmp_path / "home" / "labkit" / "kernels"]


def test_of_two_processes_that_need_a_kernel_at_once_one_compiles_it(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        PROGRAM.format(before="", base=10, comment="", more=1)
        + "print(sum((each.stats.cache_misses for each in (most, other)), start=Counter()).total())",
    )
    path.write_text("from collections import Counter\n" + path.read_text())
    env = os.environ | {store.NAMED: str(tmp_path / "kept")}
    both = [subprocess.Popen([sys.executable, path], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [each.communicate()[0].split() for each in both]
    assert [each[:2] for each in printed] == [["12", "2"]] * 2
    assert sum(int(n_compiled) for *_, n_compiled in printed) == 2


def test_a_process_that_was_stopped_while_it_compiled_is_not_waited_for_without_end(tmp_path, monkeypatch):
    code = "from labkit.kernels import store; store.CLAIMS.take('one'); print(flush=True); input()"
    monkeypatch.setenv(store.NAMED, str(tmp_path))
    monkeypatch.setattr(store, "WAIT_S", 0.2)
    claims = store.Claims()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        other.stdout.readline()
        assert claims.take("one") is None
        two = claims.take("two")
        assert two is not None
        claims.give_back(two)
        other.kill()
    claims.give_back(claims.take("one"))
    assert str(tmp_path / ".lock") not in [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]


def test_time_to_compile_is_not_the_schedulers():
    """A first decision takes as long as its kernel takes to compile, next to none of which is the scheduler's."""
    code = """
        import time
        import numba
        import numpy as np
        from labkit.core import Jobs, Placement
        from labkit.experiment import simulate

        @numba.njit  # not kept: each process compiles it
        def in_order(x):
            return np.sort(x).sum()

        class OneByOne:
            def schedule(self, snapshot):
                in_order(np.arange(3.0))
                return Placement.of(snapshot.waiting[:1], job=snapshot.waiting[:1], role=0, group=0, count=1)

        jobs = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])
        began = time.perf_counter()
        record = simulate(jobs, cluster="no_network(1)", scheduler=OneByOne())
        print(record.info.wall_s, time.perf_counter() - began)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    wall_s, whole_s = map(float, done.stdout.split())
    assert wall_s < 0.5 * whole_s


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", compile_kernels.PARTS, ids=lambda part: f"{part.__module__}.{part.__name__}")
def test_what_is_run_to_compile_all_kernels_runs(part):
    """Every scheduler that is there is among it, one that needs something of its trace, too."""
    part()


def test_a_terminal_is_told_once_that_kernels_are_compiled(capsys, monkeypatch):
    monkeypatch.setattr(watching, "_announced", [])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with watching.watched() as seen:
        for _ in range(2):
            numba.njit(lambda x: x + 1)(1)
    assert capsys.readouterr().err.count("compiling kernels") == 1
    assert seen.seconds > 0


def test_a_terminal_sees_dots_while_kernels_are_compiled(capsys, monkeypatch):
    monkeypatch.setattr(watching, "TICK_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with watching.watched() as seen:
        seen.begin()
        shown = ""
        while not shown.endswith(".."):
            shown += capsys.readouterr().err
        seen.end()


@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 60), st.integers(1, 3)), elements=st.integers(0, 3)))
def test_distinct_rows_are_numbered_as_they_appear(rows: np.ndarray) -> None:
    first, kind = distinct_rows(rows[:, 0], rows[:, 1:])
    assert first.tolist() == sorted(first.tolist())
    assert np.array_equal(rows[first][kind], rows)
    assert len(first) == len(np.unique(rows, axis=0))
