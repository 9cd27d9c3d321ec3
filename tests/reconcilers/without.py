"""The product without one of its optional features: its folder, and the lines of `reconcilers/setup.py` for it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

SETUP = Path(__file__).parents[2] / "reconcilers" / "setup.py"
RELOADED = ("reconcilers.", "tests.reconcilers.")


class Gone:
    """Finds no module of a package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, *_: Any) -> None:
        if f"{name}.".startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"{name} was removed")


def without(feature: str, setup: str) -> list[str]:
    """The lines of setup.py without those that import and add a feature."""
    named = re.compile(rf"from reconcilers\.{feature} import|    {feature}\.add\(")
    return [line for line in setup.splitlines(keepends=True) if not named.match(line)]


@contextmanager
def life_without(feature: str) -> Iterator[ModuleType]:
    """`tests.reconcilers.life` over the product without the feature; all modules are as before afterwards."""
    before, hook = dict(sys.modules), Gone(f"reconcilers.{feature}")
    for name in before:
        if f"{name}.".startswith(RELOADED):
            del sys.modules[name]
    sys.meta_path.insert(0, hook)  # type: ignore[arg-type]
    try:
        setup = sys.modules["reconcilers.setup"] = ModuleType("reconcilers.setup")
        exec(compile("".join(without(feature, SETUP.read_text())), str(SETUP), "exec"), vars(setup))
        yield importlib.import_module("tests.reconcilers.life")
    finally:
        sys.meta_path.remove(hook)  # type: ignore[arg-type]
        for name in list(sys.modules):
            if f"{name}.".startswith(RELOADED):
                del sys.modules[name]
        sys.modules.update(before)
        sys.modules["tests"].reconcilers = before["tests.reconcilers"]  # type: ignore[attr-defined]
