"""What the cells of a sweep are made of, by content: so that they mean the same in every process and on every host."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import ZipFile, ZipInfo

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.files import refuse_unreadable
from labkit.core.jobs import Jobs
from labkit.core.outside import file_of
from labkit.core.protocols import Scheduler
from labkit.experiment.grid import Grid
from labkit.experiment.scenario import OPTIONS
from labkit.schedulers import make, open_options
from labkit.speed.interference.levels import is_file, level
from labkit.topology import presets
from labkit.workloads import expressions

ALWAYS_FILES: Final = ("throughputs", "profile")
"""Options that nothing but a file can be."""


@dataclass(frozen=True)
class Inputs:
    """Jobs, files and schedulers that cells name."""

    traces: Mapping[str, str | Jobs]
    """Label -> jobs, or the expression that generates them from a seed."""
    schedulers: Mapping[str, str | bytes]
    """Label -> a name, or a scheduler of a user's own, pickled: each cell has a fresh one."""
    files: Mapping[str, bytes]
    """Path as it was typed -> what it held; of a folder, its tables as a ZIP archive."""
    folders: frozenset[str] = frozenset()
    """The paths among them that are folders."""

    @classmethod
    def of(cls, grid: Grid) -> Inputs:
        """Read what a grid names; whatever is wrong is told before anything runs."""
        traces = {label: what if isinstance(what, Jobs) else _trace(what) for label, what in grid.traces.items()}
        schedulers = {
            label: what if isinstance(what, str) else _pickled(label, what) for label, what in grid.schedulers.items()
        }
        paths = [str(name) for name in grid.axes["cluster"] if str(name).endswith(".toml")]
        paths += [str(file_of(what)) for what in schedulers.values() if isinstance(what, str) and file_of(what)]
        for axis, option in OPTIONS.items():
            named = [name for name in grid.axes.get(axis, ()) if name is not None] if option.may_be_file else []
            paths += [str(name) for name in named if axis in ALWAYS_FILES or Path(str(name)).is_file()]
            paths += [str(name) for name in named if axis == "interference" and is_file(name)]
        folders = frozenset(path for path in paths if Path(path).is_dir())
        made = cls(traces, schedulers, {path: _contents(path) for path in dict.fromkeys(paths)}, folders)
        for name in grid.axes["cluster"]:
            if name is not None:
                made.cluster(str(name))
        for name in grid.axes.get("interference", ()):
            level(None if name is None else str(name))
        return made

    def jobs(self, label: str, *, seed: int) -> Jobs:
        """Return the jobs of a trace."""
        what = self.traces[label]
        return what if isinstance(what, Jobs) else expressions.trace(what, seed=seed)

    def cluster(self, name: str) -> Cluster:
        """Return the cluster of a name."""
        if name not in self.files:
            return presets.build(name)
        with self.file(name) as path:
            return presets.build(str(path))

    def scheduler(self, label: str, **options: Any) -> Scheduler:
        """Return a fresh scheduler."""
        what = self.schedulers[label]
        if isinstance(what, str):
            with self.name(what) as name:
                return make(name, **options)
        import cloudpickle

        made = cloudpickle.loads(what)
        scheduler: Scheduler = made(**options) if isinstance(made, type) else made
        return scheduler

    def takes_seed(self, label: str) -> bool:
        """Return whether a scheduler that has a name takes a seed which that does not give."""
        what = self.schedulers[label]
        if not isinstance(what, str):
            return False
        with self.name(what) as name:
            return "seed" in open_options(name)

    @contextmanager
    def name(self, scheduler: str) -> Iterator[str]:
        """Lend the name of a scheduler as it is good here: a file of a user's may have come with the sweep."""
        source = file_of(scheduler)
        if source is None:
            yield scheduler
            return
        with self.file(str(source)) as path:
            yield f"{path}{scheduler[scheduler.index('.py:') + 3 :]}"

    @contextmanager
    def local_fields(self, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the fields of a scenario, with the paths that its files have on this host."""
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(self.file(str(value)))
                if OPTIONS[name].may_be_file and str(value) in self.files
                else value
                for name, value in fields.items()
            }

    @contextmanager
    def file(self, path: str) -> Iterator[Path]:
        """Lend a file, or a folder, with the contents that the sweep began with, on any host."""
        if Path(path).exists() and _contents(path) == self.files[path]:
            yield Path(path)
            return
        with TemporaryDirectory(prefix="labkit-") as folder:
            copy = Path(folder) / Path(path).name
            if path in self.folders:
                ZipFile(BytesIO(self.files[path])).extractall(copy)
            else:
                copy.write_bytes(self.files[path])
            yield copy

    def meanings(self, grid: Grid) -> dict[str, str]:
        """Return the meaning of each label of a grid: text, or a digest of contents.

        Two sweeps whose cells have the same keys and the same meanings have the same results.
        """
        told = {f"trace {label}": _meaning(what) for label, what in self.traces.items()}
        told |= {f"scheduler {label}": _source(what) for label, what in grid.schedulers.items()}
        return told | {f"file {path}": hashlib.sha256(raw).hexdigest() for path, raw in self.files.items()}


def _trace(what: str) -> str | Jobs:
    jobs = expressions.trace(what)
    return what if expressions.is_generated(what) else jobs


def _contents(path: str) -> bytes:
    """Return what a file holds, or the tables of a folder of measurements: an archive of their names and contents."""
    if Path(path).is_dir():
        packed = BytesIO()
        with ZipFile(packed, "w") as archive:
            for file in sorted(Path(path).glob("*/*.csv")):
                archive.writestr(ZipInfo(file.relative_to(path).as_posix()), file.read_bytes())
        return packed.getvalue()
    refuse_unreadable(path, expected="a file")
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; check the path.") from None


def _pickled(label: str, scheduler: Any) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(scheduler))
    except Exception as error:
        raise InputError(
            f"scheduler '{label}' cannot be handed to other processes ({error}); give the class, or one that holds "
            "plain values."
        ) from error


def _meaning(what: str | Jobs) -> str:
    """Return an expression, or a digest of jobs."""
    if isinstance(what, str):
        return what
    digest = hashlib.sha256()
    for field in fields(what):
        value = getattr(what, field.name)
        if field.name == "name" or (field.name == "zero_s" and not value):
            continue
        plain = isinstance(value, np.ndarray) and value.dtype != object
        digest.update(field.name.encode() + b"\0")
        listed = value if isinstance(value, float) else list(value)
        digest.update(np.ascontiguousarray(value).tobytes() if plain else repr(listed).encode())
    return digest.hexdigest()


def _source(what: Any) -> str:
    """Return a name, or a digest of the source and the options of a scheduler of a user's own."""
    if isinstance(what, str):
        return what
    kind = what if isinstance(what, type) else type(what)
    parts = [kind.__qualname__, repr(what) if is_dataclass(what) and not isinstance(what, type) else ""]
    for part in kind.__mro__[:-1]:
        try:
            parts.append(inspect.getsource(part))
        except (OSError, TypeError):  # typed into an interpreter: its code has no place to be read from
            parts.append(part.__qualname__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
