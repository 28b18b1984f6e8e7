"""Bring labkit to the hosts of a testbed: only changed files are sent, and the old environment works until the switch.

On a host, in labkit's folder there:

    env/HASH/lib          labkit, unpacked from its wheel; HASH names the content
    env/HASH/python       starts a Python that has what labkit needs, with that labkit
    env/HASH/manifest.json  its files and their hashes
    env/current           leads to the one in use
    env/base-NAME-311     what labkit needs, where the host's own Python does not have it

`labkit/testbed/onhost` has the programs that work there.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from labkit.core.errors import InputError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes
from labkit.testbed.ssh.replies import Installed, Looked, Placed, Swept, reply_to
from labkit.testbed.wheel import Wheel, build, environment_name, missing, name_of, needs, pinned

OLDEST_PYTHON = (3, 11)
LOOK_S, PLACE_S, INSTALL_S = 60.0, 600.0, 3600.0
WHEELS = "env/wheels"
INDEX = re.compile(r"(?:https?|file)://[^\s\x00-\x1f]+")
OnLine = Callable[[str, str], None]


def python_of(machine: Machine) -> str:
    """Return the path of the Python on a machine that has the deployed labkit, or this one for a local machine."""
    return machine.python if machine.local else machine.path("env", "current", "python")


@dataclass(frozen=True, slots=True)
class InstallOrder:
    """What to install on the hosts.

    Attributes
    ----------
    wheel : Wheel
        labkit.
    needs : sequence of str
        Requirements that the Python there must meet.
    wheelhouse : Path or None
        A folder with all wheels that may have to be installed; None: the hosts' own index.
    index : str
        One more index for pip there; empty: none.
    """

    wheel: Wheel
    needs: Sequence[str]
    wheelhouse: Path | None = None
    index: str = ""

    @property
    def wheels(self) -> list[Path]:
        """Return the wheels of the wheelhouse."""
        return [] if self.wheelhouse is None else sorted(self.wheelhouse.glob("*.whl"))


def install(
    fleet: Fleet,
    *,
    wheelhouse: str | Path | None = None,
    index: str = "",
    package: str | Path | None = None,
    requirements: Sequence[str] | None = None,
    stream: OnLine | None = None,
) -> Outcomes:
    """Deploy this labkit to all hosts at once.

    A host that has it already gets one question, and no copy. If the Python of the inventory has labkit's requirements,
    it is used; else an environment with them is made once.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    wheelhouse : str or Path, optional
        A folder of wheels for hosts that reach no index: `pip download` fills it.
    index : str
        The address of an index that pip looks at there, besides those of the host's own pip.conf; such as one that has
        torch without CUDA, which is much smaller.
    package : str or Path, optional
        The folder of labkit's modules; by default of the labkit that runs.
    requirements : sequence of str, optional
        Requirements there; by default those of labkit's metadata.
    stream : callable, optional
        Called with (host, line) while pip installs.

    Returns
    -------
    Outcomes
        One row per host, with `files` and `bytes` that travelled.

    Raises
    ------
    InputError
        If the wheelhouse holds no wheel, or the index is none.
    """
    if index and (wheelhouse is not None or not INDEX.fullmatch(index)):
        raise InputError(
            f"index {index!r}: expected https://..., http://... or file:///..., and no wheelhouse with it."
        )
    wheel = build(package)
    house = None if wheelhouse is None else Path(wheelhouse).expanduser()
    order = InstallOrder(wheel, tuple(requirements if requirements is not None else needs(wheel.about)), house, index)
    if house is not None and not order.wheels:
        raise InputError(f"wheelhouse {house} holds no wheel; fill it: pip download -d {house} ...")
    found = _look(fleet, order)
    found = _install(fleet, order, found, stream)
    found = _place(fleet, order, found)
    rows = (found[machine.name] for machine in fleet.inventory)
    return Outcomes.of(row for row in rows if isinstance(row, HostOutcome))


def requirements(package: str | Path | None = None) -> list[str]:
    """Return what a wheelhouse must hold, for pip: labkit's requirements on hosts, in the versions used here."""
    return pinned(needs(build(package).about))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a host has, as far as it matters for the next steps.

    Attributes
    ----------
    have : frozenset of str
        SHA-256 of contents that are there.
    base : str
        The Python that has what labkit needs; empty where it must be made.
    tag : str
        Version of the host's Python, as in names of environments.
    lacks : tuple of str
        Requirements that the host's own Python does not meet.
    wheels : mapping
        Sizes of wheels that were copied before, by name.
    """

    have: frozenset[str]
    base: str
    tag: str
    lacks: tuple[str, ...]
    wheels: dict[str, int]


_Found = dict[str, "_Seen | HostOutcome"]


def _look(fleet: Fleet, order: InstallOrder) -> _Found:
    """Ask all hosts what they have; those that have everything are done."""
    names = [name_of(line) for line in order.needs]
    answers = fleet.run(
        lambda machine: [
            machine.python, "-c", source("look"), machine.folder, order.wheel.hash, environment_name(order.needs),
            *names,
        ],
        timeout_s=LOOK_S,
    )  # fmt: skip
    found: _Found = {}
    for answer in answers:
        python = fleet.inventory[answer.host].python
        reply = reply_to(answer, Looked, program=python)
        found[answer.host] = reply if isinstance(reply, HostOutcome) else _judged(answer.host, reply, order, python)
    return found


def _judged(host: str, reply: Looked, order: InstallOrder, python: str) -> _Seen | HostOutcome:
    if reply.same:
        return HostOutcome(host, True, f"unchanged {order.wheel.hash[:8]}", numbers={"files": 0, "bytes": 0})
    version = reply.python
    if version < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        hint = f"install Python {oldest} or newer there, and name it in the inventory: ssh = {{ python = ... }}"
        return HostOutcome(host, False, f"{python} is Python {'.'.join(map(str, version))}", hint)
    lacks = tuple(missing(order.needs, reply.versions))
    base = reply.executable if not lacks else reply.base
    return _Seen(reply.have, base, f"{version[0]}{version[1]}", lacks, reply.wheels)


def _install(fleet: Fleet, order: InstallOrder, found: _Found, stream: OnLine | None) -> _Found:
    """Make environments on hosts whose Python lacks requirements."""
    bare = {host: seen for host, seen in found.items() if isinstance(seen, _Seen) and not seen.base}
    if not bare:
        return found
    if stream is not None:
        for host, seen in bare.items():
            stream(host, f"its Python lacks {', '.join(seen.lacks)}: making an environment")
    found = found | _copy_wheels(fleet, order, bare)
    left = [host for host in bare if isinstance(found[host], _Seen)]
    answers = fleet.run(
        lambda machine: [
            machine.python, "-c", source("depend"), machine.folder,
            f"{environment_name(order.needs)}-{bare[machine.name].tag}",
            machine.path(WHEELS) if order.wheelhouse else "",
            order.index,
            *pinned(order.needs),
        ],
        timeout_s=INSTALL_S, stream=stream and _without_objects(stream), only=left,
    ) if left else ()  # fmt: skip
    for answer in answers:
        reply = reply_to(answer, Installed, program="pip")
        seen = bare[answer.host]
        found[answer.host] = (
            reply if isinstance(reply, HostOutcome) else _Seen(seen.have, reply.base, seen.tag, (), seen.wheels)
        )
    return found


def _without_objects(stream: OnLine) -> OnLine:
    """Leave out prompts and progress of programs."""
    return lambda host, line: None if line.startswith(("{", "\036")) else stream(host, line)


def _copy_wheels(fleet: Fleet, order: InstallOrder, bare: dict[str, _Seen]) -> _Found:
    """Copy missing wheels to hosts; return the hosts where that failed."""
    failed: _Found = {}
    for path in order.wheels:
        size = path.stat().st_size
        lack = [host for host, seen in bare.items() if seen.wheels.get(path.name) != size and host not in failed]
        for answer in fleet.put(path, f"{WHEELS}/{path.name}", mode=0o600, only=lack) if lack else ():
            if not answer.ok:
                hint = "make room there, or give the host another folder in the inventory"
                failed[answer.host] = HostOutcome(answer.host, False, f"{path.name}: {answer.why}", hint)
    return failed


def _place(fleet: Fleet, order: InstallOrder, found: _Found) -> _Found:
    """Send what hosts lack, and switch them to it."""
    ready = {host: seen for host, seen in found.items() if isinstance(seen, _Seen)}
    if not ready:
        return found
    digests = order.wheel.digests()
    packed = _Packed(order.wheel, digests)
    answers = fleet.run(
        lambda machine: [machine.python, "-c", source("receive"), machine.folder],
        stdin=lambda machine: packed.order(ready[machine.name].have, ready[machine.name].base),
        timeout_s=PLACE_S,
        only=list(ready),
    )
    placed: _Found = {}
    for answer in answers:
        reply = reply_to(answer, Placed, program=fleet.inventory[answer.host].python)
        sent = packed.lacking(ready[answer.host].have)
        n_bytes = sum(len(packed.content[digest]) for digest in sent)
        placed[answer.host] = (
            reply
            if isinstance(reply, HostOutcome)
            else HostOutcome(
                answer.host,
                True,
                f"placed {order.wheel.hash[:8]}: {len(sent)} files, {n_bytes / 1e6:.2f} MB, in {answer.seconds:.2f} s",
                numbers={"files": len(sent), "bytes": n_bytes},
            )
        )
    return found | placed


class _Packed:
    """Content for hosts, packed once for all hosts that lack the same."""

    def __init__(self, wheel: Wheel, digests: dict[str, str]) -> None:
        self.wheel, self.digests = wheel, digests
        self.content = {digest: wheel.files[path] for path, digest in digests.items()}
        self._pack = lru_cache(maxsize=8)(self._packed)

    def lacking(self, have: frozenset[str]) -> tuple[str, ...]:
        """Return the contents that a host does not have."""
        return tuple(digest for digest in self.content if digest not in have)

    def order(self, have: frozenset[str], base: str) -> bytes:
        """Return the input of the program there."""
        sent = self.lacking(have)
        payload = self._pack(sent)
        head = {
            "hash": self.wheel.hash,
            "version": self.wheel.version,
            "base": base,
            "files": self.digests,
            "sent": [[digest, len(self.content[digest])] for digest in sent],
            "bytes": len(payload),
        }
        return json.dumps(head).encode() + b"\n" + payload

    def _packed(self, sent: tuple[str, ...]) -> bytes:
        return zlib.compress(b"".join(self.content[digest] for digest in sent), 1)


def sweep(fleet: Fleet, *, dry_run: bool = False) -> Outcomes:
    """Remove unused results of deploys from all hosts.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    dry_run : bool
        Only report what would be removed.

    Returns
    -------
    Outcomes
        One row per host, with `environments`, `parts` (copies that were left half done) and `bytes` that went.
    """
    answers = fleet.run(
        lambda machine: [machine.python, "-c", source("sweep"), machine.folder, "no" if dry_run else "yes"],
        timeout_s=PLACE_S,
    )
    return Outcomes.of(_swept(answer.host, reply_to(answer, Swept, program="gc"), dry_run) for answer in answers)


def _swept(host: str, reply: Swept | HostOutcome, dry_run: bool) -> HostOutcome:
    if isinstance(reply, HostOutcome):
        return reply
    went, parts = reply.removed, reply.parts
    things = f"{len(went)} environments" + (f", {parts} copies half done" if parts else "")
    what = f"{'would remove' if dry_run else 'removed'} {things}, {reply.bytes / 1e6:.1f} MB"
    numbers = {"environments": len(went), "parts": parts, "bytes": reply.bytes}
    return HostOutcome(host, True, what if went or parts else "nothing to remove", numbers=numbers)
