"""What all tests share: profiles of Hypothesis, the order of tests, reference data that may or may not be there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")

LONGEST = (
    "testbed/test_robust", "elastic/test_sites", "testbed/test_backend", "testbed/test_profiling", "elastic/chaos/",
    "testbed/test_schedulers", "testbed/test_job", "experiment/", "schedulers/", "testbed/", "notebook/", "browser/",
    "elastic/",
)  # fmt: skip
"""Files that take long, by how their paths in this folder begin; they come first, so that none is waited for alone."""

SLOW = (
    "elastic/chaos/", "elastic/models/test_training", "elastic/test_sites", "experiment/test_demo",
    "experiment/test_fidelity.py::test_the_command", "experiment/test_queueing.py::test_fifo", "fuzz/",
    "learning/test_altered.py::test_fairness", "learning/test_dl2.py::test_the_same_seed",
    "learning/test_envs.py::test_each", "learning/test_federated", "learning/test_published.py::test_a_policy",
    "schedulers/gavel/test_estimator.py::test_the_estimate", "schedulers/test_dl2_flat.py::test_types",
    "test_benchmarks.py::test_a_claim", "test_benchmarks.py::test_a_short", "test_cli_marl.py::test_a_training",
    "test_cli_published.py::test_clusters", "test_cli_published.py::test_the_papers",
    "test_cli_train.py::test_a_policy", "test_cli_train.py::test_a_training", "test_cli_train.py::test_ctrl_c",
    "testbed/test_backend", "testbed/test_dask", "testbed/test_dl2", "testbed/test_fab",
    "testbed/test_job", "testbed/test_marl", "testbed/test_profiling", "testbed/test_rerun", "testbed/test_robust",
    "testbed/test_schedulers", "testbed/test_two_users",
)  # fmt: skip
"""Tests of `make thorough`, which `make test` leaves out, by how their names in this folder begin: real jobs that train
for minutes, on machines that fail, and policies that learn."""

SHARED = Path(__file__).parents[1].parent / "shared" / "data"


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by how long they take, roughly, and mark the slow tests.

    `--no-loadscope-reorder` lets workers take files in this order.
    """
    items.sort(key=lambda item: _place(item.path))
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker("slow")


@pytest.hookimpl(trylast=True)  # the reporter is there by then
def pytest_configure(config: pytest.Config) -> None:
    """Let each test that fails be named when it fails: a run that is cut off tells nothing at its end.

    A shell that begins a run in the background makes it ignore Ctrl-C, which the processes of tests would inherit.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(_AtOnce(reporter))


class _AtOnce:
    """Writes a line for each test that failed, and for a worker that died in one."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)


def _place(path: Path) -> int:
    """Return the place of a file in the order: that of its entry in LONGEST, or behind all."""
    here = Path(__file__).parent
    name = path.relative_to(here).as_posix() if path.is_relative_to(here) else ""
    return next((i for i, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Return a function from a name to a file of reference data; it skips the test where the file is not there."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"reference data {name} is not beside this checkout (../shared/data)")
        return path

    return find
