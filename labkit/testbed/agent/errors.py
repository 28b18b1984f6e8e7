"""Exceptions of a client of the agent.

AgentError
├── AgentRefused   the agent will not or cannot do it; `kind` is the reason in one word
│   └── AgentVersion   it speaks another protocol
├── AgentTimeout   no answer in time
└── AgentGone      the connection is gone: connect again, tasks go on
"""

from __future__ import annotations

from labkit.core.errors import LabkitError


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
