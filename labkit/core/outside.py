"""Schedulers, placers and speed models of one's own: `file.py:Name`, `package.module:Name`, or an entry point.

What is typed is imported as Python does it. What a stored record names needs consent (`labkit.core.consent`), and then
runs from the very bytes that were consented to: no compiled copy beside them, and no module that is not among them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from labkit.core import consent
from labkit.core.consent import Outside
from labkit.core.errors import InputError, unknown
from labkit.core.sources import Sources, installed, sources_of, sources_of_module
from labkit.core.text import labelled, shortened
from labkit.system import release

GROUPS: Final = {
    "scheduler": "labkit.schedulers", "placer": "labkit.placers", "speed model": "labkit.speeds",
    "reproduction": "labkit.reproductions", "learner": "labkit.learners",
}  # fmt: skip
"""What there may be of one's own, and the group of its entry points."""

FILES: Final = frozenset({"learned", "weights"})
"""Options of labkit's own schedulers that name files: to read, or to write."""
_NAME: Final = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*")


_whole: ContextVar[str] = ContextVar("the name that is being resolved, with its options", default="")


@contextmanager
def naming(text: str) -> Iterator[None]:
    """Resolve the names within a whole one: consent to `mine.py:Mine(k=2)` is none to `mine.py:Mine(k=3)`."""
    token = _whole.set(_whole.get() or text)
    try:
        yield
    finally:
        _whole.reset(token)


def is_outside(name: str) -> bool:
    """Return whether a name says where to find what it means.

    >>> is_outside("mine:SmallestFirst"), is_outside("srtf")
    (True, False)
    """
    return ":" in name


def find(name: str, *, what: str) -> Any:
    """Return the object of a name that is not labkit's own: in a file or module, or an entry point; None: neither.

    Raise InputError as `load` and `loaded`.
    """
    if is_outside(name):
        return load(name, what=what)
    point = from_packages(what).get(name)
    return None if point is None else loaded(point, what=what)


def load(name: str, *, what: str) -> Any:
    """Return the object that `file.py:Name` or `package.module:Name` names.

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
    where, _, attribute = name.rpartition(":")
    file = file_of(name)
    module = _imported(where, name=name, what=what) if file is None else _read(file, name=name, what=what)
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise unknown(f"{what} of {'module' if file is None else 'file'} {where}", attribute, public)
    return getattr(module, attribute)


def use_file(name: object, *, what: str) -> None:
    """Note that a scheduler reads or writes a file that an option names.

    Raise InputError if a stored record names it, and there is no consent.
    """
    for each in name if isinstance(name, list | tuple) else [name]:
        file = Path(str(each)).expanduser().absolute()
        if file.is_file() or "/" in str(each) or what.endswith("learned"):
            read = file.is_file() and not what.endswith("learned")  # what a run learns is written again and again
            data = file.read_bytes() if read else str(file).encode()
            consent.use(Outside(what, str(file), str(file), consent.digest_of([("", data)])))


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
    sources = sources_of(path, source)
    text = (_whole.get() or name).replace(str(name.rpartition(":")[0]), str(path))
    consent.use(Outside(what, text, str(path), sources.digest))
    called = f"labkit_outside_{path.stem}_{hashlib.sha256(source).hexdigest()[:12]}"
    if called in sys.modules:
        return sys.modules[called]
    _add_import_path(sources)
    spec = importlib.util.spec_from_file_location(called, path)
    assert spec is not None  # it ends in .py
    module = sys.modules[called] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[called]
        if not isinstance(error, Exception):
            raise
        raise _broken(error, f"{what} {name}: {file}") from error
    return module


def _add_import_path(sources: Sources) -> None:
    """Let a module import what stands beside it: what is there if its name was typed, else what was consented to."""
    if consent.is_stored():
        sources.offer()
    elif (beside := str(sources.root)) not in sys.path:
        sys.path.append(beside)


def _imported(where: str, *, name: str, what: str) -> ModuleType:
    _agree_to(where, name=name, what=what)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(f"{error.name}.")):
            raise InputError(f"{what} {name}: {where} needs the module {error.name}, which is not installed.") from None
        raise InputError(
            f"{what} {name}: there is no module {where}; expected a file {where.replace('.', '/')}.py in {Path.cwd()}, "
            "or an installed package."
        ) from None
    except Exception as error:  # a user's module may raise anything
        raise _broken(error, f"{what} {name}: module {where}") from error


def _agree_to(where: str, *, name: str, what: str) -> None:
    """Note that a module is about to be imported, and let imports find it."""
    sources = sources_of_module(where)
    place, digest = installed(where) if sources is None else (str(sources.main), sources.digest)
    if place:
        consent.use(Outside(what, _whole.get() or name, place, digest))
    if not consent.is_stored():
        here = str(Path.cwd())
        if here not in sys.path:  # a command that was installed does not look there by itself
            sys.path.append(here)
    elif sources is not None:
        sources.offer(first=True)


def _broken(error: Exception, which: str) -> InputError:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(f"{which} cannot be imported: {shortened(told)}")


def from_packages(what: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a kind in installed packages, by name."""
    return _offered(GROUPS[what])


def reproductions() -> dict[str, ModuleType]:
    """Return the papers' own forms that are installed, by name; see `reproduction`."""
    return {name: reproduction(name) for name in from_packages("reproduction")}


@cache
def reproduction(name: str) -> ModuleType:
    """Return the module of a paper's own form, by name; the docstring of `reproductions` says what it offers.

    Raise InputError if it is not installed, or cannot be imported; in one line.
    """
    if (point := from_packages("reproduction").get(name)) is None:
        raise InputError(
            f"{name} as published is in the package reproductions, which is not installed. Install labkit again: "
            f"pip install --force-reinstall --no-deps {release.DISTRIBUTION}, or make in a checkout."
        )
    found: ModuleType = loaded(point, what="reproduction")
    return found


@cache
def _offered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group: of installed packages, and of a checkout that may have changed since."""
    own = release.checkout().get("entry-points", {}).get(group, {})
    found = {point.name: point for point in entry_points(group=group)}
    return found | {name: EntryPoint(name, value, group) for name, value in own.items()}


def _is_own(point: EntryPoint) -> bool:
    """Return whether an entry point is that of labkit's own distribution or checkout."""
    return point.dist is None or point.dist.name in (release.DISTRIBUTION, release.ON_HOSTS)


def loaded(point: EntryPoint, *, what: str) -> Any:
    """Return the object of an entry point; InputError if it cannot be imported; in one line."""
    if point.dist is not None and not _is_own(point):
        package = f"{point.dist.name} {point.dist.version}"
        digest = consent.digest_of([(point.name, f"{package} {point.value}".encode())])
        consent.use(Outside(what, _whole.get() or point.name, package, digest))
    try:
        return point.load()
    except Exception as error:  # a package may raise anything
        told = " ".join(f"{type(error).__name__}: {error}".split())
        package = release.DISTRIBUTION if point.dist is None else point.dist.name
        raise InputError(
            f"{what} {point.name} of {package} ({point.value}) cannot be loaded: {shortened(told)}"
        ) from error
