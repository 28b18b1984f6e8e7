"""MARL."""
from typing import Any


def recipes() -> dict[str, Any]:
    """Return none yet."""
    return {}
