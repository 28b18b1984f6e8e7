"""Each source that the table of schedulers names has a BibTeX entry of the same year; keys tell papers apart."""

import re

import pytest

from labkit.schedulers import available
from labkit.schedulers.kinds import KINDS
from labkit.schedulers.references import REFERENCES, bibtex, key_of, sources_of

SOURCES = {part for names in KINDS.values() for _, source in names.values() for part in source.split("; ") if part}


def test_every_source_has_an_entry_and_every_entry_a_source():
    assert REFERENCES.keys() == SOURCES


@pytest.mark.parametrize("source", sorted(SOURCES - {"Slurm's manual"}))
def test_an_entry_is_of_the_year_that_the_table_names(source):
    assert source.endswith(str(REFERENCES[source].year))


def test_papers_have_different_keys():
    papers = {id(paper): key_of(source) for source, paper in REFERENCES.items()}
    assert len(set(papers.values())) == len(papers)


def test_entries_of_all_schedulers_are_whole_and_each_stands_once():
    text = bibtex(available())
    keys = re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)
    assert len(keys) == len(set(keys)) >= 15
    assert text.count("{") == text.count("}")
    assert all(
        f"title = {{{{{REFERENCES[source].title}}}}}" in text for name in available() for source in sources_of(name)
    )
