"""No stranger gets in: a wrong key, token, uid, name or folder is refused in under a second, by name."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from labkit.core.errors import InputError
from labkit.elastic.transport import (
    Access,
    AccessError,
    Address,
    AddressError,
    Authority,
    Certificates,
    Handler,
    Listener,
    TransportError,
    UnreachableError,
    connect,
    new_token,
    private_folder,
)
from tests.elastic.transport.conftest import SCHEMES
from tests.elastic.transport.ends import Echo, Noting, drained
from tests.elastic.transport.proxy import Proxy
from tests.hang import HANG_S


@pytest.fixture
def listening(address):
    made = []

    def make(scheme: str, access: Access, welcome=lambda peer: Echo()) -> Listener:
        made.append(Listener(address(scheme), welcome=welcome, access=access))
        return made[-1]

    yield make
    for listener in made:
        listener.close()


@contextmanager
def refused(match: str, error: type[Exception] = AccessError):
    with pytest.raises(error, match=match):
        yield


def join(listener: Listener, access: Access, **more):
    return connect(listener.address, handler=Handler(), access=access, **more)


def counted(listener: Listener, reason: str, n: int = 1) -> bool:
    """Return whether so many were refused, once the greetings that are under way are over."""
    for thread in list(listener._greeting):
        thread.join(HANG_S)
    return listener.counts.refused[reason] == n


def test_a_wrong_token_is_refused(listening):
    listener = listening("tcp", Access(token=new_token(), plaintext=True))
    with refused("does not know the token"):
        join(listener, Access(token=new_token(), plaintext=True))
    assert listener.connections == ()


def test_a_server_that_does_not_know_the_token_learns_nothing(listening):
    """The listening end proves itself first: a client never answers a challenge of a stranger."""
    welcomed = []
    listener = listening("tcp", Access(token=b"guess" * 8, plaintext=True), welcome=welcomed.append)
    with refused("the end that listens does not know the token"):
        join(listener, Access(token=new_token(), plaintext=True))
    assert welcomed == []


def test_a_recorded_greeting_opens_nothing(listening, accesses):
    """A process that heard a whole greeting on the network, and repeats it, meets another challenge."""
    listener, heard = listening("tcp", accesses["tcp"]), []
    proxy = Proxy(listener.address, address=Address.parse("tcp://127.0.0.1:0"))
    proxy.tamper = lambda chunk, from_client: (heard.append(chunk) if from_client else None, chunk)[1]
    connect(proxy.address, handler=Handler(), access=accesses["tcp"]).close()
    proxy.close()
    with socket.create_connection((listener.address.host, listener.address.port)) as thief:
        thief.settimeout(HANG_S)
        thief.sendall(b"".join(heard))
        drained(thief)
    assert counted(listener, "access")


def test_another_jobs_certificate_is_refused(listening, accesses, folder):
    listener = listening("tls", accesses["tls"])
    stranger = Authority("job-1").issue("ps-0", folder=folder / "stranger")  # the same names, another authority
    with refused("certificate|handshake"):
        join(listener, Access(certificates=stranger))
    assert counted(listener, "access")
    mine = accesses["tls"].certificates
    pretender = Certificates("job-1", mine.authority, stranger.certificate, stranger.key)
    with refused("unknown ca|TLS"):  # it trusts the server, but the server does not trust it
        join(listener, Access(certificates=pretender))
    assert counted(listener, "access", 2)


def test_an_expired_certificate_is_refused(listening, accesses, folder):
    long_ago = datetime.now(UTC) - timedelta(days=60)
    old = Authority("job-1", now=long_ago).issue("ps-0", folder=folder / "old")
    listener = listening("tls", Access(certificates=old))
    with refused("expired"):
        join(listener, Access(certificates=old))


def test_a_client_can_insist_on_a_name(listening, accesses):
    listener = listening("tls", accesses["tls"])
    channel = join(listener, accesses["tls"], expected="ps-0")
    assert channel.peer.proved == "certificate ps-0"
    channel.close()
    with refused("ps-9"):
        join(listener, accesses["tls"], expected="ps-9")


def test_a_client_of_another_job_is_refused_though_the_authority_signed_it(listening, folder):
    authority = Authority("job-1")
    issued = authority.issue("ps-0", folder=folder / "keys")
    listener = listening("tls", Access(certificates=issued))
    other = Certificates("job-2", issued.authority, issued.certificate, issued.key)
    with refused("job-2"):
        join(listener, Access(certificates=other))


def test_clear_and_encrypted_ends_refuse_each_other(listening, accesses):
    clear, encrypted = accesses["tcp"], accesses["tls"]
    as_tls = lambda listener: Address.parse(f"tls://127.0.0.1:{listener.address.port}")  # noqa: E731
    as_tcp = lambda listener: Address.parse(f"tcp://127.0.0.1:{listener.address.port}")  # noqa: E731
    listener = listening("tcp", clear)
    with refused("TLS|greeting"):
        connect(as_tls(listener), handler=Handler(), access=encrypted)
    listener = listening("tls", encrypted)
    with refused(".", TransportError):
        connect(as_tcp(listener), handler=Handler(), access=clear)


@pytest.mark.parametrize("scheme", ["unix", "shm"])
def test_a_process_of_another_user_is_refused_by_either_end(listening, scheme):
    listener = listening(scheme, Access(uid=os.getuid() + 1))
    with refused("without a word|greeting"):
        join(listener, Access())
    assert counted(listener, "access")
    listener = listening(scheme, Access())
    with refused(f"belongs to uid {os.getuid()}; only uid {os.getuid() + 1} may connect"):
        join(listener, Access(uid=os.getuid() + 1))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_real_stranger_cannot_even_reach_the_socket(listening):
    listener = listening("unix", Access())
    assert stat.S_IMODE(os.stat(listener.address.path).st_mode) == 0o600
    code = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({listener.address.path!r})"
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert "PermissionError" in done.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_welcome_may_refuse_and_say_why(listening, accesses, scheme):
    def welcome(peer):
        if peer.hello.get("generation", 0) < 5:
            raise AccessError(f"generation {peer.hello['generation']} is over; this is 5.")
        return Noting()

    listener = listening(scheme, accesses[scheme], welcome=welcome)
    with refused("generation 4 is over"):
        join(listener, accesses[scheme], hello={"generation": 4})
    assert counted(listener, "access")
    join(listener, accesses[scheme], hello={"generation": 5}).close()


def test_a_folder_that_others_can_enter_is_refused(folder):
    (folder / "open").mkdir(mode=0o755)
    with refused("mode 0755; 0700 is needed: chmod 700"):
        private_folder(folder / "open")
    (folder / "link").symlink_to(private_folder(folder / "mine"))
    with refused("not a link"):
        private_folder(folder / "link")
    with refused("mode 0755"):
        Listener(Address.parse(f"unix:{folder}/open/a"), welcome=lambda peer: Noting(), access=Access())


def test_keys_are_private_and_a_key_that_others_can_read_is_refused(folder):
    issued = Authority("job-1").issue("worker-0", folder=folder / "keys")
    assert stat.S_IMODE(issued.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(issued.key.parent.stat().st_mode) == 0o700
    issued.key.chmod(0o640)
    with refused("mode 0640: others can read this key"):
        Listener(Address.parse("tls://127.0.0.1:0"), welcome=lambda p: Noting(), access=Access(certificates=issued))
    issued.key.unlink()
    with refused("worker-0.key is not there"):
        issued.check()


def test_a_certificate_and_a_key_that_do_not_belong_together_are_refused(listening, folder):
    authority = Authority("job-1")
    one, other = (authority.issue(name, folder=folder / name) for name in ("ps-0", "ps-1"))
    mixed = Certificates("job-1", one.authority, one.certificate, other.key)
    listener = listening("tls", Access(certificates=one))
    with refused("do not fit together"):
        join(listener, Access(certificates=mixed))
    shutil.copy(other.key, one.key)
    with refused("do not fit together"):
        listening("tls", Access(certificates=one))


@pytest.mark.parametrize(
    ("text", "access", "match"),
    [
        ("tls://127.0.0.1:0", Access(), "needs certificates"),
        ("tcp://127.0.0.1:0", Access(token=new_token()), "use tls://, or say plaintext=True"),
        ("tcp://127.0.0.1:0", Access(token=b"short", plaintext=True), "at least 16 bytes, this one has 5"),
    ],
)
def test_an_address_without_its_key_is_refused_before_anything_opens(text, access, match):
    for attempt in (
        lambda: connect(Address.parse(text), handler=Handler(), access=access),
        lambda: Listener(Address.parse(text), welcome=lambda peer: Noting(), access=access),
    ):
        with refused(match, AddressError):
            attempt()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("unxi:/a", "Did you mean 'unix'"),
        ("10.0.0.1:4000", "unknown scheme"),
        ("tcp://10.0.0.1", "expected for example tcp://10.0.0.7:4000"),
        ("tls://10.0.0.1:65536", "is no address"),
        ("tls:10.0.0.1:1", "is no address"),
        ("unix:relative", "absolute path"),
        ("shm:/" + "x" * 107, "at most 107 bytes; this one has 108. Give it a shorter name"),
    ],
)
def test_a_misspelt_address_is_told_what_is_wrong(text, match):
    with pytest.raises(InputError, match=match):
        Address.parse(text)


@pytest.mark.parametrize("text", ["unix:/run/a", "shm:/run/a", "tls://host:1", "tcp://[::1]:4000"])
def test_an_address_is_written_as_it_is_read(text):
    assert str(Address.parse(text)) == text


def test_a_taken_address_is_told_and_a_dead_one_reused(listening, accesses, address):
    taken = listening("tcp", accesses["tcp"]).address
    with refused("port 0 takes one that is free", AddressError):
        Listener(taken, welcome=lambda peer: Noting(), access=accesses["tcp"])
    taken = listening("unix", accesses["unix"]).address
    with refused("another process listens there", AddressError):
        Listener(taken, welcome=lambda peer: Noting(), access=accesses["unix"])
    dead = address("unix")
    left = socket.socket(socket.AF_UNIX)
    left.bind(dead.path)
    left.close()
    Listener(dead, welcome=lambda peer: Noting(), access=accesses["unix"]).close()
    assert not os.path.exists(dead.path)


@pytest.mark.parametrize("scheme", ["unix", "shm"])
def test_a_socket_may_lie_in_a_folder_of_any_depth(folder, accesses, scheme):
    deep = folder / "/".join(["deeper-and-deeper"] * 12)
    deep.mkdir(parents=True)
    deep.chmod(0o700)
    address = Address.parse(f"{scheme}:{deep}/controller.sock")
    listener = Listener(address, welcome=lambda peer: Echo(), access=accesses[scheme])
    join(listener, accesses[scheme]).close()
    with refused("another process listens there", AddressError):
        Listener(address, welcome=lambda peer: Noting(), access=accesses[scheme])
    listener.close()
    assert not os.path.exists(address.path)
    with refused("no process answers at", UnreachableError):
        join(listener, accesses[scheme])
    assert stat.S_IMODE(deep.stat().st_mode) == 0o700


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_unreachable_peer_is_told(listening, accesses, scheme):
    listener = listening(scheme, accesses[scheme])
    listener.close()
    with refused("no process answers at", UnreachableError):
        join(listener, accesses[scheme])


@pytest.mark.parametrize("name", ["", "a b", "x" * 51, "ps/0", "ps_0", "é", "10.0.0.1", ".a"])
def test_names_that_certificates_cannot_bear_are_refused(name):
    with pytest.raises(InputError, match="cannot stand in a certificate"):
        Authority(name)


def test_a_restarted_controller_goes_on_issuing_certificates_of_the_same_job(listening, folder):
    authority = Authority("j" * 50)
    first = authority.issue("ps-0", folder=folder / "ps-0")
    later = Authority.parse(authority.dump(), job="j" * 50).issue("ps-1", folder=folder / "ps-1")
    join(listening("tls", Access(certificates=first)), Access(certificates=later)).close()
    with refused("not that of job-2"):
        Authority.parse(authority.dump(), job="job-2")


def test_secrets_are_not_printed():
    access = Access(token=(token := new_token()), plaintext=True)
    assert token.hex() not in repr(access)
    assert repr(token) not in repr(access)
