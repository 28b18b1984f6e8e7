"""The threads that validate the saved states of a job while it trains."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from labkit.elastic.checkpoint.store import Checkpoints
from labkit.elastic.controller.job_files import EVENTS, now
from labkit.elastic.controller.losses import encoded
from labkit.elastic.errors import OverError
from labkit.elastic.event_file import read_events
from labkit.elastic.protocol.program import Program
from labkit.elastic.protocol.spec import Spec
from labkit.elastic.saved_model import BEST, SCORE, Score, read_score, state_of
from labkit.elastic.validation import Validation, ValidationError

QUEUED: Final = "to-validate"
"""Folder of states that are to be validated, in that of the job."""


class Validator:
    """Measures states of a job as they are saved, in two threads of the process that started it.

    One thread follows the job's events and sets saved states aside, by hard links, so that they outlast newer ones. The
    other one measures them, in order. Training does not wait for it.

    Parameters
    ----------
    folder : Path
        Of the job.
    spec : Spec
        Of the job.
    program : Program
        Of the job.
    validation : Validation
        What to measure.
    ended : Event
        Set when the job is over.
    stop : callable
        Ends the job, its state saved.

    Attributes
    ----------
    done : Event
        Set when all states have been measured after the end of the job.
    failure : ValidationError, optional
        Why it has ended the job.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        program: Program,
        validation: Validation,
        *,
        ended: threading.Event,
        stop: Callable[[], None],
    ) -> None:
        self._folder, self._spec, self._program, self._validation = folder, spec, program, validation
        self._ended, self._stop = ended, stop
        self._cancelled = threading.Event()
        self.done = threading.Event()
        self.failure: ValidationError | None = None
        known = read_score(folder)
        self._score = known if known is not None and known.metric == validation.metric else Score(validation.metric)
        self._last = -1
        self._saved: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        shutil.rmtree(folder / QUEUED, ignore_errors=True)
        self._set_aside_ = Checkpoints(
            folder / QUEUED, layout=spec.layout, optimizer=spec.checkpoints(folder).optimizer
        )  # fmt: skip
        for run, name in ((self._follow, "saved"), (self._run, "validation")):
            threading.Thread(target=run, name=name, daemon=True).start()

    def cancel(self) -> None:
        """Measure no more, since the folder of the job is to be removed; return when nothing uses it."""
        self._cancelled.set()
        self.done.wait()

    # --- the thread that follows the job

    def _follow(self) -> None:
        """Set aside each saved state that is to be measured."""
        try:
            for version in self._versions():
                with contextlib.suppress(OSError):  # newer ones have replaced it, or the job was deleted
                    source = self._spec.checkpoints(self._folder).path(version)
                    shutil.copytree(source, self._set_aside_.path(version), copy_function=os.link)
                    self._saved.put(version)
        finally:
            self._saved.put(None)

    def _versions(self) -> Iterator[int]:
        """Yield the saved versions that are due, and the last one."""
        every = self._validation.every
        last = None
        for event in read_events(self._folder / EVENTS, ended=self._ended, follow=True):
            if event["event"] == "began" and last is None:
                last = int(event["version"])
            if event["event"] != "saved" or last is None:
                continue
            version = int(event["version"])
            if version > last and (version // every > last // every or version == self._spec.n_steps):
                last = version
                yield version

    # --- the thread that measures

    def _run(self) -> None:
        try:
            while (version := self._saved.get()) is not None and not self._cancelled.is_set():
                if not self._stopped():
                    self._validate(version)
        except ValidationError as error:
            self.failure = error
            self._end()
        finally:
            shutil.rmtree(self._folder / QUEUED, ignore_errors=True)
            self.done.set()

    def _stopped(self) -> bool:
        patience = self._validation.patience
        return patience is not None and self._score.n_worse >= patience

    def _validate(self, version: int) -> None:
        """Measure a state, keep it if it is the best, and end the job if no better one comes any more."""
        began = time.perf_counter()
        model = state_of(self._set_aside_, version, self._program.model)
        try:
            values = self._validation.measured(self._program, model, self._spec.precision, over=self._cancelled)
        except ValidationError as error:
            raise ValidationError(f"step {version}: {error}") from error
        if self._cancelled.is_set():
            return
        value = values.get(self._validation.metric, float("nan"))
        better = self._validation.is_better(value, self._score.value)
        if better:
            self._score = Score(self._validation.metric, version, value, values)
            self._keep(version)
        else:
            self._score.n_worse += 1
        self._set_aside_.disk.remove(self._set_aside_.path(version))
        self._tell(
            version=version, values={name: encoded(each) for name, each in values.items()}, best=better,
            stops=self._stopped(), seconds=time.perf_counter() - began,
        )  # fmt: skip
        if self._stopped():
            self._end()

    def _keep(self, version: int) -> None:
        """Make a state the best one in the folder of the job: whole, or not at all."""
        best, new = self._folder / BEST, self._folder / f".{BEST}"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(
            self._set_aside_.path(version), new / self._set_aside_.path(version).name, copy_function=os.link
        )
        (new / SCORE).write_text(json.dumps(asdict(self._score)))
        shutil.rmtree(best, ignore_errors=True)
        new.rename(best)

    def _tell(self, **columns: Any) -> None:
        """Append the event `validated`: the file is opened for appending here and in the controller, a line at once."""
        line = json.dumps({"time": now(), "event": "validated", **columns}).encode() + b"\n"
        with (self._folder / EVENTS).open("ab", buffering=0) as file:
            file.write(line)

    def _end(self) -> None:
        with contextlib.suppress(OverError):
            self._stop()
