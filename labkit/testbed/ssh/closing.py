"""Closing a channel whose connection may be gone already."""

from __future__ import annotations

from contextlib import suppress

import paramiko


def close(channel: paramiko.Channel) -> None:
    """Close a channel; where the connection has ended meanwhile there is nothing to close, and no error."""
    with suppress(paramiko.SSHException, EOFError, OSError):
        channel.close()
