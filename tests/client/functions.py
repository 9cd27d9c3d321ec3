"""Functions that are shipped, or cannot be."""

from __future__ import annotations

import functools
import xml.etree as tree
import xml.etree.ElementTree
import xml.sax.saxutils
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONSTANT = 3


def alone(lr: float, steps: int = 2) -> dict[str, float]:
    import statistics

    return {"mean": statistics.mean(lr * step for step in range(steps))}


def with_submodules() -> str | None:
    return xml.sax.saxutils.escape("&") + tree.ElementTree.fromstring("<a>b</a>").tag


def with_a_constant() -> int:
    return CONSTANT


def with_an_import() -> Any:
    return Path("x")


@functools.cache
def decorated() -> None: ...


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@_marked
def quietly_decorated() -> None: ...


def a_closure() -> Callable[[], int]:
    kept = 7

    def inner() -> int:
        return kept

    return inner


async def asynchronous() -> None: ...


def annotated(path: Path | None = None) -> Path | None:
    return path


def a_generator() -> Iterator[int]:
    yield 1
