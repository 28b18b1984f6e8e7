"""What mkdocs asks while it builds the site: pages from outside docs/, generated pages, and links that lead to them.

The files in docs/ are written to be read as they are, with links relative to the repository. Here such links become
links of the site: to a notebook, the change log or another page; a link to source code becomes its name.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from labkit.plots.theme import as_svg

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}
"""Pages from outside docs/, and where they are in the site."""
PACKAGES = (
    "labkit", "labkit.core", "labkit.experiment", "labkit.simulator", "labkit.schedulers", "labkit.placers",
    "labkit.speed", "labkit.topology", "labkit.workloads", "labkit.results", "labkit.plots", "labkit.notebook",
    "labkit.learning", "labkit.elastic", "labkit.testing",
)  # fmt: skip
"""Packages with a page of their own: what their `__all__` names, or their modules' public functions and classes."""
_LINK = re.compile(r"(\]\()([^)\s#:]+)?(#[\w-]+)?(\))")
_HREF = re.compile(r'href="([^":#]+\.(?:md|ipynb))(#[\w.-]+)?"')
log = logging.getLogger("mkdocs.hooks.labkit")


@event_priority(100)  # before mkdocs-jupyter looks for notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks, the pages from outside docs/, and the generated ones."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(_outside(f"notebooks/{notebook.name}", config))
    for name, uri in OUTSIDE.items():
        if uri != "index.md":
            files.append(File.generated(config, uri, content=(ROOT / name).read_text("utf-8")))
    for uri, content in command_pages().items():
        files.append(File.generated(config, uri, content=content))
    page, pictures = gallery_page()
    files.append(File.generated(config, "gallery.md", content=page))
    for name, svg in pictures.items():
        files.append(File.generated(config, f"gallery/{name}.svg", content=svg))
    files.append(File.generated(config, "cheat-sheet.pdf", content=_module("cheat_sheet").as_pdf()))
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=api_page(package)))
    config["nav"] = _filled(config["nav"], [file.src_uri for file in files.documentation_pages()] + _notebooks())
    return files


def _notebooks() -> list[str]:
    return [f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


def _outside(uri: str, config: MkDocsConfig) -> File:
    return File(uri, str(ROOT), config["site_dir"], config["use_directory_urls"])


def _filled(nav: list[Any], pages: list[str]) -> list[Any]:
    """Return the navigation with each pattern replaced by the pages that nothing else names, in their order."""
    named = {page for page in _named(nav) if "*" not in page}
    left = [page for page in dict.fromkeys(pages) if page not in named]

    def fill(entries: list[Any]) -> Iterator[Any]:
        for entry in entries:
            if isinstance(entry, dict):
                yield {name: list(fill(part)) if isinstance(part, list) else part for name, part in entry.items()}
            elif "*" in entry:
                depth = entry.count("/")
                yield from (page for page in left if fnmatch(page, entry) and page.count("/") == depth)
            else:
                yield entry

    return list(fill(nav))


def _named(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for part in entry.values() if isinstance(entry, dict) else [entry]:
            yield from _named(part) if isinstance(part, list) else [part]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links of the repository into links of the site, and lists within lists into what Python-Markdown reads."""
    home = _home(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target, anchor = found[2] or "", found[3] or ""
        if not target or not _leaves(home, target):
            return found[0]
        uri = _uri(home, target)
        if files.get_file_from_path(uri) is None:
            return f"]({_SOURCE})"
        return f"{found[1]}{_relative(uri, page.file.src_uri)}{anchor}{found[4]}"

    markdown = markdown.replace("<!-- cheat sheet -->", "and the [cheat sheet](cheat-sheet.pdf) (PDF, one page)")
    linked = _LINK.sub(link, _PICTURE.sub(lambda found: _picture(found[1], page.file.src_uri), markdown))
    linked = re.sub(r"\[([^\]]+)\]\(" + re.escape(_SOURCE) + r"\)", r"\1", linked)
    return _deeper(linked)


_SOURCE = "source:"
_PICTURE = re.compile(r"<!-- picture: (\w+) -->")


def _picture(name: str, page: str) -> str:
    """Return a picture of the gallery, which the repository has no file of, for a page that asks for it."""
    heading = str(inspect.getdoc(getattr(_gallery(), name))).partition("\n")[0].rstrip(".")
    return f"![{heading}]({_relative(f'gallery/{name}.svg', page)})"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn the links of a notebook, of which mkdocs sees only the result, into links of the site."""
    if not page.file.src_uri.startswith("notebooks/"):
        return html

    def link(found: re.Match[str]) -> str:
        uri = _uri("notebooks", found[1])
        file = files.get_file_from_path(uri)
        if file is None:
            log.warning("%s links to %s, which is no page", page.file.src_uri, found[1])
            return found[0]
        return f'href="{file.url_relative_to(page.file)}{found[2] or ""}"'

    return _HREF.sub(link, html)


def _home(uri: str) -> str:
    """Return the folder, from the repository's root, in which the source of a page of the site is."""
    if uri in OUTSIDE.values() and uri != "index.md":
        return ""
    return posixpath.dirname(uri) if uri.startswith("notebooks/") else posixpath.join("docs", posixpath.dirname(uri))


def _leaves(home: str, target: str) -> bool:
    """Tell whether a link leads out of docs/, or to a folder, so that mkdocs would not find it."""
    path = posixpath.normpath(posixpath.join(home, target))
    return not home.startswith("docs") or not path.startswith("docs/") or target.endswith("/")


def _uri(home: str, target: str) -> str:
    """Return where in the site a file of the repository is."""
    path = posixpath.normpath(posixpath.join(home, target))
    if path == "docs/why":
        return "why/deltas.md"
    return OUTSIDE.get(path, path.removeprefix("docs/"))


def _relative(uri: str, page: str) -> str:
    return posixpath.relpath(uri, posixpath.dirname(page) or ".")


def _deeper(markdown: str) -> str:
    """Indent what stands within list items by four spaces for two: GitHub takes either, Python-Markdown does not."""
    fenced, lines = False, []
    for line in markdown.split("\n"):
        fenced ^= line.startswith("```")
        shift = len(line) - len(line.lstrip(" "))
        lines.append(" " * shift + line if shift and not fenced else line)
    return "\n".join(lines)


def api_page(package: str) -> str:
    """Return the page of a package."""
    module = importlib.import_module(package)
    lines = [f"# {package}", "", f"::: {package}", ""]
    if not getattr(module, "__all__", None):  # what it offers is in its modules
        for path in sorted(Path(str(module.__file__)).parent.glob("[a-z]*.py")):
            lines += [f"## {package}.{path.stem}", "", f"::: {package}.{path.stem}", "    options:",
                      "      heading_level: 3", ""]  # fmt: skip
    return "\n".join(lines)


def gallery_page() -> tuple[str, dict[str, str]]:
    """Return the page of pictured recipes, and each picture: name -> SVG."""
    recipes = _gallery()
    source = Path(str(recipes.__file__)).read_text("utf-8")
    code, _, sections = source.partition("# section: ")
    lines = ["# Gallery", "", "Each picture is drawn by the code below it. The recipes share these imports:", "",
             "```python", code[code.index("import pandas") :].strip(), "```", ""]  # fmt: skip
    pictures = {}
    for section in sections.split("# section: "):
        heading, *functions = re.split(r"^def (?=\w)", section, flags=re.MULTILINE)
        lines += [f"## {heading.strip()}", ""]
        for text in functions:
            name = text.partition("(")[0]
            if name.startswith("_"):
                lines += ["These recipes share:", "", "```python", f"def {text.strip()}", "```", ""]
                continue
            draw = getattr(recipes, name)
            pictures[name] = as_svg(draw().to_dict())
            title, _, words = str(inspect.getdoc(draw)).rstrip(".").partition(".\n")
            body = re.sub("^return ", "", dedent(text.split('"""', 2)[2]).strip(), flags=re.MULTILINE)
            lines += [f"### {title}", "", *([f"{words.strip()}.", ""] if words.strip() else []),
                      f"![{title}](gallery/{name}.svg)", "", "```python", body, "```", ""]  # fmt: skip
    return "\n".join(lines), pictures


def _gallery() -> ModuleType:
    return _module("gallery")


@cache
def _module(name: str) -> ModuleType:
    """Return a file of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"labkit_{name}", ROOT / "docs" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"docs/{name}.py is missing.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PICTURES: Final = 60
"""Least number of pictures on all pages of the site."""


def on_post_build(config: MkDocsConfig) -> None:
    """Count the pictures of the site, and warn where they are too few: in a strict build that is an error."""
    site = Path(config["site_dir"])
    pages = [path.read_text("utf-8") for path in site.rglob("*.html")]
    shown = sum(len(re.findall(r'<img [^>]*src=|<svg[^>]*class="marks"', page)) for page in pages)
    print(f"{shown} pictures on {len(pages)} pages")
    if shown < PICTURES:
        log.warning("the site shows %s pictures; expected at least %s", shown, PICTURES)


def command_pages() -> dict[str, str]:
    """Return a page for each command, from what `--help` says, and one that lists them: path -> Markdown."""
    import typer

    from labkit.cli import help as cli_help
    from labkit.cli.app import app

    root = typer.main.get_command(app)
    lines = ["# Commands", "", "```text", cli_help.BEGIN.format(version="").replace("labkit :", "labkit:"), "```", ""]
    pages, seen = {"commands.md": ""}, ""
    for name, (panel, examples) in cli_help.COMMANDS.items():
        command: Any = root
        for word in name.split():
            command = command.commands[word]
        if panel and panel != seen:
            lines += ["", f"## {panel}", "", "| command | what it does |", "|---|---|"]
            seen = panel
        file = f"commands/{name.replace(' ', '-')}.md"
        what = _text((command.help or "").partition("\n")[0])
        lines.append(f"| [labkit {name}]({file}) | {what} |")
        page = [f"# labkit {name}", "", _text(command.help or ""), "", "```sh", *examples, "```", ""]
        if rows := list(_rows(command)):
            page += ["| option | what | default |", "|---|---|---|", *rows, ""]
        pages[file] = "\n".join(page)
    pages["commands.md"] = "\n".join([*lines, ""])
    return pages


def _rows(command: Any) -> Iterator[str]:
    """Yield a row of a table for each argument and option of a command: its names, what it is, its default."""
    for param in command.params:
        names = [f"`{name}`" for name in (*param.opts, *param.secondary_opts) if name != "--help"]
        if param.param_type_name == "argument":
            names = [f"`{param.metavar or param.name.upper()}`"]
        default = "" if callable(param.default) or param.default in (None, False, [], "", ()) else f"`{param.default}`"
        if names and not getattr(param, "hidden", False):
            yield f"| {' '.join(names)} | {_text(param.help or '')} | {default} |"


def _text(said: str) -> str:
    """Return words as Markdown: what looks like markup is meant as it stands."""
    parts = re.split(r"(`[^`]*`)", " ".join(said.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]<>|])", r"\\\1", part) for part in parts)
