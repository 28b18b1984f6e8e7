"""A check that the forward pass changes neither buffers nor parameters of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


class ChangedError(InputError):
    """The forward pass has changed a buffer or a parameter, which would then differ between workers."""


@dataclass(slots=True)
class _Kept:
    """A buffer at the start: the tensor, torch's count of writes to it, and a copy of its numbers."""

    module: nn.Module
    key: str
    name: str
    tensor: Tensor | None
    version: int
    copy: Tensor | None

    def changed(self) -> bool:
        """Return whether its numbers differ now; a write of the same numbers is no change."""
        now = self.module._buffers.get(self.key)
        if now is self.tensor and (now is None or now._version == self.version):
            return False
        same = now is not None and self.copy is not None and _equal(now, self.copy)
        self.tensor, self.version = now, 0 if now is None else now._version
        return not same


class ForwardGuard:
    """Detects changes of a model by its forward pass, other than gradients.

    Each worker would change its own copy, depending on its samples. The trained model would then depend on the number
    of workers, and would be saved with the buffers of the start. Torch counts writes to a tensor, so a check takes
    about 0.1 microseconds per tensor.

    Parameters
    ----------
    model : Module
        On the device where it computes.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.named_modules())
        self._modules = [(module, len(module._buffers)) for _, module in modules]
        self._named = {id(module): name for name, module in modules}
        self._buffers = [
            _Kept(
                module, key, f"{name}.{key}" if name else key, buffer,
                0 if buffer is None else buffer._version, None if buffer is None else buffer.detach().clone(),
            )
            for name, module in modules
            for key, buffer in module._buffers.items()
        ]  # fmt: skip
        self._params = list(model.named_parameters())
        self._versions = [p._version for _, p in self._params]

    def begin(self) -> None:
        """Record the parameters' present counts of writes."""
        self._versions = [p._version for _, p in self._params]

    def check(self) -> None:
        """Check that nothing has changed since `begin`.

        Raises
        ------
        ChangedError
            If something has; the message names it, and a remedy.
        """
        for (name, p), version in zip(self._params, self._versions, strict=True):
            if p._version != version:
                what = "parameter" if p.requires_grad else "frozen parameter"
                raise _refusal(f"{what} '{name}'", "nn.Embedding without max_norm, no writing to parameters in forward")
        for kept in self._buffers:
            if kept.changed():
                remedy = _STATISTICS if hasattr(kept.module, "track_running_stats") else _REMEDY
                raise _refusal(f"buffer '{kept.name}'", remedy)
        for module, n in self._modules:
            if len(module._buffers) != n:
                raise _refusal(f"buffer '{self._new(module)}'", _REMEDY)

    def _new(self, module: nn.Module) -> str:
        known = {kept.key for kept in self._buffers if kept.module is module}
        key = next((key for key in module._buffers if key not in known), "?")
        return f"{self._named[id(module)]}.{key}".lstrip(".")


_STATISTICS = (
    "nn.GroupNorm in place of it; a pretrained part that stays as it is: that part in eval mode, in the model's own "
    "train(); or track_running_stats=False with shards=1, so that the statistics are those of the batch"
)
_REMEDY = (
    "batch statistics instead of running ones, weight_norm instead of spectral_norm; "
    "a cache that is filled once: call the model once before start"
)


def _refusal(what: str, remedy: str) -> ChangedError:
    return ChangedError(
        f"{what} of the model is changed by the forward pass: each worker would have its own, and the result would "
        f"depend on how many there are. Keep what changes out of the model ({remedy})."
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    import torch

    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
