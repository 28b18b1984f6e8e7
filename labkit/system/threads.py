"""How many threads torch computes with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, where it is imported, compute with one thread.

    Bits may depend on the number of threads, and those of a small network wait for each other.
    """
    torch = sys.modules.get("torch")
    n_threads = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(n_threads)
