"""Every recipe of the gallery draws, and its page has the code that drew the picture."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from labkit.plots.theme import as_svg

PATH = Path(__file__).parents[1] / "docs/gallery.py"
SOURCE = PATH.read_text("utf-8")
NAMES = re.findall(r"^def (\w+)\(\) -> Any:$", SOURCE, re.MULTILINE)


@pytest.fixture(scope="module")
def recipes():
    spec = importlib.util.spec_from_file_location("labkit_gallery", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_enough_and_each_has_a_heading(recipes):
    assert len(NAMES) >= 50
    headings = [inspect.getdoc(getattr(recipes, name)).splitlines()[0] for name in NAMES]
    assert len(set(headings)) == len(NAMES)


@pytest.mark.filterwarnings("ignore:machines. gangs ")
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_draws_marks(name, recipes):
    svg = as_svg(getattr(recipes, name)().to_dict())
    marks = re.findall(r'class="mark-(?:line|rect|symbol|rule|area)[^>]*>(.*?)</g>', svg, re.DOTALL)
    assert any("<path" in mark for mark in marks)
