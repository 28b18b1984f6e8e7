"""A wheel of this labkit: equal files give equal bytes and an equal name.

No build tool is needed: labkit is Python files and a little data, so its wheel is those files and four of metadata.
The module for NVIDIA's driver (pynvml) is included, so that hosts need not install it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from labkit.core.errors import InputError
from labkit.system import release

SUFFIXES = (".py", ".csv", ".js", ".css", ".html", ".json", ".safetensors", ".template", ".typed")
"""Endings of the files that belong to labkit; a test compares them with pyproject.toml."""
HASH_LETTERS = 16
DRIVER_MODULE = "labkit/testbed/agent/_pynvml.py"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in a wheel: the oldest that a zip can hold."""


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of labkit.

    Attributes
    ----------
    version : str
        Of the release, without a local part.
    python : str
        Versions of Python that it runs on, such as ">=3.11".
    requires : sequence of str
        Requirements, each as one line; those of an extra end in `; extra == "name"`.
    entry_points : mapping
        Of each group of what labkit finds by entry points: name to `module:attribute`.
    """

    version: str
    python: str
    requires: Sequence[str]
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wheel:
    """labkit as files.

    Attributes
    ----------
    about : About
        Its metadata.
    files : mapping
        Content by path, as the wheel holds them; metadata are among them.
    hash : str
        Hash of all files and metadata; it identifies a labkit.
    """

    about: About
    files: Mapping[str, bytes] = field(repr=False)
    hash: str

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
    folder = Path(package) if package is not None else Path(__file__).parents[2]
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


def _entry_points(about: About) -> bytes:
    """Return the file that says which command and which parts there are."""
    groups = {"console_scripts": {"labkit": "labkit.cli.app:main"}, **about.entry_points}
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), "")
    ]
    return "\n".join(lines).encode()


def _driver_module() -> dict[str, bytes]:
    """Return NVIDIA's module pynvml (nvidia-ml-py) as a file of the agent's package; none if it is not installed."""
    found = find_spec("pynvml")
    if found is None or found.origin is None:
        return {}
    return {DRIVER_MODULE: Path(found.origin).read_bytes()}


def local_version(about: About, hash: str) -> str:
    """Return a version that identifies the content.

    >>> local_version(About("0.1.0", ">=3.11", ()), "00c0ffee")
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


def _hash(files: Mapping[str, bytes], about: About) -> str:
    whole = hashlib.sha256()
    for path, content in sorted(files.items()):
        whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    whole.update(json.dumps([about.version, about.python, *about.requires, about.entry_points]).encode())
    return whole.hexdigest()[:HASH_LETTERS]


def _about(folder: Path) -> About:
    """Return the metadata of the checkout around a package, else those of the installed distribution."""
    if project := release.checkout(folder.parent):
        extras = project.get("optional-dependencies", {})
        optional = [f'{line}; extra == "{name}"' for name, lines in extras.items() for line in lines]
        requires = (*project["dependencies"], *optional)
        return About(project["version"], project["requires-python"], requires, project.get("entry-points", {}))
    if (found := release.installed()) is None:
        raise InputError(f"{folder} has neither pyproject.toml beside it nor metadata; install labkit.")
    version, requires = found["Version"].partition("+")[0], tuple(found.get_all("Requires-Dist") or ())
    return About(version, found["Requires-Python"], requires, _installed_entry_points(found["Name"]))


def _installed_entry_points(name: str) -> dict[str, dict[str, str]]:
    """Return what an installed distribution has for labkit to find."""
    groups: dict[str, dict[str, str]] = {}
    for point in distribution(name).entry_points:
        if point.group.startswith("labkit."):
            groups.setdefault(point.group, {})[point.name] = point.value
    return groups


def _metadata(own: Mapping[str, bytes], about: About, hash: str) -> dict[str, bytes]:
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
