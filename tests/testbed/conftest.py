"""A laptop testbed for all tests of the testbed: four hosts with real SSH servers, gone after the last test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.system.doctor import which
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop import Bed, down
from labkit.testbed.ssh.fleet import Fleet


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder with a short path: sockets below it have room."""
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def up(short_folder: Path) -> Iterator[Bed]:
    """A laptop testbed of four hosts; tests may not break it."""
    if not which("sshd"):
        pytest.skip("no sshd here")
    with Bed.up(4, folder=short_folder / "bed", gpus=1) as bed:
        yield bed


@pytest.fixture(scope="session")
def bed(up: Bed) -> Inventory:
    """The inventory of a laptop testbed: h0 to h3, each with one GPU that it says it has."""
    return up.inventory


@pytest.fixture(scope="session")
def fleet(bed: Inventory) -> Iterator[Fleet]:
    """Open connections to the laptop testbed."""
    with Fleet(bed) as fleet:
        yield fleet


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A short folder for a bed of one test; nothing may be left in it."""
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    yield folder / "bed"
    left = list(folder.iterdir())
    if left:
        down(folder / "bed")
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.rmdir()
    assert not left
