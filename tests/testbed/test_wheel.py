"""The wheel of labkit: the same files, the same bytes; an installer takes it, and it knows its own version."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.testbed.agent.gpus import MODULES
from labkit.testbed.install import DRIVER_MODULE, SUFFIXES, build

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A checkout of something that calls itself labkit."""
    package = tmp_path / "labkit"
    (package / "part").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "part" / "__init__.py").write_text("ANSWER = 42\n")
    (package / "py.typed").write_text("")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return package


def test_the_same_files_give_the_same_bytes_and_the_same_name(checkout, tmp_path):
    first = build(checkout).write(tmp_path)
    content = first.read_bytes()
    (checkout / "part" / "__init__.py").touch()
    assert build(checkout).write(tmp_path).read_bytes() == content
    assert re.fullmatch(r"labkit-[\d.]+\+h[0-9a-f]{16}-py3-none-any\.whl", first.name)


@pytest.mark.parametrize("change", ["content", "name", "requirement"])
def test_whatever_changes_changes_the_version(checkout, change):
    before = build(checkout).version
    if change == "content":
        (checkout / "part" / "__init__.py").write_text("ANSWER = 41\n")
    elif change == "name":
        (checkout / "part" / "__init__.py").rename(checkout / "part" / "other.py")
    else:
        project = checkout.parent / "pyproject.toml"
        project.write_text(project.read_text().replace('"numpy>=2.2"', '"numpy>=2.3"'))
    assert build(checkout).version != before


@pytest.mark.parametrize("left", ["part/__pycache__/x.py", ".cache/x.json", "part/.x.py.swp", "part/notes.txt"])
def test_what_an_editor_or_a_test_left_behind_is_not_in_it(checkout, left):
    before = build(checkout)
    (checkout / left).parent.mkdir(exist_ok=True)
    (checkout / left).write_text("x")
    assert build(checkout) == before


def test_it_holds_the_kinds_of_files_that_the_project_ships():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = project["tool"]["setuptools"]["package-data"]["labkit"]
    assert {".py"} | {Path(pattern).suffix for pattern in shipped} == set(SUFFIXES)


def test_an_installer_takes_it_and_what_it_installs_builds_the_same_wheel(tmp_path):
    """An installed labkit deploys what is installed."""
    wheel = build()
    made = wheel.write(tmp_path)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(target), str(made)], check=True, capture_output=True)
    asked = "from labkit.testbed.install import build; import labkit; print(labkit.__file__, build().version)"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(target / "labkit" / "__init__.py"), wheel.version]


def test_hosts_get_the_module_that_speaks_to_the_driver():
    pynvml = pytest.importorskip("pynvml", reason="no module pynvml (nvidia-ml-py) here")
    assert build().files[DRIVER_MODULE] == Path(pynvml.__file__).read_bytes()
    assert DRIVER_MODULE.removesuffix(".py").replace("/", ".") in MODULES


def test_its_record_names_every_file(checkout, tmp_path):
    path = build(checkout).write(tmp_path)
    with zipfile.ZipFile(path) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("RECORD"))
        listed = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
        assert sorted(listed) == sorted(archive.namelist())
        assert archive.testzip() is None


def test_a_folder_that_is_no_labkit_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected the folder of labkit's modules"):
        build(tmp_path)
