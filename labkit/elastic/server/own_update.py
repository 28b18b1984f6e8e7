"""An optimizer of one's own: a pure function of parameters, gradient and state, which servers apply block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.protocol.blocks import LINE, Vector

OWN: Final = "own"
"""Name of such an optimizer in checkpoints and in the description of a job."""
TRIED: Final = 4 * LINE + 3
"""Numbers with which a function is tried before a job starts."""


class UpdateError(LabkitError):
    """A function of one's own that raises, or returns something else than parameters and state."""


@dataclass(frozen=True)
class OwnUpdate:
    """An update of one's own, for `start(..., optimizer=OwnUpdate(function, state=(...)), lr=...)`.

    >>> def momentum(params, gradient, state, *, lr, step):
    ...     velocity = np.float32(0.9) * state["velocity"] + gradient
    ...     return params - np.float32(lr) * velocity, {"velocity": velocity}
    >>> update = OwnUpdate(momentum, state=("velocity",))

    Attributes
    ----------
    function : callable
        Takes (params, gradient, state, lr=..., step=...): float32 arrays (n,), read-only; the mean gradient of the
        batch; arrays (n,) by name; the learning rate of this update, its schedule included; its number, from 1. It
        returns new parameters and a new state. A block is a part of the flat vector of all parameters, so the function
        must work element by element: `start` tries it whole and in parts, and refuses it if a bit differs.
    state : tuple of str
        Names of the vectors that it remembers; each begins with zeros.
    torch : bool
        Whether it takes and returns tensors instead of arrays.
    lr : float
        Learning rate: `start(lr=...)`.
    """

    function: Callable[..., Any] | None = None
    state: tuple[str, ...] = ()
    torch: bool = False
    lr: float = 0.0

    name: ClassVar[str] = OWN
    keeps_zeros: ClassVar[bool] = False
    """Whether zeros stay zeros without a gradient: not promised."""

    def __post_init__(self) -> None:
        names: Any = self.state
        if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise InputError(f"OwnUpdate: state is {names!r}; expected names, such as ('velocity',).")
        if len(set(names)) < len(names):
            raise InputError(f"OwnUpdate: state is {names!r}; expected each name once.")
        object.__setattr__(self, "state", tuple(sorted(names)))

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of its state vectors, sorted."""
        return self.state

    @property
    def options(self) -> dict[str, Any]:
        """The options with which `optimizer` makes an equal one, but for the function."""
        return {"state": list(self.state), "torch": self.torch, "lr": self.lr}

    def init(self, n: int) -> dict[str, Vector]:
        """Return state vectors of 0."""
        memory = {name: np.empty(n, np.float32) for name in self.state}
        for vector in memory.values():
            vector.fill(0)  # np.zeros would allocate its pages at the first update only
        return memory

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make an update in place; see `Optimizer`.

        Raises
        ------
        UpdateError
            If the function raises, or returns something else; nothing is changed then.
        """
        gradient = mean_gradient(grad, plus, scale)
        params, kept = self._computed(param, gradient, state, step)
        np.copyto(param, params)
        for name, vector in kept.items():
            np.copyto(state[name], vector)

    def _computed(
        self, param: Vector, gradient: Vector, state: Mapping[str, Vector], step: int
    ) -> tuple[Vector, dict[str, Vector]]:
        """Return the new parameters and state, as arrays."""
        if self.function is None:
            raise UpdateError("the function of this job's own update is not here; expected it in its update.pickle.")
        given = [self._given(part) for part in (param, gradient, *(state[name] for name in self.state))]
        try:
            found = self.function(*given[:2], dict(zip(self.state, given[2:], strict=True)), lr=self.lr, step=step)
        except Exception as error:
            raise UpdateError(f"update number {step} raised {type(error).__name__}: {error}") from error
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise UpdateError(f"the update returned a {type(found).__name__}; expected (parameters, state by name).")
        if set(found[1]) != set(self.state):
            raise UpdateError(f"the update returned the state {sorted(found[1])}; expected {list(self.state)}.")
        kept = {name: _checked(name, vector, len(param)) for name, vector in found[1].items()}
        return _checked("parameters", found[0], len(param)), kept

    def _given(self, part: Vector) -> Any:
        """Return a vector as the function sees it: an array that cannot be written, or a tensor of its own."""
        if self.torch:
            from torch import from_numpy

            return from_numpy(part.copy())
        view = part.view()
        view.flags.writeable = False
        return view


def _checked(what: str, vector: Any, n: int) -> Vector:
    """Return a vector that the function returned as an array; UpdateError if it is none of its kind."""
    array = vector.detach().numpy() if hasattr(vector, "detach") else np.asarray(vector)
    if array.dtype != np.float32 or array.shape != (n,):
        raise UpdateError(
            f"the update returned {what} of {array.dtype} {array.shape}; expected float32 ({n},): numbers of Python or "
            "float32, np.float32(lr), keep the type."
        )
    found: Vector = array
    return found


def mean_gradient(grad: Any, plus: Any, scale: float) -> Vector:
    """Return scale (grad + plus) as an array of its own, rounded as the kernels do it."""
    gradient: Vector = np.array(grad) if plus is None else np.add(grad, plus)
    gradient *= np.float32(scale)
    return gradient


def check_own(own: OwnUpdate) -> None:
    """Try an update with some numbers.

    Raises
    ------
    InputError
        If it fails, is not element by element, or gives other bits when it is called again.
    """
    if not callable(own.function):
        raise InputError(
            f"OwnUpdate: function is {own.function!r}; expected a function of parameters, gradient, state."
        )
    rng = np.random.default_rng(0)
    params, gradients = rng.normal(size=(2, TRIED)).astype(np.float32), rng.normal(size=(2, TRIED)).astype(np.float32)
    try:
        whole = _trained(own, params[0], gradients, cuts=[])
        again = _trained(own, params[0], gradients, cuts=[])
        parts = _trained(own, params[0], gradients, cuts=[LINE, 3 * LINE])
    except UpdateError as error:
        raise InputError(str(error)) from None
    if not np.array_equal(whole, again, equal_nan=True):
        raise InputError("the update gives other numbers when it is called again; expected a pure function.")
    if not np.array_equal(whole, parts, equal_nan=True):
        raise InputError(
            "the update is not element by element: cut into blocks, parameters come out differently. Norms, means and "
            "sums over all parameters are not there: a server has only its own blocks."
        )


def _trained(own: OwnUpdate, params: Vector, gradients: Any, *, cuts: list[int]) -> Vector:
    """Return parameters and state after updates of the parts between `cuts`."""
    own = replace(own, lr=own.lr or 0.1)
    found = []
    for first, last in zip([0, *cuts], [*cuts, len(params)], strict=True):
        part, state = params[first:last].copy(), own.init(last - first)
        for number, gradient in enumerate(gradients, 1):
            own.apply(part, gradient[first:last], state, step=number)
        found.append(np.stack([part, *(state[name] for name in own.state)]))
    return np.concatenate(found, axis=1)
