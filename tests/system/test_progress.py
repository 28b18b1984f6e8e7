"""Progress bars: what they count, and where they are text."""

from __future__ import annotations

from labkit.system import progress
from labkit.system.progress import counted, counter


def test_things_come_through_and_the_bar_says_how_many_are_done(capsys):
    assert list(counted(iter("abc"), name="letters", unit="letter")) == ["a", "b", "c"]
    said = capsys.readouterr().err
    assert "letters: 100%" in said
    assert "3/3" in said


def test_a_bar_that_is_not_wanted_says_nothing(capsys):
    with counter(3, unit="run", shown=False) as bar:
        bar.update()
    assert capsys.readouterr() == ("", "")


def test_in_a_notebook_it_is_text_of_the_cell(monkeypatch, capsys):
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    with counter(2, unit="cell", done=1) as bar:
        bar.update()
    said = capsys.readouterr()
    assert "2/2" in said.out
    assert said.err == ""
