"""The product without one of its optional features: its folder, and the lines of `reconcilers/setup.py` for it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

SETUP = Path(__file__).parents[2] / "reconcilers" / "setup.py"
LISTS = ("add_all", "add_indexes")
"""Functions of `setup.py` that name one feature after the other."""


class Gone:
    """Finds no module of a package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, *_: Any) -> None:
        if f"{name}.".startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"{name} was removed")


def setup_without(package: str) -> ast.Module:
    """`setup.py` without its imports of the package, the functions that use them, and lines that call these."""
    module = ast.parse(SETUP.read_text())
    imports = [
        n for n in module.body if isinstance(n, ast.ImportFrom) and f"{n.module}.".startswith(f"{package}.")
    ]
    assert imports, f"{SETUP} imports nothing of {package}"
    gone = {alias.asname or alias.name for node in imports for alias in node.names}
    kept = [node for node in module.body if node not in imports]
    while users := [
        n for n in kept if isinstance(n, ast.FunctionDef) and n.name not in LISTS and _uses(n, gone)
    ]:
        gone |= {function.name for function in users}
        kept = [node for node in kept if node not in users]
    for node in kept:
        if isinstance(node, ast.FunctionDef) and node.name in LISTS:
            node.body = [line for line in node.body if not _uses(line, gone)]
    module.body = kept
    return module


def _uses(node: ast.AST, gone: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in gone for each in ast.walk(node))


@contextmanager
def life_without(package: str) -> Iterator[ModuleType]:
    """`tests.reconcilers.life` over the product without the package; all modules are as before afterwards."""
    before, hook = dict(sys.modules), Gone(package)
    for name in before:
        if f"{name}.".startswith(("reconcilers.", "tests.reconcilers.")):
            del sys.modules[name]
    sys.meta_path.insert(0, hook)  # type: ignore[arg-type]
    try:
        setup = ModuleType("reconcilers.setup")
        setup.__file__ = str(SETUP)
        sys.modules[setup.__name__] = setup
        exec(compile(setup_without(package), str(SETUP), "exec"), vars(setup))
        yield importlib.import_module("tests.reconcilers.life")
    finally:
        sys.meta_path.remove(hook)  # type: ignore[arg-type]
        for name in list(sys.modules):
            if f"{name}.".startswith(("reconcilers.", "tests.reconcilers.")):
                del sys.modules[name]
        sys.modules.update(before)
        sys.modules["tests"].reconcilers = before["tests.reconcilers"]  # type: ignore[attr-defined]
