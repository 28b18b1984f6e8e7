"""`--reservations FILE` of `labkit simulate`, `compare` and `sweep`: what is told, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import labkit

TRACE = """id,user,arrival_s,total_steps,duration_s,n_workers,worker_gpus
0,a,0,100,100,4,1
1,a,0,100,100,4,1
2,b,10,100,100,4,1
"""
NIGHT = '[reservation.night]\nhosts = "m1"\nstart_s = 50\nend_s = 250\nusers = "b"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.csv").write_text(TRACE)
    (tmp_path / "night.toml").write_text(NIGHT)
    return tmp_path


GIVEN = ("jobs.csv", "--cluster", "no_network(2)", "--reservations", "night.toml")


def test_simulate_tells_in_its_notes_which_held_and_who_lost_hosts(folder: Path) -> None:
    done = labkit("simulate", *GIVEN, "--scheduler", "fifo", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["mean_jct_s"] == pytest.approx((100 + 150 + 140) / 3)
    assert any(note.startswith("reservations: night: m1 from 50 s to 250 s for b; no other") for note in told["notes"])
    assert "fifo: reservation night: 1 job lost hosts when it started." in told["notes"]


def test_simulate_prints_the_rules_that_hold_for_every_scheduler(folder: Path) -> None:
    done = labkit("simulate", *GIVEN, "--scheduler", "fifo", "--consolidate", "wait", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "note: machines: gangs wait for as few machines as they need, under every scheduler" in done.stdout
    assert "note: reservations: night: m1 from 50 s to 250 s for b; no other" in done.stdout


def test_compare_tells_it_beside_the_table(folder: Path) -> None:
    done = labkit("compare", *GIVEN, "--schedulers", "fifo,las", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "reservation night: 1 job lost hosts when it started." in said
    assert "reservations: night: m1 from 50 s to 250 s for b" in said


def test_a_sweep_and_seeds_take_a_file(folder: Path) -> None:
    """In a repair of m1 from 50 to 250 s job 1 goes on on m0 at 100, and job 2 starts there at 150."""
    (folder / "night.toml").write_text("[reservation.repair]\nhosts = 1\nstart_s = 50\nend_s = 250\n")
    words = ("--schedulers", "fifo", "--workers", "0", "--json")
    both = ("--set", "reservations=None,night.toml", "--folder", "s")
    done = labkit("sweep", "--trace", *GIVEN[:3], *both, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    means = [row["mean"] for row in rows if row["scheduler"] == "fifo"]
    assert means == pytest.approx([(100 + 100 + 190) / 3, (100 + 150 + 240) / 3])
    generated = ("poisson(6, per_hour=60)", "--cluster", "no_network(2)", "--seeds", "2")
    free = labkit("compare", *generated, *words, cwd=folder)
    narrow = labkit("compare", *generated, *GIVEN[3:], *words, cwd=folder)
    assert free.returncode == narrow.returncode == 0, narrow.stderr
    assert free.stdout != narrow.stdout


def test_seeds_and_sweeps_count_the_jobs_of_all_runs_also_of_those_that_are_not_run_again(folder: Path) -> None:
    """On file jobs as for a single run: fifo stops job 1 at 50 s with either speed model."""
    words = ("sweep", "--trace", *GIVEN[:3], "--schedulers", "fifo", "--workers", "0", "--folder", "s")
    given = ("--set", "reservations=None,night.toml", "--set", "speed=auto,recorded")
    for _ in range(2):
        done = labkit(*words, *given, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "labkit: note: fifo: reservation night: 2 jobs in 2 runs lost hosts when it started" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if " fifo " in line]
    assert [row[0] for row in rows if "speed" not in row] == ["None", "None", "night.toml", "night.toml"]
    seeds = ("compare", "poisson(40, per_hour=600)", "--cluster", "no_network(2)", "--seeds", "2", "--workers", "0")
    (folder / "night.toml").write_text('[reservation.repair]\nhosts = "m1"\nstart_s = 200\nend_s = 400\n')
    done = labkit(*seeds, "--schedulers", "fifo,las", *GIVEN[3:], cwd=folder)
    assert "note: fifo: reservation repair: " in done.stderr
    assert "jobs in 2 runs lost hosts when it started" in done.stderr


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("reservations=none.toml", "none.toml': No such file or directory"),
        ("quotas=a", "quotas 'a'"),
        ("any_type=yes", "any_type is 'yes'; expected True or False"),
        ("drop_too_large=1", "drop_too_large is 1; expected True or False"),
    ],
)
def test_a_sweep_refuses_what_cannot_be_read_before_it_begins(folder: Path, given: str, what: str) -> None:
    words = ("--schedulers", "fifo", "--workers", "0", "--folder", "s", "--set", given)
    done = labkit("sweep", "--trace", *GIVEN[:3], *words, cwd=folder)
    assert done.returncode == 2
    assert what in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "s").exists()


def test_the_help_says_what_a_table_is_called(folder: Path) -> None:
    told = " ".join(labkit("compare", "--help", cwd=folder).stdout.replace("│", " ").split())
    assert "a TOML file with a table reservation.NAME for each." in told


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (NIGHT.replace("m1", "m7"), "unknown host of reservation night 'm7'"),
        (NIGHT.replace('"b"', '"c"'), "unknown user of reservation night 'c'"),
        (NIGHT.replace("250", "5"), "reservation night ends at 5 s, and starts at 50 s"),
        ("[night]\n", "reservations night.toml has night; expected a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(folder: Path, text: str, what: str) -> None:
    (folder / "night.toml").write_text(text)
    for command in (("simulate", "--scheduler"), ("compare", "--schedulers")):
        done = labkit(command[0], *GIVEN, command[1], "fifo", cwd=folder)
        assert done.returncode != 0
        assert what in done.stderr
        assert "Traceback" not in done.stderr
