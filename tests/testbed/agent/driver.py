"""A driver library for hosts without a GPU: a real shared object, compiled here, that a real agent loads by pynvml."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")


class Driver:
    """What a host with some GPUs has: a library to load, and a file that says what it tells."""

    def __init__(self, folder: Path, *, n: int = 4, name: str = "Fake-9000") -> None:
        self.folder, self.state = folder, folder / "gpus"
        self.uuids = [f"GPU-{i:08x}-0000-4000-8000-{os.getpid():012x}" for i in range(n)]
        self.name, self.pids, self.mig = name, {uuid: list[int]() for uuid in self.uuids}, set[str]()
        _compile(folder)
        self.tell()

    def tell(self, *, broken: bool = False) -> None:
        """Write what the driver tells from now on."""
        lines = [
            f"{uuid} {self.name} 80000 10000 75 {int(uuid in self.mig)} {','.join(map(str, self.pids[uuid])) or '-'}"
            for uuid in self.uuids
        ]
        partial = self.folder / ".gpus"
        partial.write_text("\n".join(["broken"] if broken else lines) + "\n")
        partial.rename(self.state)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a host that has it."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML": str(self.state)}


def _compile(folder: Path) -> None:
    """Make the library, or skip the test and say why."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here, so no driver library can be made")
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("no module pynvml (nvidia-ml-py) here, which speaks to the driver")
    folder.mkdir(parents=True, exist_ok=True)
    line = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
