"""What can go wrong between this machine and the hosts of a testbed.

HostError               a host could not do what was asked; a row of `Answers`, not an exception
├── UnknownKeyError     its key is not among the known ones
├── ChangedKeyError     it shows another key than the known one
├── LoginError          it refuses our login
├── HostUnreachableError  nothing answers there
├── OverdueError        it took longer than it may
├── CutError            the connection broke while something ran
├── ShellError          its login's shell does not run commands
├── HostMessageError    its message is damaged, or has another form than requested
└── FileError           a file could not be written or read there
FleetError              some hosts failed, and the caller wanted all
BedError                the laptop testbed cannot be started or ended
AgentError              the agent of a host did not do what was requested
├── AgentRefused        it will not or cannot do it; `kind` is the reason in one word
│   └── AgentVersion    it speaks another protocol
├── AgentTimeout        no answer in time
└── AgentGone           the connection is gone: connect again, tasks go on
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


class AgentError(LabkitError):
    """The agent of a host did not do what was requested."""


class AgentRefused(AgentError):  # noqa: N818 - named after what happened
    """The agent refused a request.

    Attributes
    ----------
    kind : str
        One word: argument, busy, cannot_start, deaf, disk, ended, exists, fault, fenced, file, folder, forbidden,
        foreign, malformed, name, no_agent, no_file, no_gpu, over, oversized, protocol, restart, stuck, taken,
        unknown_run, unknown_task or unknown_verb.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class AgentVersion(AgentRefused):
    """The agent that runs there speaks another protocol than this labkit."""


class AgentTimeout(AgentError, TimeoutError):  # noqa: N818 - named after what happened
    """The agent did not answer in time; the request may be carried out all the same."""


class AgentGone(AgentError, ConnectionError):  # noqa: N818 - named after what happened
    """The connection to the agent is gone; its tasks go on. A new connection may succeed."""
