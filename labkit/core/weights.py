"""Files of weights: tensors in the safetensors format, with the policy that they are for and how they were made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_unreadable, write_atomically
from labkit.system.printing import printable

Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True)
class WeightsFiles:
    """The files of one policy."""

    policy: str
    version: str
    """`policy` and `version`: what a file must say it is for; the version is that of what the policy sees."""
    remedy: str
    """The sentence that ends each error: how to make such a file."""
    folder: Path | None = None
    """Where those that come with labkit are."""
    of: str = "weights of a policy"
    """What a file holds, in errors."""
    other: Mapping[str, str] = field(default_factory=dict)
    """The remedy where a file is for the policy of that name."""
    former: Mapping[str, str] = field(default_factory=dict)
    """The remedy where a file is of that version."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """What tensors hold that are no weights of the network, in words."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """What a file is taken to say under a name that it does not have."""
    reveals: Mapping[str, str] = field(default_factory=dict)
    """What of the data of a training can be read from a tensor; the first one that a file has counts."""

    def write(self, path: str | Path, tensors: Mapping[str, np.ndarray[Any, Any]], **about: str) -> None:
        """Write a file in single precision, whole or not at all."""
        from safetensors.numpy import save

        single = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
        content = save(single, metadata={"policy": self.policy, "version": self.version, **about})
        write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))

    def shipped(self) -> list[str]:
        """Return the names of those that come with labkit."""
        return [] if self.folder is None else sorted(path.stem for path in self.folder.glob("*.safetensors"))

    def find(self, name: str | Path) -> Path:
        """Return the path of a file that is named, or given by its path.

        Raise InputError if it is neither a name of `shipped()` nor ends in .safetensors.
        """
        path = Path(name)
        if path.suffix == ".safetensors":
            return path
        if self.folder is None:
            raise InputError(f"weights is {str(name)!r}; expected the path of a .safetensors file. {self.remedy}")
        names = self.shipped()
        if str(name) not in names:
            raise unknown(f"weights of {self.policy}", str(name), [*names, "PATH.safetensors"])
        return self.folder / f"{name}.safetensors"

    def is_of(self, path: Path) -> bool:
        """Return whether a file says that it is for this policy; False where it cannot be read."""
        try:
            with opened(path, of=self.of, remedy=self.remedy) as file:
                return bool((file.metadata() or {}).get("policy") == self.policy)
        except InputError:
            return False

    def read(self, path: Path) -> tuple[dict[str, str], Tensors]:
        """Return what a file says of itself, and its tensors in single precision.

        Raise InputError if it cannot be read, is of another format, or is for another policy or version.
        """
        with opened(path, of=self.of, remedy=self.remedy) as file:
            about = {"source": "", **self.optional, **(file.metadata() or {})}
            tensors = {key: np.ascontiguousarray(file.get_tensor(key), np.float32) for key in file.keys()}  # noqa: SIM118
        policy, version = about.get("policy"), about.get("version")
        if policy != self.policy or version != self.version:
            remedies, key = (self.former, version) if policy == self.policy else (self.other, policy)
            raise InputError(
                f"{path}: policy {policy!r}, version {version!r}; expected {self.policy!r}, {self.version!r}. "
                f"{remedies.get(key or '', self.remedy)}"
            )
        return about, tensors

    def load(
        self,
        name: str | Path,
        fault: Callable[[Tensors], str] = lambda _: "",
        *,
        misfit: Callable[..., str] = lambda *_: "",
        **kinds: Callable[[str], Any],
    ) -> tuple[Tensors, tuple[Any, ...]]:
        """Return the tensors of a file, and what it says of itself under some names, which a function for each reads.

        Raise InputError if there is no such file, it is for another policy or version, it says nothing under a name or
        what cannot be read, `fault` returns what is wrong with its tensors, or `misfit` with tensors and values.
        """
        path = self.find(name)
        about, tensors = self.read(path)
        self._refuse(path, fault(tensors))
        values = self._values(path, about, kinds)
        self._refuse(path, misfit(tensors, *values))
        return tensors, values

    def _values(
        self, path: Path, about: Mapping[str, str], kinds: Mapping[str, Callable[[str], Any]]
    ) -> tuple[Any, ...]:
        found = []
        for name, read in kinds.items():
            self._refuse(path, "" if name in about else f"it does not tell its {name}")
            try:
                found.append(read(about[name]))
            except (KeyError, TypeError, ValueError):
                self._refuse(path, f"its {name} is {about[name]!r:.60}, which cannot be read")
        return tuple(found)

    def _refuse(self, path: Path, fault: str) -> None:
        if fault:
            raise InputError(f"{path}: {printable(fault)}. {self.remedy}")


@contextmanager
def opened(path: Path, *, of: str, remedy: str) -> Iterator[Any]:
    """Lend what reads a file of tensors; it is data alone, nothing in it is executed.

    Raise InputError if it cannot be read or is of another format, also where a tensor has a type that numpy has not.
    """
    refuse_unreadable(path, expected=f"{of} (safetensors)", error=InputError)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; expected {of}. {remedy}") from None
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a safetensors file ({error}); expected {of}.") from None


def fault_of(tensors: Tensors, expected: Mapping[str, tuple[int, ...]], *, why: str = "") -> str:
    """Return the fault of tensors with expected names and shapes; empty: none.

    `tensors`, `expected`: the tensors, and the shape of each that there should be; `why`: what the shapes follow from,
    told after them.
    """
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            return f"{name} is of shape {tensors[name].shape}; expected {shape}{why}"
        if not np.isfinite(tensors[name]).all():
            return f"{name} holds a number that is not finite"
    return ""


def other_names(tensors: Tensors, expected: tuple[str, ...]) -> str:
    """Return the message for tensors with other names than expected; empty: they have these."""
    if sorted(tensors) == sorted(expected):
        return ""
    return f"it holds {', '.join(sorted(tensors))}; expected {', '.join(sorted(expected))}"


def mapping(text: str) -> dict[str, Any]:
    """Return an object in JSON; raise ValueError if it is none."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(text)
    return found


def names(text: str) -> tuple[str, ...]:
    """Return the names of a list in JSON; raise ValueError if it is none."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError(text)
    return tuple(found)


def seconds(text: str) -> float:
    """Return a number of seconds; raise ValueError unless it is above 0, and finite."""
    found = float(text)
    if not 0 < found < inf:
        raise ValueError(text)
    return found
