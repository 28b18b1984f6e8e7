"""What a job trains: a model, its data and a loss, as its processes get it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError
from labkit.elastic.blocks import trained

if TYPE_CHECKING:
    from torch import Tensor, nn

FILE = "program.pickle"


@dataclass(frozen=True, slots=True)
class Program:
    """A model, its data and a loss.

    Attributes
    ----------
    model : Module
        Its parameters that need gradients are trained; all float32.
    data : object
        `len(data)` samples; `data.fetch(indices)` returns a batch, or `data[i]` a sample (a tensor or a tuple of them).
    loss : callable
        (model, batch) to a scalar tensor, the mean over the batch.
    """

    model: nn.Module
    data: Any
    loss: Callable[[nn.Module, Any], Tensor]

    def check(self) -> None:
        """Raise unless there is something to train, all of it in parameters that need gradients and are float32."""
        trained(self.model)
        for name, module in self.model.named_modules():
            if getattr(module, "track_running_stats", False):
                raise InputError(
                    f"{name or 'the model'} ({type(module).__name__}) keeps running statistics, no parameters: "
                    "each worker would have its own. Give it track_running_stats=False, or take nn.GroupNorm."
                )

    def batch(self, indices: list[int]) -> Any:
        """Return the samples of some indices as a batch."""
        fetch = getattr(self.data, "fetch", None)
        if fetch is not None:
            return fetch(indices)
        from torch.utils.data import default_collate

        return default_collate([self.data[i] for i in indices])

    def save(self, folder: Path) -> None:
        """Write it into a folder that only its owner can enter; modules of `__main__` are written by value."""
        import cloudpickle

        path = folder / FILE
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            cloudpickle.dump((self.model.cpu(), self.data, self.loss), file)

    @classmethod
    def load(cls, folder: Path) -> Program:
        """Read what `save` wrote: from the folder of the job alone, never from the network."""
        import pickle

        with (folder / FILE).open("rb") as file:
            return cls(*pickle.load(file))  # written by this user into a folder of mode 0700
