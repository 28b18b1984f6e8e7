"""A script that is run for a job, up to its loop, in a thread of its own: where the job starts, and in each worker."""

from __future__ import annotations

import hashlib
import itertools
import linecache
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError
from labkit.elastic.errors import ChangedError
from labkit.elastic.script_loop import BATCH, SET_HANDLER, THREAD, Ended, HandlerRequest, Left, ScriptLoop, Turns

if TYPE_CHECKING:
    from labkit.elastic.plain import MicroBatch
    from labkit.elastic.protocol.program import Program


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
            with command_line_of(self.script.path, self.script.args):
                answer = self._turns.ask(Ended(state))
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                return
            raise InputError(f"after the training, {error_text(error, self.script.path)}") from error
        finally:
            sys.modules["__main__"] = main
        if isinstance(answer, ScriptLoop):
            raise InputError(f"{self.script.path}: a second labkit.elastic in one script; expected one.")


@contextmanager
def command_line_of(path: str | Path, args: Sequence[str]) -> Iterator[None]:
    """Let a file see the command line that it would have alone."""
    argv, sys.argv = sys.argv, [str(path), *args]
    try:
        yield
    finally:
        sys.argv = argv


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
    args: tuple[str, ...] = ()
    """Arguments of its command line."""
    batch: int | None = None
    """Samples of an update, whatever the script says; None: as it says."""

    @classmethod
    def of(cls, path: Path, *, seed: int, args: Sequence[str] = ()) -> Script:
        """Read it."""
        return cls(str(path.absolute()), path.read_text(encoding="utf-8"), seed, args=tuple(args))

    def start(self, *, starting: bool) -> LoopLoss:
        """Run it up to its loop, in a thread of its own; InputError if it raises, or has no loop."""
        turns, main = Turns(), sys.modules["__main__"]
        method = multiprocessing.get_start_method(allow_none=True)
        thread = threading.Thread(target=self._run, args=(turns, starting), name="script", daemon=True)
        try:
            with command_line_of(self.path, self.args), ExitStack() as quiet:
                if not starting:  # the process that was started by the user has printed it
                    quiet.enter_context(redirect_stdout(quiet.enter_context(open(os.devnull, "w"))))
                thread.start()
                found = turns.wait()
        except BaseException as error:
            if starting:
                raise InputError(error_text(error, self.path)) from error
            raise ChangedError(
                f"{error_text(error, self.path)}, where it is run again, as in each worker, but not where the job was "
                "started. What comes before the loop must do so each time: os.makedirs(..., exist_ok=True); what is to "
                "happen once comes behind `if job.starting:`."
            ) from error
        finally:
            sys.modules["__main__"] = main
            if multiprocessing.get_start_method(allow_none=True) is None:
                multiprocessing.set_start_method(method, force=True)
        if isinstance(found, Left):
            raise InputError(f"{self.path} came to its end without a loop over labkit.elastic(...); expected one.")
        return LoopLoss(self if self.beside else self._with_modules(), found, turns)

    def _run(self, turns: Turns, starting: bool) -> None:
        from labkit.elastic.loading import seed_all

        THREAD.turns, THREAD.starting, THREAD.batch = turns, starting, self.batch
        turns.module = module = ModuleType("__main__")
        module.__file__ = self.path
        sys.modules["__main__"] = module
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        multiprocessing.set_start_method(None, force=True)  # a script may set it, each time that it runs
        signal.signal = _set_handler  # type: ignore[assignment]
        _install_source_finder(self.beside)
        linecache.cache[self.path] = len(self.source), None, self.source.splitlines(keepends=True), self.path
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


def _set_handler(number: int, handler: Any) -> Any:
    """Do as `signal.signal`; of a script in the main thread of the process that the user started, and in no worker."""
    turns: Turns | None = getattr(THREAD, "turns", None)
    if turns is None:
        return SET_HANDLER(number, handler)
    if not THREAD.starting:
        return signal.getsignal(number)
    if callable(handler):
        name = signal.Signals(number).name
        print(
            f"labkit: the script's handler of {name} runs in this process; the body of the loop, in workers, does not "
            "see what it does.",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    before = turns.answer(HandlerRequest(number, handler))
    if isinstance(before, Exception):
        raise before
    return before


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
