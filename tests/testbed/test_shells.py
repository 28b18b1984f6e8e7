"""Logins with shells of all kinds: each works, or is refused in plain words with a remedy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.testbed.laptop.server import program
from labkit.testbed.ssh.command import Opening, for_any_shell
from tests.hang import HANG_S
from tests.testbed import shells

REFUSED = {
    "nologin": "wrote 'This account is currently not available.'",
    "endless": "wrote more than 64 KiB before labkit's command began",
    "leaving": "wrote 'no service today' and ended with exit code 7",
}


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Any]]:
    """What is said of a login of each kind."""
    if os.getuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("only root can make users with other shells, in a mount namespace of their own")
    if not program("sshd"):
        pytest.skip("no sshd here")
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    try:
        script = Path(shells.__file__)
        done = subprocess.run(
            [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=HANG_S, check=False,
            env={**os.environ, "PYTHONPATH": str(script.parents[2])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        yield json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    if name not in found["faults"]:
        pytest.skip(f"no {name} here")
    return {what: said.get(name) for what, said in found.items()}


@pytest.mark.parametrize("name", shells.WORK)
def test_whatever_a_shell_says_commands_files_backups_and_agents_are_as_without_it(found, name):
    mine = of(found, name)
    assert mine["faults"] == []
    assert mine["words"] is True, "each word arrives as it was given"
    assert mine["errors"] == "", "nor is what the shell says taken for the command's"
    assert mine["fetch"][:2] == [True, f"2 files, 1.28 MB, in {mine['fetch'][1].rpartition(', in ')[2]}"]
    assert mine["whole"] is True
    assert isinstance(mine["backup"], int)
    assert mine["install"][0], mine["install"]
    assert mine["start"][0], mine["start"]
    assert mine["stop"][0], mine["stop"]


@pytest.mark.parametrize("name", [name for name in shells.WORK if name != "echoing"])
def test_doctor_says_that_a_shell_talks(found, name):
    assert "labkit drops it; scp and rsync may not" in of(found, name)["notes"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_shell_that_runs_nothing_is_refused_with_what_it_said(found, name):
    mine = of(found, name)
    (fault,) = mine["faults"]
    assert fault.startswith("reach: its login shell ")
    for said in (fault, mine["words"], mine["backup"], mine["fetch"][1], mine["install"][1], mine["start"][1]):
        assert REFUSED[name] in said
        assert "shell that runs commands (chsh" in said or "[ -t 1 ] || return" in said
    assert not any((mine["fetch"][0], mine["install"][0], mine["start"][0], mine["whole"]))


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "ksh", "mksh", "zsh", "fish", "tcsh", "csh", "busybox"])
def test_a_line_means_the_same_to_every_shell(shell):
    where = shutil.which(shell)
    if where is None:
        pytest.skip(f"no {shell} here")
    words = [*shells.WORDS, "".join(map(chr, range(1, 256)))]
    opening = Opening()
    line = opening.line(["printf", "%s\\0", *words])
    done = subprocess.run([where, *(["sh"] if shell == "busybox" else []), "-c", line], capture_output=True, check=True)
    assert opening.feed(b"greeting" + done.stdout).split(b"\0")[:-1] == [word.encode() for word in words]
    assert opening.feed(done.stderr, output="stderr") == b""
    assert opening.has_begun()


def test_a_line_has_nothing_that_a_shell_reads_in_its_own_way():
    line = for_any_shell("a'b\\c!d\ne\tfé\0")
    assert line.isascii()
    assert line.isprintable()
    assert "!" not in line
    assert line.count("'") == 4
