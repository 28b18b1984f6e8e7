"""The Python files that a module of the user's consists of: what it is, and what it imports beside itself."""

from __future__ import annotations

import ast
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from labkit.core.consent import digest_of
from labkit.core.errors import InputError

MOST: Final = 1000
"""Files that a user's module may consist of."""
_PACKAGE: Final = "labkit"


@dataclass(frozen=True, eq=False)
class Sources(MetaPathFinder):
    """Python files below a folder, as they were read once."""

    root: Path
    """The folder from which modules are named."""
    main: Path
    """The file that was named."""
    files: dict[str, bytes]
    """Path below the folder -> its bytes."""

    @property
    def digest(self) -> str:
        """Of all files: that of the file itself where it imports nothing beside it."""
        return digest_of(self.files.items())

    def offer(self, *, first: bool = False) -> None:
        """Let imports find these very bytes; `first`: before what Python finds by itself."""
        sys.meta_path.insert(0 if first else len(sys.meta_path), self)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module comes from, if it is one of these."""
        stem = fullname.replace(".", "/")
        for name in (f"{stem}/__init__.py", f"{stem}.py"):
            if name in self.files:
                loader = _FromBytes(self.root / name, self.files[name])
                return ModuleSpec(fullname, loader, origin=str(self.root / name), is_package=name != f"{stem}.py")
        if any(name.startswith(f"{stem}/") for name in self.files):  # a package without __init__.py
            return ModuleSpec(fullname, _FromBytes(self.root / stem, b""), is_package=True)
        return None


@dataclass(frozen=True)
class _FromBytes(Loader):
    """Executes source that was read before; no compiled copy of it is looked for."""

    path: Path
    source: bytes

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        code: CodeType = compile(self.source, self.path, "exec")
        exec(code, module.__dict__)


def sources_of(main: Path, source: bytes) -> Sources:
    """Return a file with what it imports, directly or not, from its folder; InputError if that is too much."""
    files = {main.name: source}
    _close(files, root=main.parent, begin=[source])
    return Sources(main.parent, main, files)


def sources_of_module(where: str) -> Sources | None:
    """Return the files of a module on the search path or in the working folder; None: it is installed, or not there.

    Nothing of it is imported.
    """
    top, path = where.partition(".")[0], where.replace(".", "/")
    if _is_installed(top):
        return None
    for root in dict.fromkeys(Path(entry or ".").resolve() for entry in (*sys.path, ".")):
        found = [root / f"{path}.py", root / path / "__init__.py"]
        main = next((file for file in found if file.is_file()), None)
        if main is not None:
            files = dict(_files(root, top))
            _close(files, root=root, begin=list(files.values()))
            return Sources(root, main, files)
    return None


def installed(where: str) -> tuple[str, str]:
    """Return the package and version that has a module, and a digest of both; empty: nothing is known of it."""
    top = where.partition(".")[0]
    if top in sys.stdlib_module_names:
        place = f"Python {sys.version.split()[0]}"
    elif names := packages_distributions().get(top):
        place = f"{names[0]} {version(names[0])}"
    else:
        spec = PathFinder.find_spec(top) or importlib.util.find_spec(top)
        place = (spec.origin or f"package {top}") if spec is not None else ""
    return place, digest_of([(where, place.encode())])


def _is_installed(top: str) -> bool:
    """Return whether a module is Python's, labkit's, or of an installed package."""
    if top in sys.stdlib_module_names or top == _PACKAGE:
        return True
    spec = PathFinder.find_spec(
        top, [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")]
    )
    return spec is not None and spec.origin is not None


def _close(files: dict[str, bytes], *, root: Path, begin: list[bytes]) -> None:
    """Add the files below a folder that some sources import, directly or not."""
    seen: set[str] = set()
    while begin:
        for top in _imports(begin.pop()) - seen:
            seen.add(top)
            new = {} if _is_installed(top) else {name: data for name, data in _files(root, top) if name not in files}
            files |= new
            begin += new.values()
            if len(files) > MOST:
                raise InputError(f"{root} has more than {MOST} files that are imported; put them into a package.")


def _imports(source: bytes) -> set[str]:
    """Return the first names of the modules that a source imports; none where it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _files(root: Path, top: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of the Python files of a module or package in a folder."""
    if (root / f"{top}.py").is_file():
        yield f"{top}.py", (root / f"{top}.py").read_bytes()
    for folder, _, names in os.walk(root / top):
        for name in sorted(names):
            file = Path(folder) / name
            if name.endswith(".py") and file.is_file():
                yield file.relative_to(root).as_posix(), file.read_bytes()
