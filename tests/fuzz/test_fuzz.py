"""What is typed wrong, or stored and damaged, ends in one line, soon, and leaves nothing: more in `make chaos`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
N_DRAWN = 150
N_MORE = int(os.environ.get("LABKIT_CHAOS", "0")) * 500


def wrong(first: int, n: int, *what: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.forked", str(first), str(n), *what],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_no_command_ends_in_a_traceback_or_hangs():
    assert not (found := wrong(0, N_DRAWN)), "\n\n".join(found)


@pytest.mark.slow
@pytest.mark.skipif(not N_MORE, reason="many more commands: make chaos")
def test_nor_do_many_more():
    assert not (found := wrong(N_DRAWN, N_MORE)), "\n\n".join(found)


@pytest.mark.slow
def test_no_command_takes_a_damaged_folder_amiss():
    assert not (found := wrong(0, N_DRAWN, "stored")), "\n\n".join(found)


@pytest.mark.slow
@pytest.mark.skipif(not N_MORE, reason="many more folders: make chaos")
def test_nor_many_more_folders():
    assert not (found := wrong(N_DRAWN, N_MORE, "stored")), "\n\n".join(found)
