"""The processes of tasks: found by session, or by the labels in their environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from labkit.system.proc import Identity, Stat, all_pids, is_ours, send, stat, variables

RECHECKED_S: Final = 5.0
"""Seconds for which `find(quick=True)` does not look again at a process without the agent's label."""


class Key(NamedTuple):
    """A task of a run."""

    run: str
    task: str


class TaskProcesses:
    """Maps processes to tasks: by session, or by the label in their environment.

    Parameters
    ----------
    folder : str
        Folder of the agent: its label in the environment names it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = b"LABKIT_FOLDER=" + folder.encode()
        self._labels: dict[Identity, tuple[Key, str] | None] = {}
        self._foreign: dict[int, int] = {}
        self._n_quick, self._me = 0, os.getpid()

    def find(self, sessions: Mapping[int, Key], *, quick: bool = False) -> dict[Key, list[Stat]]:
        """Return the living processes of each task.

        Parameters
        ----------
        sessions : mapping
            Sessions that are known to be those of a task now.
        quick : bool
            Skip processes that had no label of this agent a moment ago. For measurements, not for ending tasks.
        """
        found: dict[Key, list[Stat]] = {}
        seen: dict[Identity, tuple[Key, str] | None] = {}
        for each in self._look(quick=quick):
            label = self._label(each, seen)
            key = label[0] if label else sessions.get(each.session)
            if key is None:
                self._foreign[each.pid] = self._n_quick
            elif not each.dead:
                found.setdefault(key, []).append(each)
        self._labels = seen
        return found

    def _look(self, *, quick: bool) -> Iterator[Stat]:
        self._n_quick = (self._n_quick + 1) % int(RECHECKED_S) if quick else 0
        if not self._n_quick:
            self._foreign.clear()
        for pid in all_pids():
            if pid == self._me or (quick and pid in self._foreign):
                continue
            found = stat(pid)
            if found is not None:
                yield found

    def _label(self, each: Stat, seen: dict[Identity, tuple[Key, str] | None]) -> tuple[Key, str] | None:
        """Return task and token of a process; they are kept, also if it clears its environment later."""
        identity = each.identity
        if identity in self._labels:
            seen[identity] = self._labels[identity]
            return seen[identity]
        found = variables(each.pid)
        if not found:  # of another user, or just about to become another program
            return None
        ours = self._folder in found and is_ours(each.pid)
        seen[identity] = _parse(found) if ours else None
        return seen[identity]

    def leader(self, key: Key, token: str) -> Identity | None:
        """Return the first process of a task that was started with a token, if it runs."""
        self.find({})
        for identity, label in self._labels.items():
            found = stat(identity.pid) if label == (key, token) else None
            if found is not None and found.session == identity.pid:
                return identity
        return None


def _parse(variables: Iterable[bytes]) -> tuple[Key, str] | None:
    labels = dict(item.split(b"=", 1) for item in variables if item.startswith(b"LABKIT_") and b"=" in item)
    try:
        names = [labels[b"LABKIT_" + what].decode("ascii") for what in (b"RUN", b"TASK", b"START")]
    except (KeyError, UnicodeDecodeError):
        return None
    return Key(names[0], names[1]), names[2]


def signal_all(those: Iterable[Stat], number: signal.Signals) -> None:
    """Signal each of some processes."""
    for each in those:
        send(each.identity, number)
