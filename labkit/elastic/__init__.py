"""The elastic parameter-server runtime: servers and workers are added, removed and moved while a job trains.

>>> from labkit.elastic import models, train
>>> from labkit.elastic.data import dataset
>>> result = train(  # doctest: +SKIP
...     models.build("cnn", width=0.1), dataset("cnn", width=0.1), models.loss("cnn"), steps=100, workers=2, servers=2
... )
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.elastic.errors import JobError, NoAnswerError, NotDoneError, OverError
    from labkit.elastic.job import Job
    from labkit.elastic.job_start import attach, start, train
    from labkit.elastic.result import Result
    from labkit.elastic.server.optimizers import OwnUpdate
    from labkit.elastic.training_logs import TrainingLog, training_log
    from labkit.elastic.validation import Validation

__all__ = [
    "Job", "JobError", "NoAnswerError", "NotDoneError", "OverError", "OwnUpdate", "Result", "TrainingLog", "Validation",
    "attach", "start", "train", "training_log",
]  # fmt: skip
_MODULES = {
    "Job": "job", "OwnUpdate": "server.optimizers", "Result": "result", "start": "job_start", "train": "job_start",
    "TrainingLog": "training_logs", "training_log": "training_logs", "Validation": "validation",
    "attach": "job_start",
}  # fmt: skip
"""Modules of public names; all others are in `errors`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the processes of a job need few of them."""
    if name in __all__:
        module = _MODULES.get(name, "errors")
        return getattr(import_module(f"labkit.elastic.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
