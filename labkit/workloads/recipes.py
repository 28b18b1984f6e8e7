"""The recipes of the files that ship: `python -m labkit.workloads.recipes [FOLDER]` writes `traces/` again.

`python -m labkit.workloads.recipes --throughputs simulation_throughputs.json` writes the table of Gavel's figures again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from labkit.workloads.gavel import PUBLISHED, Throughputs

_HEADER: Final = """\
# Steps per second of whole jobs, alone on their GPUs, as measured and published by the authors of Gavel
# (Narayanan et al., OSDI 2020, Table 2). Extracted from simulation_throughputs.json in the public repository
# stanford-futuredata/gavel, commit c4fa400. Copyright (c) 2020 Stanford Future Data Systems, MIT License.
"""
_TYPES: Final = ("k80", "p100", "v100")


def throughputs_csv(path: str | Path) -> str:
    """Return the text of `gavel_throughputs.csv`, from Gavel's own file."""
    table = Throughputs.read(path)
    columns = [table.device_types.index(kind) for kind in _TYPES]
    lines = [f"model,n_gpus,{','.join(_TYPES)}"]
    for s, n in enumerate(table.n_gpus):
        for k, model in enumerate(table.models):
            values = table.alone[k, s, columns]
            if not np.isnan(values).any():
                lines.append(f"{model},{n},{','.join(repr(float(value)) for value in values)}")
    return _HEADER + "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Write the files that ship."""
    parser = argparse.ArgumentParser(prog="python -m labkit.workloads.recipes", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("traces"))
    parser.add_argument("--throughputs", type=Path)
    given = parser.parse_args(arguments)
    if given.throughputs:
        PUBLISHED.write_text(throughputs_csv(given.throughputs), "utf-8")
        return


if __name__ == "__main__":
    main()
