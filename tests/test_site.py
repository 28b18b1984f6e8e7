"""What the documentation site is made of, where its tools are installed; `make docs` builds it and checks its links."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from labkit.cli.help import COMMANDS

pytest.importorskip("mkdocs", reason="mkdocs is not installed (the extra docs)")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("site_hooks", None)


def navigation():
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]


def test_the_navigation_names_pages_that_are_there_and_every_page_once(hooks):
    made = {"commands.md", "contributing.md", "changes.md", "gallery.md"}
    named = [page for page in hooks._named(navigation()) if "*" not in page]
    assert {page for page in named if not (ROOT / "docs" / page).exists()} == made
    assert len(named) == len(set(named))


def test_a_page_that_the_navigation_does_not_name_is_found_by_its_folder(hooks):
    pages = ["index.md", "new.md", "why/new.md", "notebooks/99_new.ipynb"]
    filled = hooks._filled(navigation(), pages)
    assert set(pages) <= set(hooks._named(filled))
    assert not any("*" in page for page in hooks._named(filled))


def test_each_command_has_a_page_with_its_options_and_the_list_leads_to_it(hooks):
    pages = hooks.command_pages()
    paths = {name: f"commands/{name.replace(' ', '-')}.md" for name in COMMANDS}
    assert [name for name, path in paths.items() if not pages[path].startswith(f"# labkit {name}\n")] == []
    assert [path for path in paths.values() if f"({path})" not in pages["commands.md"]] == []
    page = pages["commands/compare.md"]
    assert "--load" not in page
    assert (
        "| `--arrival-rate` | Factor on the trace's arrival rate: 2 means that jobs arrive twice as fast. | `1.0` |"
        in page
    )


@pytest.mark.parametrize(
    ("home", "target", "uri"),
    [
        ("docs", "../notebooks/00_start.ipynb", "notebooks/00_start.ipynb"),
        ("docs/why", "../../CHANGELOG.md", "changes.md"),
        ("notebooks", "../docs/sweep.md", "sweep.md"),
        ("", "docs/why/wheel.md", "why/wheel.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(hooks, home, target, uri):
    assert hooks._uri(home, target) == uri


def test_what_stands_within_a_list_is_indented_for_the_site_alone(hooks):
    text = "* one\n  more\n  1. two\n```text\n  kept\n```"
    assert hooks._deeper(text) == "* one\n    more\n    1. two\n```text\n  kept\n```"


def test_a_page_that_asks_for_a_picture_gets_one_of_the_gallery(hooks):
    pages = {path.name: hooks._PICTURE.findall(path.read_text("utf-8")) for path in (ROOT / "docs").glob("**/*.md")}
    asked = [name for names in pages.values() for name in names]
    assert len(asked) >= 3
    assert [name for name in asked if not hasattr(hooks._gallery(), name)] == []
    assert hooks._picture("gantt", "why/deltas.md") == "![Gantt chart of a run](../gallery/gantt.svg)"
