"""Parameters as one flat vector, cut into blocks: a server owns, sends and hands over whole blocks.

The cut of a large model depends on the model alone; that of a small one on how many servers it may get, since each
block costs a frame each way in each step. It stays for the life of a training: a block keeps its number and its
optimizer state when it moves, and a training that goes on from checkpoints keeps their cut.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn

Vector = NDArray[np.float32]
Extent = tuple[int, int]
"""First number of a block in the flat vector, and length of the block."""

BLOCK_BYTES: Final = 4_000_000
"""Most bytes of a block: larger frames are no faster, and a larger block takes longer to move."""

ENOUGH_BLOCKS: Final = 64
"""Blocks of a model that is too small for as many of `BLOCK_BYTES`: enough that servers can be balanced."""

SMALL_BYTES: Final = 4096
"""Bytes below which a smaller block is no cheaper to send; a model of a few of these still has `FEW_BLOCKS`."""

FEW_BLOCKS: Final = 8

SMALL_BLOCK_BYTES: Final = 250_000
"""Bytes of a block of a job with a model below 64 of these, 16 MB; smaller only if its servers need more blocks."""

LEAST_BLOCKS: Final = 4
"""Fewest blocks of a job, so that servers can be added."""

MOST_BLOCKS: Final = 80_000
"""Most blocks whose owners and replicas fit into one frame: 320 GB of parameters."""

BLOCKS, TENSOR = "blocks", "tensor"
"""Initial partition: blocks, even by bytes, or whole parameters in turn."""

UNTOUCHED: Final = -0.0
"""Each number of the gradient of a parameter that no loss depends on, which an optimizer of torch skips.

A gradient that was added up from 0.0 has no such number, and a sum only has it if all its parts have it."""

LINE: Final = 16
"""Numbers in a cache line: blocks begin at multiples of this."""


class NoParametersError(InputError):
    """A model without parameters that need gradients."""


@dataclass(frozen=True, slots=True)
class Param:
    """Position of a parameter in the flat vector."""

    name: str
    """Name of the parameter in the model."""
    first: int
    """Index of its first number."""
    shape: tuple[int, ...]
    """Shape of the tensor, in row-major order."""

    @property
    def n(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Positions of all parameters and blocks in the flat vector."""

    params: tuple[Param, ...]
    """In the order of the model; they follow each other without gaps."""
    extents: tuple[Extent, ...]
    """(B,) first number and length of each block; they follow each other without gaps."""
    n_buffers: int = 0
    """How many of `params`, at the end, are buffers that the forward pass changes; they have blocks of their own."""

    @property
    def n(self) -> int:
        """Length of the flat vector."""
        return sum(n for _, n in self.extents)

    @property
    def n_blocks(self) -> int:
        """Number of blocks, B."""
        return len(self.extents)

    @property
    def sizes(self) -> tuple[int, ...]:
        """(B,) numbers in each block."""
        return tuple(n for _, n in self.extents)

    @property
    def tensors(self) -> tuple[int, ...]:
        """(B,) number of the parameter in which each block begins."""
        firsts = [param.first for param in self.params]
        return tuple(bisect_right(firsts, first) - 1 for first, _ in self.extents)

    @property
    def buffers(self) -> tuple[Param, ...]:
        """The buffers among `params`."""
        return self.params[len(self.params) - self.n_buffers :]

    @property
    def n_trained(self) -> int:
        """Numbers of the flat vector that are parameters: buffers follow."""
        return self.buffers[0].first if self.n_buffers else self.n

    def of_block(self, number: int) -> list[Param]:
        """Return the parameters or buffers of which a block has numbers, in order."""
        first, n = self.extents[number]
        return [p for p in self.params if p.n and p.first < first + n and first < p.first + p.n]

    def cuts_a_parameter(self) -> bool:
        """Return whether a block begins within a parameter."""
        return not {first for first, n in self.extents if n} <= {p.first for p in self.params}

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits, a digest of names, shapes and extents of the blocks."""
        described = {"params": [[p.name, p.first, list(p.shape)] for p in self.params], "blocks": self.extents}
        return hashlib.blake2b(json.dumps(described).encode(), digest_size=16).hexdigest()

    def block(self, number: int, vector: Vector) -> Vector:
        """Return a block of a flat vector, as a view."""
        first, n = self.extents[number]
        return vector[first : first + n]

    def blocks(self, vector: Vector) -> list[Vector]:
        """Return all blocks of a flat vector, as views."""
        return [self.block(number, vector) for number in range(self.n_blocks)]


def small_blocks(servers: int, *, most_servers: int = 0) -> int:
    """Return how many blocks a job with a small model has at least: for twice its servers, or for `most_servers`.

    >>> small_blocks(1), small_blocks(3), small_blocks(1, most_servers=20)
    (4, 6, 20)
    """
    return max(LEAST_BLOCKS, 2 * servers, most_servers)


def layout(
    model: nn.Module | Iterable[tuple[str, Any]],
    *,
    block_bytes: int | None = None,
    n_blocks: int = ENOUGH_BLOCKS,
    buffers: Sequence[tuple[str, tuple[int, ...]]] = (),
    whole: bool = False,
) -> Layout:
    """Return the positions of the parameters and blocks of a model.

    Parameters
    ----------
    model : Module, or pairs of a name and a size or shape
        Of a module, the parameters that need gradients, each once, in the order of `named_parameters`.
    block_bytes : int or None
        Most bytes of a block. None: `BLOCK_BYTES`, and fewer for small models (`block_numbers`).
    n_blocks : int
        Least blocks of a model below 16 MB, about; see `small_blocks`.
    buffers : sequence
        Name and shape of the buffers that the forward pass changes.
    whole : bool
        Whether no block may cut a parameter; a large one is then a block of its own.

    Raises
    ------
    NoParametersError
        If no parameter needs gradients.
    InputError
        If a parameter is not float32, a name comes twice, or a block could not hold one number.

    Examples
    --------
    >>> cut = layout([("weight", (3, 4)), ("bias", 3)], block_bytes=32)
    >>> cut.extents
    ((0, 8), (8, 7))
    >>> cut.params[1]
    Param(name='bias', first=12, shape=(3,))
    """
    named = list(_named(model))
    repeated = {name for name, _ in named} if len({name for name, _ in named}) < len(named) else set()
    if repeated:
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"parameter '{twice}' comes twice; expected a name of its own for each.")
    starts = [0, *accumulate(prod(shape) for _, shape in named)]
    if not starts[-1]:
        what = "an empty list" if isinstance(model, Sequence) else f"a model ({type(model).__name__})"
        raise NoParametersError(f"{what} without parameters that need gradients; nothing can be trained.")
    n = starts[-1]
    most = block_numbers(n, block_bytes=block_bytes, n_blocks=n_blocks)
    extents = _cut_between(starts, most) if whole else _cut(n, most)
    ends = [n, *accumulate((prod(shape) for _, shape in buffers), initial=n)][1:]
    if ends[-1] > n:
        extents += tuple((n + first, size) for first, size in _cut(ends[-1] - n, most))
    params = tuple(
        Param(name, first, shape)
        for (name, shape), first in zip([*named, *buffers], [*starts[:-1], *ends], strict=False)
    )
    return Layout(params, extents, n_buffers=len(buffers))


def block_numbers(n: int, *, block_bytes: int | None = None, n_blocks: int = ENOUGH_BLOCKS) -> int:
    """Return the most numbers of a block where the flat vector has n.

    A large model has blocks of `BLOCK_BYTES`. A smaller one has `ENOUGH_BLOCKS`, so that servers can be balanced, but
    none below `SMALL_BYTES` as long as that leaves `FEW_BLOCKS`; given a smaller `n_blocks`,
    so many blocks, or as many of `SMALL_BLOCK_BYTES`.

    >>> [4 * block_numbers(n) for n in (1_000, 100_000, 25_600_000, 250_000_000)]
    [512, 6272, 1600000, 4000000]
    >>> [4 * block_numbers(n, n_blocks=4) for n in (1_000, 100_000, 25_600_000)]
    [1024, 100032, 1600000]
    """
    if block_bytes is not None:
        if block_bytes < 4:
            raise InputError(f"blocks of {block_bytes} bytes; expected at least 4, one number.")
        return block_bytes // 4
    n_blocks = max(n_blocks, ceil(4 * n / SMALL_BLOCK_BYTES))
    if n_blocks < ENOUGH_BLOCKS:
        return LINE * ceil(n / (n_blocks * LINE))
    least = min(SMALL_BYTES, 4 * n / FEW_BLOCKS)
    wanted = min(BLOCK_BYTES, max(4 * n / ENOUGH_BLOCKS, least))
    return LINE * ceil(wanted / (4 * LINE))


def _cut(n: int, most: int) -> tuple[Extent, ...]:
    """Cut n numbers into as few blocks as possible of at most `most`, all but the last of one size."""
    n_blocks = -(-n // most)
    even = -(-n // n_blocks)
    each = min(most, LINE * -(-even // LINE)) if most >= LINE else most
    return tuple((first, min(each, n - first)) for first in range(0, n, each))


def _cut_between(starts: Sequence[int], most: int) -> tuple[Extent, ...]:
    """Cut between parameters only, into blocks of at most `most` numbers where the parameters allow it.

    >>> _cut_between([0, 3, 5, 20, 21], 6)
    ((0, 5), (5, 15), (20, 1))
    """
    extents: list[Extent] = []
    first = 0
    for end, after in zip(starts[1:], [*starts[2:], None], strict=True):
        if end > first and (after is None or after - first > most):
            extents.append((first, end - first))
            first = end
    return tuple(extents)


def _named(model: Any) -> Iterable[tuple[str, tuple[int, ...]]]:
    if hasattr(model, "named_parameters"):
        yield from ((name, tuple(p.shape)) for name, p in trained(model))
        return
    for name, size in model:
        shape = (int(size),) if np.ndim(size) == 0 else tuple(int(side) for side in size)
        if any(side < 0 for side in shape):
            raise InputError(f"parameter '{name}' has the size {size}; expected 0 or more.")
        yield str(name), shape


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return name and tensor of the parameters that need gradients, each once; InputError if one is not float32."""
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, p in parameters:
        if str(p.dtype) != "torch.float32":
            how = "keep its torch.view_as_real" if p.is_complex() else "model.float() makes it so"
            raise InputError(f"parameter {name} is {p.dtype}; expected torch.float32: {how}.")
    return parameters


def mean_gradient(grad: Any, plus: Any, scale: float) -> Vector:
    """Return scale (grad + plus) as an array of its own, rounded as the kernels do it."""
    gradient: Vector = np.array(grad) if plus is None else np.add(grad, plus)
    gradient *= np.float32(scale)
    return gradient


def is_untouched(*gradients: Vector | None) -> bool:
    """Return whether no part of a parameter's gradient was touched.

    >>> is_untouched(np.float32([-0.0, -0.0]), None), is_untouched(np.float32([-0.0]), np.float32([0.0]))
    (True, False)
    """
    rows = [gradient.view(np.uint32) for gradient in gradients if gradient is not None and len(gradient)]
    bits = np.uint32(1 << 31)
    return bool(rows) and all(row[0] == bits for row in rows) and all((row == bits).all() for row in rows)


def pack(model: nn.Module, cut: Layout | None = None) -> Vector:
    """Return the parameters of a model as one flat vector on the processor, (n,) float32.

    Parameters that are views of one vector already (`bind`) are not copied. The model is not changed. With `cut` the
    buffers that it names follow.
    """
    import torch

    params = [p for _, p in trained(model)]
    if cut is not None and cut.n_buffers:
        vector: Vector = np.zeros(cut.n, np.float32)
        vector[: cut.n_trained] = pack(model)
        MovingBuffers(model, cut).store_all(torch.from_numpy(vector))
        return vector
    whole = _already_flat([p.detach() for p in params])
    if whole is None:
        whole = torch.cat([p.detach().reshape(-1).cpu() for p in params] or [torch.empty(0)])
    packed: Vector = whole.numpy()
    return packed


def unpack(vector: Vector, model: nn.Module, cut: Layout | None = None) -> None:
    """Copy a flat vector into the parameters of a model; those that are views of it already are not copied.

    With `cut` the vector's end goes into the buffers that it names. Raise InputError if the vector has not as many
    numbers as the model.
    """
    import torch

    if cut is not None and cut.n_buffers:
        MovingBuffers(model, cut).load(torch.from_numpy(vector))
        vector = vector[: cut.n_trained]
    flat = _flat_tensor(vector, model)
    with torch.no_grad():
        for p, part in zip((p for _, p in trained(model)), _parts(flat, model), strict=True):
            if p.data_ptr() != part.data_ptr():
                p.copy_(part)


def _flat_tensor(vector: Vector, model: nn.Module) -> Any:
    import torch

    n = sum(p.numel() for _, p in trained(model))
    if vector.shape != (n,) or vector.dtype != np.float32:
        raise InputError(
            f"a vector of {vector.dtype} {vector.shape} for a model with {n} parameters; expected float32 ({n},)."
        )
    return torch.from_numpy(vector)


def _parts(flat: Any, model: nn.Module) -> list[Any]:
    params = [p for _, p in trained(model)]
    starts = accumulate((p.numel() for p in params), initial=0)
    return [flat[first : first + p.numel()].view(p.shape) for p, first in zip(params, starts, strict=False)]


def _already_flat(params: list[Any]) -> Any | None:
    """Return the flat tensor of which these are consecutive views; None if they are not."""
    if not params or params[0].device.type != "cpu":
        return None
    here, owner = params[0].data_ptr(), params[0].untyped_storage().data_ptr()
    for p in params:
        if p.data_ptr() != here or p.untyped_storage().data_ptr() != owner or not p.is_contiguous():
            return None
        here += 4 * p.numel()
    n = sum(p.numel() for p in params)
    return params[0].as_strided((n,), (1,))


class MovingBuffers:
    """The buffers of a model that its forward pass changes: they begin each shard with what the servers have of them.

    A buffer of each shard has one row more than the model's in the layout: (V, ...).
    """

    def __init__(self, model: nn.Module, cut: Layout) -> None:
        modules = dict(model.named_modules())
        self._rows: list[tuple[dict[str, Any], str, int, int, int]] = []
        for p in cut.buffers:
            owner, _, key = p.name.rpartition(".")
            buffers: dict[str, Any] = modules[owner]._buffers
            n, own = buffers[key].numel(), len(p.shape) > buffers[key].dim()
            self._rows.append((buffers, key, p.first, n, p.n // n if n and own else 0))

    def load(self, flat: Any, leaf: int = 0) -> None:
        """Set the buffers to their numbers in a flat vector, those of each shard to their numbers in row `leaf`."""
        import torch

        with torch.no_grad():
            for buffers, key, start, n, n_rows in self._rows:
                first, buffer = start + (n * leaf if n_rows else 0), buffers[key]
                if buffer.requires_grad or buffer.numel() != n:
                    raise InputError(f"buffer '{key}' of the model has another shape now, or a gradient; detach() it.")
                buffer.copy_(flat[first : first + n].view(buffer.shape))

    def store(self, flat: Any, leaf: int = 0) -> None:
        """Write the buffers into a flat vector; of one of each shard, row `leaf`, and zeros into the other rows."""
        for buffers, key, start, n, n_rows in self._rows:
            flat[start : start + n * n_rows].zero_()
            first = start + (n * leaf if n_rows else 0)
            flat[first : first + n].copy_(buffers[key].detach().reshape(-1))

    def store_all(self, flat: Any) -> None:
        """Write the buffers into a flat vector, the same into all rows of one of each shard."""
        for buffers, key, first, n, n_rows in self._rows:
            flat[first : first + n * max(n_rows, 1)].view(-1, n).copy_(buffers[key].detach().reshape(1, -1))
