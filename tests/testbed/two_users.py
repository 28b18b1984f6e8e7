"""Two ordinary users of the same hosts, one of whom pries: `python two_users.py FOLDER`, as root.

In a mount namespace of its own there are two accounts, ada and bob, and two SSH servers of root that let both log in:
hosts as a laboratory has them. Ada trains a job over both. Bob trains one of the same name there, and tries meanwhile
whatever an account may try. The last line is JSON: what each of them has found.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HOSTS = {"h0": "127.0.0.61", "h1": "127.0.0.62"}
RUN = "the-same-name"
STEPS = {"ada": 100_000, "bob": 60}


# --- root: hosts with two accounts


def main(folder: Path) -> None:
    """Make the hosts and both users, let them meet, and tell what they found."""
    from tests.testbed.as_user import UID, own_namespace

    users = {"ada": UID, "bob": UID + 1}
    folder.chmod(0o755)
    for name, uid in users.items():
        home = folder / name
        home.mkdir(mode=0o755)
        os.chown(home, uid, uid)
    own_namespace({name: (uid, folder / name) for name, uid in users.items()})
    with servers(folder, users) as ports:
        for name in users:
            write_inventory(folder, name, ports)
        with started(folder, "ada") as at_ada, started(folder, "bob") as at_bob:
            found = meet(at_ada, at_bob)
        found["left"] = left(users)
    print(json.dumps(found))


@contextmanager
def servers(folder: Path, users: dict[str, int]) -> Iterator[dict[str, int]]:
    """Run an SSH server of root on each address; yield their ports. All that the users run ends with them."""
    from labkit.testbed.laptop.server import program

    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    keys = folder / "keys"
    keys.mkdir(mode=0o755)
    for name in users:
        make_key(folder / name / "id", owner=users[name])
        (keys / name).write_bytes((folder / name / "id.pub").read_bytes())
    ports, started, known = {}, [], []
    for host, address in HOSTS.items():
        ports[host] = free_port(address)
        make_key(folder / f"{host}.key", owner=0)
        (folder / f"{host}.conf").write_text(
            f"ListenAddress {address}:{ports[host]}\nHostKey {folder}/{host}.key\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {keys}/%u\nAuthenticationMethods publickey\nUsePAM no\nMaxSessions 64\n"
            "MaxStartups 64\nUseDNS no\nSubsystem sftp internal-sftp\n"
        )
        public = " ".join((folder / f"{host}.key.pub").read_text().split()[:2])
        known.append(f"[{address}]:{ports[host]} {public}\n")
        words = [program("sshd"), "-D", "-e", "-f", str(folder / f"{host}.conf")]
        with (folder / f"{host}.log").open("wb") as log:
            started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    (folder / "known_hosts").write_text("".join(known))
    try:
        for host, address in HOSTS.items():
            wait_until_open(address, ports[host])
        yield ports
    finally:
        for server in started:
            server.kill()
            server.wait()
        for uid in users.values():
            for pid in processes_of(uid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def make_key(path: Path, *, owner: int) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    for each in (path, path.with_name(f"{path.name}.pub")):
        os.chown(each, owner, owner)


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def wait_until_open(address: str, port: int) -> None:
    from tests.testbed.agent.looking import wait_for

    def is_open() -> bool:
        with suppress(OSError), socket.create_connection((address, port), timeout=1):
            return True
        return False

    wait_for(is_open)


def write_inventory(folder: Path, user: str, ports: dict[str, int], *, of: str = "") -> None:
    """Write what a user knows of the hosts; with `of`, the folders of another user in place of the own ones."""
    lines = [
        "[ssh]", f'user = "{user}"', f'key = "{folder}/{user}/id"', f'known_hosts = "{folder}/known_hosts"',
        'config = "none"', f'python = "{sys.executable}"',
    ]  # fmt: skip
    for host, address in HOSTS.items():
        place = f"{folder}/{of}/labkit-{host}" if of else f"~/labkit-{host}"
        lines += [
            "[[hosts]]", f'name = "{host}"', "gpus = 1", "cpus = 1.0", "memory_gb = 1.0", 'device_type = "laptop"',
            f'ssh = {{ address = "{address}", port = {ports[host]}, folder = "{place}" }}',
        ]  # fmt: skip
    (folder / f"{user}{f'-as-{of}' if of else ''}.toml").write_text("\n".join(lines) + "\n")
    if not of:
        write_inventory(folder, user, ports, of="bob" if user == "ada" else "ada")


@contextmanager
def started(folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a user's own program, as that user and nobody else."""
    from labkit.kernels.store import NAMED, folders

    account, kernels = pwd.getpwnam(name), folder / name / "kernels"
    compiled = folders(create=True)[0]
    shutil.copytree(compiled, kernels) if compiled.is_dir() else kernels.mkdir()
    for path in (kernels, *kernels.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid)
    env = {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    env |= {
        NAMED: str(kernels),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        [sys.executable, __file__, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=account.pw_dir, env=env, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def meet(ada: subprocess.Popen[str], bob: subprocess.Popen[str]) -> dict[str, Any]:
    """Let Bob begin once Ada's job trains, Ada end once Bob has; return what both say."""
    tell(bob, hear(ada))
    pried = hear(bob)
    tell(ada, "over")
    return {"bob": pried, "ada": hear(ada)}


def hear(user: subprocess.Popen[str]) -> Any:
    assert user.stdout is not None
    return json.loads(user.stdout.readline())


def tell(user: subprocess.Popen[str], what: object) -> None:
    assert user.stdin is not None
    user.stdin.write(json.dumps(what) + "\n")
    user.stdin.flush()


def left(users: dict[str, int]) -> list[int]:
    """Return processes that users left behind; those that are about to end get the time.

    Fork servers end by themselves, a minute after the last process that they have started.
    """
    from labkit.testbed.laptop.processes import await_that
    from tests.hang import HANG_S

    def there() -> list[int]:
        return [pid for uid in users.values() for pid in processes_of(uid) if not is_fork_server(pid)]

    await_that(lambda: not there(), timeout_s=HANG_S)
    return there()


def is_fork_server(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"labkit-forks")
    return False


def processes_of(uid: int) -> list[int]:
    from tests.testbed.agent.looking import all_pids, runs

    found = []
    for pid in all_pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == uid and runs(pid):
                found.append(pid)
    return found


# --- either user


def trained(folder: Path, name: str) -> Any:
    """Return the backend, not entered yet, of a user's job."""
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run.backend import SshBackend
    from tests.testbed.test_backend import TINY, jobs_of

    hosts = Inventory.read(folder / f"{name}.toml")
    return SshBackend(jobs_of(1, steps=STEPS[name]), hosts, run=RUN, folder=folder / name / "run", training=TINY)


def over_both(backend: Any) -> Any:
    """Start the job, its worker and controller on the first host, its PS on the second one; return the session."""
    from labkit.core import Placement
    from labkit.experiment import Session

    session = Session(backend)
    session._note(backend.apply(Placement.of([0], job=[0, 0], role=[0, 1], group=[0, 1], count=[1, 1])))
    return session


def ended(session: Any) -> dict[str, Any]:
    """Return what came of a job that has ended."""
    from labkit.core.events import Kind
    from tests.testbed.agent.looking import wait_for

    backend, kinds = session.backend, session.log.rows["kind"]
    agent = backend.hosts.agent("h0")
    wait_for(lambda: agent.list(RUN)[0].tasks["job-0"].phase == "ended")
    result = json.loads(agent.read(RUN, task="job-0", file="result.json").data)
    return {
        "steps": result["steps"], "digest": result["digest"], "notes": backend.notes,
        "went_wrong": int(((kinds == Kind.FAILED) | (kinds == Kind.LEFT)).sum()),
        "sees": {name: seen(backend.hosts.agent(name)) for name in HOSTS},
    }  # fmt: skip


def seen(agent: Any) -> list[str]:
    """Return the tasks that a user's agent lists."""
    return [f"{agent.hello.folder}/runs/{run.run}/{task}" for run in agent.list() for task in run.tasks]


def cleared(folder: Path, name: str) -> dict[str, Any]:
    """Clear up after oneself, as `fab gc` and `fab stop --end-runs` do."""
    from labkit.testbed import upkeep
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run import agents
    from labkit.testbed.ssh.fleet import Fleet

    with Fleet(Inventory.read(folder / f"{name}.toml")) as fleet:
        return {"gc": rows(upkeep.gc(fleet, older_h=0.0)), "stop": rows(agents.stop(fleet, runs=True))}


def rows(outcomes: Any) -> list[list[Any]]:
    return [[row.ok, row.did, row.hint, row.numbers.get("tasks", row.numbers.get("runs", 0))] for row in outcomes]


# --- Ada, who works


def ada(folder: Path) -> dict[str, Any]:
    """Train until told to stop, and stop so that the state is kept."""
    from labkit.core import Placement
    from labkit.core.events import Kind
    from tests.testbed.test_backend import until

    with trained(folder, "ada") as backend:
        session = over_both(backend)
        until(session, Kind.PROGRESSED)
        say(os.getuid())
        while not select.select([sys.stdin], [], [], 0)[0]:
            session._note(backend.advance(session.now_s + 0.5, stop_at_event=False))
        n_before = (session.log.rows["kind"] == Kind.PROGRESSED).sum()
        until(session, Kind.PROGRESSED, n=n_before + 2)
        (deployment,) = backend._deployments
        session._note(backend.apply(Placement.of([0])))
        with deployment._state.change:
            assert deployment._state.change.wait_for(lambda: not deployment.home, 60)
        found = ended(session)
    return found | {"own": cleared(folder, "ada")}


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


# --- Bob, who pries


def bob(folder: Path) -> dict[str, Any]:
    from labkit.core.events import Kind
    from tests.testbed.test_backend import until

    victim = json.loads(sys.stdin.readline())
    with trained(folder, "bob") as backend:
        session = over_both(backend)
        until(session, Kind.PROGRESSED)
        found = {
            "signalled": signalled(victim), "opened": opened(victim), "told": told_by_commands(victim),
            "readable": readable(folder / "ada"), "sockets": [*agent_sockets(folder / "ada"), *named_sockets()],
            "ports": dialled(victim), "commands": commands(folder),
        }  # fmt: skip
        until(session, Kind.COMPLETED)
        found |= ended(session)
    return found | {"own": cleared(folder, "bob")}


def signalled(victim: int) -> list[int]:
    """Return processes of another user that took a signal."""
    there, took = processes_of(victim), []
    assert len(there) > 4, "agents, launchers, members and a controller"
    for pid in there:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
            with suppress(PermissionError, ProcessLookupError):
                os.kill(pid, number)
                took.append(pid)
    return took


def opened(victim: int) -> list[str]:
    """Return what of /proc of another user's processes opens, and should not."""
    found = []
    for pid in processes_of(victim):
        for name in ("environ", "mem", "fd", "map_files", "cwd"):
            path = f"/proc/{pid}/{name}"
            with suppress(OSError):
                if name in ("environ", "mem"):
                    os.close(os.open(path, os.O_RDONLY))
                else:
                    os.listdir(path)
                found.append(path)
    return found


def told_by_commands(victim: int) -> str:
    """Return what `ps` shows of another user: all command lines, one below the other."""
    lines = []
    for pid in processes_of(victim):
        with suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


def readable(home: Path) -> list[str]:
    """Return what of another user opens: of labkit's folders and of the key anything; elsewhere what holds a key."""
    places = [*home.glob("labkit-*"), home / "id"]
    assert len(places) == len(HOSTS) + 1
    found = [str(path) for path in places if os.access(path, os.R_OK) or os.access(path, os.W_OK | os.X_OK)]
    shared = [path for place in ("/tmp", "/dev/shm") for path in Path(place).iterdir()]
    owner = pwd.getpwnam("ada").pw_uid  # other files there may be of users that are no more
    for path in (*shared, *(home / "run").rglob("*")):
        with suppress(OSError):
            if path.lstat().st_uid == owner and path.is_file() and b"PRIVATE KEY" in path.read_bytes():
                found.append(str(path))
    return found


def agent_sockets(home: Path) -> list[str]:
    """Return sockets of another user's agents that take a connection."""
    return [f"{path}" for host in HOSTS if takes(str(path := home / f"labkit-{host}/agent.sock"))]


def named_sockets() -> list[str]:
    """Return sockets without a file that take a connection: any user could connect there."""
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    return [name for name in names if name.startswith("@") and "labkit" in name and takes("\0" + name[1:])]


def takes(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        sock.connect(address)
        return True
    return False


def dialled(victim: int) -> dict[str, list[str]]:
    """Dial every TCP port that another user listens on: in the clear, without and with a certificate of one's own."""
    from labkit.elastic.transport import Authority

    own = Authority(RUN).issue("controller", folder=Path.home() / "stranger")
    found: dict[str, list[str]] = {"addresses": [], "let_in": []}
    for address in listening_of(victim):
        found["addresses"].append(address[0])
        for what, certificate in (("clear", None), ("none", ()), ("stranger", (own.certificate, own.key))):
            if answer := said_to(address, certificate):
                found["let_in"].append(f"{address[0]}:{address[1]} {what}: {answer!r}")
    return found


def listening_of(uid: int) -> list[tuple[str, int]]:
    """Return where a user listens; IPv6 as it stands there."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A" and int(row[7]) == uid:
                host, port = row[1].split(":")
                number = bytes.fromhex(host)[::-1] if len(host) == 8 else b""
                found.append((socket.inet_ntoa(number) if number else host, int(port, 16)))
    return found


def said_to(address: tuple[str, int], certificate: tuple[Path, Path] | tuple[()] | None) -> str:
    """Return what a port answers to a client that has no business there; empty where it hangs up."""
    with suppress(OSError), socket.create_connection(address, timeout=5) as sock:
        if certificate is None:
            sock.sendall(b'{"verb": "stop"}\n' * 64)
            said = sock.recv(4096)
            return "" if said[:1] == b"\x15" else said.decode(errors="replace")  # a TLS alert
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(*certificate)
        with context.wrap_socket(sock) as channel:
            channel.sendall(b'{"verb": "stop"}\n' * 64)
            return channel.recv(4096).decode(errors="replace")
    return ""


def commands(folder: Path) -> dict[str, Any]:
    """Do what `fab` does, in one's own name and then in the folders of the other user; return the answers."""
    from labkit.testbed import install as provision
    from labkit.testbed import upkeep
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run import agents
    from labkit.testbed.run import host_files as logs
    from labkit.testbed.ssh.fleet import Fleet

    def tried(fleet: Fleet) -> dict[str, Any]:
        lines: list[str] = []
        found = {"status": rows(agents.status(fleet)), "gc": rows(upkeep.gc(fleet, older_h=0.0))}
        found["logs"] = rows(logs.logs(fleet, on_line=lambda _, line: lines.append(line)))
        return found | {"lines": len(lines)}

    found: dict[str, Any] = {}
    with Fleet(Inventory.read(folder / "bob.toml")) as fleet:
        found["bob"] = tried(fleet)
    with Fleet(Inventory.read(folder / "bob-as-ada.toml")) as fleet:
        found["bob-as-ada"] = tried(fleet) | {
            "start": rows(agents.start(fleet)), "stop": rows(agents.stop(fleet, runs=True)),
            "install": rows(provision.install(fleet)),
        }  # fmt: skip
    with Fleet(Inventory.read(folder / "ada.toml")) as fleet:  # with the key of the other user, or none
        found["ada"] = {"status": rows(agents.status(fleet))}
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    where = Path(sys.argv[1])
    if len(sys.argv) == 2:
        main(where)
    else:
        say({"ada": ada, "bob": bob}[sys.argv[2]](where))
