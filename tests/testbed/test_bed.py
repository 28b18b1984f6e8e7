"""The laptop testbed: real servers that come up, are told when they are gone, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.testbed.errors import BedError, LoginError
from labkit.testbed.install import install
from labkit.testbed.laptop import Bed, down
from labkit.testbed.laptop import bed as keys
from labkit.testbed.laptop import bed as module
from labkit.testbed.laptop.bed import beds, end_bed
from labkit.testbed.laptop.plan import STATE, VARIABLE, BedPlan, default_folder
from labkit.testbed.laptop.processes import BedProcess, await_that, has_variable, process, processes, send
from labkit.testbed.laptop.server import all_of, server_of
from labkit.testbed.run.agents import agent_of
from labkit.testbed.ssh.fleet import Fleet
from labkit.topology import from_inventory
from tests.hang import HANG_S

LABKIT = [sys.executable, "-m", "labkit"]


def typed(*words, **options):
    return subprocess.run([*LABKIT, *words], capture_output=True, text=True, timeout=HANG_S, check=False, **options)


def names(folder: Path) -> list[str]:
    return [each.command for each in processes() if f"{folder}/" in each.command and each.pid != os.getpid()]


def test_four_hosts_come_up_answer_and_leave_nothing(own_folder):
    bed = Bed.up(4, folder=own_folder, gpus=2)
    pids = [host.pid for host in bed.status()]
    with Fleet(bed.inventory) as fleet:
        assert fleet.run(["true"]).ok
        bed.down()
    assert all(process(pid) is None for pid in pids)
    assert not own_folder.exists()
    assert names(own_folder) == []
    assert not down(own_folder)


def test_agents_and_their_tasks_end_with_it_and_with_their_host_alone(own_folder):
    bed = Bed.up(2, folder=own_folder)
    pids = {}
    with Fleet(bed.inventory) as fleet:
        install(fleet)
        for name in ("h0", "h1"):
            with agent_of(fleet, bed.inventory[name]) as agent:
                task = agent.start("run", task="t", argv=["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
                pids[name] = [int(agent.hello.pid), task.pid]
    bed.kill("h0")
    assert [process(pid) is None for pid in pids["h0"] + pids["h1"]] == [True, True, False, False]
    assert [host.alive for host in bed.status()] == [False, True]
    assert (bed.home("h0") / ".labkit").exists()
    bed.revive()
    with Fleet(bed.inventory) as fleet:
        assert fleet.run(["true"]).ok
    bed.down()
    assert not [pid for pid in pids["h1"] if process(pid)]
    assert not [each for each in processes() if has_variable(each.pid, f"{VARIABLE}={bed.plan.token}")]


def test_only_hosts_of_the_bed_can_be_killed(up):
    with pytest.raises(InputError, match="unknown host 'h9'"):
        up.kill("h9")


def test_its_inventory_is_one_that_topology_reads_too(up, bed):
    cluster = from_inventory(up.hosts_file)
    assert cluster.machines == bed.names == ("h0", "h1", "h2", "h3")
    assert cluster.n_gpus == 4
    assert all(machine.folder == "~/.labkit" and machine.python == sys.executable for machine in bed)


def test_its_files_are_its_owners_alone(up):
    for path in [up.folder, *up.folder.rglob("*")]:
        if not path.is_symlink() and not path.is_relative_to(up.folder / "hosts"):
            assert not path.stat().st_mode & 0o077 or path.name == "pid", path
    assert up.folder.stat().st_mode & 0o777 == 0o700


def test_it_listens_on_loopback_alone(up):
    said = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout
    pids = {host.pid for host in up.status()}
    listening = [line.split()[3] for line in said.splitlines() if any(f"pid={pid}," in line for pid in pids)]
    assert sorted(listening) == sorted(f"{slot.address}:{slot.port}" for slot in up.plan.slots)
    assert all(address.startswith("127.") for address in listening)


def test_only_its_own_key_may_log_in_and_nothing_is_forwarded(up, bed, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    machine = replace(bed["h0"], key=tmp_path / "other")
    with Fleet(replace(bed, machines=(machine,))) as fleet:
        assert isinstance(fleet.run(["true"])["h0"].error, LoginError)
    ssh = ["ssh", "-F", up.folder / "ssh_config", "-o", "BatchMode=yes"]
    password = [*ssh, "-o", "PubkeyAuthentication=no", "h0", "true"]
    assert (
        "Permission denied (publickey)" in subprocess.run(password, capture_output=True, text=True, check=False).stderr
    )
    through = [*ssh, "-W", f"{bed['h1'].address}:{bed['h1'].port}", "h0"]
    done = subprocess.run(through, capture_output=True, text=True, check=False, input="")
    assert "prohibited" in done.stderr
    terminal = subprocess.run([*ssh, "-tt", "h0", "tty"], capture_output=True, text=True, check=False)
    assert "PTY allocation request failed" in terminal.stderr


def test_the_ssh_command_logs_in_with_the_configuration_that_it_writes(up):
    done = subprocess.run(
        ["ssh", "-F", up.folder / "ssh_config", "h3", "echo $HOME"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{up.home('h3')}\n"


def test_its_folder_may_have_an_odd_name(own_folder):
    folder = own_folder.parent / "it's %h ☃"
    with Bed.up(1, folder=folder) as bed, Fleet(bed.inventory) as fleet:
        assert fleet.put(b"x", "y").ok
        assert fleet.run("pwd")["h0"].stdout == f"{folder}/hosts/h0\n"
        done = subprocess.run(
            ["ssh", "-F", bed.folder / "ssh_config", "h0", 'cat "$HOME/.labkit/y"'], stdout=subprocess.PIPE, check=True
        )
        assert done.stdout == b"x"
        assert all(host.alive for host in Bed.of(folder).status())
    with pytest.raises(BedError, match="has a quote"):
        Bed.up(1, folder=own_folder.parent / 'a"b')
    down(own_folder.parent / 'a"b')


def test_up_twice_is_the_same_bed_and_another_one_is_refused(own_folder):
    with Bed.up(2, folder=own_folder) as bed:
        before = bed.status()
        assert Bed.up(2, folder=own_folder).status() == before
        assert Bed.of(own_folder).status() == before
        with pytest.raises(BedError, match=r"a bed of 2 hosts \(sshd\) is up in .*; labkit bed down ends it"):
            Bed.up(3, folder=own_folder)
        assert Bed.of(own_folder).status() == before


def test_a_killed_server_shows_and_comes_back_with_its_files(own_folder):
    with Bed.up(3, folder=own_folder) as bed:
        (bed.home("h1") / "kept").touch()
        os.kill(bed.status()[1].pid, signal.SIGKILL)
        assert await_that(lambda: not bed.status()[1].alive, timeout_s=HANG_S)
        assert [host.alive for host in bed.status()] == [True, False, True]
        shown = typed("bed", "status", "--folder", own_folder)
        assert (shown.returncode, shown.stdout.count("GONE")) == (1, 1)
        with Fleet(bed.inventory) as fleet:
            assert [row.ok for row in fleet.run(["true"])] == [True, False, True]
            again = Bed.up(3, folder=own_folder)
            assert [host.alive for host in again.status()] == [True] * 3
            assert fleet.run(["test", "-e", "kept"], only=["h1"]).ok


def test_what_was_left_running_on_the_hosts_ends_with_the_bed(own_folder):
    bed = Bed.up(2, folder=own_folder)
    with Fleet(bed.inventory) as fleet:
        script = (
            "trap '' TERM HUP; setsid sleep 1001 >/dev/null 2>&1 </dev/null & "
            "(setsid sh -c 'trap \"\" TERM; sleep 1002; sleep 1003' >/dev/null 2>&1 </dev/null &) ; echo done"
        )
        fleet.run(script).checked()
        idle = int(fleet.run("echo $PPID", only=["h0"])["h0"].stdout)
        os.kill(bed.status()[0].pid, signal.SIGKILL)  # its session has no parent now, and no program
        before = all_of(bed.plan)
        assert sum("sleep 100" in each.command for each in before) >= 4
        assert idle in {each.pid for each in before}
        bed.down()
    assert all(process(each.pid) is None for each in before)
    assert not any("sleep 100" in command for command in names(own_folder))


def test_only_processes_of_this_bed_end(own_folder, up):
    bed = Bed.up(1, folder=own_folder)
    config = bed.plan.config(bed.plan.slots[0])
    stranger = subprocess.Popen(
        ["cat", "-", str(config), "sshd:"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    editor = subprocess.Popen(["tail", "-f", "--", "/dev/null", str(config)], stdout=subprocess.DEVNULL)
    try:
        bed.down()
        assert stranger.poll() is None
        assert editor.poll() is None
        assert all(host.alive for host in up.status())
    finally:
        for each in (stranger, editor):
            each.kill()
            each.communicate()


def test_a_later_process_of_the_same_number_is_let_be():
    child = subprocess.Popen(["sleep", "1000"])
    try:
        found = process(child.pid)
        assert found is not None
        send(BedProcess(child.pid, found.parent, "1", found.command), signal.SIGKILL)
        assert child.poll() is None
        send(found, signal.SIGKILL)
        assert child.wait(HANG_S) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_the_command_line_starts_shows_and_ends_it(own_folder):
    home = own_folder
    environment = os.environ | {"XDG_STATE_HOME": str(home)}
    try:
        started = typed("bed", "up", "--hosts", "2", env=environment)
        assert (started.returncode, started.stderr) == (0, "")
        assert f"inventory: {home}/labkit/bed/hosts.toml" in started.stdout
        assert typed("bed", "status", env=environment).stdout.count("process ") == 2
    finally:
        ended = typed("bed", "down", env=environment)
    assert ended.stdout == "the laptop testbed is down\n"
    assert [path.name for path in home.rglob("*") if path.is_file()] == ["trusted"]  # that its inventory is the user's
    shutil.rmtree(home)
    assert typed("bed", "down", env=environment).stdout == "there is no laptop testbed\n"
    missing = typed("bed", "status", env=environment)
    assert (missing.returncode, "labkit bed up" in missing.stderr) == (2, True)


@pytest.mark.parametrize("after", ["write", "make_keys", "write_config", "start"])
def test_down_ends_what_a_killed_up_left_half_done(own_folder, after):
    script = (
        "import os, signal, sys\n"
        "from labkit.testbed.laptop import bed, plan, server\n"
        f"where = {{'write': plan.BedPlan}}.get({after!r}, bed)\n"
        f"whole = getattr(where, {after!r})\n"
        "def cut(*a, **k):\n"
        "    whole(*a, **k)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"setattr(where, {after!r}, cut)\n"
        f"bed.Bed.up(3, folder={str(own_folder)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=HANG_S, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (own_folder / STATE).exists()
    assert not (own_folder / "hosts.toml").exists()
    plan = BedPlan.read(own_folder)
    assert len(all_of(plan)) == (3 if after == "start" else 0)
    assert down(own_folder)
    assert all_of(plan) == []
    assert not own_folder.exists()


def test_up_goes_on_where_a_killed_up_stopped(own_folder):
    script = (
        "import os, signal\n"
        "from labkit.testbed.laptop import bed\n"
        "bed.write_config = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"bed.Bed.up(2, folder={str(own_folder)!r})\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=HANG_S, check=False)
    with Bed.up(2, folder=own_folder) as bed, Fleet(bed.inventory) as fleet:
        assert fleet.run(["true"]).ok


def test_a_port_that_was_taken_meanwhile_is_replaced(own_folder, monkeypatch):
    import socket

    taken = []
    plain = module.start

    def late(plan, slots, **options):
        if not taken:
            taken.append(socket.create_server((slots[1].address, slots[1].port)))
        return plain(plan, slots, **options)

    monkeypatch.setattr(module, "start", late)
    with Bed.up(3, folder=own_folder) as bed, taken[0]:
        assert bed.inventory["h1"].port != taken[0].getsockname()[1]
        with Fleet(bed.inventory) as fleet:
            assert fleet.run(["true"]).ok


def test_a_server_that_does_not_start_says_why_and_leaves_nothing_running(own_folder, monkeypatch):
    monkeypatch.setattr(keys, "write_private", lambda path, content: path.write_bytes(b"no key"))
    with pytest.raises(BedError, match=r"(?s)a server of the bed does not start: .*no hostkeys available"):
        Bed.up(2, folder=own_folder)
    assert all_of(BedPlan.read(own_folder)) == []
    assert down(own_folder)


def test_folders_that_hold_something_else_are_neither_used_nor_removed(own_folder):
    own_folder.mkdir()
    (own_folder / "thesis.tex").touch()
    with pytest.raises(BedError, match=r"has something else in it \(thesis.tex\)"):
        Bed.up(1, folder=own_folder)
    assert not down(own_folder)
    (own_folder / STATE).write_text(json.dumps({"kind": "something else"}))
    with pytest.raises(BedError, match="not of a laptop testbed"):
        down(own_folder)
    assert (own_folder / "thesis.tex").exists()
    (own_folder / "thesis.tex").unlink()
    (own_folder / STATE).unlink()
    own_folder.rmdir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_hosts": 0}, "0 hosts; expected 1 to 64"),
        ({"n_hosts": 65}, "65 hosts"),
        ({"server": "ssh"}, "unknown server 'ssh'. Did you mean 'sshd'"),
        ({"shaped": "fast"}, "rate is 'fast'; expected 100kbit to 100gbit"),
        ({"shaped": 0}, "rate is 0"),
        ({"n_hosts": 2, "pods": 3}, "3 pods of 2 hosts; expected 1 to 2"),
        ({"folder": "/tmp/" + "x" * 80}, "expected at most 60"),
    ],
)
def test_what_cannot_be_is_refused(own_folder, options, message):
    with pytest.raises(InputError, match=message):
        Bed.up(**({"folder": own_folder} | options))
    assert not own_folder.exists()


def test_where_only_one_loopback_address_exists_hosts_have_ports(own_folder, monkeypatch):
    plain = module.free_port

    def one_address(address, **options):
        if address != "127.0.0.1":
            raise OSError(99, "Cannot assign requested address")
        return plain(address, **options)

    monkeypatch.setattr(module, "free_port", one_address)
    with Bed.up(3, folder=own_folder) as bed, Fleet(bed.inventory) as fleet:
        assert [machine.address for machine in bed.inventory] == ["127.0.0.1"] * 3
        assert len({machine.port for machine in bed.inventory}) == 3
        assert [row.stdout for row in fleet.run("echo $LABKIT_BED_HOST")] == ["h0\n", "h1\n", "h2\n"]


def test_two_beds_do_not_meet(own_folder, up):
    with Bed.up(2, folder=own_folder) as other, Fleet(other.inventory) as fleet:
        assert fleet.run(["true"]).ok
        assert {server_of(other.plan, slot).pid for slot in other.plan.slots}.isdisjoint(h.pid for h in up.status())
    assert all(host.alive for host in up.status())


KILLED = """
import signal, os, sys
from labkit.testbed.laptop import Bed
Bed.up(2, folder=sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("removed", [False, True])
def test_a_bed_that_a_killed_notebook_left_is_found_and_can_be_ended_also_without_its_files(own_folder, removed):
    subprocess.run([sys.executable, "-c", KILLED, str(own_folder)], check=False)
    (found,) = [each for each in beds() if each.folder == own_folder]
    assert (found.hosts, found.whole) == (("h0", "h1"), True)
    shown = typed("bed", "list").stdout
    assert f"{own_folder}: h0, h1; end it: labkit bed down --folder {own_folder}\n" in shown
    if removed:
        shutil.rmtree(own_folder)
        (found,) = [each for each in beds() if each.folder == own_folder]
        assert not found.whole
    end_bed(found)
    assert not [each for each in beds() if each.folder == own_folder]
    assert names(own_folder) == []


def test_a_killed_or_rebooted_host_has_another_boot_id(own_folder):
    with Bed.up(2, folder=own_folder) as bed, Fleet(bed.inventory) as fleet:
        install(fleet)

        def boot(name: str) -> str:
            with agent_of(fleet, bed.inventory[name]) as agent:
                return str(agent.hello.boot)

        before, other = boot("h0"), boot("h1")
        assert before != other
        bed.kill("h0")
        bed.revive()
        after = boot("h0")
        (bed.home("h0") / ".labkit/runs/old").mkdir()
        bed.reboot("h0", keep_files=False)
        assert not (bed.home("h0") / ".labkit").exists()
        install(fleet)
        assert len({before, after, boot("h0")}) == 3
        assert boot("h1") == other


def test_its_usual_folder_is_one_per_user(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/x/state")
    assert default_folder() == Path("/x/state/labkit/bed")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/users/me")
    assert default_folder() == Path("/users/me/.local/state/labkit/bed")
