"""`labkit sweep`: what it prints, how it goes on, and one line for whatever was typed wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.cli.sweep import _clusters
from tests.command import labkit

DEMO = Path(__file__).parents[2] / "traces" / "demo.csv"
TRACE = "poisson(12, per_hour=60, median_s=600, mean_s=700)"
PLAIN = ("--trace", TRACE, "--cluster", "demo", "--folder", "s", "--workers", "0")


def test_it_ends_with_means_intervals_and_differences_and_goes_on_where_it_was(tmp_path):
    words = (*PLAIN, "--schedulers", "fifo", "--schedulers", "srtf,drf(placer=pack)", "--seeds", "2")
    done = labkit("sweep", *words, "--set", "load=1,2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "95% CI" in done.stdout
    assert done.stdout.splitlines()[1].split() == ["against", "lower", "times"]  # the first scheduler's name, the bound
    assert done.stdout.count("drf(placer=pack)") == 2
    assert len((tmp_path / "s" / "cells.jsonl").read_text().splitlines()) == 12
    again = labkit("sweep", *words, "--set", "load=1,2", "--json", "--metric", "makespan_s", cwd=tmp_path)
    told = [json.loads(line) for line in again.stdout.splitlines()]
    assert [(row["load"], row["scheduler"], row["n"]) for row in told] == [
        (load, name, 2) for load in (1, 2) for name in ("fifo", "srtf", "drf(placer=pack)")
    ]
    assert told[0]["difference"] is None
    assert told[1]["difference_low"] <= told[1]["difference"] <= told[1]["difference_high"]
    assert {row["metric"] for row in told} == {"makespan_s"}


def test_dl2s_published_drf_has_its_published_jct_from_the_command_line(tmp_path, shared_data):
    """4.294 slots of 20 minutes, the mean of the reference runs' seeds 1 to 5: a step of the trace is one sample."""
    done = labkit(
        "sweep", "--trace", "dl2_jobs('short_48n', pattern='google')", "--cluster", "dl2-48n", "--set", "slot_s=1200",
        "--set", f"throughputs={shared_data('dl2/config_speed.txt')}", "--schedulers", "drf(published=True)",
        "--seeds", "1-5", "--folder", "s", "--workers", "0", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row, *_ = (json.loads(line) for line in done.stdout.splitlines())
    assert row["mean"] / 1200 == pytest.approx(4.294, abs=0.0005)


def test_a_figure_and_whole_runs_are_kept_where_asked_for(tmp_path):
    done = labkit(
        "sweep", *PLAIN, "--schedulers", "fifo", "--seeds", "1,5", "--keep", "--figure", "f.svg", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "95% confidence" in (tmp_path / "f.svg").read_text()
    assert len(list((tmp_path / "s" / "runs").iterdir())) == 2


def test_cells_that_failed_are_told_and_the_exit_code_is_1(tmp_path):
    many = "poisson(3, per_hour=60, gangs=(16,))"
    done = labkit(
        "sweep", "--trace", many, "--cluster", "demo,no_network(1)", "--schedulers", "fifo", "--folder", "s",
        "--workers", "0", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    at_once, counted, said = done.stderr.splitlines()  # while it continues, and at the end
    assert at_once.startswith(f"trace {many}, cluster no_network(1), scheduler fifo, seed 0: InputError: ")
    assert counted == "labkit: 2 of 2 runs done, 1 failed"
    assert said.startswith(f"labkit: failed: trace {many}, cluster no_network(1), scheduler fifo, seed 0: InputError: ")
    (row,) = [line.split() for line in done.stdout.splitlines() if "no_network(1)" in line]
    assert row[-2:] == ["1", "–"]


def test_a_sweep_of_which_every_cell_failed_tells_why_and_nothing_else(tmp_path):
    given = ("--trace", "poisson(3, per_hour=60, gangs=(16,))", "--cluster", "no_network(1)", "--schedulers", "fifo")
    done = labkit("sweep", *given, "--folder", "s", "--workers", "0", "--figure", "f.svg", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "metric" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("labkit: failed: trace poisson(3")


def test_others_are_compared_with_the_scheduler_that_is_named_and_the_bound_stands_below_them(tmp_path):
    words = ("--trace", TRACE, "--cluster", "no_network(2)", "--folder", "s", "--workers", "0", "--seeds", "3",
             "--schedulers", "fifo,srtf", "--set", "speed=recorded", "--against", "srtf")  # fmt: skip
    done = labkit("sweep", *words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = {row["scheduler"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(told) == ["fifo", "srtf", "(bound)"]
    assert {row["against"] for row in told.values()} == {"srtf"}
    assert told["srtf"]["difference"] is None
    assert told["fifo"]["times_bound"] == pytest.approx(told["fifo"]["mean"] / told["(bound)"]["mean"])
    assert told["(bound)"]["what"].startswith("every job runs on its fastest gang")
    again = labkit("sweep", *words, "--figure", "f.svg", cwd=tmp_path).stdout.splitlines()
    assert again[0] == "speeds: the trace's own durations"
    assert "srtf" in again[2]
    assert again[-1].startswith("(bound): lower bound (every job runs on its")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "5", "--trace", str(DEMO)), "the 5 seeds have no effect"),
        (("--seeds", "none"), "--seeds is 'none'; expected how many (5), a range (5-9) or a list (1,4,9)"),
        (("--seeds", "7-3"), "--seeds is '7-3'"),
        (("--seeds", "9" * 40), "expected at most 1,000,000 seeds"),
        (("--set", "load"), "--set 'load' cannot be read; expected NAME=A,B,..."),
        (("--set", "seed=1"), "--set 'seed=1': seed has an option of its own"),
        (("--set", "arival_rate=1"), "unknown parameter 'arival_rate'. Did you mean 'arrival_rate'?"),
        (("--schedulers", "srft"), "unknown scheduler 'srft'. Did you mean 'srtf'?"),
        (("--cluster", "dmeo"), "unknown cluster 'dmeo'. Did you mean 'demo'?"),
        (("--folder", "taken"), "taken"),
        (("--workers", "-1"), "'--workers'"),
        (("--metric", "mean_jtc_s"), "Did you mean 'mean_jct_s'?"),
        (("--against", "ffio"), "unknown scheduler to compare --against 'ffio'. Did you mean 'fifo'? Known: fifo."),
    ],
    ids=str,
)
def test_what_is_typed_wrong_is_told_in_one_line(words, said, tmp_path):
    (tmp_path / "taken").write_text("a file where a folder is asked for")
    given = [*PLAIN] if "--trace" not in words else [*PLAIN[2:]]
    given = given if "--cluster" not in words else [word for word in given if word not in ("--cluster", "demo")]
    done = labkit("sweep", "--schedulers", "fifo", *given, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("labkit: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_compare_takes_a_generator_too_and_its_seed(tmp_path):
    told = []
    for seed in ("3", "3", "4"):
        done = labkit(
            "compare", TRACE, "--cluster", "demo", "--schedulers", "fifo", "--seed", seed, "--json", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout)["mean_jct_s"])
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize(
    ("traces", "cluster"),
    [(["demo"], "demo"), (["philly-like"], "gavel-36x3"), (["demo", "philly-like"], "gavel-36x3")],
)
def test_without_a_cluster_a_sweep_takes_the_one_that_compare_takes(traces, cluster, capsys):
    assert _clusters(None, traces) == [cluster]
    assert f"cluster: {cluster}, the " in capsys.readouterr().err
    assert _clusters(["a,b"], traces) == ["a", "b"]
