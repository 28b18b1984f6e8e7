"""Training scripts of one's own: packed by content, brought once to each host that starts such a job, and run there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import sys
import tarfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from labkit.core.below import SEVERAL, open_plain
from labkit.core.consent import Outside, digest_of
from labkit.core.errors import InputError, LabkitError
from labkit.elastic.data import as_dataset
from labkit.elastic.own_training import NEEDED, OwnTraining, content_of, read_training, training_of
from labkit.elastic.script import command_line_of
from labkit.elastic.script_text import has_loop
from labkit.testbed.errors import HostError
from labkit.testbed.ssh.fleet import Fleet

if TYPE_CHECKING:
    from types import ModuleType

(STAGED,) = SEVERAL
"""Folder of archives in that of a run, and of unpacked ones below labkit's folder on a host."""
MOST_BYTES: Final = 16 << 30
MOST_FILES: Final = 100_000
MAX_LISTED: Final = 4
STAGE_S: Final = 3600.0
LEFT_OUT: Final = ("__pycache__", ".git", ".venv", ".ipynb_checkpoints")
"""Folders that are not part of code or data."""
SCRIPT: Final = re.compile(r"(?P<file>[\w.-]+\.py)(?::(?P<function>[A-Za-z_]\w*))?", re.ASCII)
HASH: Final = re.compile(r"[0-9a-f]{64}")
HAS: Final = '[ -d "$1/$2" ]'
UNPACK: Final = (
    'cd "$1" && new=".$2.$$" && mkdir "$new" && tar -xf "$2.tar" -C "$new" && '
    '{ mv -T "$new" "$2" 2>/dev/null || rm -rf "$new"; }; code=$?; rm -f "$2.tar"; rm -rf "$new"; exit $code'
)
"""Unpacks an archive beside it; the folder gets its name when it is whole, and a second process gives way."""
FUNCTION: Final = "program"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScript:
    """What jobs of one model train, where it is none of labkit's."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    script: str
    """File in the folder of code, and the function in it: "train.py:program"; without a name it is `program`. Called
    with the folder of data, it returns model, data and loss, as `labkit.elastic.start` takes them."""
    code: str
    args: tuple[str, ...] = ()
    """What the file finds in `sys.argv`."""
    data: str = ""
    """`code` and `data`: folders on this machine, or archives of them; without data it is called with None."""
    code_hash: str = ""
    data_hash: str = ""
    """`code_hash` and `data_hash`: SHA-256 of their content, once they are packed."""

    @classmethod
    def of(cls, path: str | Path, *, data: str | Path | None = None, args: Sequence[str] = ()) -> OwnScript:
        """Return it for a file, "FILE.py" or "FILE.py:function", and its arguments; its folder is the code.

        Raise InputError if there is no such file, or no such folder of data.
        """
        folder, name = os.path.split(str(path))
        found = SCRIPT.fullmatch(name)
        if found is None:
            raise InputError(f"script is '{path}'; expected a Python file, and a function in it: train.py:program.")
        code = Path(folder or ".").absolute()
        if not (code / found["file"]).is_file():
            raise InputError(f"script {code / found['file']} is not there; expected a Python file.")
        if data is not None and not Path(data).is_dir():
            raise InputError(f"data {data} is no folder; expected one with the files that {found['file']} reads.")
        there = "" if data is None else str(Path(data).absolute())
        return cls(script=name, code=str(code), data=there, args=tuple(args))

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))  # from a record they are a list
        if not all(isinstance(each, str) for each in self.args):
            raise InputError(f"the arguments of script {self.script!r:.100} are {self.args!r:.100}; expected texts.")
        for archive, digest in ((self.code, self.code_hash), (self.data, self.data_hash)):
            if digest and not (HASH.fullmatch(digest) and Path(archive).name == f"{digest}.tar"):
                raise InputError(f"the archive of script {self.script!r:.100} is {archive!r:.100}; expected HASH.tar.")

    def outside(self, folder: Path) -> Outside:
        """Return the code and data of its jobs, from the archives in a folder."""
        digests = []
        for name in self.hashes:
            with open_plain(folder / f"{name}.tar") as archive:
                digests.append(hashlib.file_digest(archive, "sha256").hexdigest())
        digests += [hashlib.sha256(each.encode()).hexdigest() for each in self.args]
        digest = digest_of([("", "\n".join(digests).encode())]) if len(digests) > 1 else digests[0]
        return Outside("training script", self.script, f"{STAGED}/{self.code_hash}.tar", digest)

    def within(self, folder: Path) -> OwnScript:
        """Return it with its archives in a folder, wherever they were before."""
        code, data = (str(folder / f"{one}.tar") if one else "" for one in (self.code_hash, self.data_hash))
        return replace(self, code=code, data=data)

    @property
    def content(self) -> str:
        """SHA-256 of the file, its arguments, and what it imports beside it; "" once it is packed."""
        return "" if self.code_hash else content_of(Path(self.code) / self.script.partition(":")[0], *self.args)

    @property
    def hashes(self) -> tuple[str, ...]:
        """The contents that its jobs need on a host."""
        return tuple(each for each in (self.code_hash, self.data_hash) if each)

    def packed(self, folder: Path) -> OwnScript:
        """Return it after its folders were packed into `folder`; archives of an earlier packing are taken as they are.

        `code` and `data` are the archives then.
        """
        if self.code_hash:
            taken = [_taken(Path(path), folder) if path else "" for path in (self.code, self.data)]
            return replace(self, code=taken[0], data=taken[1])
        code = pack(Path(self.code), folder)
        packed = replace(self, code=str(folder / f"{code}.tar"), code_hash=code)
        if not self.data:
            return packed
        data = pack(Path(self.data), folder)
        return replace(packed, data=str(folder / f"{data}.tar"), data_hash=data)


def _taken(archive: Path, folder: Path) -> str:
    """Have an archive in another folder too, and return its path there."""
    target = folder / archive.name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(archive, target)
        except OSError:  # another file system
            shutil.copyfile(archive, target)
    return str(target)


def pack(source: Path, folder: Path) -> str:
    """Pack a folder as `folder/HASH.tar`, and return the SHA-256 of its content: names, and what files hold.

    Raise InputError if it has links or devices, or too much: which.
    """
    entries = sorted(_entries(source))
    whole = hashlib.sha256()
    for name, path in entries:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{name}\0{os.access(path, os.X_OK):d}{digest}\n".encode(errors="surrogateescape"))
    target = folder / f"{whole.hexdigest()}.tar"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{target.name}.{os.getpid()}"
        try:
            with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
                for name, path in entries:
                    archive.add(path, arcname=name, recursive=False, filter=_plain)
            partial.rename(target)
        finally:
            partial.unlink(missing_ok=True)
    return whole.hexdigest()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry of the host's user, with nothing of this machine's."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o700 if entry.mode & stat.S_IXUSR else 0o600
    return entry


def _entries(source: Path) -> Iterator[tuple[str, Path]]:
    n_bytes = n_files = 0
    odd: list[str] = []
    for root, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in [*names, *(each for each in folders if (Path(root) / each).is_symlink())]:
            path = Path(root) / name
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                odd.append(str(path.relative_to(source)))
                continue
            n_bytes, n_files = n_bytes + found.st_size, n_files + 1
            if n_bytes > MOST_BYTES or n_files > MOST_FILES:
                raise InputError(
                    f"{source} has more than {MOST_FILES:,} files or {MOST_BYTES >> 30} GiB; put code and data into "
                    "folders of their own, or leave data on the hosts and read it there."
                )
            yield str(path.relative_to(source)), path
    if odd:
        more = f" and {len(odd) - MAX_LISTED} more" if len(odd) > MAX_LISTED else ""
        raise InputError(f"{source} has {', '.join(odd[:MAX_LISTED])}{more}: no plain files; copy what they lead to.")
    if not n_files:
        raise InputError(f"{source} has no files; expected code or data.")


class Staging:
    """Archives of a run, and the hosts that have them."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet, self._folder = fleet, folder

    def bring(self, host: str, digest: str, *, below: str) -> bool:
        """Bring a content to a host that does not have it; return whether it had to travel.

        Raise HostError if it cannot be brought there. `below`: labkit's folder there, absolute.
        """
        there = f"{below}/{STAGED}"
        if self._sh(host, HAS, there, digest).ok:
            return False
        sent = self._fleet.put(self._folder / f"{digest}.tar", f"{STAGED}/{digest}.tar", mode=0o600, only=[host])
        if not sent.ok:
            raise HostError(f"host {host}: code or data cannot be brought there: {sent[host].why}.")
        done = self._sh(host, UNPACK, there, digest)
        if not (done.ok or self._sh(host, HAS, there, digest).ok):
            raise HostError(f"host {host}: code or data cannot be unpacked: {done[host].stderr.strip()[-300:]}.")
        return True

    def _sh(self, host: str, program: str, *words: str) -> Any:
        return self._fleet.run(["/bin/sh", "-c", program, "sh", *words], timeout_s=STAGE_S, only=[host])


def training_from(script: str, *, code: Path, data: Path | None, seed: int, args: Sequence[str] = ()) -> OwnTraining:
    """Return the training of a script: what `labkit train FILE.py` takes, or what a function of it returns.

    The classes and functions of the script, and of modules beside it, are pickled by value: workers on other hosts need
    no code. So is its data: what the function returns travels to each worker. Raise InputError if the script fails, or
    returns something else than model, data and loss: where, and what was expected.

    Parameters
    ----------
    script : str
        "FILE.py" or "FILE.py:function".
    code, data : Path
        The folders on this host.
    seed : int
        Of the global random generator of torch while the script runs.
    args : sequence of str
        What it finds in `sys.argv`.
    """
    file, _, function = script.partition(":")
    path = code / file
    if not path.is_file():
        raise InputError(f"script {file} is not in the code that was brought here; expected it in {code}.")
    loops = not function and has_loop(path)
    if loops:
        training = read_training(path, seed=seed, args=args)
    else:
        with command_line_of(path, args):
            training = _called(path, function or FUNCTION, data, seed)
    training.check_unvalidated(file, instead="leave it out here: labkit train validates")
    pickle_by_value(code)
    training.check()
    return training


def _called(path: Path, function: str, data: Path | None, seed: int) -> OwnTraining:
    """Run a script and return what it defines, or what its function returns; its errors name the line."""
    import torch

    torch.manual_seed(seed)
    sys.path.insert(0, str(path.parent))
    try:
        module = _loaded(path)
        wanted = getattr(module, function, None)
        if wanted is None and function == FUNCTION and all(hasattr(module, name) for name in NEEDED):
            return training_of(path, module, seed=seed)
        if not callable(wanted):
            raise InputError(
                f"{path.name} has no function {function}(data); expected one that returns model, data, loss."
            )
        return _training(wanted(data), f"{path.name}: {function}()")
    except LabkitError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise InputError(f"{path.name}{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _training(returned: Any, where: str) -> OwnTraining:
    """Return the result of a script's function, as a training."""
    if isinstance(returned, OwnTraining):
        return returned
    if not (isinstance(returned, tuple) and len(returned) == 3):
        raise InputError(f"{where} returned a {type(returned).__name__}; expected (model, data, loss).")
    return OwnTraining(returned[0], as_dataset(returned[1]), returned[2])


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def pickle_by_value(code: Path) -> None:
    """Let classes and functions of all modules from a folder be pickled with their code."""
    import cloudpickle

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(code):
            cloudpickle.register_pickle_by_value(module)
