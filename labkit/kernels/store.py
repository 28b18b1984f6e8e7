"""Where compiled kernels are kept: a file for each kernel and signature, named by what went into it.

numba's own cache looks at the whole file that a kernel stands in, and not at the kernels that it calls. Here a file's
name is a digest of the kernel's code and constants, and of those of all that it calls. So an edited comment compiles
nothing again, and an edited kernel only that one and its callers. A file is whole or not there.

Files lie beside the package, where other users and other homes find them, or else in the user's cache.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pickle
import sys
import tempfile
import threading
import time
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import numba
import numpy as np
from llvmlite.binding import parse_assembly
from numba.core import caching
from numba.core.event import trigger_event
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from labkit.kernels.compiler import KeptLibrary

PACKAGE: Final = Path(__file__).parents[1]
PACKAGE_FOLDER: Final = PACKAGE / "__kernels__"
MAX_AGE_DAYS: Final = 30
WAIT_S: Final = 300.0
"""Longest wait for another process that compiles the same kernel."""
LOOK_S: Final = 0.05
NAMED: Final = "LABKIT_KERNELS"
"""The environment's name for a folder of the user's choice."""


class Cache(caching.Cache):
    """The kept code of one kernel, as its dispatcher asks for it."""

    def __init__(self, dispatcher: Any) -> None:
        self._name = f"{dispatcher.__module__}.{dispatcher.__qualname__}".removeprefix("labkit.").replace(
            "<locals>.", ""
        )
        self._py_func = dispatcher.py_func
        self._impl = object.__new__(_Parts)  # what numba's own knows of files is not used
        self._cache_path = None
        self._claims: dict[Any, int | None] = {}
        self._cache_file = _Files(dispatcher, self._name)
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kept code of a signature, without numba's own functions: only what compiles needs these.

        None: it is for the caller to compile, and then to `release`. Other processes that need it wait until then.
        """
        rtsys.initialize(target_context)
        kept = self._load_overload(sig, target_context)
        if kept is None:
            name = self._cache_file.name(self._index_key(sig, target_context.codegen()))
            self._claims[sig] = CLAIMS.take(name)
            kept = self._load_overload(sig, target_context)
        return kept

    def release(self, sig: Any) -> None:
        """Let other processes compile what this one has compiled, or could not."""
        place = self._claims.pop(sig, None)
        if place is not None:
            CLAIMS.give_back(place)

    def _save_overload(self, sig: Any, data: Any) -> None:
        if self._impl.check_cachable(data):
            self._cache_file.save(self._index_key(sig, data.codegen), self._impl.reduce(data))


class _Parts(caching.CompileResultCacheImpl):
    """What is kept of compiled code, and how code is made of it: no more is read than a call needs."""

    def reduce(self, data: Any) -> tuple[Any, ...]:
        """Return what is kept; constants of numba's own functions would bring their modules, which bring scipy."""
        *parts, environments = super().reduce(data)
        return *parts, tuple(each for each in environments if each.consts)

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Return compiled code, whose form for LLVM is read later."""
        (name, kind, (code, bitcode)), entry, *others = payload
        target_context.codegen()._engine._defined_symbols |= {entry.llvm_func_name, entry.llvm_cpython_wrapper_name}
        made = super().rebuild(target_context, ((name, kind, (code, _no_bitcode())), entry, *others))
        library = made.library
        library.__class__, library._shared_module, library.bitcode = KeptLibrary, None, bitcode
        return made


@cache
def _no_bitcode() -> bytes:
    return bytes(parse_assembly("").as_bitcode())


class _Files:
    """The files of one kernel; its digest is made when it is called, as what it calls may be defined below it."""

    def __init__(self, dispatcher: Any, name: str) -> None:
        self._dispatcher, self._name = dispatcher, name

    def load(self, key: Any) -> Any:
        """Return the stored code for a signature and processor; None: none."""
        name = self.name(key)
        for folder in folders():
            with suppress(Exception):  # whatever is wrong with a file, the kernel can be compiled again
                path = folder / name
                found = pickle.loads(path.read_bytes())
                _touch(path)
                return found
        return None

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled for a signature and processor; where nothing can be written, say so once."""
        for folder in folders(create=True):
            with suppress(OSError):
                _write(folder / self.name(key), dumps(data))
                _forget(folder, self._name)
                return
        _tell_unkept()

    def flush(self) -> None:
        """Forget all of this kernel's files that this user may delete."""
        for folder in folders():
            for path in folder.glob(f"{self._name}-*"):
                with suppress(OSError):
                    path.unlink()

    def name(self, key: Any) -> str:
        """Return the name of the file for a signature and processor."""
        signature, processor, _ = key
        asked = (_method(), digest(self._dispatcher), str(signature), processor, numba.__version__)
        return f"{self._name}-{_hash(repr(asked))}.{sys.implementation.cache_tag}"


class Claims:
    """What this process compiles, as locks: a byte of one file for each kernel, so that no file is left for each.

    It is open while there is a claim: once a process closes it, all its locks are gone. Forked children have none.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._places: list[int] = []
        self._mutex = threading.Lock()

    def take(self, name: str) -> int | None:
        """Wait until no other process compiles what goes into a file; return the place of the lock.

        None: another process still has it after `WAIT_S`; both compile the kernel, to the same file.
        """
        place = int(_hash(name)[:14], 16)
        if self._taken(place):
            return place
        until = time.monotonic() + WAIT_S
        with trigger_event("numba:compile"):  # `watched` counts it as time of compiling
            while time.monotonic() < until:
                # A lock that is waited for without a limit could be that of a process that is stopped.
                time.sleep(LOOK_S)
                if self._taken(place):
                    return place
        return None

    def give_back(self, place: int) -> None:
        """Let another process have a lock."""
        with self._mutex:
            self._places.remove(place)
            if self._file is not None:
                with suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
            self._close_unused()

    def _taken(self, place: int) -> bool:
        """Take a lock, and return whether that was possible; without a file of locks it always is."""
        with self._mutex:
            if self._file is None:
                self._file = _lock_file()
            try:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    self._close_unused()
                    return False
            self._places.append(place)
            return True

    def _close_unused(self) -> None:
        if self._file is not None and not self._places:
            os.close(self._file)
            self._file = None


CLAIMS: Final = Claims()


def _lock_file() -> int | None:
    """Return the descriptor of the file with locks; None: there is no folder to write to."""
    for folder in folders(create=True):
        with suppress(OSError):
            return os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    return None


def folders(*, create: bool = False) -> list[Path]:
    """Return the folders in which kernels may lie, in order, without those that others could write to."""
    places = _places()
    if create:
        for place in places:
            with suppress(OSError):
                place.mkdir(parents=True, exist_ok=True)
    return [place for place in places if _is_trusted(place)]


def _places() -> list[Path]:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = os.environ.get(NAMED)
    return [Path(named)] if named else [PACKAGE_FOLDER, Path(home) / "labkit" / "kernels"]


@cache
def _tell_unkept() -> None:
    """Say, once in a process, why the next one will compile again."""
    places = " or ".join(map(str, _places()))
    print(
        f"compiled kernels are not kept, so each process compiles them again: {places} cannot be written, is full, or "
        f"is open to other users; name a folder of your own: export {NAMED}=FOLDER",
        file=sys.stderr,
    )


def _is_trusted(folder: Path) -> bool:
    """Return whether a folder is there, and of this user, or of the package's owner, and closed to others.

    A kernel that is loaded is code that runs.
    """
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid in {os.getuid(), PACKAGE.stat().st_uid} and not found.st_mode & 0o002


def _write(path: Path, content: bytes) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def _touch(path: Path) -> None:
    """Note that a file is in use, once a day."""
    with suppress(OSError):
        if _age_days(path) > 1:
            os.utime(path)


def _forget(folder: Path, name: str) -> None:
    """Delete what was kept of a kernel, and not used for a month."""
    for path in folder.glob(f"{name}-*"):
        with suppress(OSError):
            if _age_days(path) > MAX_AGE_DAYS:
                path.unlink()


def _age_days(path: Path) -> float:
    return (time.time() - path.stat().st_mtime) / 86400  # noqa: TID251 - compared with a file's date


@cache
def _method() -> str:
    """Return a digest of this package: how kernels are compiled, and given their columns."""
    return _hash("".join(path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))))


@cache
def digest(dispatcher: Any) -> str:
    """Return a digest of a kernel's code, of the constants that it uses, and of all kernels that it calls."""
    parts: list[str] = []
    seen: set[int] = set()
    waiting = [dispatcher]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            parts += sorted(f"{name}={_constant(value)}" for name, value in one.targetoptions.items())
            waiting += _describe(one.py_func, parts)
    return _hash("\n".join(parts))


def _describe(function: Any, parts: list[str]) -> list[Any]:
    """Add what one function is made of to `parts`, and return the kernels that it calls."""
    called = []
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    parts += [_code(function.__code__, function.__doc__), repr(function.__defaults__)]
    for value in (*cells, *_globals(function.__code__, function.__globals__)):
        if hasattr(value, "py_func"):
            called.append(value)
            parts.append(f"{value.__module__}.{value.__qualname__}")
        else:
            parts.append(_value(value))
    return called


def _code(code: CodeType, doc: str | None) -> str:
    """Return what a function does, in text; neither its comments, nor its docstring, nor where it stands."""
    constants = [
        _code(each, None) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts if each != doc
    ]
    return f"{code.co_name} {code.co_code.hex()} {constants} {code.co_names} {code.co_varnames} {code.co_freevars}"


def _constant(value: Any) -> str:
    """Return a constant as text; sets are sorted, as their order is another one in each process."""
    return repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)


def _globals(code: CodeType, space: dict[str, Any]) -> list[Any]:
    """Return the values that a function's code takes from its module, and from modules of this package named there."""
    found = [space[name] for name in code.co_names if name in space]
    ours = [each for each in found if isinstance(each, ModuleType) and each.__name__.startswith("labkit")]
    found += [getattr(module, name) for module in ours for name in code.co_names if hasattr(module, name)]
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            found += _globals(nested, space)
    return found


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, type) and issubclass(value, Enum):
        return repr(list(value))
    if isinstance(value, type) and hasattr(value, "_fields"):
        return f"{value.__qualname__}{value._fields}"
    if isinstance(value, np.dtype | np.generic | int | float | str | bool | tuple | type(None)):
        return repr(value)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
