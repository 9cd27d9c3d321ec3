"""Every module, file and folder of ours that our pages and docstrings name in backticks is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRACKED = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
FILES = {Path(name) for name in TRACKED if (ROOT / name).exists()}
FOLDERS = {parent for path in FILES for parent in path.parents} - {Path()}
PLACES = FILES | FOLDERS
TOP = {folder.name for folder in FOLDERS if len(folder.parts) == 1}
PAGES = sorted(path for path in FILES if path.suffix == ".md" and path.parts[0] != "tests")
SOURCES = sorted(path for path in FILES if path.suffix == ".py" and path.parts[0] in TOP - {"tests"})
NAMED = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
OTHERS = {
    "multigpu_torchrun.py",
    "train_ddp.py",
    "train.py",
    "script.py",
    "x.py",
    "agent.py",
    ".venv/",
    "dist/",
}
"""Files of the user's, of other projects, or that something makes."""


def named_in(text: str) -> set[str]:
    """What is in backticks and looks like a Python file, or like a path that begins in one of our folders."""
    found = {re.sub(r"\n\s*", "", token) for token in re.findall(r"`([^`]+)`", text)}
    paths = {token for token in found if NAMED.fullmatch(token)} - OTHERS
    ours = {path for path in paths if path.split("/")[0] in TOP and "/" in path}
    return ours | {path for path in paths if path.endswith((".py", "/")) and not path.startswith("dlrover/")}


def is_there(path: str) -> bool:
    """Anywhere: a page may say the end of a path alone."""
    return any(place.match(path.rstrip("/")) for place in PLACES)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert {path for path in named_in((ROOT / page).read_text()) if not is_there(path)} == set()


def test_what_our_sources_name_is_there() -> None:
    missing = {
        (str(source), path)
        for source in SOURCES
        for path in named_in((ROOT / source).read_text())
        if path.endswith(".py") and not is_there(path)
    }
    assert missing == set()


LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    missing = set()
    for link in LINK.findall((ROOT / page).read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text())):
            missing.add(link)
    assert missing == set()
