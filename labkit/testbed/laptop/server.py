"""The SSH servers of a laptop testbed: their configuration, their start, and their processes."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labkit.system.private_files import write_private
from labkit.testbed.agent.folder_layout import BOOT
from labkit.testbed.errors import BedError
from labkit.testbed.laptop.plan import VARIABLE, BedPlan, HostSlot
from labkit.testbed.laptop.processes import BedProcess, await_that, below, has_variable, holders_of, process, processes

PATIENCE_S = 90.0
"""Seconds after which the start of a server has failed; on a busy machine a start may take some."""
CARRIED = ("PYTHONPATH", "NUMBA_CACHE_DIR", "LANG", "LC_ALL", "TMPDIR")
"""Variables that hosts inherit from this process: they are this machine, and import the same labkit."""
HOST_VARIABLE = "LABKIT_BED_HOST"
STANDIN = "labkit.testbed.laptop.paramiko_sshd"
NO_SHELL = ("nologin", "false")
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def sshd_program() -> str:
    """Return the path of OpenSSH's server; empty if there is none, or this user could not log in to it."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""
    return "" if Path(shell).name in NO_SHELL else program("sshd")


def program(name: str) -> str:
    """Return the path of a program, also in folders that only root has on its path; empty if there is none."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS))
    return shutil.which(name, path=path) or ""


def write_config(plan: BedPlan, slot: HostSlot) -> None:
    """Write the configuration of a host's server."""
    config_of = standin_config if plan.server == "paramiko" else sshd_config
    write_private(plan.config(slot), config_of(plan, slot, environment=environment(plan, slot)))


def environment(plan: BedPlan, slot: HostSlot) -> dict[str, str]:
    """Return the environment of all processes on a host: a home of its own, and the bed's token."""
    carried = {name: os.environ[name] for name in CARRIED if os.environ.get(name)}
    marks = {VARIABLE: plan.token, HOST_VARIABLE: slot.name}
    return carried | {"HOME": str(plan.home(slot)), BOOT: str(plan.boot_file(slot)), **marks}


def sshd_config(plan: BedPlan, slot: HostSlot, *, environment: Mapping[str, str]) -> str:
    """Return a configuration of sshd that admits one key of one user, for commands and files only."""
    control, home = plan.control(slot), plan.home(slot)
    variables = " ".join(_quoted(f"{name}={value}") for name, value in environment.items())
    user = pwd.getpwuid(os.getuid()).pw_name
    return f"""# A host of labkit's laptop testbed.
ListenAddress {slot.address}:{slot.port}
HostKey {_quoted(str(control / "key"))}
PidFile {_quoted(str(control / "pid"))}
AuthorizedKeysFile {_quoted(str(plan.folder / "authorized_keys").replace("%", "%%"))}
StrictModes no
AllowUsers {user}
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
UsePAM no
PermitRootLogin prohibit-password
PermitEmptyPasswords no
DisableForwarding yes
PermitTunnel no
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
PrintLastLog no
UseDNS no
MaxSessions 64
MaxStartups 64
LoginGraceTime 20
SetEnv {variables}
Subsystem sftp internal-sftp -d {_quoted(str(home).replace("%", "%%"))}
"""


def standin_config(plan: BedPlan, slot: HostSlot, *, environment: Mapping[str, str]) -> str:
    """Return the configuration of the server that replaces sshd."""
    control = plan.control(slot)
    content = {
        "address": slot.address,
        "port": slot.port,
        "key": str(control / "key"),
        "pid": str(control / "pid"),
        "log": str(control / "log"),
        "authorized_keys": str(plan.folder / "authorized_keys"),
        "user": user_name(),
        "home": str(plan.home(slot)),
        "environment": dict(environment),
    }
    return json.dumps(content, indent=1) + "\n"


def user_name() -> str:
    """Return the user name for logins to the hosts: that of this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _quoted(value: str) -> str:
    if any(letter in value for letter in '"\\\n'):
        raise BedError(f"{value!r} has a quote, a backslash or a newline, which sshd's configuration cannot hold.")
    return f'"{value}"'


def start_commands(
    plan: BedPlan, slots: Sequence[HostSlot], *, inside: Callable[[HostSlot], list[str]]
) -> list[list[str]]:
    """Return the commands that start hosts' servers, which become daemons by themselves.

    `inside`: returns the prefix of a host's command that enters its network.
    """
    standin = [sys.executable, "-m", STANDIN]
    if plan.server == "sshd":
        sshd = sshd_program()
        return [
            [*inside(slot), sshd, "-f", str(plan.config(slot)), "-E", str(plan.control(slot) / "log")] for slot in slots
        ]
    if plan.network == "loopback":  # one Python is started, and becomes one process per host
        return [[*standin, *(str(plan.config(slot)) for slot in slots)]] if slots else []
    return [[*inside(slot), *standin, str(plan.config(slot))] for slot in slots]


def start(plan: BedPlan, slots: Sequence[HostSlot], *, inside: Callable[[HostSlot], list[str]]) -> list[HostSlot]:
    """Start servers at once, and wait until they listen; return those whose port is in use.

    Raise BedError if a server does not start for another reason: its output.
    """
    if plan.server == "sshd" and os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's empty folder; other servers may use it too
    for slot in slots:
        (plan.control(slot) / "pid").unlink(missing_ok=True)
        (plan.control(slot) / "log").unlink(missing_ok=True)
    started = [
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for words in start_commands(plan, slots, inside=inside)
    ]
    outputs = [_output_of(starter) for starter in started]
    if failed := [what for what, starter in zip(outputs, started, strict=True) if starter.returncode]:
        logs = [_log(plan, slot) for slot in slots]
        raise BedError(f"a server of the bed does not start: {'; '.join(filter(None, [*failed, *logs]))}")
    return [slot for slot in slots if not _listens(plan, slot)]


def _output_of(starter: subprocess.Popen[bytes]) -> str:
    """Return the output of a server that is in the background."""
    try:
        return starter.communicate(timeout=PATIENCE_S)[0].decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        starter.kill()
        output = starter.communicate()[0].decode(errors="replace").strip()
        return f"it does not go to the background within {PATIENCE_S:g} s: {output}"


def _listens(plan: BedPlan, slot: HostSlot) -> bool:
    """Wait until a server has written its process number, which it does once it listens; False without a port."""

    def settled() -> bool:
        return server_of(plan, slot) is not None or "Cannot bind any address" in _log(plan, slot)

    if not await_that(settled, timeout_s=PATIENCE_S):
        raise BedError(f"the server of {slot.name} does not listen after {PATIENCE_S:g} s: {_log(plan, slot)}")
    return server_of(plan, slot) is not None


def _log(plan: BedPlan, slot: HostSlot) -> str:
    try:
        return (plan.control(slot) / "log").read_text(errors="replace").strip()[-500:]
    except OSError:
        return ""


def server_of(plan: BedPlan, slot: HostSlot) -> BedProcess | None:
    """Return the process of a host's server; None if it is gone."""
    try:
        found = process(int((plan.control(slot) / "pid").read_text()))
    except (OSError, ValueError):
        return None
    return found if found is not None and is_server(found, plan.config(slot)) else None


def is_server(each: BedProcess, config: Path) -> bool:
    """Return whether a process is the server that has this configuration."""
    words = f"{each.command} "
    program = Path(words.split(" ", 1)[0]).name
    return (program in ("sshd", "sshd:") or STANDIN in words) and f"/{config.name} " in words


def all_of(plan: BedPlan, *, host: HostSlot | None = None) -> list[BedProcess]:
    """Return all processes of a bed, or of one host: servers, their sessions, and all processes started there."""
    now, slots = processes(), plan.slots if host is None else (host,)
    marks = [f"{VARIABLE}={plan.token}", *([] if host is None else [f"{HOST_VARIABLE}={host.name}"])]
    servers = {each.pid for each in now for slot in slots if is_server(each, plan.config(slot))}
    marked = {each.pid for each in now if all(has_variable(each.pid, mark) for mark in marks)}
    holders = holders_of([(slot.address, slot.port) for slot in slots])
    sessions = {each.pid for each in now if each.pid in holders and each.command.startswith("sshd")}
    wanted = below(servers | marked | sessions, now) - {os.getpid()}
    return [each for each in now if each.pid in wanted]
