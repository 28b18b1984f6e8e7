"""What a block asks of an optimizer: an update of its parameters in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Updates(Protocol):
    """An optimizer as a block sees it; `labkit.elastic.server.optimizers` has them, and wrappers add to them."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the vectors that belong to a vector of parameters."""
        ...

    @property
    def keeps_zeros(self) -> bool:
        """Whether a parameter of zero, with a state of zeros, stays so while its gradient is zero."""
        ...

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make update number `step` (from 1) in place, with `scale` times the gradient, which is grad + plus."""
        ...
