"""Progress where no terminal shows a bar."""

from __future__ import annotations

import sys
from threading import Event

from labkit.progress_lines import ProgressLines
from tests.hang import HANG_S


def test_a_line_comes_again_and_again_until_the_end(monkeypatch):
    said, twice = [], Event()

    class Log:
        def write(self, text):
            said.append(text)
            if "".join(said).count("cells done") >= 2:
                twice.set()

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Log())
    with ProgressLines(10, unit="cells", done=3, every_s=0.01) as lines:
        lines.n_failed = 1
        assert twice.wait(HANG_S)
    assert "labkit: 3 of 10 cells done, 1 failed\n" in "".join(said)
    n = len(said)
    assert lines.line() == "labkit: 3 of 10 cells done, 1 failed"
    assert len(said) == n
