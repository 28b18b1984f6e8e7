"""What all tests share: profiles of Hypothesis, the order of tests, reference data that may or may not be there."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.browser.lab import Browser, headless

for name, n in {"dev": 15, "thorough": 100}.items():  # `--hypothesis-profile=thorough` takes the other one
    settings.register_profile(name, max_examples=n, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dev")

LONGEST = (
    "elastic/test_real_training", "reproductions/test_attention_training", "browser/test_lab", "test_gallery",
    "elastic/test_own_training", "cli/test_train_policy", "elastic/test_liveness", "experiment/test_reservations",
    "elastic/test_script_loop", "gifts/", "testbed/agent/test_forks", "experiment/test_classic",
    "testbed/test_own_scripts", "schedulers/gavel/test_end_to_end", "testbed/test_queue", "testbed/test_backend",
)  # fmt: skip
"""Files that take long, by how their paths in this folder begin; they come first, so that none is waited for alone."""

WAITING = ("elastic/", "testbed/", "notebook/", "browser/")
"""Folders whose tests wait for processes; their files are spread among the others, so that cores have work then."""

SLOW = (
    "browser/test_site.py::test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_page[dark-1280]",
    "browser/test_site.py::test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_page[light-390]",
    "browser/test_site.py::test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_page[light-1280]",
    "elastic/chaos/", "elastic/data/test_speed", "elastic/models/test_published_sizes.py::test_published_model",
    "elastic/models/test_training", "elastic/test_attach.py::test_a_job_is_stopped",
    "elastic/test_attach.py::test_an_attached",
    "elastic/test_balance.py::test_a_hot_server_gives_blocks_away_and_training_stays_what_it_is[False]",
    "elastic/test_balance.py::test_what_is_level", "elastic/test_causes.py::test_a_server_without",
    "elastic/test_free.py::test_a_killed_controller",
    "elastic/test_free.py::test_scaling_repeats_and_loses_no_update[checkpoint]",
    "elastic/test_free.py::test_scaling_repeats_and_loses_no_update[suspend]",
    "elastic/test_free.py::test_training_goes_on_from_the_folder_of_a_run_before[False]",
    "elastic/test_growing.py::test_a_growing_model",
    "elastic/test_limits.py::test_a_running_job_is_resized_without_a_restart_and_to_the_same_bits[False]",
    "elastic/test_limits.py::test_a_share", "elastic/test_liveness.py::test_a_controller_that_does",
    "elastic/test_liveness.py::test_a_controller_that_fails_is", "elastic/test_liveness.py::test_a_process",
    "elastic/test_liveness.py::test_a_server_that_runs_out_of_memory_is_told_by_that_name_and_costs_no_bit[ps.updated]",
    "elastic/test_liveness.py::test_a_users", "elastic/test_liveness.py::test_a_worker",
    "elastic/test_network.py::test_a_newcomer", "elastic/test_network.py::test_data_in_clear",
    "elastic/test_network.py::test_from_the_shell", "elastic/test_network.py::test_scaling",
    "elastic/test_not_finite.py::test_a_loss_that_is_no_number_ends_the_job_with_the_checkpoint_before[False]",
    "elastic/test_not_finite.py::test_losses_that_are_no_numbers_are_recorded_where_training_is_to_go_on[False]",
    "elastic/test_program.py::test_a_model_of_thousands_of_blocks_trains[False]",
    "elastic/test_real_training.py::test_a_port_trains_as_its_author_meant_it[dcgan]",
    "elastic/test_real_training.py::test_a_port_trains_as_its_author_meant_it[gin]",
    "elastic/test_real_training.py::test_a_port_trains_as_its_author_meant_it[rnn]",
    "elastic/test_schemes",
    "elastic/test_sites", "elastic/test_small_models.py::test_a_training",
    "elastic/test_updates.py::test_an_update_of_ones_own_gives_the_bits_of_a_loop_in_one_process[torch]",
    "elastic/test_updates.py::test_bf16",
    "elastic/test_updates.py::test_fp16_has_the_bits_of_a_gradient_scaler_and_halves_its_scale_where_it_must[1.0]",
    "elastic/test_updates.py::test_schedule",
    "elastic/test_validation.py::test_a_saved", "elastic/test_validation.py::test_asynchronous",
    "elastic/test_validation.py::test_values", "elastic/test_validation.py::test_without",
    "elastic/transport/test_processes.py::test_200", "experiment/test_demo",
    "experiment/test_classic.py::test_ten_thousand",
    "experiment/test_fidelity.py::test_the_command", "experiment/test_queueing.py::test_fifo",
    "experiment/test_plain_loop.py::test_each_job_ends_as_in_a_plain_loop[las-True]",
    "experiment/test_plain_loop.py::test_each_job_ends_as_in_a_plain_loop[srtf-False]",
    "experiment/test_sweep.py::test_a_script_without_a_guard_is_told_it_with", "experiment/test_sweep.py::test_killed",
    "experiment/test_sweep_on_dask.py::test_a_caller",
    "experiment/test_sweep_on_dask.py::test_a_worker_killed", "experiment/test_sweep_on_dask.py::test_short",
    "plots/test_report.py::test_in_a_browser_axe_finds_no_fault[light]",
    "plots/test_report.py::test_in_a_browser_long_labels_fit[800]", "fuzz/",
    "learning/test_resumed.py::test_a_seed_decides_all_weights[dl2]",
    "learning/test_envs.py::test_each", "learning/test_marl_plays.py::test_on_a_dask",
    "plots/test_palette.py::test_every_figure_is_fit_for_print[2-gantt]",
    "reproductions/test_attention.py::test_no_task",
    "reproductions/test_attention.py::test_scores", "reproductions/test_attention.py::test_the_network",
    "reproductions/test_attention_training.py::test_torch_scores", "reproductions/test_dl2_altered.py::test_fairness",
    "reproductions/test_dl2_command.py::test_clusters",
    "reproductions/test_dl2_command.py::test_the_papers", "reproductions/test_dl2_federated",
    "reproductions/test_dl2_rules.py::test_the_state_is",
    "reproductions/test_dl2_scheduler.py::test_types", "reproductions/test_dl2_training.py::test_a_policy",
    "reproductions/test_dl2_training.py::test_a_training_that_goes_on_ends_as_one_that_was_never_stopped[2",
    *(f"reproductions/test_dl2_training.py::test_each_switch_changes_the_weights_that_come_of_it[changes{n}"
      for n in (1, *range(4, 10))),
    "reproductions/test_dl2_training.py::test_the_same_seed", "reproductions/test_marl_command.py::test_networks",
    "schedulers/gavel/test_end_to_end.py::test_options_of_rounds_go_with_a_policys_and_change_little[las(ideal",
    "schedulers/gavel/test_end_to_end.py::test_options_of_rounds_go_with_a_policys_and_change_little[las(stay",
    "schedulers/gavel/test_end_to_end.py::test_sharing_gpus_shortens_jobs_where_a_policy_can_choose_it[ftf",
    "schedulers/gavel/test_end_to_end.py::test_sharing_gpus_shortens_jobs_where_a_policy_can_choose_it[hier",
    "schedulers/gavel/test_end_to_end.py::test_sharing_gpus_shortens_jobs_where_a_policy_can_choose_it[makespan",
    "schedulers/gavel/test_estimator.py::test_the_estimate",
    "schedulers/gavel/test_published.py::test_generated_traces_take_as_long_as_published[2-",
    "schedulers/gavel/test_published.py::test_the_default_is_better_than_published_on_generated_traces[4-",
    "schedulers/gavel/test_published.py::test_the_default_is_better_than_published_on_generated_traces[5-",
    "schedulers/dlrover/test_belief.py::test_several_jobs_come_close_to_an_oracle_that_knows_the_truth[Spinning]",
    "schedulers/test_dl2.py::test_the_shipped_policy_is_below_optimus_where_resources_bind[dl2-48n",
    "schedulers/test_dl2.py::test_the_shipped_policy_is_below_optimus_where_resources_bind[dl2-8n",
    "schedulers/test_dl2_learned.py::test_it_is_below_the_rule_that_it_began_as_with_the_same_measurements[dl2-8n]",
    "schedulers/test_lookahead.py::test_dl2s_short_jobs_come_to_what_a_prototype_found[48-lookahead(steps",
    "schedulers/test_lookahead.py::test_dl2s_short_jobs_come_to_what_a_prototype_found[8-",
    "schedulers/test_tiresias.py::test_tiresias_passes_the_suite[options1]",
    "schedulers/test_conformance.py::test_every_scheduler_passes_the_suite[10", "test_benchmarks.py::test_a_claim",
    "test_benchmarks.py::test_a_short", "cli/test_train_marl.py::test_a_training",
    "cli/test_train_policy.py::test_a_policy", "cli/test_train_policy.py::test_a_training",
    "cli/test_train_policy.py::test_ctrl_c",
    "testbed/agent/test_chaos.py::test_an_agent_that_is_killed_again_and_again_loses_nothing[2]",
    "testbed/test_backend.py::test_a_host", "testbed/test_backend.py::test_a_job",
    "testbed/test_backend.py::test_a_live", "testbed/test_backend.py::test_a_measured",
    "testbed/test_backend.py::test_a_run", "testbed/test_backend.py::test_a_scaling",
    "testbed/test_backend.py::test_a_task", "testbed/test_backend.py::test_other", "testbed/test_dask",
    "testbed/test_dl2", "testbed/test_fab", "testbed/test_job", "testbed/test_marl", "testbed/test_profiling",
    "testbed/test_queue.py::test_a_queue", "testbed/test_queue.py::test_a_run_is_ended", "testbed/test_rerun",
    "testbed/test_robust", "testbed/test_schedulers", "testbed/test_shaped", "testbed/test_two_users",
)  # fmt: skip
"""Tests of `make thorough`, which `make test` leaves out, by how their names in this folder begin: real jobs that train
for minutes, on machines that fail, and policies that learn."""

FAST = (
    "cli/test_tables", "core/test_ledger", "core/test_snapshot", "elastic/test_assign", "elastic/test_deaths",
    "elastic/transport/test_frames", "experiment/test_session", "kernels/", "learning/test_env.py", "live/test_board",
    "notebook/test_panels", "placers/test_machine_first", "plots/test_bars_and_lines", "plots/test_palette",
    "results/test_metrics", "schedulers/test_rigid", "simulator/test_stories", "solvers/test_maxmin",
    "speed/test_step_time", "system/test_progress", "test_structure", "testbed/test_inventory", "topology/test_routes",
    "workloads/test_recipes",
)  # fmt: skip
"""Files of `make fast`, one or two for each part of labkit, by how their paths in this folder begin."""

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "shared" / "data"


gc.disable()  # else a third of the time of collecting goes into looking through what tests import


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from now on, but not among the 800,000 objects that are there for good."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and tests within a file, in the order of SEED")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffle")
    return None if seed is None else f"shuffled: --shuffle={seed}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the files of FAST alone for `-m fast`: to collect all of them takes longer than these tests."""
    passed_by = collection_path.suffix == ".py" and not _name(collection_path).startswith(FAST)
    return True if config.option.markexpr == "fast" and passed_by else None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Mark the slow tests and the fast files; sort files by how long they take, roughly, or shuffle them.

    `--no-loadscope-reorder` lets workers take files in this order.
    """
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(SLOW):
            item.add_marker("slow")
        elif name.startswith(FAST):
            item.add_marker("fast")
        if name.startswith("reproductions/"):
            item.add_marker("reproductions")
    if (seed := config.getoption("--shuffle")) is None:
        _sort(items)
    else:
        _shuffle(items, np.random.default_rng(seed))


def _sort(items: list[pytest.Item]) -> None:
    """Sort files: the longest ones, then the others, with those that wait spread evenly among them."""
    place: dict[Path, tuple[float, float]] = {}
    for waits in (False, True):
        paths = [
            path for path in dict.fromkeys(item.path for item in items) if _name(path).startswith(WAITING) == waits
        ]
        place |= {path: (_rank(path), i / len(paths)) for i, path in enumerate(paths)}
    items.sort(key=lambda item: place[item.path])


def _shuffle(items: list[pytest.Item], rng: np.random.Generator) -> None:
    """Shuffle the tests of each file, and the files; a file stays in one piece, as the workers take it."""
    items[:] = [items[i] for i in rng.permutation(len(items))]
    first = {path: i for i, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: first[item.path])


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


def _rank(path: Path) -> int:
    """Return the place of a file's entry in LONGEST, or the one behind all."""
    name = _name(path)
    return next((i for i, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))


def _name(path: Path) -> str:
    """Return the path of a file within this folder, or nothing for one outside."""
    return path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else ""


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Return a function from a name to a file of reference data; it skips the test where the file is not there."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"reference data {name} is not beside this checkout (../shared/data)")
        return path

    return find


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Give a headless browser to the tests of a file."""
    with headless() as opened:
        yield opened
