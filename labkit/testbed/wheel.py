"""A wheel of this labkit, and its requirements on a host: equal files give equal bytes and an equal name.

No build tool is needed: labkit is Python files and a little data, so its wheel is those files and four of metadata.
The module for NVIDIA's driver (pynvml) is included, so that hosts need not install it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labkit.core.errors import InputError
from labkit.system import release

SUFFIXES = (".py", ".csv", ".js", ".css", ".html", ".json", ".safetensors", ".template", ".typed")
"""Endings of the files that belong to labkit; a test compares them with pyproject.toml."""
HASH_LETTERS = 16
DRIVER_MODULE = "labkit/testbed/agent/_pynvml.py"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in a wheel: the oldest that a zip can hold."""
OPTIONAL = ("torch", "cloudpickle", "cryptography", "psutil", "distributed")
"""Distributions of labkit's extras that its processes on hosts use."""
RELEASE = re.compile(r"\d+(?:\.\d+)*")


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
    """

    version: str
    python: str
    requires: Sequence[str]


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
    folder = Path(package) if package is not None else Path(__file__).parents[1]
    own = {f"labkit/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in _sources(folder)}
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
    whole.update(json.dumps([about.version, about.python, *about.requires]).encode())
    return whole.hexdigest()[:HASH_LETTERS]


def _about(folder: Path) -> About:
    """Return the metadata of the checkout around a package, else those of the installed distribution."""
    project = folder.parent / "pyproject.toml"
    if project.is_file():
        metadata: dict[str, Any] = tomllib.loads(project.read_text("utf-8")).get("project", {})
        if metadata.get("name") == release.DISTRIBUTION:
            extras = metadata.get("optional-dependencies", {})
            optional = [f'{line}; extra == "{name}"' for name, lines in extras.items() for line in lines]
            return About(metadata["version"], metadata["requires-python"], (*metadata["dependencies"], *optional))
    if (found := release.installed()) is None:
        raise InputError(f"{folder} has neither pyproject.toml beside it nor metadata; install labkit.")
    return About(
        found["Version"].partition("+")[0], found["Requires-Python"], tuple(found.get_all("Requires-Dist") or ())
    )


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
        f"{folder}/entry_points.txt": b"[console_scripts]\nlabkit = labkit.cli.app:main\n",
    }
    record = [f"{path},{_record_hash(content)},{len(content)}" for path, content in {**own, **dist_info}.items()]
    return dist_info | {f"{folder}/RECORD": "\n".join([*record, f"{folder}/RECORD,,", ""]).encode()}


def _record_hash(content: bytes) -> str:
    """Return a hash as the file RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def needs(about: About) -> tuple[str, ...]:
    """Return the requirements of labkit's processes on hosts, each a name with its versions.

    >>> needs(About("1", ">=3.11", ("numpy>=2.2", 'torch==2.13.0; extra == "lab"', 'ruff>=1; extra == "dev"')))
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
