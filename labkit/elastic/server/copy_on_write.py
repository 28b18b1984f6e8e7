"""Updates of parameters while other processes read them, or while they are being sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.server.block import Block
from labkit.elastic.server.growing import copied
from labkit.elastic.server.updates import Updates
from labkit.elastic.transport import Channel, ClosedError
from labkit.elastic.transport.shared_arrays import SharedArray


@dataclass(frozen=True, slots=True)
class SeqlockUpdates:
    """An optimizer that updates shared parameters under a seqlock stamp: a reader detects an update during its read."""

    optimizer: Updates
    place: SharedArray

    @property
    def state_names(self) -> tuple[str, ...]:
        """See Updates."""
        return self.optimizer.state_names

    @property
    def keeps_zeros(self) -> bool:
        """See Updates."""
        return self.optimizer.keeps_zeros

    def apply(self, param: Any, grad: Any, state: Mapping[str, Any], **how: Any) -> None:
        """See Updates."""
        self.place.open()
        try:
            self.optimizer.apply(param, grad, state, **how)
        finally:
            self.place.close()


@dataclass(frozen=True, slots=True)
class CopyOnWriteUpdates:
    """An optimizer that updates a copy of the parameters while the current ones are being sent.

    Attributes
    ----------
    block : Block
        Has the parameters; gets the copy.
    sent : list
        (connection, frame number) of the frames with the current parameters; cleared when none needs them any more.
    buffer : callable
        Returns a float32 buffer of so many bytes.
    """

    optimizer: Updates
    block: Block
    sent: list[tuple[Channel, int]]
    buffer: Callable[[int], Vector]

    @property
    def state_names(self) -> tuple[str, ...]:
        """See Updates."""
        return self.optimizer.state_names

    @property
    def keeps_zeros(self) -> bool:
        """See Updates."""
        return self.optimizer.keeps_zeros

    def apply(self, param: Any, grad: Any, state: Mapping[str, Any], **how: Any) -> None:
        """See Updates."""
        if not all(_is_out(channel, number) for channel, number in self.sent):
            if self.block.pages is None:
                self.block.params = self.buffer(param.nbytes)
                np.copyto(self.block.params, param)
            else:
                self.block.params = copied(param, self.block.pages)
        self.sent.clear()
        self.optimizer.apply(self.block.params, grad, state, **how)


def _is_out(channel: Channel, number: int) -> bool:
    try:
        channel.flush(number, timeout_s=0)
    except TimeoutError:
        return False
    except ClosedError:
        pass
    return True
