"""CEL expressions, compiled once: the rules of CRDs and of ValidatingAdmissionPolicies.

Handing an object to the CEL library costs far more than evaluating an expression (about a microsecond), so
an expression knows which parts of its variables it can look at, and only these are handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import cel

from localcluster.cel_functions import FUNCTIONS, NAMESPACES, NATIVE, SIMPLE_NAMES
from localcluster.cel_syntax import MACROS, WORDS, CelError, CelSyntaxError, Token, tokens_of

Projection = dict[str, "Projection"] | None
"""Which fields of a value can be looked at; None: the value as a whole."""

CACHED_EXPRESSIONS = 4096
VARIABLES_OF_RULES = frozenset({"self", "oldSelf"})


class CelEvaluationError(CelError):
    """The expression has no result for these values."""


def _macro_variables(tokens: list[Token]) -> frozenset[str]:
    """The names that `all(x, ...)` and its like bind."""
    return frozenset(
        tokens[position + 2][1]
        for position, (kind, text, _) in enumerate(tokens[:-3])
        if kind == "name"
        and text in MACROS
        and tokens[position + 1][1] == "("
        and tokens[position + 2][0] == "name"
        and tokens[position + 3][1] == ","
    )


def _chain(tokens: list[Token], position: int) -> list[str]:
    """The fields named one after the other: of `self.a['b'].size()` these are a and b."""
    fields: list[str] = []
    while position + 1 < len(tokens):
        symbol, (kind, text, _) = tokens[position][1], tokens[position + 1]
        after = tokens[position + 2][1] if position + 2 < len(tokens) else ""
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
    for position, (kind, text, _) in enumerate(tokens):
        after = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        follows_dot = position > 0 and tokens[position - 1][1] == "."
        if kind == "name" and not follows_dot and after != "(" and text not in WORDS:
            yield text, _chain(tokens, position + 1)


def merged(left: Projection, right: Projection) -> Projection:
    """What either looks at."""
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


class Expression:
    """A compiled expression."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            self._program = cel.compile(source)
        except ValueError as error:
            raise CelSyntaxError(_first_line(str(error))) from None
        tokens = tokens_of(source)
        bound = _macro_variables(tokens)
        self.projections: dict[str, Projection] = {}
        """By free variable: what the expression looks at."""
        for name, fields in _roots(tokens):
            if name not in bound and name not in NAMESPACES:
                earlier: Projection = self.projections.get(name, {})
                self.projections[name] = merged(earlier, _projection(fields))
        self.functions = self._known_functions()

    def _known_functions(self) -> dict[str, Any]:
        """What must be handed to the library for this expression."""
        used = [name for name in self._program.functions() if name.isidentifier()]
        for name in used:
            if name not in NATIVE and name not in SIMPLE_NAMES:
                raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")
        return {name: function for name, function in FUNCTIONS.items() if name.rpartition(".")[2] in used}

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
    text = _first_line(str(error))
    match error:
        case KeyError():
            return f"no such key: {error.args[0]}"
        case TypeError() if text.startswith("No such overload"):
            return "no such overload"
        case ZeroDivisionError():
            return "division by zero"
        case _:
            return text


@lru_cache(maxsize=CACHED_EXPRESSIONS)
def compile_expression(source: str) -> Expression:
    """The expression of a text, compiled once; raises CelSyntaxError."""
    return Expression(source)
