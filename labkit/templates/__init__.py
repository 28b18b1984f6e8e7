"""What `labkit new` writes: a part of one's own that works as it is, its test, and a notebook that runs it."""

from __future__ import annotations

import importlib.util
import json
import keyword
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.core.files import make_writable

CELL_MARK: Final = "# %%"
"""Begins a cell of a notebook's template; `[markdown]` behind it: text."""
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def new_scheduler(name: str, *, folder: str | Path = ".") -> list[Path]:
    """Write `NAME.py`, `test_NAME.py` and `NAME.ipynb`; all three or none.

    Parameters
    ----------
    name : str
        Of the module, such as smallest_first; the class is called SmallestFirst.
    folder : path
        Where; it is made.

    Returns
    -------
    list of Path
        The three files.

    Raises
    ------
    InputError
        If the name cannot be that of a module, an installed module has it, or one of the files is there.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("test_"):
        raise InputError(f"'{name}' cannot name a scheduler's file; expected letters, digits and '_': smallest_first.")
    targets = [Path(folder) / each for each in (f"{name}.py", f"test_{name}.py", f"{name}.ipynb")]
    for target in targets:
        if target.exists():
            raise InputError(f"{target} is there already, and stays as it is; take another name or another --folder.")
    if importlib.util.find_spec(name) is not None:
        raise InputError(f"'{name}' is the name of an installed module, which would be hidden; take another name.")
    words = {"name": name, "Name": "".join(part[:1].upper() + part[1:] for part in name.split("_"))}
    texts = [
        _filled(each, words)
        for each in ("scheduler.py.template", "test_scheduler.py.template", "scheduler.ipynb.template")
    ]
    texts[-1] = notebook(texts[-1])
    make_writable(folder)
    for target, text in zip(targets, texts, strict=True):
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    return targets


def notebook(text: str) -> str:
    r"""Return a notebook as JSON, from text whose cells begin with `# %%` or `# %% [markdown]`.

    >>> [cell["cell_type"] for cell in json.loads(notebook("# %% [markdown]\nTitle\n# %%\n1 + 1\n"))["cells"]]
    ['markdown', 'code']
    """
    cells: list[dict[str, Any]] = []
    for i, part in enumerate(f"\n{text}".split(f"\n{CELL_MARK}")[1:]):
        kind, _, source = part.partition("\n")
        cell: dict[str, Any] = {"id": f"cell-{i:02d}", "metadata": {}, "source": source.strip()}
        is_text = kind.strip() == "[markdown]"
        cells.append(cell | ({"cell_type": "markdown"} if is_text else _CODE))
    return json.dumps({"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


_CODE: Final[dict[str, Any]] = {"cell_type": "code", "execution_count": None, "outputs": []}


def _filled(template: str, words: dict[str, str]) -> str:
    return Template((files(__name__) / template).read_text(encoding="utf-8")).substitute(words)
