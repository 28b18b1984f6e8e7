"""What all messages and files between processes have in common: the base class, and the types of their fields."""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, Final, Literal

from annotated_types import Ge, Le, Len

MOST: Final = 1 << 62
MOST_CHARS: Final = 1 << 16

Count = Annotated[int, Ge(0), Le(MOST)]
"""A whole number from 0."""
Whole = Annotated[int, Ge(-MOST), Le(MOST)]
"""A whole number."""
Number = Annotated[float, Ge(-sys.float_info.max), Le(sys.float_info.max)]
"""A finite number."""
Text = Annotated[str, Len(0, MOST_CHARS)]
"""A text of at most 65,536 characters: a name, an address, a reason."""
Loss = Number | Annotated[str, Len(0, 20)]
"""A loss as `labkit.elastic.controller.losses` encodes it: one that is not finite is a text."""
Metrics = Annotated[dict[Annotated[str, Len(1, 60)], Loss], Len(0, 50)]
"""Metrics by name, each as a loss."""


class Struct:
    """Base of all messages and files: frozen dataclasses. The name of a message on the wire is that of its class."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "strict": True, "extra": "forbid", "ser_json_inf_nan": "constants",
    }  # fmt: skip


Role = Literal["server", "worker"]

HERE: Final = "here"
"""Name of the site, and of the host, of all members of a job without sites."""
