"""labkit finds papers' own forms by entry points, and says in one line how to get them where they are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labkit import schedulers
from labkit.core import InputError, consent, outside
from labkit.learning.disclosure import policies

FORMS = ("attention", "deepsys", "dl2", "dl2_simulator", "marl")


def test_each_form_is_found_by_its_name_and_needs_no_consent_of_the_user() -> None:
    with consent.stored():
        found = outside.reproductions()
        assert [schedulers.make(name).pods for name in ("attention", "deepsys")] == [True, True]  # type: ignore[attr-defined]
    assert sorted(found) == list(FORMS)
    assert {"attention", "deepsys", "dl2 as published", "marl as published"} < set(policies())


def test_nothing_of_them_is_imported_before_it_is_used() -> None:
    code = "import sys, labkit; labkit.schedulers.make('srtf'); print([m for m in sys.modules if 'reproductions' in m])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


@pytest.fixture
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as if labkit had come without them."""
    outside.reproduction.cache_clear()
    monkeypatch.setattr(outside, "_offered", lambda _: {})


@pytest.mark.usefixtures("_without")
@pytest.mark.parametrize("name", ["dl2(published=True)", "marl(published=True)"])
def test_where_they_are_missing_one_line_says_how_to_get_them(name: str) -> None:
    schedulers._recipes.cache_clear()
    schedulers._offered.cache_clear()
    missing = r"in the package reproductions, which is not installed\. .* pip install"
    with pytest.raises(InputError, match=missing) as told:
        schedulers.make(name)
    assert "\n" not in str(told.value)
    assert "deepsys" not in schedulers.available()
    schedulers._recipes.cache_clear()
    schedulers._offered.cache_clear()
