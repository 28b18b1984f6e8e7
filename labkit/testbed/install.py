"""Bring labkit to the hosts of a testbed: only changed files are sent, and the old environment works until the switch.

A wheel is made without a build tool: labkit is Python files and a little data, so its wheel is those files and four of
metadata; equal files give equal bytes and an equal name. NVIDIA's module pynvml is included. On a host, in labkit's
folder there:

    env/HASH/lib          labkit, unpacked from its wheel; HASH names the content
    env/HASH/python       starts a Python that has what labkit needs, with that labkit
    env/HASH/manifest.json  its files and their hashes
    env/current           leads to the one in use
    env/base-NAME-311     what labkit needs, where the host's own Python does not have it

`labkit/testbed/onhost` has the programs that work there.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from labkit.core.errors import InputError
from labkit.system import release
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.host_messages import DependReply, InspectReply, ReceiveReply, SweepReply, reply_to
from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes

SUFFIXES = (".py", ".csv", ".js", ".css", ".html", ".json", ".safetensors", ".template", ".typed")
"""Endings of the files that belong to labkit; a test compares them with pyproject.toml."""
HASH_LETTERS = 16
DRIVER_MODULE = "labkit/testbed/agent/_pynvml.py"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in a wheel: the oldest that a zip can hold."""
OPTIONAL = ("torch", "cloudpickle", "cryptography", "psutil", "distributed")
"""Distributions of labkit's extras that its processes on hosts use."""
RELEASE = re.compile(r"\d+(?:\.\d+)*")
OLDEST_PYTHON = (3, 11)
LOOK_S, PLACE_S, INSTALL_S = 60.0, 600.0, 3600.0
WHEELS = "env/wheels"
INDEX = re.compile(r"(?:https?|file)://[^\s\x00-\x1f]+")
OnLine = Callable[[str, str], None]
_Found = dict[str, "_Seen | HostOutcome"]


@dataclass(frozen=True, slots=True)
class WheelInfo:
    """Metadata of labkit."""

    version: str
    """Of the release, without a local part."""
    python: str
    """Versions of Python that it runs on, such as ">=3.11"."""
    requires: Sequence[str]
    """Requirements, each as one line; those of an extra end in `; extra == "name"`."""
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each group of what labkit finds by entry points: name to `module:attribute`."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """labkit as files."""

    about: WheelInfo
    files: Mapping[str, bytes] = field(repr=False)
    """Content by path, as the wheel holds them; metadata are among them."""
    hash: str
    """Hash of all files and metadata; it identifies a labkit."""

    @property
    def version(self) -> str:
        """Return the version, which contains the hash."""
        return local_version(self.about, self.hash)

    @property
    def filename(self) -> str:
        """Return the name that the file must have."""
        return f"labkit-{self.version}-py3-none-any.whl"

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file by its path."""
        return {path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()}

    def write(self, folder: str | Path) -> Path:
        """Write the wheel into a folder, and return its path."""
        path = Path(folder) / self.filename
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.files.items():
                entry = zipfile.ZipInfo(name, date_time=EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
        path.write_bytes(packed.getvalue())
        return path


def build(package: str | Path | None = None) -> Wheel:
    """Return the wheel of a checkout or an installed labkit; by default of the one that runs.

    Parameters
    ----------
    package : str or Path, optional
        The folder `labkit` with its modules.

    Raises
    ------
    InputError
        If the folder has no module, or its version cannot be found.
    """
    folder = Path(package) if package is not None else Path(__file__).parents[1]
    parts = {"labkit": folder, "reproductions": folder.with_name("reproductions")}
    own = {
        f"{name}/{path.relative_to(part).as_posix()}": path.read_bytes()
        for name, part in parts.items()
        for path in _sources(part)
    }
    if "labkit/__init__.py" not in own:
        raise InputError(f"{folder} has no __init__.py; expected the folder of labkit's modules.")
    own |= _driver_module()
    about = _about(folder)
    hash = _hash(own, about)
    return Wheel(about, own | _metadata(own, about, hash), hash)


def _driver_module() -> dict[str, bytes]:
    """Return NVIDIA's module pynvml (nvidia-ml-py) as a file of the agent's package; none if it is not installed."""
    found = find_spec("pynvml")
    if found is None or found.origin is None:
        return {}
    return {DRIVER_MODULE: Path(found.origin).read_bytes()}


def local_version(about: WheelInfo, hash: str) -> str:
    """Return a version that identifies the content.

    >>> local_version(WheelInfo("0.1.0", ">=3.11", ()), "00c0ffee")
    '0.1.0+h00c0ffee'
    """
    return f"{about.version}+h{hash}"


def _sources(folder: Path) -> Iterator[Path]:
    """Yield labkit's files in order of their paths, without files of editors and tests."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if not hidden and path.suffix in SUFFIXES and path.is_file():
            yield path


def _entry_points(about: WheelInfo) -> bytes:
    """Return the file that says which command and which parts there are."""
    groups = {"console_scripts": {"labkit": "labkit.cli.app:main"}, **about.entry_points}
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), "")
    ]
    return "\n".join(lines).encode()


def _hash(files: Mapping[str, bytes], about: WheelInfo) -> str:
    whole = hashlib.sha256()
    for path, content in sorted(files.items()):
        whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    whole.update(json.dumps([about.version, about.python, *about.requires, about.entry_points]).encode())
    return whole.hexdigest()[:HASH_LETTERS]


def _about(folder: Path) -> WheelInfo:
    """Return the metadata of the checkout around a package, else those of the installed distribution."""
    if project := release.checkout(folder.parent):
        extras = project.get("optional-dependencies", {})
        optional = [f'{line}; extra == "{name}"' for name, lines in extras.items() for line in lines]
        requires = (*project["dependencies"], *optional)
        return WheelInfo(project["version"], project["requires-python"], requires, project.get("entry-points", {}))
    if (found := release.installed()) is None:
        raise InputError(f"{folder} has neither pyproject.toml beside it nor metadata; install labkit.")
    version, requires = found["Version"].partition("+")[0], tuple(found.get_all("Requires-Dist") or ())
    return WheelInfo(version, found["Requires-Python"], requires, _installed_entry_points(found["Name"]))


def _installed_entry_points(name: str) -> dict[str, dict[str, str]]:
    """Return what an installed distribution has for labkit and others to find, all but its command."""
    groups: dict[str, dict[str, str]] = {}
    for point in metadata.distribution(name).entry_points:
        if point.group != "console_scripts":
            groups.setdefault(point.group, {})[point.name] = point.value
    return groups


def _metadata(own: Mapping[str, bytes], about: WheelInfo, hash: str) -> dict[str, bytes]:
    """Return the files of the folder dist-info, which installers and importlib.metadata read."""
    version = local_version(about, hash)
    folder = f"labkit-{version}.dist-info"
    extras = dict.fromkeys(
        line.rpartition("extra == ")[2].strip("\"' ") for line in about.requires if "extra == " in line
    )
    lines = ["Metadata-Version: 2.1", "Name: labkit", f"Version: {version}", f"Requires-Python: {about.python}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {line}" for line in about.requires]
    wheel = ["Wheel-Version: 1.0", "Generator: labkit", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    dist_info = {
        f"{folder}/METADATA": "\n".join([*lines, ""]).encode(),
        f"{folder}/WHEEL": "\n".join([*wheel, ""]).encode(),
        f"{folder}/entry_points.txt": _entry_points(about),
    }
    record = [f"{path},{_record_hash(content)},{len(content)}" for path, content in {**own, **dist_info}.items()]
    return dist_info | {f"{folder}/RECORD": "\n".join([*record, f"{folder}/RECORD,,", ""]).encode()}


def _record_hash(content: bytes) -> str:
    """Return a hash as the file RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def needs(about: WheelInfo) -> tuple[str, ...]:
    """Return the requirements of labkit's processes on hosts, each a name with its versions.

    >>> needs(WheelInfo("1", ">=3.11", ("numpy>=2.2", 'torch==2.13.0; extra == "lab"', 'ruff>=1; extra == "dev"')))
    ('numpy>=2.2', 'torch==2.13.0')
    """
    plain = [line for line in about.requires if "extra ==" not in line]
    extra = [line.partition(";")[0].strip() for line in about.requires if "extra ==" in line]
    return tuple(dict.fromkeys([*plain, *(line for line in extra if name_of(line) in OPTIONAL)]))


def name_of(requirement: str) -> str:
    """Return the name of a distribution.

    >>> name_of("nvidia-ml-py>=12")
    'nvidia-ml-py'
    """
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else ""


def missing(requirements: Sequence[str], versions: Mapping[str, str]) -> list[str]:
    """Return the requirements that some installed versions do not meet.

    >>> missing(["numpy>=2.2", "torch==2.13.0", "rich>=13"], {"numpy": "2.10.1", "torch": "2.13.0+cpu", "rich": "9"})
    ['rich>=13']
    """
    return [line for line in requirements if not meets(versions.get(name_of(line), ""), line[len(name_of(line)) :])]


def meets(version: str, wanted: str) -> bool:
    """Return whether a version meets a specifier; False if it cannot be parsed.

    >>> meets("2.13.0+cpu", "==2.13.0"), meets("3.0", ">=2.2,<4"), meets("", ">=1")
    (True, False, False)
    """
    found = _release(version)
    bounds = [part.strip() for part in wanted.split(",") if part.strip()]
    return bool(found) and all(
        (bound.startswith(">=") and found >= _release(bound[2:]))
        or (bound.startswith("==") and found == _release(bound[2:]))
        for bound in bounds
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at their end."""
    found = RELEASE.match(version.strip())
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def pinned(requirements: Sequence[str]) -> list[str]:
    """Return requirements for pip in the versions used here, so that hosts compute the same."""
    lines = []
    for line in requirements:
        try:
            lines.append(f"{name_of(line)}=={metadata.version(name_of(line)).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            lines.append(line)
    return lines


def environment_name(requirements: Sequence[str]) -> str:
    """Return the name of an environment with these requirements; each Python of a host adds a suffix."""
    return "base-" + hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]


def python_of(machine: Machine) -> str:
    """Return the path of the Python on a machine that has the deployed labkit, or this one for a local machine."""
    return machine.python if machine.local else machine.path("env", "current", "python")


@dataclass(frozen=True, slots=True)
class InstallOrder:
    """What to install on the hosts."""

    wheel: Wheel
    needs: Sequence[str]
    """Requirements that the Python there must meet."""
    wheelhouse: Path | None = None
    """A folder with all wheels that may have to be installed; None: the hosts' own index."""
    index: str = ""
    """One more index for pip there; empty: none."""

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
    """Return labkit's requirements on hosts, in the versions used here: the content of a wheelhouse, for pip."""
    return pinned(needs(build(package).about))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a host has, as far as it matters for the next steps."""

    have: frozenset[str]
    """SHA-256 of contents that are there."""
    base: str
    """The Python that has what labkit needs; empty where it must be made."""
    tag: str
    """Version of the host's Python, as in names of environments."""
    lacks: tuple[str, ...]
    """Requirements that the host's own Python does not meet."""
    wheels: dict[str, int]
    """Sizes of wheels that were copied before, by name."""


def _look(fleet: Fleet, order: InstallOrder) -> _Found:
    """Ask all hosts what they have; those that have everything are done."""
    names = [name_of(line) for line in order.needs]
    answers = fleet.run(
        lambda machine: [
            machine.python, "-c", source("inspect"), machine.folder, order.wheel.hash, environment_name(order.needs),
            *names,
        ],
        timeout_s=LOOK_S,
    )  # fmt: skip
    found: _Found = {}
    for answer in answers:
        python = fleet.inventory[answer.host].python
        reply = reply_to(answer, InspectReply, program=python)
        found[answer.host] = reply if isinstance(reply, HostOutcome) else _judged(answer.host, reply, order, python)
    return found


def _judged(host: str, reply: InspectReply, order: InstallOrder, python: str) -> _Seen | HostOutcome:
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
        reply = reply_to(answer, DependReply, program="pip")
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
        reply = reply_to(answer, ReceiveReply, program=fleet.inventory[answer.host].python)
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
    return Outcomes.of(_swept(answer.host, reply_to(answer, SweepReply, program="gc"), dry_run) for answer in answers)


def _swept(host: str, reply: SweepReply | HostOutcome, dry_run: bool) -> HostOutcome:
    if isinstance(reply, HostOutcome):
        return reply
    went, parts = reply.removed, reply.parts
    things = f"{len(went)} environments" + (f", {parts} copies half done" if parts else "")
    what = f"{'would remove' if dry_run else 'removed'} {things}, {reply.bytes / 1e6:.1f} MB"
    numbers = {"environments": len(went), "parts": parts, "bytes": reply.bytes}
    return HostOutcome(host, True, what if went or parts else "nothing to remove", numbers=numbers)
