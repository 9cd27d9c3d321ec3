"""No two classes of the product have one name, so that a name in a log, a traceback or a search means one thing.

The embedded cluster is apart: it stands in for Kubernetes, so it has classes such as Event and Admission that
dlr, which only talks to Kubernetes, has for its own view of them. A private class is its module's alone.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("controller", "reconcilers", "crds", "agent", "healthcheck", "dlr", "simulator")


def sources(folders: Iterable[str]) -> list[tuple[Path, str]]:
    """The modules of some folders, and their texts."""
    return [(path, path.read_text()) for each in folders for path in sorted((ROOT / each).rglob("*.py"))]


def classes(folders: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules of each public class, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, text in sources(folders):
        for name in re.findall(r"^ *class ([^_\W]\w*)[(:\[]", text, re.MULTILINE):
            found[name].append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("folders", [PRODUCT, ("localcluster",)], ids=["product", "localcluster"])
def test_each_class_has_a_name_of_its_own(folders: Sequence[str]) -> None:
    found = classes(folders)
    assert len(found) > 100
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


FOREIGN = {"OutOfcpu", "MultiprocessContext"}
"""Names of Kubernetes and torch that the product has in docstrings alone."""
QUOTED = re.compile(r"`([A-Z][a-z]\w+)(\.\w+)?(?:\(\))?`")


def test_docstrings_name_what_there_is() -> None:
    """A class or one of its attributes, what is imported, an alias, or a reason that the code has as a string."""
    attributes, imported, others, quotes = defaultdict[str, set[str]](set), set[str](), set[str](), []
    for path, text in sources(PRODUCT):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.ClassDef(name=name):
                    parts = (getattr(part, "name", getattr(part, "attr", None)) for part in ast.walk(node))
                    fields = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
                    attributes[name] |= {"", *(f".{each}" for each in (*parts, *fields))}
                case ast.alias(name=text):
                    imported.add(text)
                case ast.Expr(value=ast.Constant(value=str(text))):
                    quotes += [(path.name, node.lineno, *found) for found in QUOTED.findall(text)]
                case ast.Constant(value=str(text)) | ast.Name(id=text):
                    others.add(text)
    foreign = FOREIGN | (imported - attributes.keys())
    assert len(quotes) > 100
    of_ours = {other: {""} for other in others} | attributes
    assert [
        each for each in quotes if each[2] not in foreign and each[3] not in of_ours.get(each[2], ())
    ] == []
