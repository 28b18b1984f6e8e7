"""The elastic parameter-server runtime: training whose servers and workers come and go while it runs.

>>> from labkit.elastic import models, train
>>> from labkit.elastic.data import dataset
>>> result = train(  # doctest: +SKIP
...     models.build("cnn", width=0.1), dataset("cnn", width=0.1), models.loss("cnn"), steps=100, workers=2, servers=2
... )
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.elastic.errors import JobError, NoAnswerError, NotDoneError, OverError
    from labkit.elastic.job import Job, Result, start, train

__all__ = ["Job", "JobError", "NoAnswerError", "NotDoneError", "OverError", "Result", "start", "train"]


def __getattr__(name: str) -> Any:
    """Import what runs a job only when it is asked for: its processes need little of it."""
    if name in __all__:
        from labkit.elastic import errors, job

        return getattr(errors if name.endswith("Error") else job, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
