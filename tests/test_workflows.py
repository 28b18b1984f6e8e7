"""The workflows in .github/ run what everybody else runs, on the Pythons that labkit supports."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs(workflow: Path) -> list[dict]:
    return list(yaml.safe_load(workflow.read_text())["jobs"].values())


def steps(workflow: Path) -> list[dict]:
    return [step for job in jobs(workflow) for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_scripts_and_targets_that_exist(workflow):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line.split() for step in steps(workflow) for line in step.get("run", "").splitlines()]
    called = [words for words in lines if words[0] != "sudo"]
    assert called
    for program, *arguments in called:
        assert (program == "make" and set(arguments) <= targets) or os.access(ROOT / program, os.X_OK), program


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_uses_two_actions_each_at_one_version_and_may_write_nothing(workflow):
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/(checkout|setup-python)@v\d+\.\d+\.\d+", action) for action in used), used
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}


def test_ci_runs_on_the_oldest_python_that_pip_accepts_and_on_a_newer_one():
    (job,) = jobs(ROOT / ".github" / "workflows" / "checks.yml")
    oldest, newest = job["strategy"]["matrix"]["python-version"]
    assert PROJECT["requires-python"].startswith(f">={oldest}")
    assert int(newest.split(".")[1]) > int(oldest.split(".")[1])
    assert {"run": ".ci/run"} in job["steps"]
