"""The elastic parameter-server runtime: servers and workers are added, removed and moved while a job trains.

>>> from labkit.elastic import models, train
>>> from labkit.elastic.data import dataset
>>> result = train(  # doctest: +SKIP
...     models.build("cnn", width=0.1), dataset("cnn", width=0.1), models.loss("cnn"), steps=100, workers=2, servers=2
... )

The package can be called: `with labkit.elastic(model, optimizer, loader, steps=100) as job` makes a script with a loop
of its own a job; see `ScriptLoop`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from labkit.elastic.errors import JobError, NoAnswerError, NotDoneError, OverError
    from labkit.elastic.job import Job
    from labkit.elastic.job_start import attach, start
    from labkit.elastic.options import ScriptOptions
    from labkit.elastic.own_training import read_training, train
    from labkit.elastic.result import Result
    from labkit.elastic.script_loop import ScriptLoop
    from labkit.elastic.server.optimizers import OwnUpdate
    from labkit.elastic.training_logs import TrainingLog, training_log
    from labkit.elastic.validation import Validation

__all__ = [
    "Job",
    "JobError",
    "NoAnswerError",
    "NotDoneError",
    "OverError",
    "OwnUpdate",
    "Result",
    "ScriptLoop",
    "TrainingLog",
    "Validation",
    "attach",
    "read_training",
    "start",
    "train",
    "training_log",
]  # fmt: skip
_MODULES = {
    "Job": "job", "OwnUpdate": "server.optimizers", "Result": "result", "start": "job_start", "train": "own_training",
    "TrainingLog": "training_logs", "training_log": "training_logs", "Validation": "validation",
    "attach": "job_start", "ScriptLoop": "script_loop", "read_training": "own_training",
}  # fmt: skip
"""Modules of public names; all others are in `errors`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the processes of a job need few of them."""
    if name in __all__:
        module = _MODULES.get(name, "errors")
        return getattr(import_module(f"labkit.elastic.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


class _Package(ModuleType):
    def __call__(self, model: Any, optimizer: Any, loader: Any, **options: "Unpack[ScriptOptions]") -> "ScriptLoop":
        """Return the training of a script with a loop of its own: see `ScriptLoop`."""
        from labkit.elastic.script_loop import ScriptLoop

        return ScriptLoop(model, optimizer, loader, **options)


sys.modules[__name__].__class__ = _Package
