"""Traces by name, in any folder: those that come with labkit, and public ones that were fetched.

Those that come with it are the files of `traces/` in a checkout; the package has a link to that folder, and a wheel
holds its files.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError, TraceError

FOLDER: Final = Path(__file__).parents[1] / "traces"
SUFFIXES: Final = (".csv", ".trace")
PARTS: Final = ("pai_job_table.csv", "part-*.csv*")
"""Files of a trace that is a folder."""


def shipped() -> dict[str, Path]:
    """Return the files of the shipped traces by name, in the order of names.

    >>> list(shipped())[:2]
    ['demo', 'dl2-small']
    """
    return {path.stem: path for path in sorted(FOLDER.glob("*")) if path.suffix in SUFFIXES}


def located(what: str | Path) -> Path:
    """Return the file that a path or a name stands for: of a file, a shipped trace, or a public one that was fetched.

    A folder of the name of a shipped trace, as testbed/ in a checkout, counts only if there is a trace in it.

    >>> located("demo") == FOLDER / "demo.csv", located("mine.csv")
    (True, PosixPath('mine.csv'))

    Raises
    ------
    InputError
        If it is the name of a public trace that was not fetched yet.
    TraceError
        If there is no such file, and its name is nearly that of a shipped trace.
    """
    path = Path(what)
    if _is_there(path):
        return path
    named = path.name == str(what) and not path.suffix
    found = (shipped().get(path.name) or _fetched(path.name)) if named else None
    return found or _not_misspelt(path)


def _not_misspelt(path: Path) -> Path:
    """Return a path that is no file; refuse it if it is nearly the name of a shipped trace."""
    near = get_close_matches(path.stem[:100].lower(), shipped(), n=1, cutoff=0.75)
    if near and path.stem not in shipped() and path.suffix in ("", *SUFFIXES):
        raise TraceError(
            f"{path}: there is no such file. Did you mean '{near[0]}'? With labkit come {', '.join(shipped())}."
        )
    return path


def _is_there(path: Path) -> bool:
    try:
        if path.is_dir() and path.name in shipped():
            return any(next(path.glob(part), None) for part in PARTS)
        return path.exists()
    except OSError:  # too long to be a name
        return True


def _fetched(name: str) -> Path | None:
    from labkit.workloads.fetch import PUBLIC, kept

    if name not in PUBLIC:
        return None
    if (file := kept(name)) is None:
        raise InputError(f"{name} was not downloaded yet: labkit traces fetch {name}")
    return file
