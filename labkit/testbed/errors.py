"""What can go wrong between this machine and the hosts of a testbed.

HostError               a host could not do what was asked; a row of `Answers`, not an exception
├── UnknownKeyError     its key is not among the known ones
├── ChangedKeyError     it shows another key than the known one
├── LoginError          it refuses our login
├── UnreachableError    nothing answers there
├── OverdueError        it took longer than it may
├── CutError            the connection broke while something ran
├── ShellError          its login's shell does not run what it is given
├── FrameError          what came from it is not what it says it sent, or not what was asked for
└── FileError           a file could not be written or read there
FleetError              some hosts failed, and the caller wanted all
BedError                the laptop testbed cannot be started or ended
"""

from __future__ import annotations

from labkit.core.errors import LabkitError


class HostError(LabkitError, RuntimeError):
    """A host could not do what was asked."""


class UnknownKeyError(HostError):
    """The key of a host is not among the known ones."""


class ChangedKeyError(HostError):
    """A host shows another key than the known one: it is new, or another machine answers in its place."""


class LoginError(HostError):
    """A host refuses the login."""


class HostUnreachableError(HostError):
    """Nothing answers at the address of a host."""


class OverdueError(HostError):
    """A host took longer than it may."""


class CutError(HostError):
    """The connection to a host broke while something ran; nobody knows how far it got."""


class ShellError(HostError):
    """The shell of a host's login does not run commands, or hides what they say."""


class HostMessageError(HostError):
    """What came from a host is cut off, damaged, too much, or not of the form that was asked for."""


class FileError(HostError):
    """A file could not be written to a host or read from it."""


class FleetError(LabkitError, RuntimeError):
    """Some hosts failed, and all were wanted."""


class BedError(LabkitError, RuntimeError):
    """The laptop testbed cannot be started or ended."""
