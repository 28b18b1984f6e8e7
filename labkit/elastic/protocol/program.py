"""The program of a job: model, data and loss, pickled for its workers; arrays mapped from files as where they lie."""

from __future__ import annotations

import mmap
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.manifest import CHECKPOINTS
from labkit.elastic.controller.losses import STOP
from labkit.elastic.protocol.blocks import BLOCKS, Layout, Param, trained
from labkit.elastic.protocol.messages.codec import load_struct, save_struct
from labkit.elastic.protocol.messages.struct import Count, Number, Struct, Text
from labkit.elastic.protocol.sites import NOWHERE_ELSE, NetworkConfig, Site
from labkit.elastic.transport import Scheme

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.elastic.checkpoint.store import Checkpoints

FILE = "program.pickle"
FLOAT32, BF16, FP16 = "float32", "bf16", "fp16"
"""Precision of the forward pass."""


@dataclass(frozen=True, slots=True)
class Program:
    """A model, its data and a loss."""

    model: nn.Module
    """Model whose parameters that need gradients are trained; these must be float32."""
    data: Any
    """`len(data)` samples; `data.fetch(indices)` returns a batch, or `data[i]` a sample (a tensor or a tuple of
    them)."""
    loss: Callable[[nn.Module, Any], Tensor]
    """Takes (model, batch), and returns a scalar tensor, the mean over the batch, or (loss, metrics by name)."""

    def check(self) -> None:
        """Raise InputError unless the model is a module, the data has samples by number, and the loss can be called."""
        check_model(self.model, pickled=self.is_pickled)
        check_data(self.data)
        if not callable(self.loss):
            raise InputError(f"loss is {_a(self.loss)}; expected a function of (model, batch).")

    @property
    def is_pickled(self) -> bool:
        """Whether model, data and loss are pickled for workers; a script is run there."""
        return not hasattr(self.loss, "sent")

    def batch(self, indices: list[int]) -> Any:
        """Return the samples with these indices as a batch."""
        fetch = getattr(self.data, "fetch", None)
        if fetch is not None:
            return fetch(indices)
        from torch.utils.data import default_collate

        return default_collate([self.data[i] for i in indices])

    def save(self, folder: Path, *, before: Callable[[Path], object] = bool) -> None:
        """Pickle it into a folder of mode 0700; classes and functions of `__main__` are pickled by value.

        Arrays that are mapped from files are sent as paths. Raise InputError if a part of it cannot be pickled; an
        earlier file stays. `before`: takes the new file before it replaces an earlier one, which stays if this raises.
        """
        from labkit.elastic.protocol.program import MappedPickler

        partial = folder / f".{FILE}"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                try:
                    MappedPickler(file).dump(self._sent())
                except (OSError, InputError):
                    raise
                except Exception as error:
                    raise self._unpicklable(error) from error
            before(partial)
            partial.rename(folder / FILE)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _sent(self) -> Any:
        """Return the state to pickle: its parts, or the script that makes them anew."""
        script = getattr(self.loss, "sent", None)
        return (self.model.cpu(), self.data, self.loss) if script is None else script()

    @property
    def here(self) -> Program:
        """It in this process: after a fork the loop of a script has to be run anew."""
        if getattr(self.loss, "here", True):
            return self
        return self.loss.again().program()  # type: ignore[attr-defined, no-any-return]

    def _unpicklable(self, error: Exception) -> InputError:
        import cloudpickle

        for name, part in (("model", self.model), ("data", self.data), ("loss", self.loss)):
            try:
                cloudpickle.dumps(part)
            except Exception as found:
                why = " ".join(str(found).split())[:300]
                return InputError(
                    f"{name} ({_a(part)}) cannot be sent to other processes: {type(found).__name__}: {why}. "
                    "Open files, locks and connections where they are first used, or leave them out in __getstate__."
                )
        return InputError(f"model, data and loss cannot be sent to other processes: {error}")

    @classmethod
    def load(cls, folder: Path) -> Program:
        """Unpickle what `save` wrote: only from the folder of the job, never from the network."""
        return cls.read(folder / FILE)

    @classmethod
    def read(cls, path: Path) -> Program:
        """Unpickle a file of the job's folder."""
        import pickle

        with path.open("rb") as file:
            sent = pickle.load(file)  # written by this user into a folder of mode 0700
        return cls(*sent) if isinstance(sent, tuple) else sent.program()

    def train(self) -> None:
        """Call `train` of modules that define their own, as a loop of one's own does: frozen parts stay frozen."""
        from torch import nn

        for module in self.model.modules():
            if module.training and type(module).train is not nn.Module.train:
                module.train()


def check_model(model: Any, *, pickled: bool = True) -> None:
    """Raise InputError unless the model can be trained: float32 parameters, no lazy modules, no hooks that are lost.

    `pickled`: whether workers get it pickled; the model of a script is made there, hooks and parametrizations included.
    """
    from torch import nn
    from torch.nn.parameter import is_lazy
    from torch.nn.utils.parametrize import is_parametrized

    if not isinstance(model, nn.Module):
        raise InputError(f"model is {_a(model)}; expected a torch.nn.Module.")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(f"'{name}' of the model has no shape yet (a lazy module); call the model once before.")
    trained(model)
    _check_hooks(model, pickled=pickled)
    for name, module in model.named_modules():
        if pickled and is_parametrized(module):
            raise InputError(
                f"{name or 'the model'} ({type(module).__name__}) is parametrized, and torch cannot pickle that; "
                "take torch.nn.utils.weight_norm instead of parametrizations.weight_norm, or remove_parametrizations; "
                "or a script with a loop over labkit.elastic(...), which workers run themselves."
            )
    _check_values(model)


def _check_hooks(model: nn.Module, *, pickled: bool) -> None:
    """Raise InputError for hooks that torch does not pickle: of parameters, and of all modules at once.

    Hooks after a gradient is accumulated are refused of a script, too: workers accumulate that of a shard.
    """
    from torch.nn.modules import module as modules

    for name, p in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")[0 if pickled else 1 :]:
            for hook in (getattr(p, kind, None) or {}).values():
                lost = "torch does not pickle: workers would train without it"
                why = lost if pickled else "would see the gradient of each shard where it expects that of the batch"
                raise InputError(
                    f"parameter '{name}' has the hook {hook_name(hook)}, which {why}. Limit gradients by clip_value=; "
                    "scale one in forward, by an autograd function of your own; or give an OwnUpdate as the optimizer."
                )
    for kind in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        for hook in getattr(modules, kind, {}).values() if pickled else ():
            raise InputError(
                f"all modules of this process have the hook {hook_name(hook)}, which workers would not have; register "
                "it with the modules of the model."
            )


def hook_name(hook: Any) -> str:
    """Return the name of a hook, and where it was written."""
    code = getattr(hook, "__code__", None)
    where = "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return f"{getattr(hook, '__qualname__', type(hook).__name__)}{where}"


def _check_values(model: nn.Module) -> None:
    for name, p in trained(model):
        if not bool(p.detach().isfinite().all()):
            raise InputError(f"parameter '{name}' of the model has NaN or infinite values already; expected numbers.")


def check_data(data: Any) -> None:
    """Raise InputError unless data has a length and samples by number."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, DataLoader):
        raise InputError(
            "data is a DataLoader; expected its dataset here (loader.dataset): start(data=loader) takes it whole, with "
            "its batch size, sampler and collate_fn."
        )
    if isinstance(data, IterableDataset):
        raise InputError(
            "data is an IterableDataset, which has an order of its own; expected samples by number: len(data), and "
            "data[i] or data.fetch(indices)."
        )
    if isinstance(data, tuple) and data and all(hasattr(part, "ndim") for part in data):
        raise InputError(
            "data is a tuple of arrays; give labkit.elastic.data.as_dataset(data), whose samples are their rows."
        )
    if not hasattr(data, "__len__") or not (hasattr(data, "fetch") or hasattr(data, "__getitem__")):
        raise InputError(f"data is {_a(data)}; expected len(data), and data[i] or data.fetch(indices).")


def _a(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"


def module_paths() -> list[str]:
    """Return the entries of the module search path that are not of the interpreter: folders of script and project."""
    library = sysconfig.get_path("stdlib")
    entries = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    return [
        entry for entry in entries
        if not entry.startswith(library) and not {"site-packages", "dist-packages"} & set(Path(entry).parts)
        and not entry.endswith(".zip")
    ]  # fmt: skip


def find_modules(paths: Iterable[str]) -> None:
    """Put the entries of another process first in the module search path."""
    missing = [path for path in dict.fromkeys(paths) if path not in sys.path and os.path.exists(path)]
    sys.path[:0] = missing


SPEC = "job.json"
UPDATE = "update.pickle"
"""Schedule, limit of gradients and update of one's own, for servers."""
CONTROLLER_SOCKET = "controller.sock"

OptionValue = bool | Number | tuple[Number, ...] | tuple[Text, ...]
"""Value of an option of an optimizer: a switch, a number, numbers such as Adam's betas, or names of state vectors."""


def option_values(options: Mapping[str, Any]) -> dict[str, OptionValue]:
    """Return options of an optimizer as a `Spec` has them: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


@dataclass(frozen=True, slots=True)
class Spec(Struct):
    """What every process of a job knows."""

    params: tuple[tuple[Text, Count, tuple[Count, ...]], ...]
    """Name, first number in the flat vector, and shape of each parameter."""
    extents: tuple[tuple[Count, Count], ...]
    """First parameter and number of parameters of each block."""
    optimizer: Text
    """Name of the optimizer; `options` are its options."""
    options: dict[Text, OptionValue]
    batch: Count
    n_shards: Count
    n_steps: Count
    """`batch`, `n_shards` and `n_steps`: samples of a global batch, logical shards V of a batch, and steps of the
    training."""
    seed: int = 0
    """Seed of the order of samples, and of what the model draws."""
    sync: bool = True
    """True: all workers make an update together. False: each worker makes its own updates."""
    n_samples: Count = 0
    lease_s: Number = 3.0
    """Lease in seconds; all other timeouts derive from it."""
    start_s: Number = 300.0
    patience_s: Number = 300.0
    """`start_s` and `patience_s`: seconds that a process may take to join, and a worker for the gradient of one logical
    shard or minibatch."""
    scheme: Scheme = Scheme.SHM
    devices: tuple[Text, ...] = ()
    """Devices of the workers: worker i has device i modulo their number."""
    reach: NetworkConfig = field(default_factory=NetworkConfig)
    """Addresses and ports of the processes."""
    sites: tuple[Site, ...] = ()
    """Device groups that may hold members; empty for a job on one machine."""
    on_nan: Text = STOP
    """"stop" or "continue": what a loss that is not finite does to the job."""
    paths: tuple[Text, ...] = ()
    """Module search path of the process that started the job."""
    loads_every_s: Number = 0.0
    """Seconds between two events with the gradient bytes that a server received; 0: no such events."""
    measure_every_s: Number = 0.0
    """Seconds between two events with the cores and memory of each process; 0: no such events."""
    partition: Text = BLOCKS
    """"blocks" or "tensor": see `labkit.elastic.protocol.blocks`."""
    has_rule: bool = False
    """Whether updates have a schedule, a limit of gradients, or are a function of one's own: the file `UPDATE`."""
    precision: Text = FLOAT32
    """"float32", or "bf16" or "fp16": the forward pass under `torch.autocast`."""
    n_buffers: Count = 0
    """How many of `params`, at the end, are buffers that the forward pass changes."""
    per_shard: tuple[Text, ...] = ()
    """Those of which each logical shard has its own."""
    clip_norm: Number = 0.0
    """Limit of the norm of the whole gradient; 0: none."""
    shuffle: bool = True
    """False: samples come in the order of the data."""
    loaders: Count = 0
    """Processes of each worker that load samples ahead; 0: none."""
    variables: tuple[tuple[Text, Text], ...] = ()
    """Name and value of the environment variables that decide about numerics, for members on all hosts."""

    @property
    def places(self) -> dict[str, Site]:
        """Sites that may hold members, by name; the site `here` for a job without sites."""
        return {site.name: site for site in self.sites or (NOWHERE_ELSE,)}

    def reach_at(self, site: str) -> NetworkConfig:
        """Return the network addresses of a member on a site; "": those of any member of a job without sites."""
        return replace(self.reach, hosts=(self.places[site].address,)) if site else self.reach

    @property
    def layout(self) -> Layout:
        """Positions of parameters and blocks in the flat vector."""
        return Layout(tuple(Param(*param) for param in self.params), self.extents, self.n_buffers)

    @property
    def moving(self) -> frozenset[str]:
        """Names of the buffers that the forward pass changes."""
        return frozenset(p.name for p in self.layout.buffers)

    def epoch_of(self, step: int) -> int:
        """Return the epoch in which a step begins."""
        return step * self.batch // max(self.n_samples, 1)

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Return the checkpoints of the job in this folder."""
        from labkit.elastic.checkpoint.store import Checkpoints
        from labkit.elastic.server.optimizers import optimizer

        return Checkpoints(
            folder / CHECKPOINTS, layout=self.layout, optimizer=optimizer(self.optimizer, **self.options),
            training=self.training,
        )  # fmt: skip

    @property
    def training(self) -> dict[str, int]:
        """Numbers that decide which samples a step takes, and the order in which their gradients are summed."""
        numbers = {"seed": self.seed, "batch": self.batch, "n_shards": self.n_shards, "n_samples": self.n_samples}
        return numbers if self.shuffle else {**numbers, "shuffle": 0}

    def files_of(self, role: str) -> tuple[str, ...]:
        """Return the names of the files that a member needs."""
        if role == "worker":
            return SPEC, FILE
        return (SPEC, UPDATE) if self.has_rule else (SPEC,)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that members need, of either role."""
        return tuple(dict.fromkeys((*self.files_of("worker"), *self.files_of("server"))))

    def save(self, folder: Path) -> None:
        """Write it into the folder of the job."""
        save_struct(folder / SPEC, self)

    @classmethod
    def load(cls, folder: Path) -> Spec:
        """Read it from the folder of the job; JobFileError if the file is damaged or of another version."""
        return load_struct(folder / SPEC, cls)


COMPARED: Final = 1 << 24
"""Bytes that are compared at once, where a map may have private changes."""


class MappedPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as cloudpickle does, but `np.memmap` and views of it by path, type, shape, offset and strides."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is made again."""
        place = _place(obj) if isinstance(obj, np.ndarray) else None
        return super().reducer_override(obj) if place is None else (mapped, place)


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Return the arguments with which `mapped` makes an array again; None if it lies in no file."""
    root: Any = array
    while isinstance(root, np.ndarray) and getattr(root, "_mmap", None) is None:
        root = root.base
    root = root if isinstance(root, np.memmap) else None
    if root is None or root.filename is None or not Path(root.filename).is_file() or array.dtype.hasobject:
        return None
    raw: Any = np.frombuffer(root._mmap, np.uint8)
    first = root.offset - root.offset % mmap.ALLOCATIONGRANULARITY  # where the map begins in the file
    inside = array.__array_interface__["data"][0] - raw.__array_interface__["data"][0]
    if not 0 <= inside <= len(raw):
        return None
    place = os.path.abspath(root.filename), root.mode, first, len(raw), array.dtype, array.shape, inside, array.strides
    return None if root.mode == "c" and not _same(raw, root.filename, first) else place


def _same(raw: np.ndarray[Any, Any], path: Any, first: int) -> bool:
    """Return whether a map whose changes are private has the bytes of its file."""
    there = np.memmap(path, np.uint8, "r", first, raw.shape)
    parts = range(0, len(raw), COMPARED)
    return all(np.array_equal(raw[i : i + COMPARED], there[i : i + COMPARED]) for i in parts)


def mapped(
    path: str, mode: str, first: int, n_bytes: int, dtype: np.dtype[Any], shape: tuple[int, ...], inside: int,
    strides: tuple[int, ...],
) -> Any:  # fmt: skip
    """Map a file as another process had it.

    Parameters
    ----------
    path, mode : str
        Of the file; it must be there on this host.
    begun, n_bytes : int
        Part of the file that is mapped.
    dtype, shape, inside, strides
        Of the array in it; `inside` is the byte of the part at which the first number lies.
    """
    whole = np.memmap(path, np.uint8, "r+" if mode == "w+" else mode, first, (n_bytes,))  # type: ignore[call-overload]
    return np.ndarray(shape, dtype, whole, inside, strides)
