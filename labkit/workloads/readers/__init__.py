"""Readers of traces, each a function from a file to Jobs; `read` tells the formats apart by their contents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from labkit.core.device_names import counting, device_counts
from labkit.core.errors import TraceError, unknown
from labkit.core.jobs import Jobs
from labkit.workloads.named_traces import located
from labkit.workloads.readers import (
    accounting,
    alibaba,
    google2011,
    google2019,
    helios,
    kubernetes,
    mapped,
    philly,
    sacct,
    swf,
)
from labkit.workloads.readers.accounting import read_lsf, read_pbs, read_slurmdb
from labkit.workloads.readers.alibaba import read_alibaba_2020, read_alibaba_2023
from labkit.workloads.readers.formats import ENOUGH, Guess, first_line, guesses
from labkit.workloads.readers.gavel import read_gavel, read_gavel_old, read_shockwave
from labkit.workloads.readers.google2011 import read_google_2011
from labkit.workloads.readers.google2019 import read_google_2019
from labkit.workloads.readers.helios import read_helios
from labkit.workloads.readers.kubernetes import read_kubernetes
from labkit.workloads.readers.ledger import Read, plain
from labkit.workloads.readers.mapped import read_mapped
from labkit.workloads.readers.own import read_csv, read_parquet, write
from labkit.workloads.readers.philly import read_philly_csv, read_philly_log
from labkit.workloads.readers.published import TABLES, pollux, published, read_pollux, reader_of
from labkit.workloads.readers.sacct import read_sacct
from labkit.workloads.readers.swf import read_swf

__all__ = [
    "FORMATS", "read", "read_alibaba_2020", "read_alibaba_2023", "read_csv", "read_gavel", "read_gavel_old",
    "read_google_2011", "read_google_2019", "read_helios", "read_kubernetes", "read_lsf", "read_mapped",
    "read_parquet", "read_pbs", "read_philly_csv", "read_philly_log", "read_pollux", "read_sacct", "read_shockwave",
    "read_slurmdb", "read_swf", "sniff", "write",
]  # fmt: skip

FORMATS: Final[dict[str, Callable[[str | Path], Jobs]]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "gavel": read_gavel,
    "gavel-old": read_gavel_old,
    "shockwave": read_shockwave,
    "philly-csv": read_philly_csv,
    "philly-log": read_philly_log,
    "helios": read_helios,
    "alibaba-2020": read_alibaba_2020,
    "alibaba-2023": read_alibaba_2023,
    "google-2011": read_google_2011,
    "sacct": read_sacct,
    "kubernetes": read_kubernetes,
    "swf": read_swf,
    "google-2019": read_google_2019,
    "slurmdb": read_slurmdb,
    "pbs": read_pbs,
    "lsf": read_lsf,
    **{name: reader_of(name) for name in TABLES},
    "pollux": read_pollux,
    "mapped": read_mapped,
}
"""Name of each format and its reader."""

_READS: Final[dict[str, Callable[[str | Path], Read]]] = {
    "csv": lambda path: plain(read_csv(path)),
    "parquet": lambda path: plain(read_parquet(path)),
    "gavel": lambda path: plain(read_gavel(path)),
    "gavel-old": lambda path: plain(read_gavel_old(path)),
    "shockwave": lambda path: plain(read_shockwave(path)),
    "philly-csv": lambda path: plain(read_philly_csv(path)),
    "philly-log": philly.philly_log,
    "helios": helios.helios,
    "alibaba-2020": alibaba.alibaba_2020,
    "alibaba-2023": alibaba.alibaba_2023,
    "google-2011": google2011.google_2011,
    "sacct": sacct.sacct,
    "kubernetes": kubernetes.kubernetes,
    "swf": swf.swf,
    "google-2019": google2019.google_2019,
    "slurmdb": accounting.slurmdb,
    "pbs": accounting.pbs,
    "lsf": accounting.lsf,
    **{name: published(name) for name in TABLES},
    "pollux": pollux,
    "mapped": lambda path: mapped.mapped(path, mapped.stored_mapping(path)),
}
"""Name of each format, and what reads it with a ledger of its rows and GPU-hours."""


def read(path: str | Path, *, format: str | None = None, unscheduled: bool = False) -> Jobs:
    """Return the jobs of a trace, of the format named or of the one its contents show.

    Parameters
    ----------
    path : str or Path
        A file, or the name of a trace that comes with labkit, such as "demo".
    format : str, optional
        One of `FORMATS`; "sacct(npu=1,shard=1/4)", "kubernetes(huawei.com/Ascend910=1)": devices that count as so many
        GPUs each, 1 by default.
    unscheduled : bool
        Gangs that never ran are jobs too, where the file has them (`alibaba-2023`): for what depends on gangs alone.

    Raises
    ------
    TraceError
        If the file cannot be read or is of no known format; or every fault in it, with line and column.
    InputError
        If there is no such format.
    """
    if unscheduled and (format or sniff(path)) == "alibaba-2023":
        return alibaba.alibaba_2023(located(path), unscheduled=True).jobs
    return ledgered(path, format=format).jobs


def ledgered(path: str | Path, *, format: str | None = None) -> Read:
    """Return the jobs of a trace, what became of its rows and GPU-hours, and its recorded schedule; else as `read`."""
    if format is not None:
        kind, _, devices = format.removesuffix(")").partition("(")
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
        with counting(device_counts(devices)):
            return _READS[kind](located(path)).dated()
    path = located(path)
    kind, why = _chosen(path)
    try:
        return _READS[kind](path).dated()
    except TraceError as error:
        raise TraceError(f"{error}{why}") from None


def sniff(path: str | Path) -> str:
    """Return the format of a trace, from how it begins.

    Raise TraceError if the file cannot be read, or looks like none of the formats.
    """
    return _chosen(located(path))[0]


def explained(path: str | Path) -> list[Guess]:
    """Return the formats that a file may have, the likeliest first, with what speaks for each.

    Raise TraceError as `sniff`, but for a file that looks like none of the formats.
    """
    return guesses(located(path), formats=list(FORMATS))


def _chosen(path: Path) -> tuple[str, str]:
    """Return the likeliest format, and for a refusal why it was taken for that, with the runner-up."""
    found = guesses(path, formats=list(FORMATS))
    if not found or found[0].score < ENOUGH:
        near = f" It is {found[0].why}." if found else ""
        raise TraceError(
            f"{path}: line 1 is '{first_line(path)[:60]}'; expected the first line of a trace ({', '.join(FORMATS)})."
            f"{near} Name the format with --format, or tell what its columns mean: labkit traces import {path}"
        )
    best = found[0]
    if best.score >= 1.0:
        return best.format, ""
    other = f"; {found[1].format} comes next: {found[1].why}" if len(found) > 1 else ""
    return best.format, (
        f" (Taken for {best.format}: {best.why}{other}. Say otherwise with --format, or what its columns mean: "
        f"labkit traces import {path})"
    )
