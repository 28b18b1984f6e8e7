"""Roles of members of a job, and the name of the only site of a job without sites."""

from __future__ import annotations

from typing import Final, Literal

Role = Literal["server", "worker"]

HERE: Final = "here"
"""Name of the site, and of the host, of all members of a job without sites."""
