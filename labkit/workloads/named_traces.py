"""Traces by name, in any folder: those that come with labkit, and public ones that were fetched.

Those that come with it are the files of `traces/` in a checkout; the package has a link to that folder, and a wheel
holds its files.
"""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError, TraceError, unknown

FOLDER: Final = Path(__file__).parents[1] / "traces"
SUFFIXES: Final = (".csv", ".trace", ".sacct")
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

    A folder of the name of a shipped trace, as testbed/ in a checkout, counts only if there is a trace in it. Raise
    InputError if it is the name of a public trace that was not fetched yet; TraceError if there is no such file, and
    its name is nearly that of a shipped trace.

    >>> located("demo") == FOLDER / "demo.csv", located("mine.csv")
    (True, PosixPath('mine.csv'))
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
    name = ALSO.get(name, name)
    if name not in PUBLIC:
        return None
    if (file := fetched(name)) is None:
        raise InputError(f"{name} was not downloaded yet: labkit traces fetch {name}")
    return file


_GITHUB: Final = "https://raw.githubusercontent.com"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """A public trace."""

    base_url: str
    """Folder of its files."""
    files: tuple[tuple[str, str | None], ...]
    """Path under `base_url` and SHA-256 of each; None: not published, so that the user must vouch for it."""
    main: str
    """File or folder (".": all of them) that `labkit.workloads.readers.read` takes, after unpacking."""
    licence: str
    what: str
    """`licence` and `what`: for people."""

    def __str__(self) -> str:
        return f"{self.what} [{self.licence}]"


PUBLIC: Final = {
    "philly": PublicTrace(
        base_url=f"{_GITHUB}/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/traces",
        files=(("philly.csv", "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da"),),
        main="philly.csv",
        licence="CC-BY-4.0 (data), Apache-2.0 (repository)",
        what="82,247 jobs of Microsoft's Philly clusters, 2017, as CSV",
    ),
    "philly-log": PublicTrace(
        base_url="https://media.githubusercontent.com/media/msr-fiddle/philly-traces/master",
        files=(("trace-data.tar.gz", "2037ccf63a725a02be718b0e1aeee6142c90b7f62d0d849295120e9f6ba13d2c"),),
        main="trace-data/cluster_job_log",
        licence="CC-BY-4.0",
        what="the original Philly trace, 1 GB packed",
    ),
    "helios": PublicTrace(
        base_url=f"{_GITHUB}/S-Lab-System-Group/HeliosData/master",
        files=(("data.zip", None),),
        main="data/Venus/cluster_log.csv",
        licence="CC-BY-4.0",
        what="SenseTime's Helios clusters, 2020; the one named Venus",
    ),
    "alibaba-2020": PublicTrace(
        base_url="https://aliopentrace.oss-cn-beijing.aliyuncs.com/v2020GPUTraces",
        files=(
            ("pai_job_table.tar.gz", "5aad7f7caac501136d14ed6a48e40546f825d7b0617a3a4f337e2348fe0a6cb0"),
            ("pai_task_table.tar.gz", "cd1d6dc3215d2a8607ccf6b6dd952b5db776df86926c73259fea7c1499ac40e5"),
        ),
        main="pai_job_table.csv",
        licence="CC-BY-4.0",
        what="job and task tables of Alibaba PAI, 2020, 94 MB packed",
    ),
    "alibaba-2023": PublicTrace(
        base_url=f"{_GITHUB}/alibaba/clusterdata/50a91c7c74abe3b658188dc78ac1dd302970d40c/cluster-trace-gpu-v2023/csv",
        files=(
            ("openb_pod_list_default.csv", "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8"),
            ("openb_node_list_gpu_node.csv", "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5"),
        ),
        main="openb_pod_list_default.csv",
        licence="CC-BY-4.0",
        what="8,152 pods with fractions of GPUs, and the GPU nodes",
    ),
    "google-2011": PublicTrace(
        base_url="https://storage.googleapis.com/clusterdata-2011-2/task_events",
        files=(("part-00000-of-00500.csv.gz", None),),
        main="part-00000-of-00500.csv.gz",
        licence="CC-BY-4.0",
        what="the first of 500 parts of Google's task events, 2011",
    ),
    "gavel-throughputs": PublicTrace(
        base_url=f"{_GITHUB}/stanford-futuredata/gavel/c4fa40097339e9608ab71fd64c8bdea96a5e4a4c/scheduler",
        files=(("simulation_throughputs.json", "17111f7295f03265fd9e5118d7eba31e3dd9d6e50a2e215c13ad3d3f91f74381"),),
        main="simulation_throughputs.json",
        licence="MIT",
        what="Gavel's throughputs with all pairs, for --throughputs",
    ),
    "dl2-speeds": PublicTrace(
        base_url=f"{_GITHUB}/pengyanghua/DL2/2e54920d2100bff2e14e246c423419bbd326c55b",
        files=(("config_speed.txt", "bf03ce681c59b70b216b8a49da151db4ac2827694777bc3c48e8d087984c4cf4"),),
        main="config_speed.txt",
        licence="no licence given: yours to read and compare, not to pass on",
        what="DL2's 804 measured speeds by PSs and workers, for --throughputs",
    ),
    "gavel-physical": PublicTrace(
        base_url=f"{_GITHUB}/stanford-futuredata/gavel/c4fa40097339e9608ab71fd64c8bdea96a5e4a4c"
        "/scheduler/traces/physical_cluster",
        files=(
            ("max_min_fairness.trace", "dc13589c23c7b77d37d3d1014ff499e0c1ffca2959ce35d0e4ce70b71247424b"),
            ("small_test.trace", "1a216a80d1f40bc2b88a3edb5f14ff687560024c085a6392613618a47cbe54dc"),
            ("artifact_evaluation.trace", "aa267474f78f61ef65ec26585957e7737e0f2f8cba7e5425d7e52e26146d15b6"),
        ),
        main="max_min_fairness.trace",
        licence="MIT",
        what="Gavel's traces of 96, 20 and 15 jobs for its physical cluster",
    ),
}
"""Name of each public trace and where it is."""
ALSO: Final = {"openb": "alibaba-2023"}
"""Other names of public traces."""


def fetch(
    name: str, *, base_url: str | None = None, cache: str | Path | None = None, checksum: str | None = None
) -> Path:
    """Download a public trace once, check it, unpack it, and return the file that `read` takes.

    Raise InputError if the name is unknown, no checksum is known or given, the download fails, or its checksum is
    another; nothing is left behind.

    Parameters
    ----------
    name : str
        One of `PUBLIC`.
    base_url : str, optional
        A mirror: the folder that holds the files.
    cache : path, optional
        Folder to keep it in; labkit's folder in the user's cache by default.
    checksum : str, optional
        SHA-256 that you vouch for, for a trace of one file without a published one.
    """
    name = ALSO.get(name, name)
    if name not in PUBLIC:
        raise unknown("public trace", name, PUBLIC)
    trace = PUBLIC[name]
    hashes = _hashes(name, trace, checksum)
    folder = _folder(name, cache)
    for file, sha256 in hashes.items():
        path = _download(f"{(base_url or trace.base_url).rstrip('/')}/{file}", folder / file, sha256)
        if file.endswith((".tar.gz", ".zip")):
            _unpack(path, folder)
    if not (folder / trace.main).exists():
        raise InputError(f"{name}: {trace.main} is not among the files that were unpacked into {folder}.")
    return folder / trace.main


def fetched(name: str, *, cache: str | Path | None = None) -> Path | None:
    """Return the file of a public trace that was fetched before; None if it was not."""
    try:
        file = _folder(name, cache) / PUBLIC[name].main
    except ModuleNotFoundError:  # without pooch nothing can have been fetched
        return None
    return file if file.exists() else None


def _hashes(name: str, trace: PublicTrace, checksum: str | None) -> dict[str, str]:
    if checksum is not None:
        if len(trace.files) > 1:
            raise InputError(f"{name} has {len(trace.files)} files with published checksums; leave out checksum.")
        if not _SHA256.fullmatch(checksum.lower()):
            raise InputError(f"checksum '{checksum}' is no SHA-256; expected 64 hexadecimal digits.")
        return {trace.files[0][0]: checksum.lower()}
    for file, sha256 in trace.files:
        if sha256 is None:
            raise InputError(
                f"{name}: no checksum of {file} is published, so labkit cannot tell whether a download is whole. "
                f"Get the SHA-256 of {trace.base_url}/{file} from someone you trust, and give it with --checksum."
            )
    return {file: sha256 for file, sha256 in trace.files if sha256 is not None}


def _folder(name: str, cache: str | Path | None) -> Path:
    if cache is not None:
        return Path(cache) / name
    import pooch

    return Path(pooch.os_cache("labkit")) / "traces" / name


def _download(url: str, path: Path, sha256: str) -> Path:
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    try:
        found = pooch.retrieve(url, known_hash=f"sha256:{sha256}", path=path.parent, fname=path.name)
    except requests.RequestException as error:
        reason = re.sub(r"^<.*?>: ", "", str(getattr(error.args[0], "reason", error) if error.args else error))
        raise InputError(
            f"{url}: download failed ({reason}). Check the network, or get the file in another way: every command "
            "takes its path."
        ) from None
    except ValueError as error:  # what pooch raises for another checksum
        reason = "its checksum is not the published one" if "hash" in str(error) else str(error)
        raise InputError(f"{url}: {reason} (sha256 {sha256}); nothing was kept. Try again later.") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; choose another folder with --cache.") from None
    return Path(found)


def _plain_members(tar: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yield what an archive holds, all of it files and folders below a folder, with rights of their own.

    Raise TarError otherwise. tarfile's own filter is not in Python 3.11.0 to 3.11.3, which Debian 12 has.
    """
    for each in tar:
        if not (each.isfile() or each.isdir()):
            raise tarfile.TarError(f"{each.name!r} is neither file nor folder")
        if not (folder / each.name).resolve().is_relative_to(folder):
            raise tarfile.TarError(f"{each.name!r} would be written outside its folder")
        each.mode = 0o755 if each.isdir() or each.mode & 0o100 else 0o644
        each.uid, each.gid, each.uname, each.gname = os.getuid(), os.getgid(), "", ""
        yield each


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive next to its final place, then rename, so that nothing half-unpacked is ever seen."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(scratch)
            else:
                with tarfile.open(archive) as tar:
                    tar.extraction_filter = getattr(tarfile, "data_filter", None)
                    tar.extractall(scratch, members=_plain_members(tar, Path(scratch).resolve()))
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise InputError(f"{archive}: cannot be unpacked ({error}); delete it and fetch again.") from None
        for item in Path(scratch).iterdir():
            target = folder / item.name
            if not target.exists():
                os.replace(item, target)
