"""The command line: what it prints, and one line with exit code 2 for whatever was typed wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from labkit.core.text import split_names
from labkit.results import load
from labkit.schedulers import available
from tests.command import labkit
from tests.hang import HANG_S

DEMO = Path(__file__).parents[2] / "traces" / "demo.csv"


def test_compare_prints_one_object_per_scheduler(tmp_path):
    done = labkit("compare", str(DEMO), "--cluster", "demo", "--schedulers", "fifo,srtf", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["scheduler"] for row in told] == ["fifo", "srtf"]
    for row in told:
        assert {"mean_jct_s", "p95_jct_s", "makespan_s", "n_jobs", "wall_s"} <= set(row)
        assert row["n_jobs"] == 80
        assert 0 < row["mean_jct_s"] <= row["p95_jct_s"] < row["makespan_s"]


def test_estimated_throughputs_are_told_once_in_one_line(tmp_path):
    (tmp_path / "two.csv").write_text("arrival_s,total_steps,model,n_workers\n0,100,A3C,2\n")
    done = labkit("compare", "two.csv", "--schedulers", "fifo,srtf", "--json", cwd=tmp_path)
    (note,) = done.stderr.splitlines()
    assert note.startswith(
        "labkit: note: throughput estimated per GPU from the nearest measured number of GPUs on 2 GPUs"
    )
    done = labkit("compare", "two.csv", "--schedulers", "fifo", "--strict", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("labkit: no measured throughput on 2 GPUs: A3C")


def test_simulate_takes_what_compare_takes_and_says_the_same(tmp_path):
    given = (
        "poisson(40, per_hour=60)",
        "--cluster",
        "demo",
        "--arrival-rate",
        "2",
        "--first",
        "30",
        "--seed",
        "3",
        "--json",
    )
    given += ("--slot", "600", "--start", "20", "--restart", "40", "--rescale", "10")
    compared = labkit("compare", *given, "--schedulers", "las", cwd=tmp_path)
    simulated = labkit("simulate", *given, "--scheduler", "las", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    one, other = json.loads(compared.stdout), json.loads(simulated.stdout)
    assert other["n_jobs"] == 30
    same = ("mean_jct_s", "makespan_s")
    assert {key: other[key] for key in same} == {key: one[key] for key in same}


def test_compare_charges_what_a_profile_has_measured_of_starts_and_changes(tmp_path):
    given = (str(DEMO.with_name("testbed.csv")), "--profile", str(DEMO.with_name("testbed-profile.json")), "--json")
    compared = json.loads(labkit("compare", *given, "--schedulers", "optimus", cwd=tmp_path).stdout)
    simulated = json.loads(labkit("simulate", *given, "--scheduler", "optimus", cwd=tmp_path).stdout)
    free = json.loads(labkit("compare", *given, "--schedulers", "optimus", "--start", "1e-9", cwd=tmp_path).stdout)
    assert compared["mean_jct_s"] == simulated["mean_jct_s"] > free["mean_jct_s"]


def test_load_2_makes_jobs_arrive_twice_as_fast(tmp_path):
    makespans = []
    for factor in ("1", "4"):
        done = labkit(
            "compare", str(DEMO), "--cluster", "no_network(500)", "--schedulers", "fifo", "--json",
            "--arrival-rate", factor, cwd=tmp_path,
        )  # fmt: skip
        makespans.append(json.loads(done.stdout)["makespan_s"])
    assert makespans[1] < 0.75 * makespans[0]


def test_kept_runs_make_a_report(tmp_path):
    done = labkit("compare", str(DEMO), "--cluster", "demo", "--schedulers", "fifo,las", "--runs", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = sorted(path.name for path in (tmp_path / "kept").iterdir())
    done = labkit("report", *runs, "--runs", "kept", "--out", "out/report.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "las" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("compare nothing.csv", "nothing.csv: there is no such file"),
        ("compare DEMO --cluster demo --schedulers fifu", "unknown scheduler 'fifu'. Did you mean 'fifo'?"),
        ("compare DEMO --cluster demo --schedulers ,", "no scheduler is named"),
        ("compare DEMO --cluster dmeo", "unknown cluster 'dmeo'. Did you mean 'demo'?"),
        ("compare DEMO --cluster fat_tree(3)", "fat_tree: k is 3; expected a whole number"),
        ("compare DEMO --cluster demo --speed fast", "unknown speed model 'fast'"),
        ("compare DEMO --cluster demo --arrival-rate 0", "arrival_rate is 0.0; expected a factor > 0"),
        ("compare DEMO --cluster demo --slot 0", "a slot of 0.0 s; expected seconds > 0"),
        ("compare DEMO --cluster demo --slot ten", "'--slot'"),
        ("compare DEMO --cluster demo --first 0", "'--first'"),
        ("compare DEMO --cluster demo --seed -1", "'--seed'"),
        ("compare DEMO --cluster demo --rescale -1", "Overheads.rescale_s is -1.0; expected a number >= 0"),
        ("compare DEMO --cluster demo --report taken/x.html", "taken"),
        ("compare DEMO --cluster demo --runs taken/x", "taken"),
        ("report nosuch", "no run 'nosuch'"),
        ("traces fetch philyl", "unknown public trace 'philyl'. Did you mean 'philly'?"),
        ("compaer", "No such command 'compaer'. Did you mean 'compare', 'paper'? See `"),
        ("attach nosuch", "there are no runs in runs; begin one with 'labkit compare' (simulated) or 'labkit deploy'"),
    ],
)
def test_what_is_typed_wrong_is_told_in_one_line(words, said, tmp_path):
    (tmp_path / "taken").write_text("a file where a folder is asked for")
    before = sorted(tmp_path.rglob("*"))
    done = labkit(*(str(DEMO) if word == "DEMO" else word for word in words.split()), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("labkit: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_stops_with_130_and_marks_the_run(tmp_path):
    words = ["compare", str(DEMO), "--cluster", "demo", "--schedulers", "las", "--slot", "0.02", "--runs", "kept"]
    running = subprocess.Popen(
        [sys.executable, "-u", "-m", "labkit", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        while not list((tmp_path / "kept").glob("*/events-*.parquet")):  # it has been simulating for a second
            assert running.poll() is None, running.communicate()
            os.sched_yield()
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=HANG_S)
    finally:
        running.kill()
    assert running.returncode == 130
    assert said.decode().splitlines() == ["labkit: stopped"]
    (run,) = (tmp_path / "kept").iterdir()
    assert load(run).info.state == "stopped"


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("module", ["labkit.core", "typer", "labkit.cli.bed"])
def test_ctrl_c_while_modules_are_loaded_is_one_line_and_130_also_twice(module, twice, tmp_path):
    running = subprocess.Popen(
        [sys.executable, "-m", "labkit", "compare", str(DEMO), "--cluster", "demo"], cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
    )  # fmt: skip
    try:
        for line in running.stderr:  # modules are told as soon as they are loaded
            if line.rpartition("|")[2].strip() == module or "compare" in line:
                break
        for _ in range(1 + twice):
            running.send_signal(signal.SIGINT)
        said = [line for line in running.stderr if not line.startswith("import time:")]
        running.wait(HANG_S)
    finally:
        running.kill()
        running.stderr.close()
    assert running.returncode == 130
    assert said == ["labkit: stopped\n"]


def test_commas_inside_brackets_do_not_split():
    assert split_names("fifo, las(a=1, b=2),srtf") == ["fifo", "las(a=1, b=2)", "srtf"]


def test_a_terminal_sees_how_far_each_scheduler_is(tmp_path):
    """A real terminal: progress bars on stderr, 80 of 80 jobs at the end of each."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    words = ["compare", str(DEMO), "--cluster", "demo", "--schedulers", "fifo,srtf"]
    with subprocess.Popen(
        [sys.executable, "-m", "labkit", *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=slave
    ) as running:
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal is gone once the program has ended
            while part := os.read(master, 65536):
                seen += part
        os.close(master)
    assert running.returncode == 0
    for scheduler in ("fifo", "srtf"):
        assert f"{scheduler}: 100%" in seen.decode()
    assert seen.decode().count("80/80") >= 2


def test_every_scheduler_is_listed_with_what_it_does_and_the_options_that_are_its_own(tmp_path):
    done = labkit("schedulers", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    listed = [i for i, line in enumerate(told) if line.partition(":")[0] in available()]
    assert sorted(told[i].partition(":")[0] for i in listed) == available()
    assert all(told[i].partition(": ")[2] and told[i + 1].startswith("    options: ") for i in listed)
    assert "policy=" not in done.stdout
    assert "placer=Pack(), round_s=360.0" in told[-1]


@pytest.mark.parametrize(("trace", "cluster"), [("demo", "demo"), ("gavel-small", "gavel-36x3")])
def test_the_header_says_which_cluster_was_taken_where_none_was_named(trace, cluster, tmp_path):
    done = labkit("compare", trace, "--schedulers", "fifo", "--first", "20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith(f"cluster: {cluster}, the ")
    named = labkit("compare", trace, "--schedulers", "fifo", "--first", "20", "--cluster", "demo", cwd=tmp_path)
    assert "--cluster names another" not in named.stdout
