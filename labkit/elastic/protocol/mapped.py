"""Arrays that are mapped from files, pickled as where they lie: neither the job's folder nor a worker has a copy."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np

COMPARED: Final = 1 << 24
"""Bytes that are compared at once, where a map may have private changes."""


class MappedPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as cloudpickle does, but `np.memmap` and views of it by path, type, shape, offset and strides."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is made again."""
        place = _place(obj) if isinstance(obj, np.ndarray) else None
        return super().reducer_override(obj) if place is None else (mapped, place)


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Return the arguments with which `mapped` makes an array again; None if it lies in no file."""
    root: Any = array
    while isinstance(root, np.ndarray) and getattr(root, "_mmap", None) is None:
        root = root.base
    root = root if isinstance(root, np.memmap) else None
    if root is None or root.filename is None or not Path(root.filename).is_file() or array.dtype.hasobject:
        return None
    raw: Any = np.frombuffer(root._mmap, np.uint8)
    first = root.offset - root.offset % mmap.ALLOCATIONGRANULARITY  # where the map begins in the file
    inside = array.__array_interface__["data"][0] - raw.__array_interface__["data"][0]
    if not 0 <= inside <= len(raw):
        return None
    place = os.path.abspath(root.filename), root.mode, first, len(raw), array.dtype, array.shape, inside, array.strides
    return None if root.mode == "c" and not _same(raw, root.filename, first) else place


def _same(raw: np.ndarray[Any, Any], path: Any, first: int) -> bool:
    """Return whether a map whose changes are private has the bytes of its file."""
    there = np.memmap(path, np.uint8, "r", first, raw.shape)
    parts = range(0, len(raw), COMPARED)
    return all(np.array_equal(raw[i : i + COMPARED], there[i : i + COMPARED]) for i in parts)


def mapped(
    path: str, mode: str, first: int, n_bytes: int, dtype: np.dtype[Any], shape: tuple[int, ...], inside: int,
    strides: tuple[int, ...],
) -> Any:  # fmt: skip
    """Map a file as another process had it.

    Parameters
    ----------
    path, mode : str
        Of the file; it must be there on this host.
    begun, n_bytes : int
        Part of the file that is mapped.
    dtype, shape, inside, strides
        Of the array in it; `inside` is the byte of the part at which the first number lies.
    """
    whole = np.memmap(path, np.uint8, "r+" if mode == "w+" else mode, first, (n_bytes,))  # type: ignore[call-overload]
    return np.ndarray(shape, dtype, whole, inside, strides)
