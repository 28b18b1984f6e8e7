"""The demo trains real jobs, tells what was rescaled, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from labkit.cli import demo as cli_demo
from labkit.core.events import Kind
from labkit.experiment import compare, demo
from labkit.plots.report import write_report
from labkit.results import rescalings
from labkit.system.doctor import which
from labkit.system.progress import STAGE_S, StageLines
from labkit.testbed.errors import BedError
from labkit.testbed.laptop import bed as beds
from labkit.testbed.laptop.processes import processes
from tests.hang import HANG_S

SCRIPT = "from labkit.experiment.demo import train; from labkit.system.progress import StageLines as S; train(S(''))"


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
    until = time.monotonic() + HANG_S
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    return not marked(mark)


def test_three_jobs_train_where_there_is_no_sshd_and_one_is_rescaled_on_the_way(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(beds, "sshd_program", lambda: "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with StageLines("starting", every_s=0.01) as lines:
        twins = demo.train(lines)
    heard = capsys.readouterr()
    said = heard.out.splitlines()
    for stage in ("starting, ", "calibrating, ", "training 3 jobs, "):
        assert f"labkit: {stage}" in heard.err
    assert re.search(r"training 3 jobs, .* s: search \d+ of 1,500 steps, .*language [1-9]\d* of 500 steps", heard.err)
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
            until = time.monotonic() + HANG_S
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
    def refuse(_: object) -> None:
        raise BedError("no bed\nfor you.")

    monkeypatch.setattr(demo, "train", refuse)
    with pytest.raises(typer.Exit) as left:
        cli_demo.demo(folder=tmp_path, testbed=True)
    assert left.value.exit_code == 1
    said = capsys.readouterr()
    refused = [line for line in said.err.splitlines() if line.startswith("labkit: nothing")]
    assert refused == ["labkit: nothing from the testbed in the report: no bed for you."]
    *_, report, figure, last = said.out.splitlines()
    assert (report[:8], figure[:8]) == ("report: ", "figure: ")
    assert last.startswith("optimus has the lowest mean JCT: ")
    assert max(map(len, said.out.splitlines()[:-3])) <= 100
    assert " %" not in said.out
    assert "Jobs that really trained" not in (tmp_path / "demo.html").read_text()
    with pytest.raises(typer.Exit) as left:
        cli_demo.demo(folder=tmp_path, testbed=False)
    assert left.value.exit_code == 0


class Log:
    """A stderr that is no terminal, on which one can wait for a text to come several times."""

    def __init__(self) -> None:
        self.text, self.grown = "", threading.Condition()

    def write(self, text: str) -> None:
        with self.grown:
            self.text += text
            self.grown.notify_all()

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def comes(self, text: str, *, times: int) -> bool:
        with self.grown:
            return self.grown.wait_for(lambda: self.text.count(text) >= times, HANG_S)


def test_a_line_comes_again_and_again_in_each_stage_also_where_there_is_no_terminal(monkeypatch, tmp_path):
    """Each stage lasts until it was told three times: one that is silent ends the test."""
    assert STAGE_S <= 3
    monkeypatch.setitem(StageLines.__init__.__kwdefaults__, "every_s", 0.01)
    records = compare("poisson(2, per_hour=60)", cluster="no_network(1)", schedulers="fifo,srtf")
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)

    def simulated(*_: object, **__: object) -> object:
        assert log.comes("labkit: comparing six schedulers, ", times=3)
        return records, {}

    def training(_: object) -> None:
        assert log.comes("labkit: starting a laptop testbed, ", times=3)
        raise BedError("none")

    def written(*_: object, **__: object) -> Path:
        assert log.comes("labkit: writing the report, ", times=3)
        return tmp_path

    monkeypatch.setattr(cli_demo, "all_but_failed", simulated)
    monkeypatch.setattr(demo, "train", training)
    monkeypatch.setattr("labkit.plots.report.write_report", written)
    with pytest.raises(typer.Exit):
        cli_demo.demo(folder=tmp_path, testbed=True)
