"""Moves modules below another package, by rewriting their import statements only.

pip vendors its dependencies in the same way (https://pip.pypa.io/en/stable/development/vendoring-policy/).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Set
from pathlib import PurePosixPath

INTERNAL = "dlr._internal"
"""Package for everything except `dlr` itself."""

PARTS = frozenset(
    {"agent", "controller", "crds", "deploy", "healthcheck", "localcluster", "reconcilers", "simulator"}
)
"""Top-level packages of dlr that are shipped."""

_STATEMENT_STARTS = {
    tokenize.ENCODING,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
}


class RelocationError(Exception):
    """An import cannot be rewritten; the message names the line."""


def relocated(source: str, roots: Set[str], modules: Collection[str], filename: str = "<source>") -> str:
    """Return the source with each absolute import of a root changed to one below `INTERNAL`.

    Strings that are the dotted name of one of `modules`, as for `python -m`, are changed, too.

    Args:
        roots: names of the top-level packages and modules to move.
        modules: dotted names of all modules to move.
        filename: name of the file, for errors.

    Raises:
        RelocationError: `import root.module` binds the root's name, so there is nothing to change it to.
    """
    lines = io.StringIO(source).readlines()  # split as in tokenize
    for row, column, old, new in sorted(_changes(source, roots, modules, filename), reverse=True):
        line = lines[row - 1]
        assert line[column:].startswith(old)
        lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return "".join(lines)


def module_name(path: str) -> str:
    """Return the dotted name of a module, by its path relative to the parent of its top-level package."""
    pure = PurePosixPath(path)
    parts = pure.parent.parts if pure.name == "__init__.py" else pure.with_suffix("").parts
    return ".".join(parts)


def _changes(
    source: str, roots: Set[str], modules: Collection[str], filename: str
) -> Iterator[tuple[int, int, str, str]]:
    """Yield row, column, old text and new text; rows count from 1, columns from 0."""
    dotted = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(roots)))})(?:\.\w+)+")
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for number, token in enumerate(tokens):
        if token.type == tokenize.STRING and dotted.fullmatch(token.string.strip("\"'")):
            name = ast.literal_eval(token.string)
            if name in modules:
                yield *token.start, token.string, token.string.replace(name, f"{INTERNAL}.{name}")
        if token.type != tokenize.NAME or not _starts_statement(tokens, number):
            continue
        target = tokens[number + 1]
        if target.string not in roots:
            continue
        if token.string == "from":
            yield *target.start, target.string, f"{INTERNAL}.{target.string}"
        elif token.string == "import":
            if tokens[number + 2].string in (".", ","):
                raise RelocationError(f"{filename}:{token.start[0]}: write `from {target.string}… import …`")
            yield *token.start, "import", f"from {INTERNAL} import"


def _starts_statement(tokens: list[tokenize.TokenInfo], number: int) -> bool:
    before = tokens[number - 1] if number else None
    return before is None or before.type in _STATEMENT_STARTS or before.string in (":", ";")
