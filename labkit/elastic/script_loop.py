"""Scripts with a loop of their own: `with labkit.elastic(model, optimizer, loader, steps=100) as job`.

Run by Python, such a script trains alone. `labkit train script.py` runs it up to its loop, starts a job, and lets it go
on with the trained model. Each worker runs it up to its loop, too, and computes the losses of its shards in it. So a
script is a program that is sent as its text: what it makes before the loop must be the same in each process, which is
checked.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Unpack

from labkit.core.errors import InputError, unknown
from labkit.elastic.errors import ChangedError
from labkit.elastic.loop_body import BodyCheck, one_or_several
from labkit.elastic.models.sizes import whole
from labkit.system.threads import one_thread

if TYPE_CHECKING:
    from labkit.elastic.options import LoopOptions
    from labkit.elastic.plain import MicroBatch
    from labkit.elastic.protocol.program import Program

PROCESSES: Final = frozenset(
    {
        "workers", "servers", "most_servers", "standby", "lease_s", "start_s", "patience_s", "restarts", "place",
        "restarts_within_s", "folder", "detached", "resume", "network", "addresses", "ports", "sites", "loads_every_s",
        "measure_every_s", "partition", "proof", "save_every", "loaders", "devices",
    }
)  # fmt: skip
"""Options without effect where a script trains alone."""
TOGETHER: Final = ("validate", "sync", "state")
"""Options that a script cannot have alone; it says so."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over; `state` is the trained `state_dict`."""

    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Left:
    """The script has come to its end."""


class Turns:
    """Two threads of which one runs at a time: that of a script, and the one that asks it for losses.

    `module` is that of the script, `__main__` while it is alone in its process.
    """

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self._asked: SimpleQueue[Any] = SimpleQueue()
        self._answered: SimpleQueue[Any] = SimpleQueue()

    def ask(self, question: Any) -> Any:
        """Let the script go on until its next answer; raise what it raised."""
        self._asked.put(question)
        return self.wait()

    def wait(self) -> Any:
        """Return the next answer of the script."""
        answer = self._answered.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self, answer: Any) -> None:
        """Give the last answer."""
        self._answered.put(answer)

    def answer(self, answer: Any) -> Any:
        """Give an answer, and return the next question."""
        self._answered.put(answer)
        return self._asked.get()


_THREAD = threading.local()
"""Has `turns` in the thread of a script that is run for a job."""


class ScriptLoop:
    """The training of a script with a loop of its own; see `labkit.elastic`.

    Parameters
    ----------
    model : Module
        The model, which the body of the loop calls.
    optimizer : Optimizer or sequence of these
        Of torch, over the model's parameters.
    loader : DataLoader, dataset, or tuple of tensors
        The samples. The body gets batches of the size of a logical shard.
    steps, epochs : int
        Updates of the parameters, or passes over the samples; one of the two.
    scheduler : LRScheduler or sequence of these, optional
        Of torch.
    options
        Further arguments of `labkit.elastic.start`; what is typed with `labkit train` counts more.

    Attributes
    ----------
    update : int
        Number of the update that the present batch is for, from 0.
    epoch : int
        Number of the epoch, from 0.
    starting : bool
        Whether this process is the one that was started by the user: what is to happen once, happens there.

    Examples
    --------
    >>> import torch, labkit.elastic
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer, samples = torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(8, 2), torch.zeros(8, 1))
    >>> with labkit.elastic(model, optimizer, samples, steps=20, batch=8, shards=2) as job:
    ...     for x, y in job:
    ...         job.step(torch.nn.functional.mse_loss(model(x), y))
    >>> bool(model(torch.ones(1, 2)).abs() < 0.01)
    True
    """

    def __init__(
        self, model: Any, optimizer: Any, loader: Any, *, steps: int | None = None, epochs: int | None = None,
        scheduler: Any = None, **options: Unpack[LoopOptions],
    ) -> None:  # fmt: skip
        if (steps is None) == (epochs is None):
            raise InputError(f"steps is {steps}, epochs {epochs}; expected one of them: updates, or passes over data.")
        self.model, self.optimizer, self.scheduler, self.options = model, optimizer, scheduler, options
        self.data = _as_samples(loader)
        if (batch := getattr(_THREAD, "batch", None)) is not None:
            from labkit.elastic.loading import with_batch_size

            self.data, options["batch"] = with_batch_size(self.data, batch), batch
        self.steps = self._of_epochs(epochs) if steps is None else whole("steps", steps, least=1)
        self.update = self.epoch = 0
        self._turns: Turns | None = getattr(_THREAD, "turns", None)
        self.starting: bool = getattr(_THREAD, "starting", True)
        self._begun = self._over = self._out = False
        self._returned: Any = None
        self._checked: BodyCheck | None = None
        self._told = 0
        _check_options(options, optimizer)
        if not hasattr(model, "named_parameters"):
            raise InputError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module. Several are one: "
                "torch.nn.ModuleDict({'d': d, 'g': g})."
            )

    def _of_epochs(self, epochs: Any) -> int:
        batch = self.options.get("batch") or getattr(self.data, "batch_size", None) or BATCH
        try:
            n = len(getattr(self.data, "sampler", self.data))
        except TypeError:
            raise InputError(f"epochs is {epochs}, of a stream whose length is not known; expected steps=.") from None
        passes = whole("epochs", epochs, least=1)
        drops = getattr(self.data, "drop_last", False)
        return max(1, passes * (n // int(batch)) if drops else passes * n // int(batch))

    def __enter__(self) -> ScriptLoop:
        frame = sys._getframe(1)
        _check_one_loop(frame.f_code.co_filename, frame.f_lineno)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._turns is None or self._over or not self._begun:
            return
        why = error or InputError(
            f"the loop of the script ended at update {self.update}, by break or return; expected to go through all "
            f"{self.steps} updates: Job.stop and Validation(patience=...) end a job early."
        )
        self._turns.answer(why)  # which waits for ever: what follows the loop is not for workers

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise InputError(
                "a second loop over the same job; expected one loop over all epochs: labkit.elastic(..., epochs=10), "
                "and job.epoch in it."
            )
        self._begun = True
        own = self.data, getattr(self.data, "dataset", None)
        self._checked = BodyCheck(self.model, (self.optimizer, self.scheduler), self, *own)
        return self._alone() if self._turns is None else self._hosted(self._turns)

    def step(self, loss: Any, weight: Any = None, **metrics: Any) -> None:
        """Have a batch's part of the update made, instead of `backward`, `optimizer.step` and `zero_grad`.

        Parameters
        ----------
        loss : Tensor
            The mean of the losses of the batch; with `weight` their sum.
        weight : float or Tensor, optional
            What the sum is divided by, together with those of the other shards: tokens that count, class weights.
        metrics
            Numbers by name that are to be seen beside the loss.

        Raises
        ------
        InputError
            If it is called twice for a batch, or outside the loop.
        """
        if not self._out or self._returned is not None:
            raise ChangedError(
                "job.step(loss) is called once for each batch, in the loop over the job. Add up several losses; of two "
                "optimizers in turn give a list, and the loss of number job.update % 2."
            )
        self._returned = (loss, metrics) if weight is None else (loss, weight, metrics)

    def auto(self, loss: Any, **options: Any) -> Any:
        """Train by `labkit.auto` and its options; `loss(model, batch)` takes the place of the loop's body.

        Raise InputError if the job trains already.
        """
        if self._begun or self._turns is not None:
            raise InputError(
                "job.auto(loss) of a job that trains already; expected it in place of the loop. A script with a loop "
                "configures itself by labkit train FILE.py --auto."
            )
        return import_module("labkit").auto(self, loss=loss, steps=self.steps, **options)  # of a layer above

    def _body(self, batch: MicroBatch) -> Iterator[Any]:
        """Yield a batch to the body of the loop."""
        self.update, self.epoch = batch.step, batch.epoch
        self._out, self._returned = True, None
        assert self._checked is not None  # `__iter__` has made it
        try:
            for _ in self._checked.around():
                yield batch.batch
        except ChangedError as error:
            raise ChangedError(f"update {self.update}: {error}") from None
        self._tell_changed()
        self._out = False
        if self._returned is None:
            raise ChangedError(f"the body of the loop came to its end at update {self.update} without job.step(loss).")

    def _hosted(self, turns: Turns) -> Iterator[Any]:
        import torch

        asked = turns.answer(self)
        rates = None if self.starting else WorkerRates(self.optimizer, self.scheduler, self.options)
        while not isinstance(asked, Ended):
            if rates is not None:
                rates.at(asked.batch.step)
            if torch.get_num_threads() != asked.n_threads:  # of OpenMP, which has a number for each thread
                torch.set_num_threads(asked.n_threads)
            with ExitStack() as around:
                for context in asked.around:
                    around.enter_context(context)
                yield from self._body(asked.batch)
            asked = turns.answer(self._returned)
        self.model.load_state_dict(asked.state)
        self._over = True

    def _alone(self) -> Iterator[Any]:
        from labkit.elastic.plain import plain_rounds
        from labkit.elastic.protocol.program import FLOAT32
        from labkit.elastic.worker.forward import cast, parted

        self._tell_alone()
        rounds = plain_rounds(self.model, self.data, self.training, self.steps)
        with one_thread():  # as workers
            try:
                asked = next(rounds)
                while True:
                    with cast("cpu", self.options.get("precision", FLOAT32)):
                        yield from self._body(asked)
                    asked = rounds.send(parted(self._returned))
            except StopIteration:
                self._over = True

    @property
    def changed(self) -> list[str]:
        """Names of variables that the body of the loop changes for itself."""
        return [] if self._checked is None else self._checked.changed

    def _tell_changed(self) -> None:
        new, self._told = self.changed[self._told :], len(self.changed)
        if new and self._checked is not None and (self._turns is None or self._checked.n > OF_PROOF):
            names = ", ".join(new[:MOST_NAMED])
            print(
                f"labkit: the body of the loop changes {names}: each worker would have its own. job.update counts "
                "updates; job.step(loss, name=number) keeps numbers.",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def _tell_alone(self) -> None:
        for name in TOGETHER:
            if name in self.options:
                raise InputError(f"{name}= needs processes; expected labkit train {_file()}, or a loop without it.")
        shards = int(self.options.get("shards", 8))
        without = sorted(PROCESSES & self.options.keys())
        more = f"; {', '.join(without)}: without effect" if without else ""
        print(
            f"labkit: trains alone, in this process, in batches of 1/{shards} of an update; labkit train {_file()} "
            f"trains it on workers and servers{more}.",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    @property
    def training(self) -> dict[str, Any]:
        """Arguments of `labkit.elastic.start` beside model, data and loss."""
        scheduler = {} if self.scheduler is None else {"scheduler": self.scheduler}
        return {**self.options, "optimizer": self.optimizer, **scheduler}


class WorkerRates:
    """The schedulers of a script in a worker, stepped to the update that its body is for, as the body may read rates.

    `optimizers`, `schedulers`: one or several; functions that make one are left out. The updates themselves are made on
    servers, with schedulers of their own.
    """

    def __init__(self, optimizers: Any, schedulers: Any, options: Mapping[str, Any]) -> None:
        self._every = options.get("scheduler_every", 1)
        self._schedulers = [each for each in one_or_several(schedulers) if hasattr(each, "last_epoch")]
        self._groups = [group for each in one_or_several(optimizers) for group in getattr(each, "param_groups", ())]
        self._n = 0
        self._first = copy.deepcopy([each.state_dict() for each in self._schedulers])
        self._options = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]

    def at(self, update: int) -> None:
        """Step them to an update, from 0; back to the first one where it lies behind."""
        if not self._schedulers:
            return
        n = update // self._every
        if n < self._n:
            for scheduler, state in zip(self._schedulers, self._first, strict=True):
                scheduler.load_state_dict(copy.deepcopy(state))
            for group, options in zip(self._groups, self._options, strict=True):
                group.update(copy.deepcopy(options))
            self._n = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a scheduler is stepped before its optimizer, which is elsewhere
            while self._n < n:
                for scheduler in self._schedulers:
                    scheduler.step()
                self._n += 1


OF_PROOF: Final = 3
"""Bodies whose changes the proof at the start names; later ones each worker names itself."""
MOST_NAMED: Final = 3
"""Variables that a line names."""
BATCH: Final = 64
"""Samples of an update where neither options nor a DataLoader say it."""


def _as_samples(loader: Any) -> Any:
    from labkit.elastic.data import as_dataset

    return as_dataset(tuple(loader)) if isinstance(loader, tuple | list) else loader


def _check_one_loop(path: str, line: int) -> None:
    """Raise InputError if the `with` at a line of a script has its loop in another one, which would begin it again."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return  # such as a cell of a notebook
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.With) and node.lineno == line]
    names = {getattr(item.optional_vars, "id", "") for node in inside for item in node.items}
    outer = [each for node in inside for each in ast.walk(node) if isinstance(each, ast.For | ast.While)]
    for inner in (each for loop in outer for each in ast.walk(loop) if each is not loop):
        if isinstance(inner, ast.For) and names & set(_iterated(inner.iter)):
            raise InputError(
                f"{Path(path).name}, line {inner.lineno}: the loop over the job lies in another loop; expected one "
                "loop over all epochs: labkit.elastic(..., epochs=10), and job.epoch in it."
            )


def _iterated(node: ast.expr) -> Iterator[str]:
    """Yield the names that a loop goes through: of job, enumerate(job) and tqdm(job) "job"."""
    if isinstance(node, ast.Name):
        yield node.id
    for each in node.args if isinstance(node, ast.Call) else ():
        yield from _iterated(each)


def _file() -> str:
    name = Path(sys.argv[0]).name if sys.argv else ""
    return name if name.endswith(".py") else "FILE.py"


def _check_options(options: Mapping[str, Any], optimizer: Any) -> None:
    from inspect import signature

    from labkit.elastic.job_start import start

    known = [name for name in signature(start).parameters if name not in ("model", "data", "loss", "steps", "options")]
    for name in options:
        if name not in known and not isinstance(optimizer, str):
            raise unknown("option of labkit.elastic", name, known)


# --- a script that is run for a job


@dataclass(frozen=True, slots=True)
class LossRequest:
    """A question for the loss of a batch, and the contexts and number of threads with which it is to be computed."""

    batch: MicroBatch
    around: tuple[Any, ...]
    n_threads: int


def _surroundings() -> tuple[Any, ...]:
    """Return the contexts of this thread that a loss depends on: autocast, and modes of torch's functions."""
    import torch
    from torch.overrides import _get_current_function_mode_stack

    casts = [
        torch.autocast(device, dtype=torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    return *casts, *_get_current_function_mode_stack()  # type: ignore[no-untyped-call]


@dataclass
class LoopLoss:
    """The loss that the loop of a script computes, in a thread of its own."""

    script: Script
    loop: ScriptLoop
    """What it has come to."""
    _turns: Turns
    _pid: int = field(default_factory=os.getpid)

    def __call__(self, model: Any, batch: Any, step: int = 0, epoch: int = 0) -> Any:
        """Let the script go through the body of its loop once; return what it gave to `job.step`.

        Raise InputError if another model is to be measured: the loop knows its own.
        """
        import torch

        from labkit.elastic.plain import MicroBatch

        if model is not self.loop.model:
            raise InputError(
                "the loss of a script's loop is of its own model alone; expected Validation(loss=...), a function of "
                "(model, batch)."
            )
        return self._turns.ask(LossRequest(MicroBatch(batch, step, epoch), _surroundings(), torch.get_num_threads()))

    @property
    def here(self) -> bool:
        """Whether its thread is in this process; it is not after a fork."""
        return self._pid == os.getpid()

    def again(self) -> LoopLoss:
        """Return it from another run of the script in this process, with the present state of the model."""
        other = self.script.start(starting=False)
        _load(other.loop.model, self.loop.model.state_dict(), self.script)
        return other

    @property
    def changed(self) -> list[str]:
        """See `ScriptLoop.changed`."""
        return self.loop.changed

    @property
    def training(self) -> dict[str, Any]:
        """See `ScriptLoop.training`."""
        return self.loop.training

    def program(self) -> Program:
        """Return model, samples and this loss."""
        from labkit.elastic.loading import Loading
        from labkit.elastic.protocol.program import Program

        samples = Loading.of(self.loop.data, batch=None, shuffle=True, loaders=0, default=BATCH).data
        return Program(self.loop.model, samples, self)

    def sent(self) -> SentScript:
        """Return the part that workers get."""
        program = self.program()
        state = {name: part.detach().cpu() for name, part in self.loop.model.state_dict().items()}
        return SentScript(self.script, state, _fingerprint(program))

    def finish(self, state: Mapping[str, Any]) -> None:
        """Load the trained state into the model, and let the script go on to its end.

        Raises
        ------
        InputError
            If it raises: where.
        """
        answer, main = None, sys.modules["__main__"]
        sys.modules["__main__"] = self._turns.module
        try:
            answer = self._turns.ask(Ended(state))
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                return
            raise InputError(f"after the training, {error_text(error, self.script.path)}") from error
        finally:
            sys.modules["__main__"] = main
        if isinstance(answer, ScriptLoop):
            raise InputError(f"{self.script.path}: a second labkit.elastic in one script; expected one.")


def error_text(error: BaseException, path: str | Path) -> str:
    """Return file, line and words of an error that a script raised."""
    return f"{path}{line_of(error, path)}: {type(error).__name__}: {error}"


def line_of(error: BaseException, path: str | Path) -> str:
    """Return ", line N" of a file that raised; "" if it is not known."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines, at = [], error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == str(path):
            lines.append(at.tb_lineno)
        at = at.tb_next
    return f", line {lines[-1]}" if lines else ""


@dataclass(frozen=True)
class Script:
    """The text of a script with a loop of its own, and of the modules beside it that it has imported."""

    path: str
    source: str
    seed: int
    """Of the random generators before it runs."""
    beside: dict[str, str] = field(default_factory=dict)
    """Text of modules by name, where the file is not there."""
    batch: int | None = None
    """Samples of an update, whatever the script says; None: as it says."""

    @classmethod
    def of(cls, path: Path, *, seed: int) -> Script:
        """Read it."""
        return cls(str(path.absolute()), path.read_text(encoding="utf-8"), seed)

    def start(self, *, starting: bool) -> LoopLoss:
        """Run it up to its loop, in a thread of its own; InputError if it raises, or has no loop."""
        turns, argv, main = Turns(), sys.argv, sys.modules["__main__"]
        thread = threading.Thread(target=self._run, args=(turns, starting), name="script", daemon=True)
        sys.argv = [self.path]
        try:
            with ExitStack() as quiet:
                if not starting:  # the process that was started by the user has printed it
                    quiet.enter_context(redirect_stdout(quiet.enter_context(open(os.devnull, "w"))))
                thread.start()
                found = turns.wait()
        except BaseException as error:
            raise InputError(error_text(error, self.path)) from error
        finally:
            sys.argv, sys.modules["__main__"] = argv, main
        if isinstance(found, Left):
            raise InputError(f"{self.path} came to its end without a loop over labkit.elastic(...); expected one.")
        return LoopLoss(self if self.beside else self._with_modules(), found, turns)

    def _run(self, turns: Turns, starting: bool) -> None:
        from labkit.elastic.loading import seed_all

        _THREAD.turns, _THREAD.starting, _THREAD.batch = turns, starting, self.batch
        turns.module = module = ModuleType("__main__")
        module.__file__ = self.path
        sys.modules["__main__"] = module
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        _install_source_finder(self.beside)
        try:
            seed_all(self.seed)
            exec(compile(self.source, self.path, "exec"), module.__dict__)
        except BaseException as error:
            turns.end(error)
        else:
            turns.end(Left())

    def _with_modules(self) -> Script:
        """Return it with the modules beside it: workers on other hosts have no such files."""
        folder, found = Path(self.path).parent, {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            place = folder.joinpath(*name.split("."))
            if file in (f"{place}.py", str(place / "__init__.py")):
                found[name] = Path(file).read_text(encoding="utf-8")
        return replace(self, beside=found)


def _install_source_finder(beside: Mapping[str, str]) -> None:
    """Let modules be found by their text where their files are not there."""
    from importlib.abc import Loader, MetaPathFinder
    from importlib.machinery import ModuleSpec
    from importlib.util import spec_from_loader

    class SourceFinder(MetaPathFinder, Loader):
        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
            package = any(other.startswith(f"{name}.") for other in beside)
            return spec_from_loader(name, self, is_package=package) if name in beside else None

        def exec_module(self, module: ModuleType) -> None:
            exec(compile(beside[module.__name__], f"{module.__name__}.py", "exec"), module.__dict__)

    if beside:
        sys.meta_path.append(SourceFinder())


@dataclass(frozen=True)
class SentScript:
    """A script for workers, and what must be the same in each of them."""

    script: Script
    state: dict[str, Any]
    """State of the model that the job begins with: frozen parameters and buffers are the same in all workers."""
    fingerprint: str
    """Of the number of samples, and of some of them."""

    def program(self) -> Program:
        """Return the program of this process; InputError if the script made another model or other samples here."""
        loss = self.script.start(starting=False)
        _load(loss.loop.model, self.state, self.script)
        program = loss.program()
        if _fingerprint(program) != self.fingerprint:
            raise InputError(
                f"{self.script.path} has other samples in this process than where the job was started: random numbers "
                "without a seed, the order of a set, the time or a file. Expected the same in each process; for a "
                f"set: PYTHONHASHSEED=0 labkit train {Path(self.script.path).name}."
            )
        return program


def _load(model: Any, state: Mapping[str, Any], script: Script) -> None:
    from labkit.elastic.arguments import load_state

    try:
        load_state(model, state)
    except InputError as error:
        raise InputError(
            f"{script.path} makes another model in each process: {error} Expected the same each time it runs."
        ) from None


def _fingerprint(program: Program) -> str:
    """Return a digest of the number of samples, and of the first one, the last, and one in between."""
    from labkit.elastic.loading import StreamData, random_states, seed_all, set_states

    n, states = len(program.data), random_states()
    seed_all(0)
    digest = hashlib.sha256(f"{n}".encode())
    try:
        looked_at = (0,) if isinstance(program.data, StreamData) else (0, n // 2, n - 1)
        for index in dict.fromkeys(looked_at) if n else ():
            _digest(program.batch([index]), digest)
    except Exception as error:
        raise InputError(f"the samples of the loop cannot be fetched: {type(error).__name__}: {error}.") from error
    finally:
        set_states(states)
    return digest.hexdigest()


def _digest(part: Any, digest: Any) -> None:
    """Add a batch to a digest: its tensors, arrays, numbers and words."""
    import numpy as np
    import torch

    if isinstance(part, torch.Tensor):
        plain = part.detach().to_dense() if part.layout != torch.strided else part.detach()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(part, np.ndarray) and not part.dtype.hasobject:
        digest.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
    elif isinstance(part, Mapping):
        _digest(list(itertools.chain(*part.items())), digest)
    elif isinstance(part, tuple | list):
        for each in part:
            _digest(each, digest)
    else:
        known = isinstance(part, str | bytes | int | float | bool | type(None))
        digest.update(repr(part).encode() if known else type(part).__name__.encode())
