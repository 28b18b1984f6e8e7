"""A laptop testbed with limited links: networks of their own, as root or in a user namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.testbed.errors import BedError
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop import bed as module
from labkit.testbed.laptop.networks import bridge, limit, possible, rate_gbps
from labkit.testbed.laptop.plan import BedPlan
from labkit.testbed.laptop.processes import await_that, process
from labkit.testbed.laptop.server import all_of
from labkit.testbed.ssh.fleet import Fleet
from tests.hang import HANG_S

LISTEN = (
    "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True); c, _ = s.accept(); n = 0\n"
    "while d := c.recv(1 << 16): n += len(d)\n"
    "print(n)"
)
SEND = (
    "import socket, sys, time; s = socket.create_connection((sys.argv[1], 7000)); data = bytes(int(sys.argv[2]))\n"
    "a = time.monotonic(); s.sendall(data); s.shutdown(1); s.recv(1); print(time.monotonic() - a)"
)
N_BYTES = 3_000_000


def links(plan: BedPlan) -> set[str]:
    """Return the devices of a bed on this machine; there may be other beds."""
    said = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
    return {link["ifname"] for link in json.loads(said) if link["ifname"].startswith(bridge(plan))}


def rate_mbps(fleet: Fleet, source: str, target: str) -> float:
    """Return at which rate bytes go from one host to another."""
    machines = {machine.name: machine for machine in fleet.inventory}
    with fleet.stream(target, [machines[target].python, "-S", "-c", LISTEN]) as listening:
        assert listening.read(100) == b"ready\n"
        argv = [machines[source].python, "-S", "-c", SEND, machines[target].address, str(N_BYTES)]
        seconds = float(fleet.run(argv, only=[source]).checked()[source].stdout)
        assert int(listening.read(100)) == N_BYTES
    return N_BYTES * 8e-6 / seconds


@pytest.fixture
def needs_root():
    kind, _, why = possible()
    if kind != "root":
        pytest.skip(why or "not root")


def check_bed(bed: Bed) -> None:
    """Check what is the same for root and user: hosts answer, reach one another at the rate, and are alone."""
    with Fleet(bed.inventory) as fleet:
        assert fleet.run("echo $LABKIT_BED_HOST").checked()["h1"].stdout == "h1\n"
        assert fleet.put(b"x" * 100_000, "file").ok
        devices = fleet.run(["sh", "-c", "cd /sys/class/net; cat /proc/net/dev"]).checked()
        assert all("eth0" in row.stdout and "docker" not in row.stdout for row in devices)
        assert len({row.stdout for row in fleet.run("readlink /proc/self/ns/net").checked()}) == len(bed.plan.slots)
        assert 1 < rate_mbps(fleet, "h0", "h1") < 30  # 20 and a burst; a busy machine can only be slower
        pids = [
            int(row.stdout) for row in fleet.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!").checked()
        ]
    assert all(process(pid) is not None for pid in pids)
    bed.down()
    assert all(process(pid) is None for pid in pids)
    assert all_of(bed.plan) == []
    assert not bed.folder.exists()


def test_hosts_have_networks_of_their_own_with_limited_links_as_root(own_folder, needs_root):
    bed = Bed.up(3, folder=own_folder, shaped="20mbit")
    assert (bed.plan.network, bed.notes) == ("root", ())
    assert bridge(bed.plan) in links(bed.plan)
    assert bed.inventory["h0"].host.link_gbps == 0.02
    again = Bed.up(3, folder=own_folder, shaped="20mbit")
    assert again.status() == bed.status()
    assert "has links of 0.02 Gbps" in Bed.up(3, folder=own_folder, shaped="1gbit").notes[0]
    check_bed(bed)
    assert links(bed.plan) == set()


def test_a_server_that_was_killed_comes_back_in_its_network(own_folder, needs_root):
    with Bed.up(2, folder=own_folder, shaped="20mbit") as bed:
        os.kill(bed.status()[1].pid, signal.SIGKILL)
        assert await_that(lambda: not bed.status()[1].alive, timeout_s=HANG_S)
        Bed.up(2, folder=own_folder, shaped="20mbit")
        with Fleet(bed.inventory) as fleet:
            assert fleet.run(["true"]).ok


@pytest.mark.parametrize("after", ["hold", "_batch"])
def test_down_removes_what_a_killed_up_left_of_the_networks(own_folder, needs_root, after):
    script = (
        "import os, signal\n"
        "from labkit.testbed.laptop import bed, networks\n"
        f"whole = networks.{after}\n"
        "def cut(*a, **k):\n"
        "    whole(*a, **k)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"networks.{after} = cut\n"
        f"bed.Bed.up(2, folder={str(own_folder)!r}, shaped='1gbit')\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=HANG_S, check=False)
    plan = BedPlan.read(own_folder)
    assert all_of(plan)
    with pytest.raises(BedError, match="half up"):
        Bed.up(2, folder=own_folder, shaped="1gbit")
    module.down(own_folder)
    assert all_of(plan) == []
    assert links(plan) == set()


def test_where_the_kernel_refuses_the_bed_comes_up_without_limits_and_says_why(own_folder, monkeypatch):
    monkeypatch.setattr(module, "possible", lambda: ("", "", "this kernel has neither of tbf, htb"))
    with Bed.up(1, folder=own_folder, shaped="20mbit") as bed:
        assert bed.notes == ("links are not limited: this kernel has neither of tbf, htb.",)
        assert (bed.plan.shaped_gbps, bed.plan.network) == (None, "loopback")


def test_where_networks_cannot_be_made_after_all_nothing_of_them_stays(own_folder, needs_root, monkeypatch):
    monkeypatch.setattr(module, "possible", lambda: ("root", "nosuch", ""))
    monkeypatch.setattr("labkit.testbed.laptop.networks.limit", lambda *a, **k: ["qdisc add dev lo root nosuch"])
    with Bed.up(2, folder=own_folder, shaped="20mbit") as bed, Fleet(bed.inventory) as fleet:
        assert "links are not limited: tc refuses a command" in bed.notes[0]
        assert links(bed.plan) == set()
        assert fleet.run(["true"]).ok


def test_the_reason_is_told_where_programs_are_missing(monkeypatch):
    monkeypatch.setattr("labkit.testbed.laptop.networks.program", lambda name: "" if name in ("tc", "ip") else name)
    assert possible() == ("", "", "ip, tc missing (apt-get install iproute2 util-linux)")


@pytest.mark.parametrize(
    ("text", "gbps"), [("200mbit", 0.2), ("1gbit", 1), (" 2.5 Gbit ", 2.5), ("500kbit", 5e-4), (3, 3)]
)
def test_rates_are_read_as_tc_writes_them(text, gbps):
    assert rate_gbps(text) == pytest.approx(gbps)


def test_a_kernel_without_tbf_gets_htb():
    assert limit("d", gbps=1, qdisc="htb") == [
        "qdisc add dev d root handle 1: htb default 1",
        "class add dev d parent 1: classid 1:1 htb rate 1000000kbit burst 625000 cburst 625000",
    ]


AS_USER = """
import os, shutil, sys
sys.path.insert(0, {tests!r})
import test_shaped
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.networks import possible
if not possible()[0]:
    print(possible()[2])
    sys.exit(77)
bed = Bed.up(2, folder=os.environ["HOME"] + "/bed", shaped={shaped!r})
try:
    assert bed.notes == (), bed.notes
    assert bed.plan.network == {network!r}
    assert bed.inventory["h0"].user == "labkit-test"
    {check}
finally:
    bed.down()
left = [file for _, _, files in os.walk(os.environ["HOME"]) for file in files]
assert left == ["trusted"], left  # what the user agreed to
shutil.rmtree(os.environ["HOME"] + "/.local")
"""


def as_user(home: Path, script: str) -> None:
    """Run a script as an ordinary user; as this one, where it is one."""
    helper = Path(__file__).with_name("as_user.py")
    words = [sys.executable, str(helper), str(home)] if os.getuid() == 0 else ["env", f"HOME={home}"]
    done = subprocess.run(
        [*words, sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr + done.stdout


def test_an_ordinary_user_has_limited_links_in_a_user_namespace(own_folder):
    own_folder.parent.chmod(0o755)
    own_folder.mkdir()
    check = "test_shaped.check_bed(bed)"
    as_user(own_folder, AS_USER.format(tests=str(Path(__file__).parent), shaped="20mbit", network="user", check=check))
    own_folder.rmdir()


def test_an_ordinary_user_has_a_laptop_testbed(own_folder):
    own_folder.parent.chmod(0o755)
    own_folder.mkdir()
    check = "from labkit.testbed.ssh.fleet import Fleet; Fleet(bed.inventory).run(['true']).checked()"
    as_user(own_folder, AS_USER.format(tests=str(Path(__file__).parent), shaped=None, network="loopback", check=check))
    own_folder.rmdir()
