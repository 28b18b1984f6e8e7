"""Run the real `fab`, and make inventories that differ a little from a bed's."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.testbed.inventory import Inventory

ROOT = Path(__file__).parents[2]
FAB = Path(sys.executable).with_name("fab")


def environment(root: Path = ROOT, **more: str) -> dict[str, str]:
    """Return an environment in which labkit comes from a checkout."""
    return {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200", **more}


def fab(
    *words: str, inventory: Path | None = None, root: Path = ROOT, folder: str = ".", timeout_s: float = 100
) -> Done:
    """Run `fab` in the root of a checkout."""
    chosen = {} if inventory is None else {"LABKIT_HOSTS": str(inventory)}
    done = subprocess.run(
        [str(FAB), *words], cwd=root / folder, env=environment(root, **chosen), capture_output=True, text=True,
        timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


class Done(tuple[int, str, str]):
    """How it ended and what it said; a failed test shows it."""

    def __new__(cls, code: int, out: str, err: str) -> Done:
        return super().__new__(cls, (code, out, err))

    @property
    def code(self) -> int:
        return self[0]

    @property
    def out(self) -> str:
        return self[1]

    @property
    def err(self) -> str:
        return self[2]

    def row(self, host: str) -> str:
        """Return the line of a table that begins with a host."""
        found = [line for line in self.out.splitlines() if line.split() and line.split()[0] == host]
        assert found, self
        return " ".join(found[0].split())


def hosts_file(
    path: Path,
    inventory: Inventory,
    *,
    change: Callable[[dict[str, Any]], None] = lambda content: None,
) -> Path:
    """Write the inventory of a bed with a change."""
    content = tomllib.loads(inventory.path.read_text())
    change(content)
    path.write_text(_toml(content))
    return path


def _toml(content: Mapping[str, Any]) -> str:
    lines = ["[ssh]", *(f"{key} = {_value(value)}" for key, value in content["ssh"].items())]
    for host in content["hosts"]:
        lines += ["[[hosts]]", *(f"{key} = {_value(value)}" for key, value in host.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, str):
        return '"' + "".join(f"\\u{ord(c):04x}" if c in '"\\' or ord(c) < 32 else c for c in value) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def elsewhere(inventory: Inventory, **changes: Any) -> Inventory:
    """Return an inventory whose machines differ in some attributes."""
    return replace(inventory, machines=tuple(replace(machine, **changes) for machine in inventory))


def copied(target: Path, *, only: Sequence[str] = ()) -> Path:
    """Return a copy of this checkout, as far as `fab` needs it."""
    import shutil

    for name in only or ("labkit", "testbed", "fabfile.py", "fabric.yaml", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(source, target / name)
    return target
