"""labkit doctor: it finds what is there, says how to get what is not, and fails only for what is required."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.system import doctor
from labkit.system.doctor import Check, checks, main, program, verdict

ROOT = Path(__file__).parents[2]


def fake_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """A machine whose path holds only what the test puts into it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "SYSTEM_FOLDERS", ())
    return tmp_path


def test_where_these_tests_run_nothing_required_is_missing():
    found = {check.name: check for check in checks()}
    assert found["Python"].found == ".".join(map(str, sys.version_info[:3]))
    assert found["numba"].ok
    assert all(check.ok for check in found.values() if check.required)


def test_every_check_says_what_for_and_how():
    assert all(check.hint for check in checks())
    assert len({check.name for check in checks()}) == len(checks())


def test_what_is_missing_on_a_bare_machine_is_told_with_its_remedy(bare_machine, capsys):
    assert main() == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "labkit cannot work without: git." in said
    assert "openssh-server" in said


def test_a_program_is_found_under_any_of_its_names(bare_machine):
    fake_program(bare_machine, "chromium-browser", "true")
    found = program("chromium", "chromium-browser", name="Chromium", hint="x")
    assert found == Check("Chromium", True, str(bare_machine / "chromium-browser"), "x")


def test_a_gpu_is_named_and_the_rest_counted(bare_machine):
    fake_program(bare_machine, "nvidia-smi", "echo 'H200, 141 GiB'; echo 'H200, 141 GiB'")
    assert doctor.gpu().found == "H200, 141 GiB and 1 more"


def test_a_driver_that_fails_or_hangs_is_no_gpu(bare_machine, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE_S", 0.1)
    fake_program(bare_machine, "nvidia-smi", "echo broken; exit 9")
    assert not doctor.gpu().ok
    fake_program(bare_machine, "nvidia-smi", "exec /bin/sleep 5")
    assert not doctor.gpu().ok


def test_user_namespaces_count_only_when_they_work(bare_machine):
    fake_program(bare_machine, "unshare", "echo 'unshare: Operation not permitted' >&2; exit 1")
    assert not doctor.user_namespaces().ok
    fake_program(bare_machine, "unshare", "echo yes")
    assert doctor.user_namespaces().ok


def test_only_what_is_required_fails(capsys):
    optional = [Check("sshd", False, "", "apt-get install openssh-server")]
    assert main(look=lambda: optional) == 0
    assert "missing: sshd" in capsys.readouterr().out
    assert (
        verdict([Check("git", True, "/usr/bin/git", "", True)]) == "labkit works on this machine. Nothing is missing."
    )


def test_it_runs_before_anything_is_installed(tmp_path):
    """As `make doctor` calls it then; without site-packages it has the standard library alone."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-m labkit.system.doctor" in line)
    assert "PYTHONPATH=. $(PYTHON) -m labkit.system.doctor; fi" in line
    words = [sys.executable, "-S", "-m", "labkit.system.doctor"]
    done = subprocess.run(words, cwd=ROOT, env={"PATH": "/usr/bin", "PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "labkit cannot work without: " in done.stdout.splitlines()[-1]
