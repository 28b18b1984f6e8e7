"""Kills and scalings of a job while it trains."""

from __future__ import annotations

from typing import Any


def disturbed(job: Any, steps: int) -> None:
    """Kill members and scale a job at steps of its training."""
    raise NotImplementedError
