"""Which labkit this is: the name by which pip knows it, and its version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import PackageMetadata

DISTRIBUTION: Final = "cluster-labkit"
"""What to give pip; the package that is imported is `labkit`."""

ON_HOSTS: Final = "labkit"
"""What the wheel is called that a testbed's hosts get; it is on no index."""

EXTRAS: Final = {
    "lab": ("jupyterlab", "ipywidgets", "anywidget", "IPython", "traitlets"),
    "testbed": ("fabric", "paramiko", "invoke", "cryptography", "distributed", "dask", "pynvml"),
    "train": ("torch", "gymnasium", "tensorboardX", "sklearn"),
    "parquet": ("pyarrow",),
    "tune": ("optuna",),
}
"""The modules that each extra of pyproject.toml brings."""


def how_to_get(module: str) -> str:
    """Return the command that installs a module which is missing.

    >>> how_to_get("torch.nn")
    "pip install 'cluster-labkit[train]'"
    """
    top = module.partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), "")
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def version() -> str:
    """Return the version of the checkout that runs, else of what is installed.

    >>> version().count(".")
    2
    """
    if project := checkout():
        return str(project["version"])
    found = installed()
    return found["Version"] if found is not None else "of unknown version"


def checkout(folder: Path = Path(__file__).parents[2]) -> dict[str, Any]:
    """Return the table `project` of the pyproject.toml in a folder, of labkit's checkout; empty: it is none."""
    import tomllib  # here, as most of those that import this module want a constant

    file = folder / "pyproject.toml"
    project = tomllib.loads(file.read_text("utf-8")).get("project", {}) if file.is_file() else {}
    return project if project.get("name") == DISTRIBUTION else {}


def installed() -> PackageMetadata | None:
    """Return the metadata of the labkit that is installed; None where its files were only copied."""
    from importlib import metadata

    found = []
    for name in (DISTRIBUTION, ON_HOSTS):
        try:
            found.append(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue
    own = [one for one in found if Path(str(one.locate_file("labkit/system/release.py"))) == Path(__file__)]
    return next((one.metadata for one in (*own, *found)), None)  # an editable one has its files elsewhere
