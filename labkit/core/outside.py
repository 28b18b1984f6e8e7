"""Schedulers, placers and speed models of one's own: `file.py:Name`, `package.module:Name`, or an entry point."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from labkit.core.errors import InputError, unknown
from labkit.core.text import labelled, shortened

GROUPS: Final = {"scheduler": "labkit.schedulers", "placer": "labkit.placers", "speed model": "labkit.speeds"}
"""What there may be of one's own, and the group of its entry points."""

_NAME: Final = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*")


def is_outside(name: str) -> bool:
    """Return whether a name says where to find what it means.

    >>> is_outside("mine:SmallestFirst"), is_outside("srtf")
    (True, False)
    """
    return ":" in name


def find(name: str, *, what: str) -> Any:
    """Return what a name stands for that is not labkit's own: in a file or module, or an entry point; None: neither.

    Raises
    ------
    InputError
        As `load` and `loaded`.
    """
    if is_outside(name):
        return load(name, what=what)
    point = from_packages(what).get(name)
    return None if point is None else loaded(point, what=what)


def load(name: str, *, what: str) -> Any:
    """Return what `file.py:Name` or `package.module:Name` stands for.

    A file is read again where it has changed, and may import what stands beside it. For a module, the folder in which
    the program was started is looked at, too.

    Parameters
    ----------
    name : str
        As it was typed.
    what : str
        One of `GROUPS`, for the error.

    Raises
    ------
    InputError
        If there is no such file, module or name in it, or its import fails; in one line.

    Examples
    --------
    >>> load("labkit.placers.pack:Pack", what="placer")()
    Pack()
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{what} '{shortened(name)}' cannot be read; expected package.module:Name, such as mine:SmallestFirst, or "
            "file.py:Name."
        )
    where, _, attribute = name.partition(":")
    file = file_of(name)
    module = _imported(where, name=name, what=what) if file is None else _read(file, name=name, what=what)
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise unknown(f"{what} of {'module' if file is None else 'file'} {where}", attribute, public)
    return getattr(module, attribute)


def file_of(name: str) -> Path | None:
    """Return the file that a name points to, with or without options behind it; None: it names a module, or neither.

    >>> file_of("mine/first.py:SmallestFirst(k=2)").as_posix(), file_of("mine:SmallestFirst"), file_of("srtf")
    ('mine/first.py', None, None)
    """
    where, colon, _ = labelled(name)[1].partition("(")[0].rpartition(":")
    return Path(where.strip()).expanduser() if colon and where.strip().endswith(".py") else None


def _read(file: Path, *, name: str, what: str) -> ModuleType:
    """Return a file as a module; its name tells its contents, so that a changed file is another module.

    A module that is only named by its path would hide one of the same name that is installed.
    """
    try:
        source = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{what} {name}: {file} cannot be read ({error.strerror}); expected a Python file, from {Path.cwd()}."
        ) from None
    path = file.resolve()
    called = f"labkit_outside_{path.stem}_{hashlib.sha256(source).hexdigest()[:12]}"
    if called in sys.modules:
        return sys.modules[called]
    if (beside := str(path.parent)) not in sys.path:
        sys.path.append(beside)
    spec = importlib.util.spec_from_file_location(called, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = sys.modules[called] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[called]
        if not isinstance(error, Exception):
            raise
        raise _broken(error, f"{what} {name}: {file}") from error
    return module


def _imported(where: str, *, name: str, what: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a command that was installed does not look there by itself
        sys.path.append(here)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(f"{error.name}.")):
            raise InputError(f"{what} {name}: {where} needs the module {error.name}, which is not installed.") from None
        raise InputError(
            f"{what} {name}: there is no module {where}; expected a file {where.replace('.', '/')}.py in {here}, or an "
            "installed package."
        ) from None
    except Exception as error:  # a user's module may raise anything
        raise _broken(error, f"{what} {name}: module {where}") from error


def _broken(error: Exception, which: str) -> InputError:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(f"{which} cannot be imported: {shortened(told)}")


def from_packages(what: str) -> Mapping[str, EntryPoint]:
    """Return what installed packages offer of a kind, by name."""
    return _offered(GROUPS[what])


@cache
def _offered(group: str) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def loaded(point: EntryPoint, *, what: str) -> Any:
    """Return what an entry point stands for.

    Raises
    ------
    InputError
        If it cannot be imported; in one line.
    """
    try:
        return point.load()
    except Exception as error:  # a package may raise anything
        told = " ".join(f"{type(error).__name__}: {error}".split())
        package = point.dist.name if point.dist is not None else "a package"
        raise InputError(
            f"{what} {point.name} of {package} ({point.value}) cannot be loaded: {shortened(told)}"
        ) from error
