"""Progress where no terminal shows a bar."""

from __future__ import annotations

import sys
from threading import Event

import pytest

from labkit.system.progress import ProgressLines, StageLines
from tests.hang import HANG_S


def test_a_line_comes_again_and_again_until_the_end(monkeypatch):
    said, twice = [], Event()

    class Log:
        def write(self, text):
            said.append(text)
            if "".join(said).count("runs done") >= 2:
                twice.set()

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Log())
    with ProgressLines(10, unit="runs", done=3, every_s=0.01) as lines:
        lines.n_failed = 1
        assert twice.wait(HANG_S)
    assert "labkit: 3 of 10 runs done, 1 failed\n" in "".join(said)
    n = len(said)
    assert lines.line() == "labkit: 3 of 10 runs done, 1 failed"
    assert len(said) == n


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stage_is_one_line_that_changes_in_a_terminal_and_lines_elsewhere(terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    times = iter([10.0, 10.0, 17.2])
    with StageLines("comparing", every_s=1e6, clock=lambda: next(times)) as lines:
        lines.stage, lines.detail = "training", lambda: "3 of 5 steps"
        assert lines.line().removeprefix("\x1b[K") == "labkit: training, 7 s: 3 of 5 steps"
        lines.say("calibrated")
    heard = capsys.readouterr()
    assert heard.out == "calibrated\n"
    clear = "\x1b[K"
    assert heard.err == (f"{clear}labkit: comparing, 0 s\r{clear}{clear}" if terminal else "labkit: comparing, 0 s\n")
