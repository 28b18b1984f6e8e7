"""The real `fab` at the root of a checkout, on the laptop testbed: what it does, says, and ends with."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.testbed.install import install
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.processes import await_that, process
from labkit.testbed.run.agents import agent_of
from labkit.testbed.ssh.fleet import Fleet
from tests.hang import HANG_S
from tests.testbed.fabbing import FAB, ROOT, copied, environment, fab, hosts_file

TASKS = {
    "bench", "dask-down", "dask-up", "deploy", "doctor", "down", "fetch", "gc", "install", "logs", "profile", "shape",
    "start", "status", "stop", "trust", "up",
}  # fmt: skip


@pytest.fixture(scope="module")
def deployed(bed) -> Iterator[Fleet]:
    """The laptop testbed with labkit and agents on it; the agents are ended afterwards."""
    with Fleet(bed) as fleet:
        install(fleet).checked()
        yield fleet
    assert fab("stop", "--end-runs", inventory=bed.path).code == 0


def start_task(fleet: Fleet, host: str, run: str, script: str, *, lease_s: float = 60) -> None:
    with agent_of(fleet, fleet.inventory[host]) as agent:
        agent.start(run, task="talker", argv=["/bin/sh", "-c", script], lease_s=lease_s)


def test_the_list_has_every_task_in_one_line():
    said = fab("--list")
    assert said.code == 0, said
    listed = dict(re.findall(r"^  ([\w-]+) +(\S.*)$", said.out, re.MULTILINE))
    assert set(listed) >= TASKS
    assert all(text.endswith(".") for text in listed.values()), "a docstring takes more than a line"


def test_it_works_in_the_folder_testbed_too(bed, deployed):
    said = fab("-H", "h1", "status", inventory=bed.path, folder="testbed")
    assert said.code == 0, said
    assert "h1" in said.out
    assert "h0" not in said.out


def test_deploying_twice_copies_nothing_and_a_changed_file_travels_alone(bed, tmp_path):
    root = copied(tmp_path)
    assert fab("install", inventory=bed.path, root=root).code == 0
    second = fab("install", inventory=bed.path, root=root)
    assert second.code == 0, second
    assert all(second.row(host).startswith(f"{host} unchanged") for host in ("h0", "h1", "h2", "h3"))
    with (root / "labkit" / "core" / "errors.py").open("a") as file:
        file.write("CHANGED = 1\n")
    third = fab("-H", "h0,h1", "install", inventory=bed.path, root=root)
    assert re.search(r"placed \w+: 3 files", third.row("h0")), third
    assert "h2" not in third.out
    fourth = fab("install", inventory=bed.path, root=root)
    assert "unchanged" in fourth.row("h0")
    assert "placed" in fourth.row("h3")


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_filter_takes_names_and_addresses_and_runs_the_task_once(bed, place):
    hosts = ("-H", f"{bed['h2'].address},h0")
    words = (*hosts, "status") if place == "before" else ("status", *hosts)
    said = fab(*words, inventory=bed.path)
    assert said.code == 0, said
    assert re.findall(r"^(h\d)", said.out, re.MULTILINE) == ["h0", "h2"]
    assert len(said.err.splitlines()) == 1, "the inventory was told more than once"


def test_a_host_that_is_not_in_the_inventory_is_refused_with_the_nearest(bed):
    said = fab("-H", "h00", "install", inventory=bed.path)
    assert said.code == 2
    assert "unknown host 'h00'. Did you mean 'h0'?" in said.err
    assert len(said.err.splitlines()) == 1


def test_no_inventory_at_all_is_told_with_what_to_do(tmp_path):
    root = copied(tmp_path, only=("fabfile.py", "fabric.yaml", "testbed", "labkit"))
    done = subprocess.run(
        [str(FAB), "status"], cwd=root, env=environment(root, XDG_STATE_HOME=str(tmp_path), LABKIT_HOSTS=""),
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert "hosts.example.toml" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_host_that_is_down_is_a_row_with_a_hint_and_the_others_are_done(bed, tmp_path):
    def break_one(content):
        content["hosts"][1]["ssh"]["port"] = 1

    broken = hosts_file(tmp_path / "hosts.toml", bed, change=break_one)
    for task in ("install", "start", "status", "gc"):
        said = fab(task, inventory=broken)
        assert said.code == 1, said
        assert "1 of 4 hosts failed." in said.out
        done, _, failed = said.out.partition("failed")
        firsts = {line.split()[0] for line in done.splitlines() if line.strip()}
        assert [host in firsts for host in ("h0", "h1", "h2", "h3")] == [True, False, True, True], said
        assert "cannot be reached" in failed
        assert "is it up" in failed
    assert fab("stop", inventory=bed.path).code == 0


def test_unknown_keys_are_refused_until_trust_adds_them_and_changed_ones_for_good(bed, tmp_path):
    known = tmp_path / "known" / "hosts"

    def forget(content):
        content["ssh"]["known_hosts"] = str(known)

    path = hosts_file(tmp_path / "hosts.toml", bed, change=forget)
    refused = fab("status", inventory=path)
    assert refused.code == 1
    assert refused.out.count("fab trust") >= 4
    shown = fab("trust", inventory=path)
    assert shown.code == 1, "there was no terminal to ask"
    assert shown.out.count("SHA256:") == 4
    assert not known.exists()
    added = fab("trust", "--yes", inventory=path)
    assert added.code == 0, added
    assert added.out.count("added: ssh-ed25519") == 4
    assert known.stat().st_mode & 0o777 == 0o600
    assert fab("status", inventory=path).code == 0

    lines = known.read_text().splitlines()
    lines[0], lines[1] = (f"{a.split()[0]} {' '.join(b.split()[1:])}" for a, b in (lines[:2], lines[1::-1]))
    known.write_text("\n".join(lines) + "\n")
    changed = fab("trust", "--yes", inventory=path)
    assert changed.code == 1
    assert changed.out.count("CHANGED") == 2
    assert known.read_text().splitlines() == lines
    assert fab("status", inventory=path).code == 1


@pytest.mark.parametrize(
    "name", ["x; touch owned", "$(touch owned)", "`touch owned`", "../x", "-oProxyCommand=touch", "a\nb"]
)
def test_hostile_names_in_an_inventory_are_refused_and_nothing_runs(bed, tmp_path, name):
    def rename(content):
        content["hosts"][0]["name"] = name

    root = copied(tmp_path, only=("fabfile.py", "fabric.yaml", "testbed", "labkit", "pyproject.toml"))
    before = sorted(path.name for path in tmp_path.iterdir())
    said = fab("install", inventory=hosts_file(tmp_path / "testbed" / "odd.toml", bed, change=rename), root=root)
    assert said.code == 2, said
    assert "expected letters" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_logs_that_are_followed_end_with_the_task(bed, deployed):
    start_task(deployed, "h0", "talk", 'for i in 1 2 3; do echo "line $i"; sleep 0.3; done; printf "\\033[2Jodd"')
    said = fab("logs", "--follow", "--run", "talk", inventory=bed.path, timeout_s=HANG_S)
    assert said.code == 0, said
    assert [line for line in said.out.splitlines() if "line" in line] == [f"h0 │ talker: line {i}" for i in (1, 2, 3)]
    assert "\033" not in said.out
    assert "talk: talker exited with 0" in said.out
    again = fab("logs", "--run", "talk", "--lines", "2", "--host", "h0", inventory=bed.path)
    assert re.findall(r"line \d|odd", again.out) == ["line 3", "odd"]
    assert "h1" not in again.out
    missed = fab("logs", "--run", "tolk", inventory=bed.path)
    assert missed.code == 2
    assert "unknown run 'tolk'. Did you mean 'talk'?" in missed.err


def test_ctrl_c_ends_following_with_130_and_the_task_goes_on(bed, deployed):
    start_task(deployed, "h1", "long", "echo begun; sleep 60")
    words = [str(FAB), "-H", "h1", "logs", "--follow", "--run", "long"]
    env = environment(LABKIT_HOSTS=str(bed.path))
    with subprocess.Popen(
        words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout.readline() == "h1 │ talker: begun\n"
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=HANG_S)
        finally:
            running.kill()
    assert running.returncode == 130
    assert said.splitlines()[-1] == "fab: stopped"
    with agent_of(deployed, bed["h1"]) as agent:
        assert agent.list("long")[0].tasks["talker"].phase == "running"
        agent.stop("long")


def test_agents_are_not_ended_where_something_runs_unless_asked(bed, deployed):
    start_task(deployed, "h2", "busy", "sleep 60")
    assert "1 tasks: busy/talker" in fab("status", inventory=bed.path).row("h2")
    refused = fab("-H", "h2", "stop", inventory=bed.path)
    assert refused.code == 1
    assert "fab stop --end-runs" in refused.out
    one = fab("stop", "--run", "busy", inventory=bed.path)
    assert one.code == 0, one
    assert "ended 1 runs (1 tasks)" in one.row("h2")
    assert "agent ended" in fab("-H", "h2", "stop", inventory=bed.path).row("h2")
    assert "no agent runs" in fab("-H", "h2", "status", inventory=bed.path).row("h2")


def test_a_run_is_found_by_the_name_of_its_record_here(bed, deployed, tmp_path):
    for run in ("mine-0-0123abcd", "mine-0-89abcdef", "mine-0-more", "mine-01"):
        start_task(deployed, "h2", run, "echo done > result.txt; sleep 600", lease_s=600)
    said = fab("fetch", "--run", "mine-01", "--runs", str(tmp_path), inventory=bed.path)
    assert said.code == 0, said
    both = fab("stop", "--run", "mine-0", inventory=bed.path)
    assert both.code == 1
    assert "several runs are called mine-0" in both.out
    assert fab("stop", "--run", "mine-0-0123abcd", inventory=bed.path).code == 0
    one = fab("stop", "--run", "mine-0", inventory=bed.path)
    assert "ended 1 runs" in one.row("h2"), one
    with agent_of(deployed, bed["h2"]) as agent:
        assert {run.run for run in agent.list() if not run.over} >= {"mine-0-more", "mine-01"}
    came = fab("fetch", "--run", "mine-0", "--runs", str(tmp_path), inventory=bed.path)
    assert came.code == 0, came
    assert (tmp_path / "mine-0-89abcdef/hosts/h2/talker/result.txt").exists(), "the latest of that name"
    missed = fab("fetch", "--run", "nine-0", "--runs", str(tmp_path), inventory=bed.path)
    assert missed.code == 2
    assert "unknown run 'nine-0'. Did you mean 'mine-" in missed.err
    for run in ("mine-0-more", "mine-01"):
        assert fab("stop", "--run", run, inventory=bed.path).code == 0


def test_what_a_run_left_comes_back_without_its_keys(bed, deployed, tmp_path):
    script = "echo done > result.txt; echo secret > my.key; ln -s /etc/passwd link; mkfifo pipe"
    start_task(deployed, "h3", "harvest", script)
    with agent_of(deployed, bed["h3"]) as agent:
        list(agent.follow("harvest", task="talker"))
    said = fab("fetch", "--run", "harvest", "--runs", str(tmp_path / "runs"), inventory=bed.path)
    assert said.code == 0, said
    place = tmp_path / "runs" / "harvest" / "hosts"
    assert [path.name for path in place.iterdir()] == ["h3"]
    names = {path.name for path in (place / "h3" / "talker").iterdir()}
    assert {"result.txt", "log"} <= names
    assert names.isdisjoint({"my.key", "link", "pipe"})
    latest = fab("fetch", "--runs", str(tmp_path / "other"), inventory=bed.path)
    assert latest.code == 0, latest
    assert (tmp_path / "other" / "harvest" / "hosts" / "h3" / "talker" / "result.txt").read_text() == "done\n"
    odd = fab("fetch", "--run", "../../x", inventory=bed.path)
    assert odd.code == 2
    assert "is no name" in odd.err


def test_gc_tells_what_would_go_and_removes_it(bed, deployed):
    fab("stop", "--end-runs", inventory=bed.path)
    start_task(deployed, "h0", "old", "true")
    with agent_of(deployed, bed["h0"]) as agent:
        agent.stop("old")
    dry = fab("gc", "--dry-run", "--older", "0", inventory=bed.path)
    assert dry.code == 0, dry
    assert "would remove" in dry.row("h0")
    wet = fab("gc", "--older", "0", inventory=bed.path)
    assert wet.code == 0, wet
    assert re.search(r"removed \d+ runs", wet.row("h0"))
    assert "no run to remove" in fab("gc", "--older", "0", inventory=bed.path).row("h0")


def test_a_laptop_testbed_goes_up_and_down_and_leaves_nothing(own_folder):
    state = own_folder.parent
    more = {"XDG_STATE_HOME": str(state), "LABKIT_HOSTS": ""}

    def task(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(FAB), *words],
            cwd=ROOT,
            env=environment(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )

    if (ROOT / "testbed" / "hosts.toml").exists():
        pytest.skip("this checkout has an inventory of its own")
    try:
        made = task("up", "--hosts", "2")
        assert made.returncode == 0, made
        assert Path(state / "labkit" / "bed" / "hosts.toml").exists()
        assert task("up").stdout == made.stdout
        assert task("-H", "h0", "down").returncode == 2, "half a bed"
        pids = [host.pid for host in Bed.of(state / "labkit" / "bed").status()]
        gone = task("down")
        assert gone.returncode == 0, gone
        assert not (state / "labkit" / "bed").exists()
        assert await_that(lambda: not any(process(pid) for pid in pids), timeout_s=HANG_S)
    finally:
        task("down")
        assert [path for path in state.rglob("*") if not path.is_dir()] == []
        shutil.rmtree(state / "labkit", ignore_errors=True)


def test_links_of_a_shaped_bed_are_changed_while_it_is_up(own_folder):
    with Bed.up(2, folder=own_folder, shaped="100mbit") as bed:
        if bed.plan.shaped_gbps is None:
            pytest.skip("; ".join(bed.notes))
        assert fab("shape", inventory=bed.hosts_file).row("h0") == "h0 100Mbit to it, 100Mbit from it"
        changed = fab("-H", "h1", "shape", "--rate", "400mbit", inventory=bed.hosts_file)
        assert changed.row("h1") == "h1 400Mbit to it, 400Mbit from it"
        assert [machine.host.link_gbps for machine in bed.inventory] == [0.1, 0.4]
        fab("shape", "--rate", "0.4", inventory=bed.hosts_file)
        measured = fab("bench", "--seconds", "0.3", inventory=bed.hosts_file)
        rates = [float(line.split()[2]) for line in measured.out.splitlines()[1:]]
        assert len(rates) == 2
        assert all(0.1 < rate < 0.6 for rate in rates), measured
        assert Bed.up(2, folder=own_folder, shaped="400mbit").plan.shaped_gbps == 0.4
        odd = fab("shape", "--rate", "fast", inventory=bed.hosts_file)
        assert odd.code == 2
        assert "expected 100kbit to 100gbit" in odd.err


def test_links_that_have_no_limits_are_not_touched(bed):
    said = fab("shape", "--rate", "1gbit", inventory=bed.path)
    assert said.code == 2
    assert "labkit bed up --shaped" in said.err
