"""The site's navigation has every page of docs/ once, and its pages are few, short and say what they are for.

Links and anchors are checked in test_documented_paths.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE_BY_THE_BUILD = {"fields.md", "cli-reference.md"}
MEASURED = "measured.md"
MOST_PAGES = 26
MOST_WORDS = 38_000
"""README.md's too, and beside the page of measurements and those that the build makes."""
MOST_MEASURED_WORDS = 2_000


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without importing what its Python tags name."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def pages(nav: Any, section: str = "") -> Iterator[tuple[str, str]]:
    """Yield section and file of each page."""
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if isinstance(below, list):
                yield from pages(below, title)
            else:
                yield section, below


PAGES = list(pages(SITE["nav"]))
WRITTEN = [name for _, name in PAGES if name not in {*MADE_BY_THE_BUILD, MEASURED, "index.md"}]


def test_navigation_has_every_page_once() -> None:
    names = [name for _, name in PAGES]
    assert len(names) == len(set(names))
    assert set(names) - MADE_BY_THE_BUILD == {page.name for page in DOCS.glob("*.md")}


def test_pages_are_few_and_short() -> None:
    assert len(WRITTEN) <= MOST_PAGES
    texts = [ROOT / "README.md", *(DOCS / name for name in ("index.md", *WRITTEN))]
    assert sum(len(page.read_text().split()) for page in texts) <= MOST_WORDS
    assert len((DOCS / MEASURED).read_text().split()) <= MOST_MEASURED_WORDS


def test_the_search_leaves_measurements_out() -> None:
    assert yaml.safe_load((DOCS / MEASURED).read_text().split("---\n")[1]) == {"search": {"exclude": True}}


@pytest.mark.parametrize("name", WRITTEN)
def test_page_begins_with_a_title_and_a_paragraph(name: str) -> None:
    """The paragraph says what the page is for."""
    title, purpose = (DOCS / name).read_text().split("\n\n")[:2]
    assert re.fullmatch(r"# .+", title)
    assert re.match(r"\w", purpose)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("NCCL", "from-torchrun.md"),
        ("num_nodes", "from-torchrun.md"),
        ("rendezvous", "from-torchrun.md"),
        ("wandb", "from-torchrun.md"),
        ("pull secrets", "images.md"),
        ("hot spares", "elasticity.md"),
    ],
)
def test_the_search_finds_the_guide_first(words: str, page: str) -> None:
    """A word in a heading counts for a thousand in a text, so the one page that has them there is first."""
    headings = {
        name: re.findall(
            r"^#+ (.*)", re.sub(r"```.*?```", "", (DOCS / name).read_text(), flags=re.DOTALL), re.M
        )
        for name in WRITTEN
    }
    found = {
        name
        for name, lines in headings.items()
        for line in lines
        if all(word.lower() in re.split(r"[^\w]+", line.lower()) for word in words.split())
    }
    assert found == {page}


def test_readme_fits_a_screen_or_two() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 70


def names_of(module: Path) -> set[str]:
    """Return what a module defines or imports at its top level."""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


DOCUMENTED = re.findall(r"^::: (\S+)$", (DOCS / "sdk.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("dotted", DOCUMENTED)
def test_the_python_reference_names_what_is_there(dotted: str) -> None:
    *folders, name = dotted.split(".")
    place = ROOT.joinpath(*folders)
    if place.joinpath(name).with_suffix(".py").exists():
        return
    module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    assert name in names_of(module)


def test_the_python_reference_has_what_packages_export() -> None:
    for package in ("dlr.checkpoint", "dlr.data", "dlr.shards", "dlr.replicas"):
        text = ROOT.joinpath(*package.split("."), "__init__.py").read_text()
        exported = re.search(r"__all__ = \[(.*?)\]", text, re.DOTALL)
        assert exported is not None
        names = {name for name in re.findall(r'"(\w+)"', exported[1]) if not name.endswith("Error")}
        assert {f"{package}.{name}" for name in names} <= set(DOCUMENTED)
