"""Logins with all kinds of shells on one SSH server with a banner: `python shells.py FOLDER`, as root.

In a mount namespace of its own there is an account for each shell; each is a host of an inventory. The last line is
JSON: what doctor, deploy, fetch, a backup and the agent say of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ADDRESS = "127.0.0.63"
GREETING = "*** Welcome ***"
NOISE = f"echo '{GREETING}'\nprintf 'and an unterminated line'\necho 'to both outputs' >&2\n"
RC = {
    "chatty": (".bashrc", NOISE),
    "echoing": (".bashrc", f"set -v\nset -x\n{NOISE}"),
    "tcsh": (".tcshrc", f"echo '{GREETING}'\nprintf 'and an unterminated line'\n"),
    "fish": (".config/fish/config.fish", f"echo '{GREETING}'\nprintf 'and an unterminated line'\n"),
    "zsh": (".zshenv", NOISE),
    "nologin": (".bashrc", ""),
    "endless": (".bashrc", "exec yes\n"),
    "leaving": (".bashrc", "echo 'no service today'\nexit 7\n"),
}
PROGRAMS = {"tcsh": "tcsh", "fish": "fish", "zsh": "zsh", "nologin": "nologin"}
WORK = ("chatty", "echoing", "tcsh", "fish", "zsh")
WORDS = ["it's", "a!b", "new\nline", "back\\slash \\\\ \\n", "$HOME", "`x`", "", "é☃", "%s", "^a^b", "\t#~*", "\x01"]


def shell_of(name: str) -> str:
    from labkit.testbed.laptop.server import program

    return program(PROGRAMS.get(name, "bash"))


def main(folder: Path) -> None:
    """Make the accounts and the server, and tell what is found."""
    from tests.testbed.as_user import UID, own_namespace

    names = [name for name in RC if shell_of(name)]
    folder.chmod(0o755)
    uids = {name: UID + 10 + number for number, name in enumerate(names)}
    for name in names:
        rc = folder / name / RC[name][0]
        rc.parent.mkdir(parents=True)
        rc.write_text(RC[name][1])
        run = folder / name / "labkit/runs/harvest"
        run.mkdir(parents=True, mode=0o700)
        (run / "run.json").write_text("{}")
        (run / "result").write_bytes(bytes(range(256)) * 5000)
        from tests.testbed.test_hostile import checkpoint

        checkpoint(folder / name / "job", 100)
        for path in (folder / name, *(folder / name).rglob("*")):
            os.chown(path, uids[name], uids[name])
        (folder / name / "labkit").chmod(0o700)
    own_namespace({name: (uid, folder / name) for name, uid in uids.items()}, shells={n: shell_of(n) for n in names})
    with server(folder) as port:
        write_inventory(folder, names, port)
        found = looked(folder)
    print(json.dumps(found))


@contextmanager
def server(folder: Path) -> Any:
    """Run an SSH server of root that shows a banner; yield its port. What the users run ends with it."""
    from labkit.testbed.laptop.server import program
    from tests.testbed.two_users import free_port, make_key, wait_until_open

    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    make_key(folder / "id", owner=0)
    make_key(folder / "host.key", owner=0)
    port = free_port(ADDRESS)
    (folder / "banner").write_text("Authorised use only.\n" * 20)
    (folder / "sshd.conf").write_text(
        f"ListenAddress {ADDRESS}:{port}\nHostKey {folder}/host.key\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/id.pub\nAuthenticationMethods publickey\nUsePAM no\nMaxSessions 64\n"
        f"MaxStartups 64\nUseDNS no\nBanner {folder}/banner\nPrintMotd yes\n"
    )
    public = " ".join((folder / "host.key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[{ADDRESS}]:{port} {public}\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program("sshd"), "-D", "-e", "-f", str(folder / "sshd.conf")], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        wait_until_open(ADDRESS, port)
        yield port
    finally:
        process.kill()
        process.wait()


def write_inventory(folder: Path, names: list[str], port: int) -> None:
    lines = [
        "[ssh]", f'key = "{folder}/id"', f'known_hosts = "{folder}/known_hosts"', 'config = "none"',
        f'python = "{sys.executable}"',
    ]  # fmt: skip
    for name in names:
        lines += [
            "[[hosts]]", f'name = "{name}"', "gpus = 0", "cpus = 1.0", "memory_gb = 1.0",
            f'ssh = {{ address = "{ADDRESS}", port = {port}, user = "{name}", folder = "~/labkit" }}',
        ]  # fmt: skip
    (folder / "hosts.toml").write_text("\n".join(lines) + "\n")


def looked(folder: Path) -> dict[str, Any]:
    """Return what is said of each host."""
    from labkit.testbed.doctor import examine
    from labkit.testbed.errors import HostError
    from labkit.testbed.install import install
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run import agents
    from labkit.testbed.run.checkpoint_cache import CheckpointCache
    from labkit.testbed.run.host_files import fetch
    from labkit.testbed.ssh.fleet import Fleet

    with Fleet(Inventory.read(folder / "hosts.toml")) as fleet:
        examined = examine(fleet, torch=False).findings
        faults = {name: [f"{f.check}: {f.found} | {f.hint}" for f in examined if f.host == name and f.state == "fault"]
                  for name in fleet.inventory.names}  # fmt: skip
        notes = {f.host: f.hint for f in examined if f.check == "reach" and f.state == "note"}
        placed = rows(install(fleet))
        said = fleet.run(["printf", "%s\\0", *WORDS])
        words = {row.host: row.stdout.split("\0")[:-1] == WORDS if row.ok else row.why for row in said}
        errors = {row.host: row.stderr for row in said}
        fetched = rows(fetch(fleet, "harvest", runs=folder / "fetched"))
        backups = CheckpointCache(fleet, folder / "backups", run="r")
        kept = {}
        for machine in fleet.inventory:
            try:
                backups.fetch(machine, folder=f"{folder}/{machine.name}/job", task=machine.name)
                kept[machine.name] = backups.path(machine.name).stat().st_size
            except HostError as error:
                kept[machine.name] = str(error)
        started = rows(agents.start(fleet))
        stopped = rows(agents.stop(fleet, runs=True))
    whole = {name: (folder / f"fetched/harvest/hosts/{name}/result").exists() for name in faults}
    return {
        "faults": faults, "notes": notes, "install": placed, "words": words, "errors": errors, "fetch": fetched,
        "whole": whole, "backup": kept, "start": started, "stop": stopped,
    }  # fmt: skip


def rows(outcomes: Any) -> dict[str, tuple[bool, str, str]]:
    return {row.host: (row.ok, row.did, row.hint) for row in outcomes}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(Path(sys.argv[1]))
