"""Whether an error means that memory ran out, whatever raised it."""

from __future__ import annotations

import errno
import mmap
from typing import Final

_MESSAGES: Final = (
    "can't allocate memory", "Cannot allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
)  # fmt: skip
"""By torch on processors, by the kernel, and by CUDA where torch's own allocator was not asked."""

_NO_THREAD: Final = "can't start new thread"
"""By Python, for want of memory for a stack, or of a thread."""
STACK_BYTES: Final = 8 << 20


def _room_for_a_stack() -> bool:
    try:
        mmap.mmap(-1, STACK_BYTES).close()
    except OSError:
        return False
    return True


def is_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, says that there was no memory.

    >>> is_memory(MemoryError()), is_memory(OSError(12, "Cannot allocate memory")), is_memory(ValueError("no"))
    (True, True, False)
    """
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and any(said in str(error) for said in _MESSAGES):
            return True
        if isinstance(error, RuntimeError) and _NO_THREAD in str(error) and not _room_for_a_stack():
            return True
        error = error.__cause__
    return False
