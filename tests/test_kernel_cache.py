"""Compiled kernels are never older than their sources."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numba

from labkit import kernel_cache


def cache_dir_of(code: str, **environment: str) -> str:
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip()


def test_kernels_live_in_a_folder_named_after_their_sources(tmp_path):
    code = "import labkit, numba; print(numba.config.CACHE_DIR)"
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    expected = tmp_path / "labkit" / "kernels" / kernel_cache.folder().name
    assert cache_dir_of(code, **home) == str(expected)


def test_it_holds_when_numba_was_imported_first(tmp_path):
    code = "import numba, labkit; print(numba.config.CACHE_DIR)"
    assert kernel_cache.folder().name in cache_dir_of(code, XDG_CACHE_HOME=str(tmp_path))


def test_a_folder_that_the_user_named_is_left_alone(tmp_path):
    code = "import labkit, numba; print(numba.config.CACHE_DIR)"
    assert cache_dir_of(code, NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)


def test_a_folder_inherited_from_a_process_with_older_sources_is_not_used(tmp_path):
    code = "import labkit, numba; print(numba.config.CACHE_DIR)"
    old = tmp_path / "labkit" / "kernels" / "0123456789abcdef"
    found = cache_dir_of(code, NUMBA_CACHE_DIR=str(old), XDG_CACHE_HOME=str(tmp_path))
    assert found == str(tmp_path / "labkit" / "kernels" / kernel_cache.folder().name)


def test_one_changed_kernel_changes_the_name(tmp_path, monkeypatch):
    package = tmp_path / "labkit"
    package.mkdir()
    (package / "a.py").write_text("from numba import njit\n")
    (package / "b.py").write_text("nothing compiled\n")
    monkeypatch.setattr(kernel_cache, "__file__", str(package / "kernel_cache.py"))
    before = kernel_cache.folder()
    (package / "b.py").write_text("nothing compiled either\n")
    assert kernel_cache.folder() == before
    (package / "a.py").write_text("from numba import njit  # and more\n")
    assert kernel_cache.folder() != before


def test_time_to_compile_is_not_the_schedulers(tmp_path):
    """An empty cache: a first run takes many seconds, next to none of which are the scheduler's."""
    code = """
        import time
        from labkit.core import Jobs, Placement
        from labkit.experiment import simulate

        class OneByOne:
            def schedule(self, snapshot):
                return Placement.of(snapshot.waiting[:1], job=snapshot.waiting[:1], role=0, group=0, count=1)

        jobs = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])
        began = time.perf_counter()
        record = simulate(jobs, cluster="no_network(1)", scheduler=OneByOne())
        print(record.info.wall_s / (time.perf_counter() - began))
    """
    assert float(cache_dir_of(code, XDG_CACHE_HOME=str(tmp_path))) < 0.5


def test_a_terminal_is_told_once_that_kernels_are_compiled(capsys, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_told", [])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with kernel_cache.watched() as seen:
        for _ in range(2):
            numba.njit(lambda x: x + 1)(1)
    assert capsys.readouterr().err.count("compiling kernels") == 1
    assert seen.seconds > 0


def test_a_terminal_sees_dots_while_kernels_are_compiled(capsys, monkeypatch):
    monkeypatch.setattr(kernel_cache, "TICK_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with kernel_cache.watched() as seen:
        seen.begin()
        shown = ""
        while not shown.endswith(".."):
            shown += capsys.readouterr().err
        seen.end()


def test_nothing_is_left_to_compile_after_an_install(tmp_path):
    """What `make` runs at the end: demo, notebooks and training call no kernel that is not there."""
    code = """
        import os, warnings
        from labkit import kernel_cache
        from labkit.compile_kernels import compile_all
        from labkit.experiment import Experiment
        from labkit.learning.dl2 import Recipe, Trainer
        from labkit.learning.settings import Setting
        from labkit.workloads.expressions import trace

        def main():
            warnings.simplefilter("ignore")
            compile_all()
            with kernel_cache.watched() as seen:
                for jobs, cluster, names, level in (
                    ("traces/demo.csv", "demo", "fifo,srtf,las,drf,tetris,optimus", None),
                    ("traces/gavel-small.trace", "gavel-8-16-24", "gavel_las,gavel_makespan,fifo", None),
                    ("traces/philly-like.csv", "philly-480", "fifo,sjf", None),
                    ("marl_jobs(2, n_slots=2)", "marl-4x20", "even,tetris_pods,load_balance,marl", "calibrated"),
                    ("dl2_jobs('testbed_6n')", "dl2-6n", "dl2,constant,lookahead", None),
                ):
                    jobs = jobs if jobs.startswith("traces/") else trace(jobs)
                    experiment = Experiment.of(jobs, cluster=cluster, interference=level)
                    for name in names.split(","):
                        experiment.run(name)
                setting = Setting(["dl2-6n"], ["dl2_jobs('testbed_6n')"], ["fitted"])
                recipe = Recipe(n_lessons=1, n_rounds=1, n_envs=2, n_branches=2, n_slots=2)
                trainer = Trainer(setting, models=setting.models(), slot_s=300.0, seed=1, recipe=recipe)
                while trainer.n_done < trainer.n_updates:
                    trainer.update()
            print(seen.seconds)

        if __name__ == "__main__":
            main()
    """
    path = tmp_path / "main.py"  # processes that compile load it again
    path.write_text(textwrap.dedent(code))
    told = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert float(told.stdout) == 0
