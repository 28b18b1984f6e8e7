"""The cheat sheet: every command on it can be typed, every line fits, and the PDF has one page."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.cli.test_help import parsed

PATH = Path(__file__).parents[1] / "docs/cheat_sheet.py"


@pytest.fixture(scope="module")
def sheet():
    spec = importlib.util.spec_from_file_location("labkit_cheat_sheet", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(sheet):
    return [(heading, line) for column in sheet.COLUMNS for heading, text in column for line in text]


def test_every_command_on_it_can_be_typed(sheet):
    text = "\n".join(line for _, line in lines(sheet)).replace("\n   --set", " --set")
    commands = [line for line in text.splitlines() if line.startswith("labkit ")]
    assert len(commands) >= 25
    for command in commands:
        parsed(command)


def test_its_options_are_options_of_compare(sheet):
    text = " ".join(line for heading, line in lines(sheet) if heading == "Options of every simulation")
    parsed(f"labkit compare demo {' '.join(re.findall(r'--[a-z]+ [^ ]+', text))}")


def test_its_python_is_python(sheet):
    for heading in ("Python", "Sweeps"):
        ast.parse("\n".join(line for of, line in lines(sheet) if of == heading))


def test_all_of_it_fits_the_page(sheet):
    assert [line for _, line in lines(sheet) if len(line) > sheet.MOST] == []
    assert sheet.lowest() < sheet.PAGE[1] - 10


def test_the_pdf_has_one_page(sheet):
    pytest.importorskip("vl_convert")
    raw = sheet.as_pdf()
    assert raw.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", raw)) == 1
