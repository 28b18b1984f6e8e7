"""Jobs over TCP between addresses of this machine: the same bits, and strangers stay outside while training goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from labkit.core.errors import InputError
from labkit.elastic import Job, Result
from labkit.elastic.controller.controller_state import SavedController
from labkit.elastic.controller.job_files import STATE
from labkit.elastic.process.member_process import MemberProcess
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.clients import StopJob
from labkit.elastic.protocol.messages.codec import FrameKind, encode, hello, load_struct
from labkit.elastic.protocol.messages.reports import ConnectFailed
from labkit.elastic.protocol.program import Spec
from labkit.elastic.protocol.sites import Refusals, claimed, ports_of
from labkit.elastic.transport import (
    Access,
    AccessError,
    Address,
    Authority,
    Connection,
    Peer,
    TransportError,
    connect,
    new_token,
)
from tests.elastic import slow_training
from tests.elastic.transport.ends import Noting
from tests.hang import HANG_S

pytestmark = pytest.mark.usefixtures("by_value")

STEPS = 40
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
PEM_KEY = b"PRIVATE KEY-----"
begin, run = (partial(each, steps=STEPS) for each in (slow_training.begin, slow_training.run))


@pytest.fixture(scope="module")
def control(by_value: None) -> Result:
    """A run that stays on this machine."""
    return run()


class Live:
    """A job over TLS that trains slowly, and whose secrets the tests know."""

    def __init__(self, job: Job) -> None:
        self.job, self.reach = job, Spec.load(job.folder).reach
        assert job._secrets is not None
        self.authority = Authority.parse(job._secrets.authority, job=self.reach.job)

    @property
    def controller(self) -> Address:
        return Address.parse((self.job.folder / "controller.address").read_text())

    def addresses(self) -> dict[str, Address]:
        """Return where the servers are."""
        members = load_struct(self.job.folder / STATE, SavedController).machine.members
        return {one.name: Address.parse(one.address) for one in members if one.address}

    def doors(self) -> list[Address]:
        return [self.controller, self.addresses()["ps-0"]]

    def n_refused(self) -> int:
        return sum(event["event"] == "refused" for event in self.job.events(follow=False))

    def goes_on(self) -> None:
        """Wait until a step more is done."""
        n_before = sum(event["event"] == "loss" for event in self.job.events(follow=False))
        until, n = time.monotonic() + HANG_S, n_before
        while n <= n_before and time.monotonic() < until:
            n = sum(event["event"] == "loss" for event in self.job.events(follow=False))
            threading.Event().wait(0.02)
        assert n > n_before


@pytest.fixture(scope="module")
def live(by_value: None) -> Iterator[Live]:
    """A job that outlasts all tests at its doors."""
    with begin(network="tls", addresses=HOSTS, servers=3, steps=1_000_000) as job:
        next(event for event in job.events() if event["event"] == "loss")
        yield Live(job)


def knock(address: Address, access: Access, **options: Any) -> Connection:
    return connect(address, handler=Noting(), access=access, **options)


def named(live: Live, name: str, folder: Path) -> Access:
    """Return what a process with a certificate of the job can show."""
    return Access(certificates=live.authority.issue(name, folder=folder))


def test_members_listen_at_different_addresses(live: Live) -> None:
    assert live.controller.host == "127.0.0.1"
    assert {name: address.host for name, address in live.addresses().items()} == {
        "ps-0": "127.0.0.1", "ps-1": "127.0.0.2", "ps-2": "127.0.0.3",
    }  # fmt: skip


def test_a_stranger_of_another_authority_is_refused_and_counted(live: Live, tmp_path: Path) -> None:
    impostor = Access(certificates=Authority(live.reach.job).issue("ps-0.server", folder=tmp_path / "keys"))
    n_before, until = live.n_refused(), time.monotonic() + HANG_S
    while live.n_refused() == n_before and time.monotonic() < until:  # the 1st, 2nd, 4th, 8th, ... are reported
        for door in live.doors():
            with pytest.raises(AccessError, match=r"certificate|TLS|unknown ca"):
                knock(door, impostor, hello=hello("ps-0", "server"))
    live.goes_on()
    assert live.n_refused() > n_before


@pytest.mark.parametrize(
    ("certificate", "name", "role"),
    [
        ("worker-0.worker", "worker-1", "worker"),
        ("worker-0.worker", "ps-0", "server"),
        ("worker-0.worker", "worker-0", "server"),
        ("worker-0.worker", "controller", "controller"),
        ("worker-0.worker", "launcher", "client"),
        ("ps-1.server", "ps-0", "server"),
    ],
)
def test_no_process_can_pose_as_another(live: Live, tmp_path: Path, certificate: str, name: str, role: str) -> None:
    """The authority has signed what it shows, and yet it does not get in under another name or role."""
    access = named(live, certificate, tmp_path / "keys")
    for door in live.doors():
        with pytest.raises(AccessError, match=f"{certificate}, as its certificate says, claims to be {name}.{role}"):
            knock(door, access, hello=hello(name, role))


def test_a_client_comes_in_on_this_machine_only(live: Live, tmp_path: Path) -> None:
    access = named(live, "launcher.client", tmp_path / "keys")
    with pytest.raises(AccessError, match="may not connect over this socket"):
        knock(live.controller, access, hello=hello("launcher", "client"))
    by_file = Address.parse(f"unix:{live.job.folder / 'controller.sock'}")
    with pytest.raises(AccessError, match="may not connect over this socket"):
        knock(by_file, Access(), hello=hello("ps-0", "server"))


def test_a_process_that_takes_the_place_of_controller_or_server_is_found_out(live: Live, tmp_path: Path) -> None:
    """A member insists on the name that it wants to talk to, whichever process listens at that port."""
    access = named(live, "worker-0.worker", tmp_path / "keys")
    for door, expected in zip(live.doors(), ("ps-0.server", "controller.controller"), strict=True):
        with pytest.raises(AccessError, match=f"TLS.*{expected}"):
            knock(door, access, expected=expected, hello=hello("worker-0", "worker"))


def test_plain_words_at_an_encrypted_door_are_refused(live: Live) -> None:
    clear = Access(token=new_token(), plaintext=True)
    for door in live.doors():
        with pytest.raises(TransportError):
            knock(Address.parse(f"tcp://{door.host}:{door.port}"), clear, hello=hello("ps-0", "server"))
        with socket.create_connection((door.host, door.port), timeout=HANG_S) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in sock.recv(4096)
    live.goes_on()


def test_a_worker_can_neither_command_the_job_nor_give_a_server_a_block(live: Live, tmp_path: Path) -> None:
    access, said = named(live, "worker-9.worker", tmp_path / "keys"), hello("worker-9", "worker")
    for door, kind, message in zip(
        live.doors(),
        (FrameKind.CLIENT_REQUEST, FrameKind.STATE),
        (StopJob(), BlockState(version=0, moves=9)),
        strict=True,
    ):
        guest = knock(door, access, hello=said)
        with pytest.raises(TransportError):
            guest.request(kind, meta=encode(message)).result(HANG_S)
        guest.close()
    live.goes_on()


def test_each_member_has_its_own_key_and_no_other_and_the_authoritys_is_on_no_disk(live: Live) -> None:
    """What is in the folder of a member is all that must be copied to its host."""
    folder = live.job.folder
    keys = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and PEM_KEY in path.read_bytes()}
    owners = sorted(path.parent.name for path in keys)
    assert owners == ["controller", "ps-0", "ps-1", "ps-2", "worker-0", "worker-1"]
    secret = live.authority.certificate.public_key()
    for path, raw in keys.items():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        public = serialization.load_pem_private_key(raw, password=None).public_key()
        assert public == x509.load_pem_x509_certificate(path.with_suffix(".pem").read_bytes()).public_key() != secret
    assert len(set(keys.values())) == len(keys)
    token = live.job._secrets.token  # type: ignore[union-attr]
    assert not any(
        token in path.read_bytes() or token.hex().encode() in path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    )
    assert sorted(path.name for path in (folder / "members" / "ps-1").iterdir()) == [
        "authority.pem", "controller.address", "job.json", "ps-1.server.key", "ps-1.server.pem",
    ]  # fmt: skip


def test_strangers_at_the_doors_change_no_bit(control: Result, tmp_path: Path) -> None:
    gate = tmp_path / "slow"
    gate.touch()
    with begin(gate, network="tls", addresses=HOSTS, servers=3) as job:
        next(event for event in job.events() if event["event"] == "loss")
        live = Live(job)
        impostor = Access(certificates=Authority(live.reach.job).issue("ps-0.server", folder=tmp_path / "foreign"))
        for access in (impostor, named(live, "worker-0.worker", tmp_path / "keys")):
            for door in live.doors():
                with pytest.raises(AccessError):
                    knock(door, access, hello=hello("ps-0", "server"))
        gate.unlink()
        result = job.wait(timeout_s=HANG_S)
        assert not list(job.folder.glob("members/*"))
    assert result.digest == control.digest
    assert not [e for e in result.events if e["event"] == "left" and not e["expected"]]


def test_scaling_and_another_controller_change_no_bit_over_tls(control: Result, tmp_path: Path) -> None:
    """A server and a worker join by hand-over; the controller is killed; its successor takes a server away."""
    gate, doors = tmp_path / "slow", []
    gate.touch()
    with begin(gate, network="tls", addresses=HOSTS) as job:

        def grow() -> None:
            job.scale(servers=1, workers=1)

        def kill() -> None:
            doors.append((job.folder / "controller.address").read_text())
            os.kill(job.pid, signal.SIGKILL)

        def shrink() -> None:
            doors.append((job.folder / "controller.address").read_text())
            job.scale(servers=-1)

        due = [("loss", grow), ("scaled", kill), ("resumed", shrink), ("scaled", gate.unlink)]
        for event in job.events():
            if due and event["event"] == due[0][0]:
                due.pop(0)[1]()
        result = job.wait(timeout_s=HANG_S)
    assert not due
    assert result.digest == control.digest
    assert doors[0] == doors[1]
    events = [event["event"] for event in result.events]
    assert "goes_back" not in events
    assert not [e for e in result.events if e["event"] == "left" and not e["expected"]]


def test_data_in_clear_where_asked_for_gives_the_same_bits_and_needs_the_token(control: Result, tmp_path: Path) -> None:
    """The token goes to members over the controller's TLS; what the controller says is never in clear."""
    gate = tmp_path / "slow"
    gate.touch()

    def stranger(job: Job) -> None:
        live = Live(job)
        server, boss = live.addresses()["ps-1"], live.controller
        assert (server.scheme, boss.scheme) == ("tcp", "tls")
        with pytest.raises(AccessError, match="does not know the token"):
            knock(server, Access(token=new_token(), plaintext=True), hello=hello("worker-0", "worker"))
        with pytest.raises(TransportError):
            knock(Address.parse(f"tcp://{boss.host}:{boss.port}"), Access(token=new_token(), plaintext=True))
        token = job._secrets.token  # type: ignore[union-attr]
        assert not any(token.hex().encode() in f.read_bytes() for f in job.folder.rglob("*") if f.is_file())
        knock(server, Access(token=token, plaintext=True), hello=hello("worker-9", "worker")).close()
        gate.unlink()

    result = run({1: stranger}, slow=gate, network="tcp", addresses=HOSTS[:2])
    assert result.digest == control.digest
    assert {e["name"] for e in result.events if e["event"] == "refused"} == {"controller", "ps-1"}


def free_ports(n: int) -> tuple[int, int]:
    """Return first and last of neighbouring ports that no process has now."""
    for first in range(20_000, 30_000, n):
        try:
            for port in range(first, first + n):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first, first + n - 1
    raise AssertionError("no ports are free")


def test_a_newcomer_that_finds_no_port_is_given_up_by_name_and_training_goes_on(
    control: Result, tmp_path: Path
) -> None:
    first, last = free_ports(3)  # for the controller and two servers
    gate = tmp_path / "slow"

    def grow(job: Job) -> None:
        gate.touch()
        job.scale(servers=1)

    result = run({3: grow}, slow=gate, network="tls", ports=(first, last))
    assert result.digest == control.digest
    (dropped,) = [e for e in result.events if e["event"] == "dropped"]
    assert dropped["why"].startswith(f"ps-2 no port from {first} to {last} is free on 127.0.0.1: cannot listen at tls:")


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen at tls://127.0.0.1:{port}: Address already in use"):
            begin(network="tls", ports=(port, port))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"network": "tsl"}, "unknown network 'tsl'. Did you mean 'tls'"),
        ({"addresses": ["127.0.0.2"]}, 'addresses 127.0.0.2 for network="local"'),
        ({"ports": (5000, 5001)}, 'for network="local"'),
        ({"network": "tls", "addresses": ["0.0.0.0"]}, "'0.0.0.0' is no address that others can connect to"),
        ({"network": "tls", "addresses": ["192.0.2.1"]}, "cannot listen at tls://192.0.2.1:0"),
        ({"network": "tcp", "ports": (5, 4)}, "ports 5 to 4"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        begin(**options)


def test_ports_are_read_as_they_are_written() -> None:
    with pytest.raises(InputError, match="ports '5000:5010' cannot be read; expected FIRST-LAST"):
        ports_of("5000:5010")


def test_a_name_counts_only_with_its_certificate_where_there_are_certificates() -> None:
    said = hello("ps-0", "server")
    assert claimed(Peer("certificate ps-0.server", said)) == claimed(Peer("uid 0 process 7", said))
    with pytest.raises(AccessError, match=r"claims to be ps-0\.server"):
        claimed(Peer("certificate ps-0.worker", said))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:/nowhere/ps-7.sock", "no process answers at unix:/nowhere/ps-7.sock"),
        ("tcp://127.0.0.1:9", "would send everything in clear"),
        ("tls://127.0.0.1:9", "needs certificates"),
        ("somewhere", "unknown scheme"),
    ],
)
def test_a_member_tells_the_controller_which_one_it_cannot_reach(tmp_path: Path, address: str, why: str) -> None:
    """Without words in clear unless the job is one of those."""
    Spec((), (), "sgd", {}, batch=1, n_shards=1, n_steps=1).save(tmp_path)
    member, told = MemberProcess(tmp_path, "worker-0"), []
    member.watchdog.free()  # it is no process of its own here: it would end that of the tests
    member.connections.report = told.append
    member.connections.meet("ps-7", address, Noting())
    (report,) = told
    assert isinstance(report, ConnectFailed)
    assert report.server == "ps-7"
    assert why in report.why


def test_strangers_cannot_fill_the_disk() -> None:
    told: list[int] = []
    refused = Refusals(lambda **columns: told.append(columns["n"]))
    for _ in range(100):
        refused("access", "no")
    assert told == [1, 2, 4, 8, 16, 32, 64]


def test_from_the_shell() -> None:
    from typer.testing import CliRunner

    from labkit.cli.app import app

    line = "train cnn --steps 3 --samples 64 --json --network tls --addresses 127.0.0.1,127.0.0.2"
    told = json.loads(CliRunner().invoke(app, line.split(), catch_exceptions=False).stdout)
    assert (told["steps"], told["dropped"]) == (3, 0)
