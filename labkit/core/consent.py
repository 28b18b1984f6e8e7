"""Consent to what a run uses outside labkit, kept by digest in the user's state folder, never in the run's own folder.

A name that a person types may lead anywhere: a scheduler's file, a module, an inventory. The same name in a stored
record was perhaps written by a stranger. So each use outside labkit goes through `use`: what a person began is noted,
and `keep` writes it down when the run gets its folder; while `stored` is entered, only what was written down, or what
is agreed to now, may be used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError
from labkit.core.text import shortened
from labkit.system.printing import printable

TRUSTED: Final = "trusted"
"""The file of consents, below labkit's folder in the user's state folder."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Something outside labkit that a run uses."""

    what: str
    """Scheduler, placer, speed model, inventory, training script, file."""
    name: str
    """As the record names it, with its options; a file by its absolute path."""
    place: str
    """The file, or the package and its version."""
    digest: str
    """SHA-256 of the bytes that are used."""

    def __str__(self) -> str:
        """Return it as a line, for a question or an error."""
        at = "" if self.place in self.name else f" in {self.place}"
        return printable(f"{self.what} {shortened(self.name)}{at} (SHA-256 {self.digest[:16]})")


Trust = bool | Callable[[Outside], bool]
"""Whether to agree to what has no consent yet: to all, to nothing, or as asked for each."""

_now: ContextVar[Trust | None] = ContextVar("names in stored records", default=None)
_agreed: dict[Outside, bool] = {}
"""What was typed or agreed to in this process, and whether it is written down."""


def state_folder() -> Path:
    """Return labkit's folder among the files that programs keep for a user."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "labkit"


def is_stored() -> bool:
    """Return whether names come from a stored record just now."""
    return _now.get() is not None


@contextmanager
def stored(trust: Trust = False) -> Iterator[None]:
    """Take names from stored records: nothing outside labkit is used without consent."""
    token = _now.set(trust)
    try:
        yield
    finally:
        _now.reset(token)


@contextmanager
def typed() -> Iterator[None]:
    """Take names from the user again, within `stored`."""
    token = _now.set(None)
    try:
        yield
    finally:
        _now.reset(token)


def use(thing: Outside) -> None:
    """Note that something outside labkit is about to be used.

    Raise InputError if a stored record names it, and there is no consent: what it is, where, and the remedy.
    """
    trust = _now.get()
    if trust is None or thing in _agreed:
        _agreed.setdefault(thing, False)
        return
    known = list(_written())
    if thing not in known:
        if not (trust(thing) if callable(trust) else trust):
            raise InputError(_refusal(thing, known))
        _agreed[thing] = False
        keep()


def keep() -> None:
    """Write down what this process has used so far: a record is about to name it."""
    new = [thing for thing, is_kept in _agreed.items() if not is_kept]
    if not new:
        return
    with suppress(OSError):  # a home that cannot be written: it is asked for again
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(folder / TRUSTED, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.fchmod(file, 0o600)
            known = set(_written())
            os.write(file, "".join(json.dumps(asdict(one)) + "\n" for one in new if one not in known).encode())
        finally:
            os.close(file)
        _agreed.update(dict.fromkeys(new, True))


def _written() -> Iterator[Outside]:
    """Yield the consents that are written down; none from a file that another user could have written."""
    try:
        file = os.open(state_folder() / TRUSTED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(file, "rb") as reader:
        found = os.fstat(file)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return
        for line in reader:
            with suppress(ValueError, TypeError):
                yield Outside(**json.loads(line))


def _refusal(thing: Outside, agreed: Iterable[Outside]) -> str:
    earlier = any((one.what, one.name, one.place) == (thing.what, thing.name, thing.place) for one in agreed)
    why = "has changed since you agreed to it" if earlier else "is not labkit's own, and you have not begun it"
    return f"a stored record names the {thing}, which {why}; look at it, and add --trust (trust=True) to use it."


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """Return the SHA-256 of a file's bytes; of several files, that of their names and digests."""
    each = [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(files)]
    if len(each) == 1:
        return each[0][1]
    return hashlib.sha256("".join(f"{name}\0{digest}\n" for name, digest in each).encode()).hexdigest()
