"""From an export of one's own cluster to a comparison, in a clean folder."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.command import labkit
from tests.workloads.exports import SACCT, TABLE

CLUSTER = """
[[hosts]]
name = "a"
gpus = 8
cpus = 128
memory_gb = 1024
device_type = "a100"

[[hosts]]
name = "v"
count = 2
gpus = 4
cpus = 64
memory_gb = 512
device_type = "v100"
"""


def test_a_slurm_export_is_compared_as_it_is(tmp_path):
    (tmp_path / "export.txt").write_text(SACCT)
    (tmp_path / "my.toml").write_text(CLUSTER)
    words = ("compare", "export.txt", "--cluster", "my.toml", "--schedulers", "srtf,fifo")
    done = labkit(*words, "--speed", "flops", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 jobs of export.txt on my: 3 machines, 16 GPUs (8 a100, 8 v100)" in done.stdout
    assert "speeds: a guess: as published peak TFLOPS (a100 312, v100 125)" in done.stdout
    assert done.stdout.count("note: left out of 12 rows: 2 of steps") == 1


def test_import_proposes_keeps_nothing_unasked_and_then_compare_just_works(tmp_path):
    (tmp_path / "jobs.csv").write_text(TABLE)
    refused = labkit("compare", "jobs.csv", "--cluster", "demo", "--schedulers", "fifo", cwd=tmp_path)
    assert refused.returncode == 2
    assert "labkit traces import jobs.csv" in refused.stderr
    shown = labkit("traces", "import", "jobs.csv", cwd=tmp_path)
    assert shown.returncode == 1
    assert "run_time_min  min   sure      60 | 30 | 5" in shown.stdout
    assert "not used: exit_code" in shown.stdout
    assert "3 jobs of 5 rows" in shown.stdout
    assert not (tmp_path / "jobs.csv.labkit.toml").exists()
    kept = labkit("traces", "import", "jobs.csv", "--yes", "--map", "arrival=startTime", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    assert 'arrival = "startTime"' in (tmp_path / "jobs.csv.labkit.toml").read_text()
    done = labkit("compare", "jobs.csv", "--cluster", "demo", "--schedulers", "fifo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 jobs of jobs.csv" in done.stdout


def test_in_a_terminal_import_asks(tmp_path):
    (tmp_path / "jobs.csv").write_text(TABLE)
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")
    words = [sys.executable, "-m", "labkit", "traces", "import", "jobs.csv"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert "Read it so from now on?" in done.stdout
    assert (tmp_path / "jobs.csv.labkit.toml").exists()


def test_what_needs_no_import_is_said(tmp_path):
    (tmp_path / "export.txt").write_text(SACCT)
    done = labkit("traces", "import", "export.txt", cwd=tmp_path)
    assert done.returncode == 0
    assert "of format sacct, which needs no import" in done.stdout
    told = labkit("traces", "import", "export.txt", "--map", "arrival=Submit,gpus=ReqTRES", "--yes", cwd=tmp_path)
    assert told.returncode == 0, told.stderr  # what is told is imported, whatever the file looks like
    assert "export.txt (mapped)" in labkit("traces", "info", "export.txt", cwd=tmp_path).stdout


def test_check_shows_the_ledger_and_draws_what_was_in_use(tmp_path):
    (tmp_path / "export.txt").write_text(SACCT)
    (tmp_path / "my.toml").write_text(CLUSTER)
    done = labkit(
        "traces", "check", "export.txt", "--cluster", "my.toml", "--figure", "use.svg", cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows      12 rows = 5 jobs + 1 of earlier attempts or sizes of the same job" in done.stdout
    assert "fit       never more GPUs in use than my has" in done.stdout
    assert (tmp_path / "use.svg").read_text().startswith("<svg")


ODD = "nr;queued_ts;Laufzeit (min);cards;board\n1;1709290000;{};2;a100\n2;1709290600;12;1;h100\n"


def test_columns_of_other_words_are_proposed_and_a_decimal_comma_is_told(tmp_path):
    (tmp_path / "odd.csv").write_text(ODD.format("30,5"))
    shown = labkit("traces", "import", "odd.csv", "--yes", cwd=tmp_path)
    rows = [line.split()[0] for line in shown.stdout.splitlines() if " likely " in line]
    assert rows == ["arrival", "duration", "gpus", "measured_on"]
    assert shown.returncode == 0
    assert "Laufzeit (min) has commas of decimals: '30,5' is 30.5." in shown.stdout
    told = labkit("traces", "info", "odd.csv", cwd=tmp_path).stdout
    assert "longest 30.5 minutes" in told
    assert "types     ran on: a100 1, h100 1" in told


def test_where_nothing_can_be_proposed_all_columns_are_named(tmp_path):
    (tmp_path / "none.csv").write_text("foo,bar,baz\n1,2,3\n")
    refused = labkit("traces", "import", "none.csv", cwd=tmp_path)
    assert refused.returncode == 2
    assert "There are: foo, bar, baz." in refused.stderr


def test_an_export_without_its_header_is_told_apart_and_any_delimiter_of_sacct_is_read(tmp_path):
    (tmp_path / "rows.txt").write_text(SACCT.split("\n", 1)[1])
    refused = labkit("traces", "info", "rows.txt", cwd=tmp_path)
    assert refused.returncode == 2
    assert "looks like sacct without its header; export with --parsable2 and without --noheader" in refused.stderr
    (tmp_path / "hash.txt").write_text(SACCT.replace("|", "#"))
    assert "hash.txt (sacct)" in labkit("traces", "info", "hash.txt", cwd=tmp_path).stdout
