"""The type check of CEL rules, which a real API server makes before it takes a CRD.

After the checker of cel-go (https://github.com/google/cel-go/tree/master/checker), with the options that
Kubernetes sets: lists and maps of one type, and numbers of different types compared by `<` but not by `==`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from localcluster.cel_signatures import QUALIFIERS, SIGNATURES, Signature
from localcluster.cel_syntax import (
    Call,
    CelSyntaxError,
    Expr,
    Ident,
    ListExpr,
    Literal,
    Macro,
    MapExpr,
    Select,
    error_at,
)
from localcluster.cel_types import BOOL, DYN, Type
from localcluster.patterns import problem_of

UNKNOWN = Type("?")
"""Of the elements of an empty list or map, until something says more."""
_TYPE_NAMES = frozenset(
    {
        "bool",
        "bytes",
        "double",
        "duration",
        "int",
        "list",
        "map",
        "null_type",
        "string",
        "timestamp",
        "type",
        "uint",
    }
)
_NULLABLE = frozenset({"null_type", "object", "duration", "timestamp", "quantity", "optional"})
_Bindings = dict[str, Type]


class Checked:
    """The type of an expression's result; raises CelSyntaxError where types do not fit."""

    def __init__(self, source: str, tree: Expr, variables: dict[str, Type]) -> None:
        self._source = source
        self._variables = dict(variables)
        self._formats = False
        """Whether this is inside of the arguments of `format`."""
        self.result = self._check(tree)

    def _error(self, node: Expr, text: str) -> CelSyntaxError:
        return error_at(self._source, node.position, text)

    @contextmanager
    def _bound(self, **variables: Type) -> Iterator[None]:
        before = self._variables
        self._variables = {**before, **variables}
        try:
            yield
        finally:
            self._variables = before

    def _check(self, node: Expr) -> Type:
        match node:
            case Literal():
                return Type(node.type)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListExpr():
                return Type("list", (self._joined(node.elements),))
            case MapExpr():
                keys = self._joined([key for key, _ in node.entries])
                return Type("map", (keys, self._joined([value for _, value in node.entries])))
            case Macro():
                return self._macro(node)
        raise TypeError(f"no such node: {node}")

    def _ident(self, node: Ident) -> Type:
        if node.name in self._variables:
            return self._variables[node.name]
        if node.name in _TYPE_NAMES:
            return Type("type")
        raise self._error(node, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select) -> Type:
        operand = self._check(node.operand)
        if operand.name == "optional":
            operand = operand.parameters[0]
        found = DYN
        if operand.name == "object":
            field = (operand.fields or {}).get(node.field)
            if field is None:
                raise self._error(node, f"undefined field '{node.field}'")
            found = field
        elif operand.name == "map":
            found = operand.parameters[1]
        elif operand.name not in ("dyn", "?"):
            raise self._error(node, f"type '{operand}' does not support field selection")
        return BOOL if node.test_only else found

    def _joined(self, elements: list[Expr]) -> Type:
        """The one type of a literal's elements; those that are formatted may have several."""
        joined = UNKNOWN
        for element in elements:
            found = self._check(element)
            if _says_all(joined) and _says_all(found) and found != joined:
                if not self._formats:
                    raise self._error(element, f"expected type '{joined}' but found '{found}'")
                joined = DYN
            else:
                joined = _more_general(joined, found)
        return joined

    def _macro(self, node: Macro) -> Type:
        over = self._check(node.range)
        element = {"list": over.parameters, "map": over.parameters, "dyn": (DYN,), "?": (DYN,)}.get(over.name)
        if not element:
            kinds = "must be list, map, or dynamic"
            raise self._error(
                node, f"expression of type '{over}' cannot be range of a comprehension ({kinds})"
            )
        *tests, last = node.arguments
        with self._bound(**{node.variable: element[0]}):
            for test in tests:
                self._require(test, BOOL)
            if node.name == "map":
                return Type("list", (self._check(last),))
            self._require(last, BOOL)
        return Type("list", element[:1]) if node.name == "filter" else BOOL

    def _require(self, node: Expr, wanted: Type) -> None:
        found = self._check(node)
        if not _fits(found, wanted, {}):
            raise self._error(node, f"expected type '{wanted}' but found '{found}'")

    def _call(self, node: Call) -> Type:
        function, target = node.function, node.target
        if isinstance(target, Ident) and target.name in QUALIFIERS and target.name not in self._variables:
            function, target = f"{target.name}.{function}", None
        on = None if target is None else self._check(target)
        if function not in SIGNATURES:
            raise self._error(node, f"undeclared reference to '{function}' (in container '')")
        arguments = self._check_arguments(node)
        self._check_pattern(node)
        results: list[Type] = []
        for signature in SIGNATURES[function]:
            bindings: _Bindings = {}
            if _accepts(signature, on, arguments, bindings):
                results.append(_resolved(signature.result, bindings))
        if not results:
            given = f"({', '.join(str(each) for each in arguments)})"
            shown = f"{on}.{given}" if on is not None else given
            raise self._error(node, f"found no matching overload for '{function}' applied to '{shown}'")
        return results[0] if all(each == results[0] for each in results) else DYN

    def _check_arguments(self, node: Call) -> list[Type]:
        outside = self._formats
        self._formats = outside or node.function == "format"
        types = [self._check(argument) for argument in node.arguments]
        self._formats = outside
        return types

    def _check_pattern(self, node: Call) -> None:
        pattern = node.arguments[-1] if node.function == "matches" and node.arguments else None
        if isinstance(pattern, Literal) and isinstance(pattern.value, str) and problem_of(pattern.value):
            raise self._error(pattern, "invalid matches argument")


def _accepts(signature: Signature, on: Type | None, arguments: list[Type], bindings: _Bindings) -> bool:
    if (on is None) != (signature.target is None) or len(arguments) != len(signature.parameters):
        return False
    if on is not None and signature.target is not None and not _fits(on, signature.target, bindings):
        return False
    pairs = zip(arguments, signature.parameters, strict=True)
    return all(_fits(argument, parameter, bindings) for argument, parameter in pairs)


def _fits(found: Type, wanted: Type, bindings: _Bindings) -> bool:
    """Whether a value of one type may stand where another is wanted; capital letters are bound on the way."""
    if len(wanted.name) == 1 and wanted.name.isupper():
        bound = bindings.setdefault(wanted.name, found)
        if not (_fits(found, bound, bindings) or _fits(bound, found, bindings)):
            return False
        bindings[wanted.name] = _more_general(bound, found)
        return True
    if {"dyn", "?"} & {found.name, wanted.name}:
        return True
    if "null_type" in (found.name, wanted.name):
        return found.name in _NULLABLE and wanted.name in _NULLABLE
    same = (found.name, found.level) == (wanted.name, wanted.level)
    same = same and len(found.parameters) == len(wanted.parameters)
    return same and all(
        _fits(one, other, bindings) for one, other in zip(found.parameters, wanted.parameters, strict=True)
    )


def _more_general(one: Type, other: Type) -> Type:
    """Return the more informative of two types that fit; UNKNOWN has no information."""
    if one.name == "?" or other.name == "dyn" or one.name == "null_type":
        return other
    if other.name == "?" or one.name == "dyn" or not one.parameters:
        return one
    pairs = zip(one.parameters, other.parameters, strict=True)
    return Type(one.name, tuple(_more_general(left, right) for left, right in pairs))


def _says_all(found: Type) -> bool:
    return found.name != "?" and all(_says_all(each) for each in found.parameters)


def _resolved(result: Type, bindings: _Bindings) -> Type:
    if result.name in bindings:
        return bindings[result.name]
    if len(result.name) == 1 and result.name.isupper():
        return UNKNOWN
    if not result.parameters:
        return result
    return Type(result.name, tuple(_resolved(each, bindings) for each in result.parameters))
