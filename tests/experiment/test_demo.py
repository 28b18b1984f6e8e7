"""The demo trains real jobs, tells what was rescaled, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from labkit import cli, cli_demo
from labkit.core.events import Kind
from labkit.doctor import which
from labkit.experiment import demo
from labkit.plots.report import write_report
from labkit.results import rescalings
from labkit.testbed.errors import BedError
from labkit.testbed.laptop import bed as beds
from labkit.testbed.laptop.processes import processes
from tests.hang import HANG_S

SCRIPT = "from labkit.experiment.demo import train; train(say=lambda line: print(line, flush=True))"


def marked(mark: str) -> list[tuple[str, str]]:
    """Return command and HOME of all processes that have a mark in their environment."""
    found = []
    for each in processes():
        try:
            content = Path(f"/proc/{each.pid}/environ").read_text(errors="replace")
        except OSError:  # gone meanwhile, or somebody else's
            continue
        if mark in content:
            found.append((each.command, content.partition("\0HOME=")[2].partition("\0")[0]))
    return found


def gone(mark: str) -> bool:
    """Tell whether no process has the mark, or soon none has."""
    until = time.monotonic() + 10
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    return not marked(mark)


def test_three_jobs_train_where_there_is_no_sshd_and_one_is_rescaled_on_the_way(monkeypatch, tmp_path):
    monkeypatch.setattr(beds, "sshd_program", lambda: "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said: list[str] = []
    twins = demo.train(say=said.append)
    assert said[0].startswith("note: no sshd for this user here")
    assert said[1].startswith("calibrating: one job trains alone")
    assert said[2].startswith("calibrated: an update takes ")
    assert "(paramiko)" in said[3]
    assert "scaled by one job that trained here" in twins.rests_on
    for record in (twins.real, twins.simulated):
        assert record.summary["n_unfinished"] == 0
        assert record.jobs.id.tolist() == ["search", "language", "sentences"]
    assert (twins.real.info.backend, twins.simulated.info.backend) == ("testbed", "simulator")
    assert set(twins.real.events["job"][twins.real.events["kind"] == Kind.LOSS]) == {0, 1, 2}
    scaled = rescalings(twins.real.events)
    assert len(scaled) >= 1
    assert (scaled["n_workers"].isin([1, 2])).all()
    told = [str(cell) for cell in cli_demo.table_of(twins).columns[3].cells]
    assert np.count_nonzero(told) == scaled["job"].nunique()
    text = write_report([twins.simulated], tmp_path / "a.html", pair=(twins.real, twins.simulated)).read_text()
    assert "Jobs that really trained, and their simulation<" in text
    assert "Real: optimus (testbed)" in text
    assert gone(str(tmp_path))


def test_ctrl_c_in_the_middle_leaves_no_process_and_no_file(tmp_path):
    if not which("sshd"):
        pytest.skip("no sshd here")
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            lines = iter(running.stdout.readline, "")
            assert any("train on a laptop testbed of 3 hosts (sshd)" in line for line in lines)
            until = time.monotonic() + 100
            program = "labkit.testbed.run.job_process"
            while not (homes := [home for command, home in marked(str(tmp_path)) if program in command]):
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(HANG_S)
    assert running.returncode != 0
    assert gone(str(tmp_path))
    mine = Path(homes[0]).parents[2]
    assert mine.name.startswith("labkit-")
    assert not mine.exists()


def test_where_the_testbed_does_not_come_up_it_is_said_in_one_line_and_the_rest_is_done(monkeypatch, tmp_path, capsys):
    def refuse(**_: object) -> None:
        raise BedError("no bed\nfor you.")

    monkeypatch.setattr(demo, "train", refuse)
    with pytest.raises(typer.Exit) as left:
        cli.demo(folder=tmp_path, testbed=True)
    assert left.value.exit_code == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == ["labkit: nothing from the testbed in the report: no bed for you."]
    assert "report: " in said.out
    assert "Jobs that really trained" not in (tmp_path / "demo.html").read_text()
    with pytest.raises(typer.Exit) as left:
        cli.demo(folder=tmp_path, testbed=False)
    assert left.value.exit_code == 0
