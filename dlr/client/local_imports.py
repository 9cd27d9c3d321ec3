"""Finds modules beside a shipped script, which its imports would find here, but not in a Pod.

Nothing is executed. A module that is installed here is assumed to be in the image, too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path


@dataclass(frozen=True)
class LocalImport:
    """A module that a script imports from its own folder."""

    name: str
    """Name of the module in the script, such as `helpers` or `.helpers`."""
    path: Path
    """File of the module, or folder of a package."""


def local_import(source: str, folder: Path) -> LocalImport | None:
    """Return the first import that finds its module in the script's folder; None if there is none.

    Args:
        source: text of the script; a text that this Python cannot parse has no imports.
        folder: folder of the script.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    folders = [folder.resolve(), *folder.resolve().parents]
    for level, words in _imports(tree):
        path = _found(folders[min(max(level, 1), len(folders)) - 1], words)
        if path is not None and (level or not _is_installed(words[0])):
            return LocalImport("." * level + words[0], path)
    return None


def _imports(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Yield the level of each import, 0 for an absolute one, and the parts of the module's dotted name."""
    rest: list[ast.AST] = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, ast.Import):
            yield from ((0, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            of = node.module.split(".") if node.module else []
            yield from ((node.level, [*of, alias.name]) for alias in node.names)
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            rest += reversed(node.orelse)
        else:
            rest += reversed([*ast.iter_child_nodes(node)])


def _found(folder: Path, words: list[str]) -> Path | None:
    """Return the file or the package of the first word in the folder.

    A folder without `__init__.py` may hold data, and counts as a package only if the next part is in it.
    """
    there = folder / words[0]
    if (file := there.with_name(f"{words[0]}.py")).is_file():
        return file
    if (there / "__init__.py").is_file():
        return there
    return there if len(words) > 1 and there.is_dir() and _found(there, words[1:]) is not None else None


def _is_installed(name: str) -> bool:
    """Whether this Python finds the module elsewhere than in the folder of its own program."""
    if name in sys.builtin_module_names:
        return True
    others = (finder for finder in sys.meta_path if finder is not PathFinder)
    if PathFinder.find_spec(name, sys.path[1:]) is not None:
        return True
    return any(finder.find_spec(name, None) is not None for finder in others)
