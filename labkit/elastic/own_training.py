"""A training of one's own: a file that defines model, data and loss, or a script with a loop of its own.

This is the one form for `labkit train`, `labkit train --auto`, `labkit deploy --script` and notebooks.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Unpack

from labkit.core.errors import InputError
from labkit.elastic.script import LoopLoss, Script, command_line_of, line_of
from labkit.elastic.script_loop import BATCH, ScriptLoop
from labkit.elastic.script_text import has_loop

if TYPE_CHECKING:
    from torch import nn

    from labkit.elastic.job import Job
    from labkit.elastic.options import JobOptions
    from labkit.elastic.result import Result
    from labkit.elastic.validation import Validation

NEEDED: Final = ("model", "data", "loss")
OF_CATALOGUE: Final = ("width", "samples")
"""Options of models of the catalogue."""
OF_FILE: Final = ("schedule", "optimizer", "scheduler", "state")
"""Arguments of `start` that a file may define by their names."""
FILE: Final = "training.pickle"
OF_VALIDATION: Final = ("validate_every", "patience", "metric", "best")


@dataclass(frozen=True, slots=True)
class OwnTraining:
    """Model, data and loss of a training, and what a file may define besides.

    Attributes
    ----------
    model : Module
        The model: `model()` returns it, or `model` is it.
    data : object
        The samples: `data()` returns them, or `data` is them.
    loss : callable
        (model, batch) to a loss, or (loss, metrics by name).
    validation_data : object
        Other samples, in the same way; None: no validation.
    validation_loss : callable, optional
        Instead of `loss`, for validation.
    schedule : callable, optional
        See `labkit.elastic.schedules`.
    optimizer : OwnUpdate, Optimizer, callable or sequence of these, optional
        An update of one's own, an optimizer of torch, or a function of the model that returns one.
    scheduler : LRScheduler, callable or sequence of these, optional
        Its scheduler of torch, or a function of the optimizer that returns one.
    state : mapping, optional
        A `state_dict` to begin with.
    options : dict
        Further arguments of `labkit.elastic.start`; the command line counts more.
    """

    model: Any
    data: Any
    loss: Callable[[Any, Any], Any]
    validation_data: Any = None
    validation_loss: Callable[[Any, Any], Any] | None = None
    schedule: Callable[[int], float] | None = None
    optimizer: Any = None
    scheduler: Any = None
    state: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `labkit.elastic.start` that the file defines, beside model, data and loss."""
        return {**self.options, **{name: value for name in OF_FILE if (value := getattr(self, name)) is not None}}

    @property
    def batch(self) -> int | None:
        """Samples of an update, as its options, its DataLoader or its script say; None: they do not."""
        own: int | None = self.options.get("batch") or getattr(self.data, "batch_size", None)
        return BATCH if own is None and isinstance(self.loss, LoopLoss) else own

    def with_batch(self, batch: int) -> OwnTraining:
        """Return it with another batch size, whatever its options, its DataLoader or its script say."""
        from labkit.elastic.loading import with_batch_size

        loss = self.loss
        if isinstance(loss, LoopLoss):
            loss = replace(loss, script=replace(loss.script, batch=batch))
        return replace(
            self, data=with_batch_size(self.data, batch), loss=loss, options={**self.options, "batch": batch}
        )  # fmt: skip

    def start(self, **options: Unpack[JobOptions]) -> Job:
        """Start a job, as `labkit.elastic.start` does; options count more than what the file says."""
        from labkit.elastic.job_start import start

        return start(self.model, self.data, self.loss, **{**self.arguments, **options})

    def check(self) -> None:
        """Raise InputError unless it can be trained, as far as model, samples and loss show."""
        from labkit.elastic.loading import Loading
        from labkit.elastic.protocol.program import Program

        samples = Loading.of(self.data, batch=None, shuffle=True, loaders=0, default=1).data
        Program(self.model, samples, self.loss).check()

    def check_unvalidated(self, name: str, *, instead: str) -> None:
        """Raise InputError if a file defines samples to validate with, where a job has cores for its members alone."""
        if self.validation_data is not None:
            raise InputError(
                f"{name} defines validation_data, which would need cores beside those of the job; {instead}."
            )

    def save(self, folder: Path) -> None:
        """Pickle it into a folder, whole: optimizers keep their parameters; a script is sent as its text."""
        from labkit.elastic.protocol.program import MappedPickler

        with (folder / FILE).open("wb") as file:
            MappedPickler(file).dump(self.loss.sent() if isinstance(self.loss, LoopLoss) else self)

    @classmethod
    def load(cls, folder: Path) -> OwnTraining:
        """Unpickle what `save` wrote."""
        import pickle

        sent = pickle.loads((folder / FILE).read_bytes())  # written by this user, and brought to this host
        if isinstance(sent, cls):
            return sent
        loss = sent.program().loss
        return of_loop(loss.loop, loss)

    def finish(self, result: Result) -> None:
        """Let a script with a loop of its own go on after it, with the trained model, its optimizer and scheduler.

        Of other files nothing is left.

        Raises
        ------
        InputError
            If it raises: where.
        """
        if isinstance(self.loss, LoopLoss):
            if not isinstance(self.optimizer, str):
                result.load_optimizer(self.optimizer, self.scheduler)
            self.loss.finish(result.state_dict())


def of_loop(loop: ScriptLoop, loss: Any) -> OwnTraining:
    """Return the training of `labkit.elastic(model, optimizer, loader)`, with a loss in place of the loop's body."""
    options: dict[str, Any] = {**loop.options, "steps": loop.steps}
    given = {name: options.pop(name) for name in ("schedule", "state") if name in options}
    return OwnTraining(
        loop.model, loop.data, loss, optimizer=loop.optimizer, scheduler=loop.scheduler, options=options, **given
    )  # fmt: skip


def train(
    model: nn.Module | str | Path, data: Any = None, loss: Any = None, *, args: Sequence[str] = (),
    **options: Unpack[JobOptions],
) -> Result:  # fmt: skip
    """Train a model on parameter servers and workers in processes of their own; return when it is done.

    See `labkit.elastic.start` for the parameters; or a file of one's own, as for `labkit train`:
    `train("mine.py", workers=3, args=["--epochs", "3"])`. What members print comes on stderr, with their names. An
    interrupt ends the job: its state is saved, and a line on stderr has the folder and how to go on. A second interrupt
    ends it at once.

    Raises
    ------
    InputError
        If a parameter is invalid.
    JobError
        If the job fails.
    """
    if isinstance(model, str | Path):
        training = read_training(Path(model), seed=options.get("seed", 0), args=args)
    else:
        training = OwnTraining(model, data, loss)
    with training.start(**options) as job:
        job.show_printed()
        result = job.wait()
        training.finish(result)
    return result


def is_file(model: str) -> bool:
    """Return whether this names a file, not a model of the catalogue.

    >>> is_file("mine.py"), is_file("cnn")
    (True, False)
    """
    return model.endswith(".py") or "/" in model


def catalogued(name: str, *, width: float, samples: int, seed: int) -> OwnTraining:
    """Return a model of the catalogue with its data, loss and learning rate."""
    from labkit.elastic import models
    from labkit.elastic.data import dataset

    return OwnTraining(
        models.build(name, width=width, seed=seed), dataset(name, n=samples, seed=seed, width=width), models.loss(name),
        options={"lr": models.learning_rate(name)},
    )  # fmt: skip


def arguments_of(training: OwnTraining, how: Mapping[str, Any], *, typed: Collection[str]) -> dict[str, Any]:
    """Return the arguments of `start`: what was typed, else what the file says, else defaults of the command line.

    Parameters
    ----------
    training : OwnTraining
        What is trained.
    how : mapping
        Options of the command line, with the names of arguments; None: not given.
    typed : collection of str
        Those that were typed.
    """
    given = {name: value for name, value in how.items() if value is not None}
    defaults = {name: value for name, value in given.items() if name not in typed}
    if hasattr(training.data, "batch_size") or hasattr(training.loss, "loop"):
        defaults.pop("batch", None)  # a DataLoader has one, a script's loop that of the script alone
    return {**defaults, **training.arguments, **{name: given[name] for name in given if name in typed}}


def validation_of(
    training: OwnTraining, *, steps: int, validate_every: int | None, patience: int | None, metric: str, best: str,
    typed: Collection[str],
) -> Validation | None:  # fmt: skip
    """Return how a training is validated; None if its file has no samples for it.

    Raise InputError if options of a validation were typed, and there are no samples.
    """
    from labkit.elastic.validation import Validation

    if training.validation_data is None:
        for name in OF_VALIDATION:
            if name in typed:
                raise InputError(
                    f"--{name.replace('_', '-')}: there are no samples to validate with; expected a file that defines "
                    "validation_data()."
                )
        return None
    return Validation(
        data=training.validation_data, every=max(1, steps // 10) if validate_every is None else validate_every,
        loss=training.validation_loss, metric=metric, best=best, patience=patience,
    )  # fmt: skip


def read_training(path: Path, *, seed: int, args: Sequence[str] = ()) -> OwnTraining:
    """Run a file, and return what it defines; a script with a loop of its own is run up to its loop.

    Parameters
    ----------
    path : Path
        The file.
    seed : int
        With which torch is seeded before the model is made.
    args : sequence of str
        Arguments that the file finds in `sys.argv`, in each process that runs it.

    Raises
    ------
    InputError
        If it cannot be read, raises, or lacks a name.
    """
    import torch

    if has_loop(path):
        loss = Script.of(path, seed=seed, args=args).start(starting=True)
        return of_loop(loss.loop, loss)
    torch.manual_seed(seed)  # of what the file itself makes
    with command_line_of(path, args):
        return training_of(path, _executed(path), seed=seed)


def training_of(path: Path, module: ModuleType, *, seed: int) -> OwnTraining:
    """Return the definitions of a file's module; see `read_training`."""
    import torch

    from labkit.elastic.data import as_dataset

    for name in NEEDED:
        if not hasattr(module, name):
            near = [other for other in vars(module) if other.lower().startswith(name[:4]) and not other.startswith("_")]
            hint = f" It has '{near[0]}'." if near else ""
            raise InputError(f"{path} defines no '{name}'; expected model(), data() and loss(model, batch).{hint}")
    torch.manual_seed(seed)
    given = {f.name: getattr(module, f.name) for f in fields(OwnTraining) if hasattr(module, f.name)}
    for name in ("model", "data", "validation_data"):
        if name in given:
            given[name] = _result_of(path, name, given[name])
    for name in ("data", "validation_data"):
        if isinstance(given.get(name), tuple | list):
            given[name] = as_dataset(given[name])
    if not isinstance(given.get("options", {}), dict):
        kind = type(given["options"]).__name__
        raise InputError(f"{path}: options is a {kind}; expected a dict of arguments of start.")
    return OwnTraining(**given)


def content_of(path: Path, *args: str) -> str:
    """Return the SHA-256 of a file and its arguments, and of the modules beside it that it imports, and these import.

    What is imported at run time by a name, and files that are read, do not count.
    """
    path = path.absolute()
    found, unread = dict[Path, bytes](), [path]
    while unread:
        if (file := unread.pop()) not in found:
            found[file] = file.read_bytes()
            unread += _imported(found[file], file, path.parent)
    whole = hashlib.sha256(found.pop(path))
    for file in sorted(found):
        whole.update(f"\0{file.relative_to(path.parent)}\0".encode() + found[file])
    for each in args:
        whole.update(f"\0{each}".encode())
    return whole.hexdigest()


def _imported(text: bytes, file: Path, top: Path) -> Iterator[Path]:
    """Yield the files below a folder of the modules that a file imports, and of their packages."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return  # `_executed` says what is wrong
    for node in nodes:
        places: list[Path] = []
        if isinstance(node, ast.Import):
            places = [top.joinpath(*alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = (file.parents[node.level - 1] if node.level else top).joinpath(*(node.module or "").split("."))
            places = [module / alias.name for alias in node.names]
        for each in (each for place in places for each in (place, *place.parents) if top in each.parents):
            yield from (one for one in (each.with_name(f"{each.name}.py"), each / "__init__.py") if one.is_file())


def _executed(path: Path) -> ModuleType:
    """Return the module of a file; what it defines is pickled by value, so that workers need not find the file."""
    import cloudpickle

    if not path.is_file():
        raise InputError(f"{path}: there is no such file; expected a Python file, or the name of a model.")
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # modules beside it
    spec = importlib.util.spec_from_file_location(f"labkit_train_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(spec.name, None)
        raise InputError(f"{path}{line_of(error, path)}: {type(error).__name__}: {error}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def _result_of(path: Path, name: str, value: Any) -> Any:
    """Return the result of a function without arguments, or the object itself."""
    from torch import nn

    if isinstance(value, nn.Module) or not callable(value) or hasattr(value, "__len__"):
        return value
    try:
        return value()
    except Exception as error:
        raise InputError(f"{path}{line_of(error, path)}: {name}() raised {type(error).__name__}: {error}") from error
