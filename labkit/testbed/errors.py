"""What can go wrong between this machine and the hosts of a testbed.

HostError               a host could not do what was asked; a row of `Answers`, not an exception
├── UnknownKeyError     its key is not among the known ones
├── ChangedKeyError     it shows another key than the known one
├── LoginError          it refuses our login
├── UnreachableError    nothing answers there
├── OverdueError        it took longer than it may
├── CutError            the connection broke while something ran
├── ShellError          its login's shell does not run what it is given
├── FrameError          its message is damaged, or has another form than requested
└── FileError           a file could not be written or read there
FleetError              some hosts failed, and the caller wanted all
BedError                the laptop testbed cannot be started or ended
"""

from __future__ import annotations

from labkit.core.errors import LabkitError


class HostError(LabkitError, RuntimeError):
    """A host did not do what was requested."""


class UnknownKeyError(HostError):
    """The key of a host is unknown."""


class ChangedKeyError(HostError):
    """A host shows another key than the known one: it is new, or another machine answers in its place."""


class LoginError(HostError):
    """A host refuses the login."""


class HostUnreachableError(HostError):
    """No answer from the address of a host."""


class OverdueError(HostError):
    """A host took longer than it may."""


class CutError(HostError):
    """The connection to a host broke while something ran; its progress is unknown."""


class ShellError(HostError):
    """The login shell of a host does not run commands, or mixes their output with its own."""


class HostMessageError(HostError):
    """A message of a host is incomplete, damaged, too large, or has another form than requested."""


class FileError(HostError):
    """A file could not be written to a host or read from it."""


class FleetError(LabkitError, RuntimeError):
    """Some hosts failed, and all were required."""


class BedError(LabkitError, RuntimeError):
    """The laptop testbed cannot be started or ended."""
