"""The files beside the code say the same thing: pins, environments, licence, notebooks, and nothing of one machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit.system.release import EXTRAS, how_to_get

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the text as Debian ships it in /usr/share/common-licenses."""

NOTEBOOKS = sorted(path.relative_to(ROOT) for path in (ROOT / "notebooks").glob("*.ipynb"))


def direct_dependencies() -> list[Requirement]:
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = {str(each): each for group in groups for line in group if (each := Requirement(line))}
    return [each for each in found.values() if each.name != PROJECT["project"]["name"]]


def pins() -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    requirements = [Requirement(line) for line in lines if line]
    assert len({canonicalize_name(each.name) for each in requirements}) == len(requirements), "one version for all"
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in requirements}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout, so nothing tells which files belong to the repository")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("requirement", direct_dependencies(), ids=str)
def test_every_direct_dependency_is_pinned_to_a_version_it_allows(requirement):
    pinned = pins()
    assert canonicalize_name(requirement.name) in pinned
    assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_pins_are_exact_and_of_no_special_build():
    for name, version in pins().items():
        assert re.fullmatch(r"\d[\w.]*", version), f"{name}=={version}"


def test_environment_yml_adds_only_python_and_takes_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    oldest = PROJECT["project"]["requires-python"]
    assert environment["channels"] == ["conda-forge"]
    assert environment["dependencies"] == [
        f"python{oldest}",
        "pip",
        {"pip": ["-c constraints.txt", "-e .[lab,testbed,train,tune,parquet]"]},
    ]


def test_the_licence_is_apache_2():
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2


def test_every_part_of_labkit_has_its_layer():
    contract, _ = PROJECT["tool"]["importlinter"]["contracts"]
    layered = set(re.findall(r"\w+", " ".join(contract["layers"])))
    parts = {
        path.stem for path in (ROOT / "labkit").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__main__"} <= layered


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=str)
def test_every_notebook_is_stored_as_it_ran(notebook):
    cells = [cell for cell in json.loads((ROOT / notebook).read_text())["cells"] if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells if "".join(cell["source"]).strip()]
    assert counts == list(range(1, len(counts) + 1)), "run it from the top: make notebooks"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs, "no cell shows anything"
    assert not [output["ename"] for output in outputs if output["output_type"] == "error"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=str)
def test_no_heading_of_a_notebook_stands_in_it_twice(notebook):
    cells = [cell for cell in json.loads((ROOT / notebook).read_text())["cells"] if cell["cell_type"] == "markdown"]
    headings = [line for cell in cells for line in "".join(cell["source"]).splitlines() if re.match("#+ ", line)]
    assert headings, "a notebook has headings"
    assert not [heading for heading in set(headings) if headings.count(heading) > 1]


FOREIGN = re.compile(
    r"/(?:work|root|home|Users|opt|mnt)/[\w.-]+|(?:pypi|pythonhosted|anaconda|npmjs|crates|download\.pytorch)\.(?:org|com|io)"
)


def test_no_tracked_file_names_a_folder_of_one_machine_or_the_host_of_a_registry():
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked_files()
        if path != Path(__file__) and b"\0" not in (content := path.read_bytes())
        for match in FOREIGN.finditer(content.decode("utf-8", errors="replace"))
    ]
    assert found == []


def test_make_says_what_it_can_do():
    said = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"demo", "test", "fast", "flaky", "check", "lab", "bench", "doctor"} <= set(
        re.findall(r"^make (\w+)\t", said, re.MULTILINE)
    )


def test_the_help_for_a_missing_package_names_the_extra_that_brings_it():
    """What the code imports of an extra's packages stands in release.EXTRAS."""
    distributions = {"sklearn": "scikit-learn", "pynvml": "nvidia-ml-py"}
    extras = PROJECT["project"]["optional-dependencies"]
    brought = {extra: {canonicalize_name(Requirement(line).name) for line in extras[extra]} for extra in EXTRAS}
    named = {canonicalize_name(distributions.get(name, name)) for modules in EXTRAS.values() for name in modules}
    assert set().union(*brought.values()) <= named
    assert how_to_get("torch") == "pip install 'cluster-labkit[train]'"


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with what make needs to install, and a Python that says what a test wants."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/install.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


PIP_SAYS = {
    "no network": (
        "WARNING: Retrying after connection broken by 'NewConnectionError: Failed to establish a new connection'",
        "the package index cannot be reached",
    ),
    "no network, and what pip makes of it in the end": (
        "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError'\n"
        "ERROR: No matching distribution found for setuptools>=77",
        "the package index cannot be reached",
    ),
    "a full disk": (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "disk is full",
    ),
    "no torch": ("ERROR: No matching distribution found for torch==2.13.0", "has no torch==2.13.0 for this Python"),
    "no package": ("ERROR: No matching distribution found for numba==0.68.1", "has no numba==0.68.1 for this Python"),
    "a folder of others": ("ERROR: [Errno 13] Permission denied: '/x/y'", "/x/y cannot be written"),
    "something else": ("ERROR: resolution is impossible", "ERROR: resolution is impossible"),
}


@pytest.mark.parametrize("what", PIP_SAYS)
def test_an_install_that_fails_is_told_in_one_line_and_the_next_make_goes_on(checkout, what):
    said, expected = PIP_SAYS[what]
    pip = checkout / ".venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)

    def make(code: int) -> subprocess.CompletedProcess[str]:
        pip.write_text(f'#!/bin/sh\n[ "$3" = --version ] && exit 0\n[ {code} = 0 ] || echo "{said}"\nexit {code}\n')
        pip.chmod(0o755)
        return subprocess.run(
            ["make", "-s", ".venv/.with-base"], cwd=checkout, capture_output=True, text=True, check=False
        )

    failed = make(1)
    assert failed.returncode == 2
    (line, _) = failed.stderr.splitlines()  # the other one is make's own
    assert expected in line
    assert "install.log has all of it" in line
    assert not (checkout / ".venv" / ".with-base").exists()
    assert make(0).returncode == 0
    assert (checkout / ".venv" / ".with-base").exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("exit 1", "needs Python 3.11 or newer"),
        ("exit 127", "needs Python 3.11 or newer"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "apt-get install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_told_in_one_line(checkout, program, said):
    fake = checkout / "python"
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", f"PYTHON={fake}", "check"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("fails", ["", "check", "pythons", "test"])
def test_ci_runs_the_checks_and_the_tests_and_fails_with_each_of_them(tmp_path, fails):
    """What the tests print comes last."""
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")  # there is no .venv, whose pytest would collect
    make = tmp_path / "make"
    make.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/made\n[ "$1" != test ] || echo summary\n[ "$1" != "{fails}" ]\n'
    )
    make.chmod(0o755)
    words = "git sshd chromium ssh sftp tc unshare ps apt-get"  # as if all were there, and nothing to be installed
    for word in words.split():
        (tmp_path / word).write_text("#!/bin/sh\n")
        (tmp_path / word).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([script], env=env, check=False, capture_output=True, text=True)
    assert (done.returncode != 0) == bool(fails)
    made = (tmp_path / "made").read_text().split()
    assert {"pythons", ".venv/.with-dev"} <= {*made}
    assert fails == "pythons" or ({"check", "test"} <= {*made} and done.stdout.endswith("summary\n"))
