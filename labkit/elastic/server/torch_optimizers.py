"""Optimizers of torch on servers: each block steps the user's own optimizer over its parameters.

A block never cuts a parameter, so an update that looks at one whole parameter at a time (LAMB, Adafactor) is the same
on any number of servers. What the optimizer remembers lies in vectors of the block, as that of any other optimizer, so
it moves with the block and is in checkpoints. `recipes` tries an optimizer before a job starts, and refuses one that
needs more than one parameter at a time.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.protocol.blocks import Layout, Param, Vector, is_untouched, mean_gradient, trained
from labkit.elastic.schedules import Schedule, factor_of
from labkit.elastic.server.optimizer_hooks import check_hooks
from labkit.elastic.server.optimizers import TorchOptimizer, UpdateError, in_turn

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

TRIED: Final = 1 << 20
"""Numbers of the parameters with which an optimizer is tried, about."""
UPDATES: Final = 3
"""Updates of that trial."""
WHOLE: Final = {
    "LBFGS": "it needs the whole gradient, and several losses for each update, where a server has its own blocks alone",
    "SparseAdam": "gradients arrive dense; torch.optim.Adam or Adagrad takes them",
}
"""Optimizers of torch that servers cannot step, and why."""
HYPER_KEPT: Final = 8
MOST_TRIED: Final = 50_000
"""Updates through which schedulers are stepped before a job, at most: half a second."""
SKIPPED: Final = 1 << 40
"""Added to the first number of a parameter in its block: key of the updates that it has skipped, in `Block.seen`."""

Groups = list[dict[str, Any]]
"""Options of the groups of an optimizer."""


@dataclass(frozen=True)
class StateLayout:
    """How a value that an optimizer remembers of a parameter lies in a vector."""

    shape: tuple[int, ...] | None
    """Of a tensor; None: a number."""
    kind: Any
    """Dtype or type: of the tensor, or of the number."""

    @property
    def n(self) -> int:
        """How many numbers it has."""
        return 1 if self.shape is None else int(np.prod(self.shape, dtype=int))

    def read(self, part: Vector) -> Any:
        """Return the value that a vector has: a view of it where that is possible."""
        import torch

        if self.shape is None:
            return self.kind(part[0])
        view = torch.from_numpy(part[: self.n]).view(self.shape)
        return view if self.kind == torch.float32 else view.to(self.kind)

    def write(self, value: Any, part: Vector) -> None:
        """Write a value into a vector, unless it is a view of it."""
        if self.shape is None:
            part[0] = value
        elif value.data_ptr() != part.ctypes.data:
            import torch

            torch.from_numpy(part[: self.n]).copy_(value.detach().reshape(-1))


@dataclass(frozen=True)
class Recipe:
    """An optimizer without its parameters."""

    kind: type
    attributes: dict[str, Any]
    """Its attributes, without parameters, groups and state."""
    groups: tuple[tuple[str, ...], ...]
    """Names of the parameters of each group."""
    kept: dict[str, dict[str, StateLayout]] = field(default_factory=dict)
    """What it remembers of each parameter, by its name: `StateLayout` by name."""
    counts: dict[str, Any] = field(default_factory=dict)
    """Names of what is the number of updates, with its type: it is not kept."""
    begun: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What it remembers before the first update, by parameter; tensors of one number, expanded."""
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What it remembers of updates before the job, by parameter: the first checkpoint has it."""
    before: dict[str, int] = field(default_factory=dict)
    """How many these were, by parameter."""

    def over(self, params: Mapping[str, Any], options: Groups) -> Optimizer:
        """Return the optimizer over some of its parameters, by name; it remembers nothing."""
        chosen: Any = object.__new__(self.kind)
        chosen.__dict__.update({name: copy.copy(value) for name, value in self.attributes.items()})
        chosen.state = defaultdict(dict)
        if chosen._optimizer_step_pre_hooks or chosen._optimizer_step_post_hooks:
            chosen._patch_step_function()  # which `__init__` does: without it no hook is called
        groups = [
            {**given, "params": [params[name] for name in names if name in params]}
            for given, names in zip(options, self.groups, strict=True)
        ]
        chosen.param_groups = [group for group in groups if group["params"]]
        self.remember(chosen, params, self.begun)
        return chosen  # type: ignore[no-any-return]

    @staticmethod
    def remember(optimizer: Any, params: Mapping[str, Any], state: Mapping[str, Mapping[str, Any]]) -> None:
        """Add to what an optimizer remembers of its parameters copies of a state by their names."""
        for name, values in state.items():
            if name in params:
                optimizer.state[params[name]].update({key: _own(value) for key, value in values.items()})

    def done(self, name: str, n: int, *, skipped: int) -> int:
        """Return how often a parameter was updated that had `n` turns in the job, without a gradient in some."""
        return n - skipped + self.before.get(name, 0)

    def remembered(self, name: str, parts: Mapping[str, Vector], done: int) -> dict[str, Any]:
        """Return the optimizer's state of a parameter after `done` updates, from the vectors of its block."""
        import torch

        counts = {
            key: kind(done) if isinstance(kind, type) else torch.tensor(done, dtype=kind)
            for key, kind in self.counts.items()
        }
        return counts | {key: kept.read(parts[key]) for key, kept in self.kept[name].items()}


@dataclass
class TorchUpdates:
    """The optimizers of torch of a job, one after the other if there are several, and their schedules."""

    recipes: tuple[Recipe, ...]
    """The optimizers."""
    options: tuple[Groups, ...]
    """Options of their groups at the beginning."""
    schedulers: bytes = b""
    """Pickled schedulers of torch, each with its optimizer; empty: none."""
    every: int = 1
    """Updates between two steps of the schedulers."""
    schedule: Schedule | None = None
    """Factor of the learning rates instead: see `labkit.elastic.schedules`."""
    turns: tuple[int, ...] = (0,)
    """Update number k is that of the optimizer whose number is the one at k modulo their number."""

    def n_turns(self, number: int, step: int) -> int:
        """Return how many of the updates up to `step` are those of an optimizer."""
        whole, rest = divmod(step, len(self.turns))
        return whole * self.turns.count(number) + self.turns[:rest].count(number)

    @property
    def described(self) -> TorchOptimizer:
        """What a checkpoint says of them."""
        names = {name for recipe in self.recipes for kept in recipe.kept.values() for name in kept}
        return TorchOptimizer(tuple(self.recipes[i].kind.__name__ for i in self.turns), tuple(sorted(names)))

    @property
    def n_before(self) -> int:
        """Most updates that were made of a parameter before the job."""
        return max((n for recipe in self.recipes for n in recipe.before.values()), default=0)

    @property
    def sent(self) -> TorchUpdates:
        """What servers need of it: what optimizers remember is in the blocks."""
        return replace(self, recipes=tuple(replace(recipe, first={}) for recipe in self.recipes))

    def first_state(self, params: Sequence[Param], first: int, state: dict[str, Vector]) -> dict[str, Vector]:
        """Write what optimizers remember of updates before the job into the vectors of a block, and return these.

        The block begins at number `first` of the flat vector.
        """
        for recipe in self.recipes:
            for p in params:
                for key, kept in recipe.kept.get(p.name, {}).items() if p.name in recipe.first else ():
                    kept.write(recipe.first[p.name][key], state[key][p.first - first : p.first - first + p.n])
        return state

    def of_block(self, params: Sequence[Param], first: int, rates: Rates) -> BlockUpdates:
        """Return the updates of a block that begins at number `first` of the flat vector."""
        places = [(p, p.first - first) for p in params]
        return BlockUpdates(self, places, rates, self.described.state_names)


class Rates:
    """The options of all groups at each update: a pure function of its number, so that all servers agree."""

    def __init__(self, updates: TorchUpdates) -> None:
        self._updates, self._lock = updates, threading.Lock()
        self._groups_at: dict[int, list[Groups]] = {}
        self._schedulers: list[Any] = []
        self._n = -1

    def at(self, step: int) -> list[Groups]:
        """Return the options of the groups of each optimizer at update number `step`, from 1."""
        updates = self._updates
        if not updates.schedulers:
            factor = 1.0 if updates.schedule is None else factor_of(updates.schedule, step - 1)
            return (
                list(updates.options)
                if updates.schedule is None
                else [[{**group, "lr": group["lr"] * factor} for group in groups] for groups in updates.options]
            )
        n = (step - 1) // updates.every
        with self._lock:
            if n not in self._groups_at:
                self._advance(n)
            return self._groups_at[n]

    def schedulers_at(self, step: int) -> list[Any]:
        """Return the schedulers as they are at update number `step`, from 1."""
        self.at(step)
        return self._schedulers

    def _advance(self, n: int) -> None:
        import pickle

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a scheduler is stepped before its optimizer, which is elsewhere
            if n < self._n or self._n < 0:
                self._schedulers, self._n = pickle.loads(self._updates.schedulers), 0  # written by this user
            while self._n < n:
                for scheduler in self._schedulers:
                    scheduler.step()
                self._n += 1
        self._groups_at[n] = [
            [
                {name: value for name, value in group.items() if name != "params"}
                for group in scheduler.optimizer.param_groups
            ]
            for scheduler in self._schedulers
        ]
        for old in sorted(self._groups_at)[:-HYPER_KEPT]:
            if old != n:
                del self._groups_at[old]


class BlockUpdates:
    """The updates of one block: see `labkit.elastic.server.block.Updates`.

    `places`: parameters of the block, with their first numbers in it.
    """

    keeps_zeros = False

    def __init__(
        self, updates: TorchUpdates, places: Sequence[tuple[Param, int]], rates: Rates, names: tuple[str, ...]
    ) -> None:
        self.state_names, self._rates, self._updates = names, rates, updates
        self._recipes = [
            (recipe, [place for place in places if place[0].name in recipe.kept]) for recipe in updates.recipes
        ]

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """See Updates."""
        turn = self._updates.turns[(step - 1) % len(self._updates.turns)]
        recipe, places = self._recipes[turn]
        if not places:
            return
        counts: dict[int, int] = getattr(state, "counts", {})
        places = [place for place in places if not self._skipped(place, grad, plus, counts)]
        gradient = mean_gradient(grad, plus, scale)
        params = {
            p.name: _parameter(p, param[first : first + p.n], gradient[first : first + p.n]) for p, first in places
        }
        chosen = recipe.over(params, self._rates.at(step)[turn])
        parts = {p.name: {name: vector[first : first + p.n] for name, vector in state.items()} for p, first in places}
        for p, first in places:
            skipped = counts.get(SKIPPED + first, 0)
            if done := recipe.done(p.name, self._updates.n_turns(turn, step - 1), skipped=skipped):
                chosen.state[params[p.name]] = recipe.remembered(p.name, parts[p.name], done)
        try:
            chosen.step()
            for name, p in params.items():
                for key, kept in recipe.kept[name].items():
                    kept.write(chosen.state[p][key], parts[name][key])
        except Exception as error:
            raise UpdateError(f"update number {step} raised {type(error).__name__}: {error}") from error

    @staticmethod
    def _skipped(place: tuple[Param, int], grad: Any, plus: Any, counts: dict[int, int]) -> bool:
        """Return whether a parameter has no gradient; count the update that it then lacks, as torch does."""
        p, first = place
        part = slice(first, first + p.n)
        if not is_untouched(grad[part], None if plus is None else plus[part]):
            return False
        counts[SKIPPED + first] = counts.get(SKIPPED + first, 0) + 1
        return True


def _own(value: Any) -> Any:
    return value.contiguous().clone() if hasattr(value, "clone") else value


def _parameter(p: Param, numbers: Vector, gradient: Vector) -> Any:
    """Return a parameter of torch, and its gradient, that are views of vectors."""
    import torch

    tensor = torch.nn.Parameter(torch.from_numpy(numbers).view(p.shape))
    tensor.grad = torch.from_numpy(gradient).view(p.shape)
    return tensor


# --- after a job


def load_optimizers(
    optimizers: Sequence[Any], schedulers: Sequence[Any], updates: TorchUpdates, model: nn.Module, cut: Layout,
    blocks: Mapping[int, Any], version: int,
) -> None:  # fmt: skip
    """Give optimizers over a model's parameters, and their schedulers, what they have after `version` updates.

    `blocks`: those of a checkpoint, by number.
    """
    if in_turn(optimizers)[1] != updates.turns:
        raise InputError(f"{len(optimizers)} optimizers; expected {len(updates.turns)}, as the job had.")
    names, rates = {id(p): name for name, p in trained(model)}, Rates(updates)
    options = rates.at(version + 1)
    placed = {p.name: (p, number) for number in blocks for p in cut.of_block(number)}
    for turn, (optimizer, recipe) in enumerate(zip(in_turn(optimizers)[0], updates.recipes, strict=True)):
        for group, new in zip(optimizer.param_groups, options[turn], strict=True):
            group.update(copy.deepcopy(new))
            for given in group["params"]:
                if (name := names.get(id(given))) not in recipe.kept:
                    continue
                p, number = placed[name]
                first, block = p.first - cut.extents[number][0], blocks[number]
                skipped = block.seen.get(SKIPPED + first, 0)
                if done := recipe.done(name, updates.n_turns(turn, version), skipped=skipped):
                    parts = {key: vector[first : first + p.n] for key, vector in block.state.items()}
                    state = recipe.remembered(name, parts, done)
                    optimizer.state[given] = {
                        key: value.clone().to(given.device if value.ndim else "cpu")
                        if hasattr(value, "clone")
                        else value
                        for key, value in state.items()
                    }
    for scheduler, now in zip(schedulers, rates.schedulers_at(version + 1), strict=False):
        scheduler.load_state_dict(now.state_dict())


# --- before a job starts


def recipes(
    optimizer: Any, model: nn.Module, *, scheduler: Any = None, every: int = 1, schedule: Any = None
) -> TorchUpdates:
    """Return the recipe that servers need of a user's torch optimizers.

    Raise InputError if one of them cannot be stepped on servers; the message says why.

    Parameters
    ----------
    optimizer : Optimizer, callable or sequence of these
        Optimizers over parameters of the model; a function of the model returns one.
    scheduler : LRScheduler, callable or sequence of these, optional
        Schedulers of these optimizers; a function of an optimizer returns one.
    every : int
        Updates between two steps of the schedulers.
    """
    given, turns = in_turn(optimizer if isinstance(optimizer, list | tuple) else [optimizer])
    made = [_result_of("optimizer", each, model) for each in given]
    for each in made:
        _check_kind(each)
        check_hooks(each)
    names = {id(p): name for name, p in trained(model)}
    found = tuple(_recipe(each, names, model) for each in made)
    options = tuple(
        [{name: value for name, value in group.items() if name != "params"} for group in each.param_groups]
        for each in made
    )
    pickled = b""
    if scheduler is not None:
        if schedule is not None:
            raise InputError("schedule= and scheduler=; expected one of them.")
        pickled = _pickled(scheduler, made)
    stepped = [name for recipe in found for name in recipe.kept]
    for name in {name for name in stepped if stepped.count(name) > 1}:
        raise InputError(
            f"two optimizers have '{name}'; expected each parameter in one of them. They take turns, one update each; "
            "[a, a, b] is two updates by a for each by b."
        )
    updates = TorchUpdates(found, options, pickled, every, schedule, turns)
    _try(updates, made, model)
    return updates


def _result_of(what: str, value: Any, argument: Any) -> Any:
    """Return the result of a function of the model, or of an optimizer; anything else as it is."""
    if hasattr(value, "step") or not callable(value) or isinstance(value, type):
        return value
    try:
        return value(argument)
    except Exception as error:
        raise InputError(f"{what}(...) raised {type(error).__name__}: {error}") from error


def _check_kind(optimizer: Any) -> None:
    from torch.optim import Optimizer

    if not isinstance(optimizer, Optimizer):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise InputError(
            f"optimizer is {kind.__module__}.{kind.__qualname__}; expected a name, an OwnUpdate, an optimizer of torch "
            "over the model's parameters, or a function of the model that returns one."
        )
    for kind in type(optimizer).__mro__:
        if kind.__name__ in WHOLE and kind.__module__.startswith("torch.optim"):
            raise InputError(
                f"optimizer {type(optimizer).__name__} cannot be stepped on servers: {WHOLE[kind.__name__]}."
            )


def check_schedulers(updates: TorchUpdates, *, n_steps: int) -> None:
    """Check that schedulers can be stepped to the end of a training of up to `MOST_TRIED` updates.

    Raise InputError if not; OneCycleLR, for one, ends.
    """
    if updates.schedulers and n_steps <= MOST_TRIED:
        try:
            Rates(updates).at(n_steps + 1)
        except Exception as error:
            raise InputError(
                f"the scheduler cannot be stepped through {n_steps} updates: {error} Expected one for as many; "
                "a training of E epochs has E * samples // batch updates."
            ) from error


def _recipe(optimizer: Optimizer, names: Mapping[int, str], model: nn.Module) -> Recipe:
    known = {id(p) for p in model.parameters()}
    groups = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in known:
                raise InputError(
                    f"optimizer {type(optimizer).__name__} has a parameter of shape {tuple(p.shape)} that the model "
                    "has not."
                )
        groups.append(tuple(names[id(p)] for p in group["params"] if id(p) in names))
    left_out = {"param_groups", "state", "step"}  # a scheduler has wrapped `step`
    attributes = {name: value for name, value in vars(optimizer).items() if name not in left_out}
    tensors = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in names}
    states = {names[id(p)]: dict(state) for p, state in optimizer.state.items() if id(p) in names and state}
    begun = {name: _initial_state(state) for name, state in states.items() if _is_initial(state)}
    first = {
        name: {key: _own(value.detach().cpu() if hasattr(value, "detach") else value) for key, value in state.items()}
        for name, state in states.items()
        if name not in begun
    }
    return _with_state(Recipe(type(optimizer), attributes, tuple(groups), begun=begun, first=first), optimizer, tensors)


def _is_initial(state: Mapping[str, Any]) -> bool:
    """Return whether the optimizer has made no update of a parameter: its tensors have one number each."""
    import torch

    flat = [value.detach().reshape(-1) for value in state.values() if isinstance(value, torch.Tensor)]
    return not float(state.get("step", 0.0)) and all(bool((each == each[:1]).all()) for each in flat)


def _initial_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the initial optimizer state of a parameter, such as Adagrad its first sums; tensors of one number."""
    import torch

    begun: dict[str, Any] = {}
    for key, value in state.items():
        one = isinstance(value, torch.Tensor) and value.numel()
        begun[key] = value.detach().reshape(-1)[:1].clone().expand(value.numel()).view(value.shape) if one else value
    return begun


def _with_state(recipe: Recipe, optimizer: Optimizer, tensors: Mapping[str, Any]) -> Recipe:
    """Return a recipe with what the optimizer remembers of each parameter, which two updates of each show."""
    import torch

    options = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    seen: dict[str, dict[str, list[Any]]] = {}
    for name, given in tensors.items():
        p = torch.nn.Parameter(given.detach().cpu().clone())
        chosen = recipe.over({name: p}, options)
        recipe.remember(chosen, {name: p}, recipe.first)
        rows: dict[str, list[Any]] = defaultdict(list)
        for _ in range(2):
            p.grad = torch.ones_like(p)
            try:
                chosen.step()
            except Exception as error:
                raise InputError(
                    f"optimizer {recipe.kind.__name__} cannot be stepped for '{name}' alone: {type(error).__name__}: "
                    f"{error}"
                ) from error
            for key, value in chosen.state[p].items():
                rows[key].append(copy.deepcopy(value))
        seen[name] = rows
    return _sorted_state(recipe, seen, tensors)


def _sorted_state(recipe: Recipe, seen: Mapping[str, Mapping[str, list[Any]]], tensors: Mapping[str, Any]) -> Recipe:
    keys = {key for rows in seen.values() for key in rows}
    counts = {
        key: _kind(next(rows[key][0] for rows in seen.values() if key in rows))
        for key in keys
        if _counts(key, seen, recipe.first)
    }
    kept = {
        name: {
            key: _layout_of(recipe.kind.__name__, key, values[-1], tensors[name].numel())
            for key, values in rows.items()
            if key not in counts and values[-1] is not None
        }
        for name, rows in seen.items()
    }
    return replace(recipe, kept=kept, counts=counts, before=_updates_before(recipe, counts))


def _updates_before(recipe: Recipe, counts: Mapping[str, Any]) -> dict[str, int]:
    """Return how many updates an optimizer has made of each parameter; 1 where it does not count them."""
    found = {}
    for name, state in recipe.first.items():
        known = {int(state[key]) for key in counts if key in state} or {1}
        if len(known) > 1:
            raise InputError(
                f"optimizer {recipe.kind.__name__} remembers {' and '.join(counts)} of '{name}' as {sorted(known)}; "
                "expected one number of updates."
            )
        found[name] = known.pop()
    return found


def _counts(key: str, seen: Mapping[str, Mapping[str, list[Any]]], first: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a value is the number of updates, for each parameter."""
    rows = {name: each[key] for name, each in seen.items() if key in each}
    if not all(_is_one(value) for row in rows.values() for value in row):
        return False
    begun = {name: float(first.get(name, {}).get(key, 0)) for name in rows}
    return all([float(value) - begun[name] for value in row] == [1, 2] for name, row in rows.items())


def _is_one(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "dim") and value.dim() == 0)


def _kind(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else type(value)


def _layout_of(kind: str, key: str, value: Any, n: int) -> StateLayout:
    import torch

    if isinstance(value, bool) or not isinstance(value, int | float | torch.Tensor):
        raise InputError(f"optimizer {kind} remembers '{key}', a {type(value).__name__}; expected tensors and numbers.")
    kept = StateLayout(tuple(value.shape) if isinstance(value, torch.Tensor) else None, _kind(value))
    if kept.n > n:
        raise InputError(
            f"optimizer {kind} remembers '{key}' of shape {kept.shape} for a parameter of {n} numbers; expected no "
            "more numbers than the parameter has."
        )
    return kept


def _pickled(scheduler: Any, optimizers: Sequence[Any]) -> bytes:
    """Return schedulers pickled with their optimizers, which have parameters of one number each meanwhile."""
    import cloudpickle
    import torch

    given = list(scheduler) if isinstance(scheduler, list | tuple) else [scheduler]
    if len(given) != len(optimizers):
        raise InputError(f"{len(given)} schedulers of {len(optimizers)} optimizers; expected one for each.")
    made = [_result_of("scheduler", each, own) for each, own in zip(given, optimizers, strict=True)]
    for each, own in zip(made, optimizers, strict=True):
        _check_scheduler(each, own)
    groups = [group for own in optimizers for group in own.param_groups]
    whole = [group["params"] for group in groups]
    try:
        for group in groups:
            group["params"] = [torch.nn.Parameter(torch.zeros(()))]
        return cloudpickle.dumps(made)  # type: ignore[no-any-return]
    except Exception as error:
        raise InputError(f"scheduler cannot be sent to other processes: {type(error).__name__}: {error}") from error
    finally:
        for group, params in zip(groups, whole, strict=True):
            group["params"] = params


def _check_scheduler(scheduler: Any, optimizer: Any) -> None:
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "scheduler is a ReduceLROnPlateau, which needs a validation loss between two updates: servers would have "
            "to wait for it. Expected a schedule of the step; or a job for each epoch, in one folder=, and "
            "scheduler.step(loss) between them."
        )
    if not isinstance(scheduler, LRScheduler) or getattr(scheduler, "optimizer", None) is not optimizer:
        raise InputError(f"scheduler is a {type(scheduler).__name__}; expected one of torch, of the job's optimizer.")


def _try(updates: TorchUpdates, optimizers: Sequence[Any], model: nn.Module) -> None:
    """Raise InputError unless some updates of blocks have the bits of the optimizers over all parameters at once."""
    import torch

    chosen = list(_some(trained(model)))
    places, n = [], 0
    for name, p in chosen:
        places.append(Param(name, n, tuple(p.shape)))
        n += p.numel()
    rng = np.random.default_rng(0)
    params = {name: torch.nn.Parameter(p.detach().cpu().clone()) for name, p in chosen}
    whole = [recipe.over(params, groups) for recipe, groups in zip(updates.recipes, updates.options, strict=True)]
    for recipe, each in zip(updates.recipes, whole, strict=True):
        recipe.remember(each, params, recipe.first)
    rates, names = Rates(updates), updates.described
    vectors = {
        p.name: (params[p.name].detach().numpy().ravel().copy(), updates.first_state([p], p.first, names.init(p.n)))
        for p in places
    }
    for number in range(1, UPDATES * len(updates.turns) + 1):
        turn = updates.turns[(number - 1) % len(updates.turns)]
        for group, options in zip(whole[turn].param_groups, rates.at(number)[turn], strict=True):
            group.update(options)
        for p in places:
            gradient = rng.normal(size=p.n).astype(np.float32)
            params[p.name].grad = torch.from_numpy(gradient.copy()).view(p.shape)
            vector, state = vectors[p.name]
            updates.of_block([p], p.first, rates).apply(vector, gradient, state, step=number)
        with torch.no_grad():
            whole[turn].step()
    for p in places:
        if not np.array_equal(vectors[p.name][0], params[p.name].detach().numpy().ravel(), equal_nan=True):
            kinds = " and ".join(type(each).__name__ for each in optimizers)
            raise InputError(
                f"optimizer {kinds} updates '{p.name}' otherwise when it has that parameter alone, or with its state "
                "kept as float32: servers have some of the parameters each. Expected an update of each parameter by "
                "itself, without random numbers."
            )


def _some(named: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Yield small parameters, at least two, until they are enough to try an optimizer with."""
    n = 0
    for name, p in sorted(named, key=lambda row: row[1].numel()):
        if n and n + p.numel() > TRIED:
            return
        n += p.numel()
        yield name, p


@dataclass(frozen=True)
class Averaged:
    """The update of buffers: their mean over the shards; of those of each shard their sum, of which one row is set."""

    factor: Vector
    """(n,) float32, of the sum: 1 / V, or 1."""

    state_names: ClassVar[tuple[str, ...]] = ()

    keeps_zeros: ClassVar[bool] = False

    def apply(self, param: Any, grad: Any, state: Any, *, plus: Any = None, **_: Any) -> None:  # noqa: ARG002
        """See `labkit.elastic.server.block.Updates`."""
        np.multiply(mean_gradient(grad, plus, 1.0), self.factor, out=param)


def averaged(cut: Layout, number: int, *, n_shards: int, per_shard: Iterable[str]) -> Averaged:
    """Return the update of a block of buffers.

    `n_shards`: logical gradients of a batch. `per_shard`: buffers of which each shard has its own.
    """
    first, n = cut.extents[number]
    factor = np.full(n, 1.0 / n_shards, np.float32)
    for p in cut.of_block(number):
        if p.name in per_shard:
            factor[max(p.first - first, 0) : p.first + p.n - first] = 1.0
    return Averaged(factor)
