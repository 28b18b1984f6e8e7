"""Which labkit this is: the name by which pip knows it, and its version."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "labkit"
"""What to give pip; the package that is imported is `labkit`."""

EVERYTHING: Final = f"pip install '{DISTRIBUTION}[lab]'"
"""How to get what notebooks, figures, training and machines need."""


def version() -> str:
    """Return the version of the checkout that runs, else of what is installed.

    >>> version().count(".")
    2
    """
    project = Path(__file__).parents[1] / "pyproject.toml"
    if project.is_file():
        said = tomllib.loads(project.read_text("utf-8")).get("project", {})
        if said.get("name") == DISTRIBUTION:
            return str(said["version"])
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # copied without its metadata
        return "of unknown version"
