"""labkit's requirements on a host, and whether a Python meets them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import metadata

from labkit.testbed.install.wheel import About

OPTIONAL = ("torch", "cloudpickle", "cryptography", "psutil", "distributed")
"""Distributions of labkit's extras that its processes on hosts use."""
RELEASE = re.compile(r"\d+(?:\.\d+)*")


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
