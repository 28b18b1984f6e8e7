"""Optimizers of servers: updates of slices of a flat float32 vector, in place.

An update takes one pass over memory. It gives the same bits however the vector is cut into slices. SGD and momentum
give the bits of `torch.optim`. Adam gives those that torch would give if its square root were rounded correctly: MKL's,
which torch uses, is off by one unit in the last place now and then, so that after 20 updates of numbers around 1 one
parameter in a hundred differs, by some 1e-7.

To add one, write a frozen dataclass with the methods of `Optimizer` and name it in `OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from labkit.core.errors import InputError, LabkitError, unknown
from labkit.elastic.protocol.blocks import LINE, Vector, mean_gradient


@runtime_checkable
class Optimizer(Protocol):
    """Computes the next version of parameters from gradients."""

    @property
    def name(self) -> str:
        """The name by which `optimizer` makes it."""
        ...

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of its state vectors, sorted."""
        ...

    @property
    def keeps_zeros(self) -> bool:
        """See `labkit.elastic.server.block.Updates`."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """The options with which `optimizer` makes an equal one; plain numbers, for JSON."""
        ...

    def init(self, n: int) -> dict[str, Vector]:
        """Return its state vectors for n parameters before the first update: (n,) float32 by name, their pages touched.

        The kernels of `apply` are compiled (or read from their cache) by then.
        """
        ...

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make update number `step` (from 1) of a slice in place, without the interpreter's lock.

        Raise InputError if an array is of another type or length, or the step is below 1; nothing is changed then.

        Parameters
        ----------
        param : array or tensor
            (n,) float32, contiguous, on the cpu.
        grad : array or tensor
            (n,) float32; only read.
        state : mapping
            (n,) by name: the state of the same slice.
        step : int
            Number of this update, from 1.
        scale : float
            Factor of the gradient, as in `grad *= scale`.
        plus : array or tensor, optional
            (n,) second half of the gradient, added first, as in `grad += plus`; only read.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Plain descent, p -= lr (g + weight_decay p): `torch.optim.SGD` without momentum, bit by bit."""

    lr: float
    weight_decay: float = 0.0

    name: ClassVar[str] = "sgd"
    keeps_zeros: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which `optimizer` makes an equal one."""
        return asdict(self)

    def init(self, n: int) -> dict[str, Vector]:
        """Return no state vectors."""
        return _memory(self, n)

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make an update in place; see `Optimizer`."""
        from labkit.elastic.server import kernels

        kernels.sgd(*_slices(self, param, grad, state, step, plus), scale, self.lr, self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Descent with momentum, v = momentum v + g, p -= lr v: `torch.optim.SGD` with momentum, bit by bit.

    With `nesterov` p -= lr (g + momentum v) (Sutskever et al., ICML 2013, as torch has it).
    """

    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    name: ClassVar[str] = "momentum"
    keeps_zeros: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which `optimizer` makes an equal one."""
        return asdict(self)

    def init(self, n: int) -> dict[str, Vector]:
        """Return velocities of 0."""
        return _memory(self, n, of=-0.0)  # -0 + g has the bits of g, as torch's first velocity, also where g is -0

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make an update in place; see `Optimizer`."""
        from labkit.elastic.server import kernels

        slices = _slices(self, param, grad, state, step, plus)
        kernels.momentum(*slices, scale, self.lr, self.weight_decay, self.momentum, self.nesterov)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, ICLR 2015): `torch.optim.Adam`, its square root rounded correctly.

    With `decoupled_weight_decay` parameters shrink by lr weight_decay instead (AdamW: Loshchilov and Hutter, ICLR
    2019).
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False

    name: ClassVar[str] = "adam"
    keeps_zeros: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        betas = self.betas
        if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(_is_number(b) for b in betas):
            raise InputError(f"adam: betas is {betas!r}; expected two numbers, each 0 or more and below 1.")
        object.__setattr__(self, "betas", tuple(float(beta) for beta in betas))
        _check(self)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which `optimizer` makes an equal one."""
        return asdict(self) | {"betas": list(self.betas)}

    def init(self, n: int) -> dict[str, Vector]:
        """Return moving averages of 0."""
        return _memory(self, n)

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """Make an update in place; see `Optimizer`."""
        from labkit.elastic.server import kernels

        slices = _slices(self, param, grad, state, step, plus)
        (beta1, beta2), decay = self.betas, self.weight_decay
        apart = self.decoupled_weight_decay
        kernels.adam(
            *slices,
            scale,
            self.lr / (1 - beta1**step),  # unbiased mean
            0.0 if apart else decay,
            1 - self.lr * decay if apart else 1.0,
            1 - beta1,
            beta2,
            1 - beta2,
            (1 - beta2**step) ** 0.5,  # unbiased square
            self.eps,
        )


OPTIMIZERS: dict[str, type[SGD] | type[Momentum] | type[Adam]] = {"sgd": SGD, "momentum": Momentum, "adam": Adam}
"""By name."""


def optimizer(name: str, **options: Any) -> Optimizer:
    """Return an optimizer by name.

    Parameters
    ----------
    name : str
        sgd, momentum or adam; own: an `OwnUpdate`, whose function is not an option.
    **options
        Options of its class, named as in torch: lr, weight_decay, momentum, nesterov, betas, eps.

    Raises
    ------
    InputError
        If there is no such optimizer or option, or a value is invalid.

    Examples
    --------
    >>> optimizer("momentum", lr=0.1)
    Momentum(lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False)
    >>> optimizer("adam", learning_rate=0.1)
    Traceback (most recent call last):
    labkit.core.errors.InputError: unknown option of adam 'learning_rate'. Known: betas, decoupled_weight_decay, eps, \
lr, weight_decay.
    """
    if name == OWN:
        return OwnUpdate(**options)
    if name == TORCH:
        return TorchOptimizer(**options)
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    kind = OPTIMIZERS[name]
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    if "lr" not in options and kind is not Adam:
        raise InputError(f"{name} needs a learning rate: lr=0.1, say.")
    return kind(**options)


_NOTHING = np.empty(0, np.float32)
_BELOW_1 = ("momentum", "betas")
_SWITCHES = ("nesterov", "decoupled_weight_decay")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(chosen: SGD | Momentum | Adam) -> None:
    for option, value in asdict(chosen).items():
        if option in _SWITCHES:
            if not isinstance(value, bool):
                raise InputError(f"{chosen.name}: {option} is {value!r}; expected True or False.")
            continue
        below = 1.0 if option in _BELOW_1 else float("inf")
        for number in value if option == "betas" else (value,):
            if not (_is_number(number) and isfinite(number) and 0 <= number < below):
                limit = " and below 1" if below == 1 else ""
                raise InputError(f"{chosen.name}: {option} is {value!r}; expected a number, 0 or more{limit}.")


def _memory(chosen: SGD | Momentum | Adam, n: int, *, of: float = 0.0) -> dict[str, Vector]:
    from labkit.elastic.server import kernels  # noqa: F401 - compiles them

    memory = {name: np.empty(n, np.float32) for name in chosen.state_names}
    for vector in memory.values():
        vector.fill(of)  # np.zeros would allocate its pages at the first update only
    return memory


def _slices(
    chosen: SGD | Momentum | Adam, param: Any, grad: Any, state: Mapping[str, Any], step: int, plus: Any
) -> list[Vector]:
    """Return parameters, gradients and state as arrays that the kernels take."""
    if step < 1:
        raise InputError(f"{chosen.name}: update number {step}; expected 1 for the first.")
    if set(state) != set(chosen.state_names):
        raise InputError(f"{chosen.name} remembers {list(chosen.state_names)}, and was given {sorted(state)}.")
    halves = [_array(grad)] if plus is None else [_array(grad), _array(plus)]
    arrays = [_array(param), *halves, *(_array(state[name]) for name in chosen.state_names)]
    names = ("parameters", *["gradients"] * len(halves), *chosen.state_names)
    for what, array in zip(names, arrays, strict=True):
        fits = array.dtype == np.float32 and array.shape == (len(arrays[0]),)
        if not (fits and array.flags.c_contiguous and array.flags.aligned):
            raise InputError(
                f"{chosen.name}: {what} are {array.dtype} {array.shape}; expected float32 ({len(arrays[0])},), "
                "contiguous and aligned."
            )
        if what != "gradients" and not array.flags.writeable:
            raise InputError(f"{chosen.name}: {what} cannot be written; expected an array of one's own: copy it.")
    if plus is None:
        arrays.insert(2, _NOTHING)
    return arrays


def _array(vector: Any) -> Vector:
    array: Vector = vector if isinstance(vector, np.ndarray) else vector.detach().numpy()
    return array


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

        Raise UpdateError if the function raises, or returns something else; nothing is changed then.
        """
        gradient = mean_gradient(grad, plus, scale)
        params, kept = self._computed(param, gradient, state, step)
        np.copyto(param, params)
        for name, vector in kept.items():
            np.copyto(state[name], vector)

    def _computed(
        self, param: Vector, gradient: Vector, state: Mapping[str, Vector], step: int
    ) -> tuple[Vector, dict[str, Vector]]:
        if self.function is None:
            raise UpdateError("the function of this job's own update is not here; expected it in its update.pickle.")
        vectors = [self._as_argument(part) for part in (param, gradient, *(state[name] for name in self.state))]
        try:
            result = self.function(*vectors[:2], dict(zip(self.state, vectors[2:], strict=True)), lr=self.lr, step=step)
        except Exception as error:
            raise UpdateError(f"update number {step} raised {type(error).__name__}: {error}") from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise UpdateError(f"the update returned a {type(result).__name__}; expected (parameters, state by name).")
        if set(result[1]) != set(self.state):
            raise UpdateError(f"the update returned the state {sorted(result[1])}; expected {list(self.state)}.")
        kept = {name: _checked(name, vector, len(param)) for name, vector in result[1].items()}
        return _checked("parameters", result[0], len(param)), kept

    def _as_argument(self, part: Vector) -> Any:
        """Return a vector as the function sees it: an array that cannot be written, or a tensor of its own."""
        if self.torch:
            from torch import from_numpy

            return from_numpy(part.copy())
        view = part.view()
        view.flags.writeable = False
        return view


TORCH: Final = "torch"
"""Name of such an optimizer in checkpoints and in the description of a job."""


@dataclass(frozen=True)
class TorchOptimizer:
    """What a checkpoint says of optimizers of torch: their classes, and the vectors of their state."""

    kinds: Sequence[str] = ()
    state: Sequence[str] = ()
    """`kinds` and `state`: names of the classes, and of the vectors."""

    name: ClassVar[str] = TORCH
    keeps_zeros: ClassVar[bool] = False

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of its state vectors, sorted."""
        return tuple(sorted(self.state))

    @property
    def options(self) -> dict[str, Any]:
        """The options with which `optimizer` makes an equal one."""
        return {"kinds": list(self.kinds), "state": list(self.state)}

    def init(self, n: int) -> dict[str, Vector]:
        """Return state vectors of 0."""
        return {name: np.zeros(n, np.float32) for name in self.state}

    def apply(self, *_: Any, **__: Any) -> None:
        """Raise UpdateError: the update of a block is `TorchUpdates.of_block`."""
        raise UpdateError("an optimizer of torch was asked for an update without its block.")


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


def check_own(own: OwnUpdate) -> None:
    """Try an update with some numbers.

    Raise InputError if it fails, is not element by element, or gives other bits when it is called again.
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
    parts = []
    for first, last in zip([0, *cuts], [*cuts, len(params)], strict=True):
        part, state = params[first:last].copy(), own.init(last - first)
        for number, gradient in enumerate(gradients, 1):
            own.apply(part, gradient[first:last], state, step=number)
        parts.append(np.stack([part, *(state[name] for name in own.state)]))
    return np.concatenate(parts, axis=1)


def in_turn(given: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the optimizers that take turns, each once, and the number of the one whose turn each update is.

    >>> in_turn(["critic", "critic", "generator"])
    (['critic', 'generator'], (0, 0, 1))
    """
    once = list({id(each): each for each in given}.values())
    return once, tuple(next(i for i, other in enumerate(once) if other is each) for each in given)
