"""Write a run's folder to stdout as a tar file: `pack.py FOLDER RUN`; no keys, no sockets, no links.

Without RUN: one line of JSON, when each run here was last written to.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile

SECRET = (".key", ".pem", ".sock")


def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what must not or cannot travel."""
    return info if (info.isfile() or info.isdir()) and not info.name.endswith(SECRET) else None


def written(runs: str) -> dict[str, float]:
    """Return when each run was last written to."""
    names = os.listdir(runs) if os.path.isdir(runs) else []
    labels = {name: os.path.join(runs, name, "run.json") for name in names}
    return {name: os.path.getmtime(label) for name, label in labels.items() if os.path.isfile(label)}


def main(folder: str, run: str = "") -> None:
    """Write it; nothing where there is no such run."""
    runs = os.path.join(os.path.abspath(os.path.expanduser(folder)), "runs")
    if not run:
        print(json.dumps({"runs": written(runs)}))
        return
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        if os.path.isfile(os.path.join(runs, run, "run.json")):
            archive.add(os.path.join(runs, run), arcname=".", filter=wanted)


if __name__ == "__main__":
    main(*sys.argv[1:])
