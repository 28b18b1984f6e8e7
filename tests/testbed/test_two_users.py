"""Two users of the same hosts cannot touch each other's jobs, nor learn what is secret of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.testbed.laptop.server import program
from labkit.testbed.onhost import source
from tests.hang import HANG_S
from tests.testbed import two_users
from tests.testbed.test_backend import jobs_of, undisturbed


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Any]]:
    """What two users found who trained on the same hosts at the same time, while one of them pried."""
    if os.getuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("only root can make other users, in a mount namespace of their own")
    if not program("sshd"):
        pytest.skip("no sshd here")
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    try:
        script = Path(two_users.__file__)
        env = {**os.environ, "PYTHONPATH": str(script.parents[2])}
        done = subprocess.run(
            [sys.executable, str(script), str(folder)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
            env=env,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        yield json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)


def test_jobs_of_two_users_train_on_the_same_hosts_as_if_alone(found: dict[str, Any], tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        mine = found[name]
        assert (mine["went_wrong"], mine["notes"]) == (0, [])
        for host, (task,) in mine["sees"].items():
            assert task.endswith(f"/{name}/labkit-{host}/runs/{two_users.RUN}/job-0")
        assert mine["digest"] == undisturbed(jobs_of(1, steps=mine["steps"]), tmp_path), name
    assert found["bob"]["steps"] == two_users.STEPS["bob"]
    assert found["left"] == []


def test_a_user_finds_no_way_to_the_jobs_of_another_one(found: dict[str, Any]) -> None:
    pried = found["bob"]
    assert [pried[what] for what in ("signalled", "opened", "readable", "sockets")] == [[], [], [], []]
    assert {*pried["ports"]["addresses"]} == {*two_users.HOSTS.values()}, "a controller and a PS listen, there alone"
    assert pried["ports"]["let_in"] == []


def test_what_other_users_see_of_a_users_processes_holds_no_secret(found: dict[str, Any]) -> None:
    told = found["bob"]["told"].replace(source("pack"), "")  # the program that is sent is no secret
    assert "labkit.testbed.run.job_process" in told
    assert not re.search(r"PRIVATE|BEGIN|secret|token|[A-Za-z0-9+/]{40,}", told), told


def test_commands_reach_the_own_runs_alone(found: dict[str, Any]) -> None:
    own, others = (found["bob"]["commands"][whose] for whose in ("bob", "bob-as-ada"))
    assert [row[0] for row in own["status"]] == [True, True]
    assert max(row[3] for row in own["status"]) <= 1, "one's own task, if it still runs"
    assert [row[3] for row in own["gc"]] == [0, 0], "no run is over yet"
    for what in ("status", "gc", "logs", "start", "stop"):
        for ok, did, hint, _ in others[what]:
            assert not ok
            assert "the folder belongs to another user" in did
            assert "name a folder of your own" in hint
    assert all("Permission denied" in did for _, did, *_ in others["install"])
    assert others["lines"] == 0
    for ok, did, *_ in found["bob"]["commands"]["ada"]["status"]:
        assert not ok
        assert "is another user's; name one of yours" in did
    for name in ("ada", "bob"):
        assert [row[3] for row in found[name]["own"]["gc"]] == [1, 1]
