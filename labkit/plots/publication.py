"""All that a paper needs of some runs: figure, caption, methods, BibTeX of the schedulers, and the runs themselves."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.core.errors import InputError
from labkit.core.text import without_seed
from labkit.plots.figures import draw
from labkit.plots.paper import for_paper, notes_of, save_sized
from labkit.plots.report import seeds_table
from labkit.results.comparison import bound_jct_s
from labkit.results.conclusion import conclusion
from labkit.results.record import RunRecord
from labkit.results.sweeps import pairs_called
from labkit.schedulers.references import bibtex, key_of, sources_of

FILES = ("figure.pdf", "figure.svg", "caption.txt", "methods.md", "findings.txt", "references.bib", "runs.zip")
METRICS = {
    "jct": "CDF of the job completion time (JCT)", "bars": "mean JCT", "seeds": "paired differences of the mean JCT",
    "utilisation": "GPUs in use over time",
    "fairness": "CDF of finish-time fairness", "gantt": "Gantt chart",
}  # fmt: skip


def write_paper(
    records: Sequence[RunRecord], folders: Sequence[Path], *, to: Path, kind: str | None = None, columns: int = 1
) -> list[Path]:
    """Write what a paper needs of some runs into a folder: `FILES`; return their paths.

    Parameters
    ----------
    records : sequence of RunRecord
        Of one trace and cluster; the same schedulers on several seeds or windows, or one run of each.
    folders : sequence of Path
        Where they are stored, for the archive.
    to : Path
        The folder; it is made, and must hold none of the files.
    kind : str, optional
        Of figure, as `labkit figure` has them; by default `seeds` where there are several, else `jct`.
    columns : int
        Width of the figure: 1 or 2 columns.

    Raises
    ------
    InputError
        If there are no runs, some did not complete, or the folder holds one of the files.
    """
    _refuse_odd(records, to)
    table = seeds_table(records)
    kind = kind or ("jct" if table is None else "seeds")
    chart = draw(records, kind=kind)
    to.mkdir(parents=True, exist_ok=True)
    sized = for_paper(chart, columns=columns)
    for name in ("figure.pdf", "figure.svg"):
        save_sized(sized, to / name)
    names = _schedulers(records)
    texts = {
        "caption.txt": caption(records, kind=kind, notes=notes_of(chart)), "methods.md": methods(records, seeds=table),
        "findings.txt": "\n".join(conclusion(records, seeds=table)), "references.bib": bibtex(names),
    }  # fmt: skip
    for name, text in texts.items():
        (to / name).write_text(text.rstrip() + "\n", encoding="utf-8")
    with zipfile.ZipFile(to / "runs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders:
            for path in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
                archive.write(path, f"{folder.name}/{path.relative_to(folder)}")
    return [to / name for name in FILES]


def caption(records: Sequence[RunRecord], *, kind: str, notes: Sequence[str]) -> str:
    """Return the caption of a figure: what it shows, of how many jobs, on which trace and cluster, and its notes."""
    first = records[0]
    what = METRICS.get(kind, kind)
    runs = len(records) // len(_schedulers(records))
    of_runs = f", {runs} runs of each" if runs > 1 else ""
    sentence = (
        f"{what[0].upper()}{what[1:]} of {_listed(_schedulers(records))}: {len(first.jobs):,} jobs of "
        f"{without_seed(first.info.trace)}{first.arrivals} on {first.info.cluster or first.cluster}{of_runs}."
    )
    stripped = [note.strip().rstrip(".") for note in notes if note.strip()]
    return " ".join([sentence, *(f"{note[0].upper()}{note[1:]}." for note in stripped)])


def methods(records: Sequence[RunRecord], *, seeds: pd.DataFrame | None) -> str:
    """Return the paragraph that says how the numbers came about: simulator, trace, cluster, options, comparison."""
    first, info = records[0], records[0].info
    cited = [name + _cited(name) for name in _schedulers(records)]
    by = "on machines over SSH" if info.backend == "testbed" else "in labkit's event simulator"
    cluster = f"the cluster `{info.cluster}` ({first.cluster})" if info.cluster else f"a cluster of {first.cluster}"
    parts = [
        f"We ran {_listed(cited)} {by} (commit {info.commit or 'unknown'}) on {len(first.jobs):,} jobs of the trace "
        f"`{without_seed(info.trace)}`{first.arrivals} and {cluster}.",
        f"Speeds: {info.config['speeds']}." if info.config.get("speeds") else "",
        _options(info.config.get("scenario", {})),
        _repeats(seeds),
        _bound(first),
        "The runs, with each event, are in `runs.zip`; `labkit report FOLDER...` reads them.",
    ]
    return "\n".join(part for part in parts if part)


def _refuse_odd(records: Sequence[RunRecord], to: Path) -> None:
    if not records:
        raise InputError("a paper needs at least one run; give run ids or folders.")
    if cut := [record.info.run for record in records if not record.complete]:
        raise InputError(f"run {cut[0]} did not complete; give runs whose jobs are all done.")
    if there := [name for name in FILES if (to / name).exists()]:
        raise InputError(f"{to} holds {there[0]} already; name another folder, or remove it.")


def _schedulers(records: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(record.info.scheduler for record in records))


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _cited(name: str) -> str:
    keys = [f"@{key_of(source)}" for source in sources_of(name)]
    return f" [{'; '.join(keys)}]" if keys else ""


def _options(scenario: dict[str, Any]) -> str:
    """Return the options that differ from the defaults, for the reader who wants to repeat the runs."""
    given = {name: value for name, value in scenario.items() if name not in ("trace", "cluster", "seed", "own")}
    return f"Options: {', '.join(f'`{name}={value}`' for name, value in given.items())}." if given else ""


def _repeats(seeds: pd.DataFrame | None) -> str:
    if seeds is None:
        return "Each scheduler ran once."
    pair = pairs_called(seeds)
    return (
        f"Each scheduler ran on the same {seeds['seed'].nunique()} {pair}s. We report means and paired differences "
        "with 95% confidence intervals (Student's t)."
    )


def _bound(record: RunRecord) -> str:
    bound_s = bound_jct_s(record)
    return "" if bound_s != bound_s else f"Lower bound on the mean JCT of the first run: {bound_s / 3600:.4g} h."
