"""No two classes of the product have one name, so that a name in a log, a traceback or a search means one thing.

The embedded cluster is apart: it stands in for Kubernetes, so it has classes such as Event and Admission that
dlr, which only talks to Kubernetes, has for its own view of them. A private class is its module's alone.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("controller", "reconcilers", "crds", "agent", "healthcheck", "dlr", "simulator")


def classes(folders: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules of each public class, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("folders", [PRODUCT, ("localcluster",)], ids=["product", "localcluster"])
def test_each_class_has_a_name_of_its_own(folders: Sequence[str]) -> None:
    found = classes(folders)
    assert len(found) > 100
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
