"""CEL expressions, compiled once: the rules of CRDs and of ValidatingAdmissionPolicies.

Handing an object to the CEL library costs far more than evaluating an expression (about a microsecond), so
an expression knows which parts of its variables it can look at, and only these are handed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import cel
from cel.stdlib import STDLIB_FUNCTIONS

from localcluster.patterns import searcher

Projection = dict[str, "Projection"] | None
"""Fields of a value that an expression can read; None: the whole value."""

CACHED_EXPRESSIONS = 4096
NATIVE = frozenset(
    {"bytes", "contains", "double", "duration", "dyn", "endsWith", "int", "size", "startsWith"}
    | {"string", "timestamp", "type", "uint"}
)
"""The functions that the library has by itself."""
_TOKEN = re.compile(
    r"""
    (?P<string>[rRbB]{0,2}(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\d[\w.]*)
  | (?P<space>\s+|//[^\n]*)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_MATCHES = "matchesRe2"
_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
_WORDS = frozenset({"true", "false", "null", "in"})


class CelError(Exception):
    """Something is wrong with an expression, or came out wrong."""


class CelSyntaxError(CelError):
    """The expression cannot be compiled."""


class CelEvaluationError(CelError):
    """The expression has no result for these values."""


class Token(NamedTuple):
    """A word of an expression."""

    kind: str
    """string, name, number or symbol"""
    text: str


def _tokens_of(source: str) -> list[Token]:
    return [
        Token(found.lastgroup or "", found[0])
        for found in _TOKEN.finditer(source)
        if found.lastgroup != "space"
    ]


def _with_own_matches(source: str) -> str:
    """The expression with a `matches` of ours: the syntax of the library's is not Go's, nor its limits."""

    def own(found: re.Match[str]) -> str:
        is_call = found[0] == "matches" and source[found.end() :].lstrip().startswith("(")
        return _MATCHES if is_call else found[0]

    return _TOKEN.sub(own, source)


def _macro_variables(tokens: list[Token]) -> frozenset[str]:
    """The names that `all(x, ...)` and its like bind."""
    return frozenset(
        tokens[position + 2].text
        for position, token in enumerate(tokens[:-3])
        if token.kind == "name"
        and token.text in _MACROS
        and tokens[position + 1].text == "("
        and tokens[position + 2].kind == "name"
        and tokens[position + 3].text == ","
    )


def _chain(tokens: list[Token], position: int) -> list[str]:
    """The fields named one after the other: of `self.a['b'].size()` these are a and b."""
    fields: list[str] = []
    while position + 1 < len(tokens):
        symbol, (kind, text) = tokens[position].text, tokens[position + 1]
        after = tokens[position + 2].text if position + 2 < len(tokens) else ""
        if symbol == "." and kind == "name" and after != "(":
            fields.append(text)
            position += 2
        elif symbol == "[" and kind == "string" and after == "]" and text[0] in "'\"" and "\\" not in text:
            fields.append(text[1:-1])
            position += 3
        else:
            break
    return fields


def _roots(tokens: list[Token]) -> Iterator[tuple[str, list[str]]]:
    """Every use of a variable, and the fields that are named after it."""
    for position, (kind, text) in enumerate(tokens):
        after = tokens[position + 1].text if position + 1 < len(tokens) else ""
        follows_dot = position > 0 and tokens[position - 1].text == "."
        if kind == "name" and not follows_dot and after != "(" and text not in _WORDS:
            yield text, _chain(tokens, position + 1)


def merged(left: Projection, right: Projection) -> Projection:
    """Return the union of both."""
    if left is None or right is None:
        return None
    return {
        key: merged(left[key], right[key]) if key in left and key in right else left.get(key, right.get(key))
        for key in left | right
    }


def _projection(fields: list[str]) -> Projection:
    result: Projection = None
    for name in reversed(fields):
        result = {name: result}
    return result


def project(value: Any, projection: Projection) -> Any:
    """Only the fields that can be looked at."""
    if projection is None or not isinstance(value, dict):
        return value
    return {key: project(value[key], inner) for key, inner in projection.items() if key in value}


def _narrowed(part: str) -> Callable[[dict[str, str], str], dict[str, str]]:
    """A function that says more of what a policy asks its `authorizer` about."""
    return lambda asked, value: {**asked, part: value}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: function for name, function in STDLIB_FUNCTIONS.items() if name not in NATIVE},
    **{part: _narrowed(part) for part in ("resource", "subresource", "namespace", "name", "check")},
    "group": lambda _, group: {"group": group},
    "allowed": bool,
    _MATCHES: lambda text, pattern: searcher(pattern)(text) is not None,
}
"""The functions that are passed to the library. The policy supplies the answers of `check`."""


class Expression:
    """A compiled expression."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            self._program = cel.compile(_with_own_matches(source))
        except ValueError as error:
            raise CelSyntaxError(_first_line(str(error))) from None
        tokens = _tokens_of(source)
        bound = _macro_variables(tokens)
        self.projections: dict[str, Projection] = {}
        """The fields that the expression reads, by free variable."""
        for name, fields in _roots(tokens):
            if name not in bound:
                earlier: Projection = self.projections.get(name, {})
                self.projections[name] = merged(earlier, _projection(fields))
        used = {name for name in self._program.functions() if name.isidentifier()}
        for name in used - FUNCTIONS.keys() - NATIVE:
            raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")
        self.functions = {name: FUNCTIONS[name] for name in used & FUNCTIONS.keys()}
        """The functions that the library must be handed."""

    def check_variables(self, known: frozenset[str]) -> None:
        """Refuse an expression that speaks of anything else."""
        for name in self.projections:
            if name not in known:
                raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")

    def evaluate(
        self, variables: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> Any:
        """The result for these variables; those that it does not use are not looked at.

        Args:
            functions: in the place of ours of the same names.
        """
        context = cel.Context(
            {
                name: project(variables[name], projection)
                for name, projection in self.projections.items()
                if name in variables
            },
            self.functions | {k: v for k, v in (functions or {}).items() if k in self.functions},
        )
        return self.execute(context)

    def execute(self, context: cel.Context) -> Any:
        """The result in a context that the caller keeps (and that has `functions`)."""
        try:
            return self._program.execute(context)
        except Exception as error:
            raise CelEvaluationError(_words(error)) from None


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("Failed to parse expression ")


def _words(error: Exception) -> str:
    """An evaluation's failure as Kubernetes words it."""
    return f"no such key: {error.args[0]}" if isinstance(error, KeyError) else _first_line(str(error))


@lru_cache(maxsize=CACHED_EXPRESSIONS)
def compile_expression(source: str) -> Expression:
    """The expression of a text, compiled once; raises CelSyntaxError."""
    return Expression(source)
