"""Samples on their way to a model: the order of an epoch, a DataLoader's dataset, and loading beside computing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random  # noqa: TID251 - users' data may draw from it
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.elastic.errors import ChangedError
from labkit.elastic.shards import samples_between, samples_of

if TYPE_CHECKING:
    from labkit.elastic.protocol.program import Program, Spec

AHEAD: Final = 2
"""Logical shards that each loader loads ahead."""
EPOCHS_KEPT: Final = 2
PR_SET_PDEATHSIG: Final = 1

ENDLESS: Final = 1 << 40
"""Samples of a stream that does not say how many it has."""

Place = tuple[int, int]
Order = NDArray[np.int64] | range
"""Numbers of the samples of an epoch, in order."""


class Samples:
    """The samples of shards and of leases: those of a keyed permutation, in the order of the data, or of its sampler.

    `data`: of the job; one with `order(epoch, seed)` has an order of its own.
    """

    def __init__(self, data: Any, spec: Spec) -> None:
        self._spec = spec
        self._order_of: Callable[[int, int], Order] | None = getattr(data, "order", None)
        self._orders: dict[int, Order] = {}
        self._data, self._epoch = data, -1
        self._by_epoch, self._begun = [] if isinstance(data, StreamData) else with_epochs(data), -1

    def begin(self, epoch: int) -> None:
        """Have the dataset set an epoch, with random numbers that depend on seed and epoch alone."""
        if epoch == self._begun or not self._by_epoch:
            return
        states, self._begun = random_states(), epoch
        seed_all(int(np.random.SeedSequence((self._spec.seed, epoch)).generate_state(1)[0]))
        for each in self._by_epoch:
            each.set_epoch(epoch)
        set_states(states)

    def between(self, start: int, end: int, epoch: int) -> NDArray[np.int64]:
        """Return the samples at positions `start` to before `end` of an epoch's order."""
        spec = self._spec
        if epoch != self._epoch:
            check_length(self._data, spec.n_samples)
            self._epoch = epoch
        if self._order_of is None:
            return samples_between(
                start, end, n_samples=spec.n_samples, seed=spec.seed, epoch=epoch, shuffle=spec.shuffle
            )
        if epoch not in self._orders:
            order = self._order_of(epoch, spec.seed)
            if len(order) != spec.n_samples:
                raise InputError(f"the sampler has {len(order)} samples in epoch {epoch}; expected {spec.n_samples}.")
            self._orders = {**dict(list(self._orders.items())[1 - EPOCHS_KEPT :]), epoch: order}
        return np.asarray(self._orders[epoch][start:end], np.int64)

    def of(self, step: int, leaf: int, *, n_shards: int | None = None) -> list[int]:
        """Return the samples of one logical shard of a step, and have the dataset set the epoch of the step."""
        spec = self._spec
        found = samples_of(
            step, leaf, n_samples=spec.n_samples, batch=spec.batch, n_shards=n_shards or spec.n_shards,
            seed=spec.seed, between=self.between,
        )  # fmt: skip
        self.begin(spec.epoch_of(step))
        return found.tolist()  # type: ignore[no-any-return]


def with_epochs(data: Any) -> list[Any]:
    """Return the datasets of a job's data, or within it, that have `set_epoch`."""
    inner = [getattr(data, name, None) for name in ("dataset", "samples")] + list(getattr(data, "datasets", None) or ())
    own = [data] if hasattr(data, "set_epoch") else []
    return own + [found for each in inner if each is not None and each is not data for found in with_epochs(each)]


def check_length(data: Any, n: int) -> None:
    """Raise ChangedError unless data has as many samples as when the job was started."""
    if len(data) != n:
        raise ChangedError(
            f"the data had {n} samples when the job was started, and has {len(data)} now: each worker would have its "
            "own. Expected a dataset of one length; a job for each length continues with state=result.state_dict()."
        )


# --- a DataLoader


@dataclass
class WorkerInit:
    """The `worker_init_fn` of a DataLoader, called once in each process that loads, as of the only one.

    What it draws or seeds has no effect: random numbers of samples depend on the job's seed alone.
    """

    function: Callable[[int], object] | None
    dataset: Any
    _pid: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pid": 0}

    def __call__(self) -> None:
        """Call it, unless this process has done so."""
        from torch.utils.data._utils import worker

        if self.function is None or self._pid == os.getpid():
            return
        states, told, self._pid = random_states(), worker._worker_info, os.getpid()
        try:
            worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=self.dataset)
            self.function(0)
        finally:
            worker._worker_info = told
            set_states(states)


@dataclass
class LoaderData:
    """The samples of a DataLoader: its dataset, its function that makes a batch, and its sampler."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    """`dataset` and `collate`: as the loader has them."""
    sampler: Any = None
    """Object: None: all samples, in an order of the job's."""
    init: Callable[[], object] = bool
    """Called before each batch."""

    def __post_init__(self) -> None:
        if self.sampler is not None:
            self.order = self._order

    def __len__(self) -> int:
        return len(self.dataset if self.sampler is None else self.sampler)

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return a batch."""
        self.init()
        many = getattr(self.dataset, "__getitems__", None)
        return self.collate(many(list(indices)) if many is not None else [self.dataset[i] for i in indices])

    def _order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """Return the sampler's order of an epoch, whose random numbers depend on seed and epoch alone."""
        import torch

        drawn = int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(drawn)
            if getattr(self.sampler, "generator", None) is not None:
                self.sampler.generator.manual_seed(drawn)
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            return np.fromiter(self.sampler, np.int64)


@dataclass(frozen=True)
class Loading:
    """How samples are loaded, as a DataLoader says, or as arguments of `start` do."""

    data: Any
    """Samples by number."""
    batch: int
    """Samples of an update."""
    shuffle: bool
    """False: the order of the data."""
    loaders: int
    """Processes of each worker that load its samples ahead; 0: none."""

    @classmethod
    def of(cls, data: Any, *, batch: int | None, shuffle: bool, loaders: int, default: int) -> Loading:
        """Return how samples are loaded.

        Raise InputError if a DataLoader has what a job cannot keep; the message says what.
        """
        from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

        if isinstance(data, IterableDataset):
            return cls(StreamData(data, default_collate), default if batch is None else batch, shuffle, loaders)
        if not isinstance(data, DataLoader):
            return cls(data, default if batch is None else batch, shuffle, loaders)
        if data.batch_size is None or type(data.batch_sampler).__name__ != "BatchSampler":
            raise InputError(
                "the DataLoader has no batch_size, or a batch_sampler of its own; expected batch_size= and sampler=: "
                "a batch is cut into logical shards of one size."
            )
        if batch is not None and batch != data.batch_size:
            raise InputError(f"batch is {batch}, the DataLoader's batch_size {data.batch_size}; expected one of them.")
        init = WorkerInit(data.worker_init_fn if data.num_workers else None, data.dataset)
        if isinstance(data.dataset, IterableDataset):
            stream = StreamData(data.dataset, data.collate_fn, init)
            return cls(stream, data.batch_size, shuffle, max(loaders, data.num_workers))
        sampler: Any = data.sampler
        plain = type(sampler) is SequentialSampler
        random_once = isinstance(sampler, RandomSampler) and not sampler.replacement
        usual = plain or (random_once and len(sampler) == len(sampler.data_source))
        return cls(
            LoaderData(data.dataset, data.collate_fn, None if usual else sampler, init), data.batch_size,
            shuffle and not plain, max(loaders, data.num_workers),
        )  # fmt: skip


def with_batch_size(data: Any, batch: int) -> Any:
    """Return a DataLoader with another batch size; samples without one as they are."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(data, DataLoader):
        return data
    sampler = None if isinstance(data.dataset, IterableDataset) else data.sampler
    return DataLoader(
        data.dataset, batch, sampler=sampler, collate_fn=data.collate_fn, num_workers=data.num_workers,
        drop_last=data.drop_last, worker_init_fn=data.worker_init_fn,
    )  # fmt: skip


@dataclass
class StreamData:
    """The samples of an IterableDataset, by their place in it; after the last one comes its first one again.

    Each process reads the stream from its beginning and drops the samples of others. All of them see the same stream:
    its random numbers depend on the job's seed and the pass alone, and it is never told that it has several readers.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any]
    """`dataset` and `collate`: as a DataLoader has them."""
    init: Callable[[], object] = bool
    """Called before each batch."""
    _coming: Iterator[Any] | None = None
    _next: int = 0
    _pass: int = 0
    _seed: int = 0
    _states: Any = None

    def __len__(self) -> int:
        try:
            return len(self.dataset)
        except TypeError:
            return ENDLESS

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "collate": self.collate, "init": self.init}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def order(self, epoch: int, seed: int) -> range:
        """Return the places of an epoch in the stream of all epochs."""
        self._seed = seed
        return range(epoch * len(self), (epoch + 1) * len(self))

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return a batch."""
        from torch.utils.data._utils import worker

        self.init()
        outside, told, worker._worker_info = random_states(), worker._worker_info, None
        try:
            if self._coming is None or indices[0] < self._next:
                self._next = 0
                self._begin(0)
            else:
                set_states(self._states)
            rows = [self._at(place) for place in indices]
            self._states = random_states()
        finally:
            worker._worker_info = told
            set_states(outside)
        return self.collate(rows)

    def _begin(self, number: int) -> None:
        """Begin a pass over the stream."""
        seed_all(int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0]))
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        self._pass, self._coming = number, iter(self.dataset)

    def _at(self, place: int) -> Any:
        is_new = False
        while True:
            try:
                sample = next(self._coming)  # type: ignore[arg-type]
            except StopIteration:
                if is_new:
                    raise InputError("the IterableDataset has no sample; expected at least one.") from None
                is_new = True
                self._begin(self._pass + 1)
                continue
            is_new, self._next = False, self._next + 1
            if self._next > place:
                return sample


# --- loading beside computing


@dataclass
class Loader:
    """Loads samples of logical shards ahead, in processes of torch's DataLoader; what is loaded does not depend on it.

    The shards of the next steps are taken to be those of the last one. If they are not, since shards were dealt anew,
    what was loaded is dropped.
    """

    program: Program
    samples_of: Callable[[int, int], list[int]]
    """(step, leaf): the samples of a logical shard."""
    seed_at: Callable[[Place], None]
    """Seeds the random generators for a logical shard."""
    n: int
    """Processes."""
    n_steps: int
    _leaves: list[int] = field(default_factory=list)
    _before: list[int] = field(default_factory=list)
    _step: int = -1
    _coming: Iterator[Any] | None = None
    _loader: Any = None
    _next: list[Place] = field(default_factory=list)

    def get(self, place: Place) -> tuple[Any, Any]:
        """Return the batch of a logical shard, and the random generators' states after it if it has drawn."""
        step, leaf = place
        if step != self._step:
            self._before, self._leaves, self._step = self._leaves, [], step
        self._leaves.append(leaf)
        if self._coming is not None:
            with contextlib.suppress(StopIteration):
                there, loaded = next(self._coming)
                if there == place:
                    return loaded  # type: ignore[no-any-return]
            self._coming = None
        if leaf in self._before:
            self._coming = self._load_from(place)
            return next(self._coming)[1]  # type: ignore[no-any-return]
        return self.load(place)

    def close(self) -> None:
        """End the processes."""
        self._coming = self._loader = None

    def _load_from(self, place: Place) -> Iterator[Any]:
        """Load this shard and those after it from now on."""
        from torch.utils.data import DataLoader

        self._next[:] = [place]
        if self._loader is None:
            self._loader = DataLoader(
                _places(self), batch_size=None, sampler=_Upcoming(self), num_workers=self.n, prefetch_factor=AHEAD,
                persistent_workers=True, worker_init_fn=be_loader, collate_fn=_as_it_is,
                multiprocessing_context="fork",  # whatever a script has set: samples and program are not pickled
            )  # fmt: skip
        return iter(self._loader)

    def upcoming(self) -> Iterator[Place]:
        """Yield the places of shards from the next one on."""
        step, leaf = self._next[0]
        leaves = sorted({*self._before, leaf})
        yield from ((step, other) for other in leaves if other >= leaf)
        for later in range(step + 1, self.n_steps):
            yield from ((later, other) for other in leaves)

    def load(self, place: Place) -> tuple[Any, Any]:
        """Load a shard here; see `get`."""
        self.seed_at(place)
        before = random_states()
        batch = self.program.batch(self.samples_of(*place))
        after = random_states()
        return batch, None if same_states(before, after) else after


def _places(loader: Loader) -> Any:
    """Return a dataset of torch whose samples are the batches of logical shards."""
    from torch.utils.data import Dataset

    class Places(Dataset[Any]):
        def __getitem__(self, place: Place) -> tuple[Place, tuple[Any, Any]]:
            return place, loader.load(place)

    return Places()


def _as_it_is(loaded: Any) -> Any:
    return loaded


class _Upcoming:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Place]:
        return self._loader.upcoming()


def be_loader(_: int) -> None:
    """End with the worker, and close the connections that a forked process has from it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))


def random_states() -> tuple[Any, Any, Any]:
    """Return the states of the global random generators: of torch, numpy and Python."""
    import torch

    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def generator_state(value: Any) -> str | None:
    """Return the state of a random generator of one's own as text; None of anything else."""
    import torch

    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    return repr(value.getstate()) if isinstance(value, random.Random) else None


def same_states(a: tuple[Any, Any, Any], b: tuple[Any, Any, Any]) -> bool:
    """Return whether no generator has been used in between."""
    arrays = zip(a[1], b[1], strict=True)
    return bool(a[0].equal(b[0])) and a[2] == b[2] and all(np.array_equal(x, y) for x, y in arrays)


def set_states(states: tuple[Any, Any, Any] | None) -> None:
    """Set the random generators."""
    if states is not None:
        import torch

        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def seed_all(seed: int) -> None:
    """Seed the global random generators: of torch (on all devices), numpy and Python."""
    import torch

    if has_accelerator():
        torch.manual_seed(seed)
    else:  # `torch.manual_seed` would format three stacks, and keep each seed for a GPU that is never there
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002, TID251 - users' data may draw from it
    random.seed(seed)


@cache
def has_accelerator() -> bool:
    """Return whether this machine has a device whose random numbers torch would seed, too."""
    import torch

    return torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
