"""Others' simulators beside ours: the same jobs in both, and how many of them end at the same moment.

    python -m benchmarks.foreign tiresias=FOLDER lucid=FOLDER pollux=FOLDER muri=FOLDER shockwave=FOLDER

FOLDER is a clone of the system's repository, with a work tree or without; a name alone means the folder of that name in
$LABKIT_FOREIGN, or in the user's cache, and it is cloned there once. Their programs are copied to a temporary folder
and run there as they are, but for what a note says; nothing of them is kept. A system is a module here with a function
`rows(folder)`, named in `SYSTEMS`.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEMS: Final[Mapping[str, str]] = {
    "tiresias": "https://github.com/SymbioticLab/Tiresias",
    "lucid": "https://github.com/S-Lab-System-Group/Lucid",
    "fgd": "https://github.com/hkust-adsl/kubernetes-scheduler-simulator",
    "pollux": "https://github.com/petuum/adaptdl",
    "muri": "https://github.com/Rivendile/Muri",
    "shockwave": "https://github.com/uw-mad-dash/shockwave",
}
"""Each system, and where its repository is; its module here has the same name."""
SAME_S: Final = 1e-6
"""Moments that are nearer than this are the same."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two simulators agree about the same jobs.

    Attributes
    ----------
    system, trace, setting : str
        Whose simulator, which jobs, and how they were scheduled and placed.
    equal, n : int
        Jobs about which both say the same, of how many.
    gap : float
        The largest difference, in `unit`.
    theirs_cpu_s, ours_cpu_s : float
        CPU seconds of both; NaN: not measured.
    note : str
        What was changed in theirs, or why some differ.
    unit : str
        Of `gap`.
    """

    system: str
    trace: str
    setting: str
    equal: int
    n: int
    gap: float
    theirs_cpu_s: float = math.nan
    ours_cpu_s: float = math.nan
    note: str = ""
    unit: str = "s"


def agreement(theirs: Mapping[str, float], ours: Mapping[str, float]) -> tuple[int, int, float]:
    """Return how many jobs of theirs have the same value in ours, how many there are, and the largest difference.

    >>> agreement({"a": 1.0, "b": 5.0}, {"a": 1.0, "b": 4.0, "c": 9.0})
    (1, 2, -1.0)
    """
    gaps = [ours[job] - value for job, value in theirs.items()]
    return sum(abs(gap) <= SAME_S for gap in gaps), len(gaps), max(gaps, key=abs, default=0.0)


def copied(folder: Path, part: str, to: Path, *, at: str = "HEAD") -> Path:
    """Copy a part of a repository at a commit, with a work tree or without, below a folder; return where it is."""
    to.mkdir(parents=True, exist_ok=True)
    if at == "HEAD" and (folder / part).is_dir():
        return Path(shutil.copytree(folder / part, to / part))
    git = ["git", f"--git-dir={folder / '.git' if (folder / '.git').exists() else folder}"]
    listed = subprocess.run([*git, "ls-tree", "-r", "--name-only", at, part], check=True, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        content = subprocess.run([*git, "show", f"{at}:{name}"], check=False, capture_output=True)
        if content.returncode == 0:  # a clone may lack its largest files
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(content.stdout)
    return to / part
