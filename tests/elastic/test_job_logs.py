"""What an error quotes of a log: of tracebacks, the line that names the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.elastic.job_logs import last_line
from labkit.system.oom import is_memory

LINE = "torch.AcceleratorError: CUDA error: out of memory"
FULL_GPU = f"""\
Traceback (most recent call last):
  File "module.py", line 1370, in convert
    return t.to(
           ^^^^^
{LINE}
Search for `cudaErrorMemoryAllocation' in the documentation of CUDA.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

"""
"""As PyTorch 2.11 wrote it on an H100 without free memory."""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (FULL_GPU, LINE),
        ("step 3\n" + FULL_GPU.replace("CUDA error", "error") + FULL_GPU, LINE),
        ("loading\nkilled by hand\n\n", "killed by hand"),
        ("Traceback (most recent call last):\n  File 'a.py'\n", "File 'a.py'"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_line_of_a_log_that_names_the_error_is_quoted(tmp_path: Path, log: str, line: str) -> None:
    (tmp_path / "worker-0.log").write_text(log)
    assert last_line(tmp_path / "worker-0.log") == line


def test_a_full_gpu_is_lack_of_memory() -> None:
    assert is_memory(RuntimeError("CUDA error: out of memory\nSearch for ..."))
    assert not is_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
