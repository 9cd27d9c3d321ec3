"""What a CRD's rule may cost at worst, roughly as a real API server estimates it.

A real API server refuses a CRD whose rules could become expensive, and it assumes the largest values that
the schema allows. This estimate walks over an expression's tokens with the same prices, so that a rule over
lists, maps or strings without limits is noticed here too. It knows the types of fields, of what an index
picks, of the variables of macros, and nothing of intermediate results.
"""

from __future__ import annotations

from dataclasses import dataclass

from localcluster.cel import MACROS, CelSyntaxError, Token, tokens_of
from localcluster.cel_values import escape
from localcluster.schema_nodes import Node

RULE_LIMIT = 10_000_000
SCHEMA_LIMIT = 100_000_000
REQUEST_BYTES = 3 * 1024 * 1024
STRING_FACTOR = 0.1
REGEX_FACTOR = 0.25
_STRING_CALLS = frozenset(
    {"contains", "endsWith", "startsWith", "indexOf", "lastIndexOf", "replace", "split", "substring", "trim"}
    | {"lowerAscii", "upperAscii", "find", "findAll", "charAt"}
)
_LIST_CALLS = frozenset({"isSorted", "sum", "min", "max", "distinct", "sort", "flatten", "reverse"})
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">=", "+"})
_FORMAT_LENGTHS = {"date": 12, "date-time": 37, "duration": 32}
_KEY = Node({"type": "string", "maxLength": 0})
"""A map's key: its length is not counted."""


def smallest_size(node: Node) -> int:
    """The fewest bytes that a value takes as JSON."""
    match node.schema.get("type"):
        case "boolean":
            return 4
        case "integer" | "number":
            return 1
        case "object" if node.additional is None:
            required = node.schema.get("required") or ()
            return 2 + sum(
                len(name) + 4 + smallest_size(node.properties[name])
                for name in required
                if name in node.properties and name not in node.defaults
            )
        case None:
            return 1
        case _:
            return 2


def largest_count(node: Node) -> int:
    """How many elements a list or map has, or bytes a string, at most."""
    schema = node.schema
    if schema.get("type") == "array" and node.items is not None:
        return int(schema.get("maxItems", (REQUEST_BYTES - 2) // (smallest_size(node.items) + 1)))
    if schema.get("type") == "object" and node.additional is not None:
        return int(schema.get("maxProperties", (REQUEST_BYTES - 2) // (smallest_size(node.additional) + 6)))
    if schema.get("type") == "string" or schema.get("x-kubernetes-int-or-string"):
        if "maxLength" in schema:
            return int(schema["maxLength"]) * 4
        if schema.get("enum"):
            return max(len(str(each)) for each in schema["enum"])
        return _FORMAT_LENGTHS.get(schema.get("format", ""), REQUEST_BYTES - 2)
    return 1


@dataclass
class _Scope:
    """An open parenthesis: what is inside is evaluated `times` times."""

    times: int
    bound: str | None = None


class RuleCost:
    """Estimates one expression; also refuses fields that the schema does not have."""

    def __init__(self, source: str, node: Node) -> None:
        self._tokens = tokens_of(source)
        self._variables: dict[str, Node | None] = {"self": node, "oldSelf": node}
        self._scopes = [_Scope(1)]
        self._elements: list[Node | None] = []
        """Of each open bracket, what the index picks."""
        self._last: Node | None = None
        """What the operand just read refers to, if it is known."""
        self.total = 0.0

    def estimate(self) -> int:
        position = 0
        while position < len(self._tokens):
            position = self._read(position)
        return int(self.total)

    def _text(self, position: int) -> str:
        return self._tokens[position].text if position < len(self._tokens) else ""

    def _add(self, cost: float) -> None:
        self.total += cost * self._scopes[-1].times

    def _read(self, position: int) -> int:
        token = self._tokens[position]
        if token.text == "(":
            self._scopes.append(_Scope(self._scopes[-1].times))
        elif token.text == ")":
            self._close()
        elif token.kind == "name":
            return self._read_name(position, token)
        elif token.text in "=!<>+" and (operator := self._operator(position)):
            self._compare(position + len(operator))
            return position + len(operator)
        elif token.kind == "string":
            self._last = None
        elif token.text == "[":
            self._open_index()
        elif token.text == "]":
            self._last = self._elements.pop() if self._elements else None
        return position + 1

    def _close(self) -> None:
        scope = self._scopes.pop() if len(self._scopes) > 1 else self._scopes[0]
        if scope.bound is not None:
            self._variables.pop(scope.bound, None)
        self._last = None

    def _operator(self, position: int) -> str:
        two = self._text(position) + self._text(position + 1)
        if two in _COMPARISONS:
            return two
        return self._text(position) if self._text(position) in _COMPARISONS else ""

    def _compare(self, position: int) -> None:
        """Comparing is as expensive as the smaller side is long."""
        left = 1 if self._last is None else largest_count(self._last)
        right_token = self._tokens[position] if position < len(self._tokens) else Token("", "")
        right = len(right_token.text) if right_token.kind in ("string", "number") else left
        self._add(1 + STRING_FACTOR * min(left, right))
        self._last = None

    def _read_name(self, position: int, token: Token) -> int:
        after_dot = position > 0 and self._text(position - 1) == "."
        if self._text(position + 1) == "(":
            return self._read_call(position, token.text, receiver=self._last if after_dot else None)
        self._add(1)
        if token.text == "in":
            self._last = None
        elif after_dot:
            self._last = self._field(token.text)
        else:
            self._last = self._variables.get(token.text)
        return position + 1

    def _field(self, name: str) -> Node | None:
        node = self._last
        if node is None or node.schema.get("x-kubernetes-int-or-string"):
            return None
        if node.additional is not None:
            return node.additional
        for declared, child in node.properties.items():
            if escape(declared) == name and is_visible(child):
                return child
        if node.schema.get("type") == "object":
            raise CelSyntaxError(f"undefined field '{name}'")
        raise CelSyntaxError(f"type '{node.schema.get('type', 'dyn')}' does not support field selection")

    def _open_index(self) -> None:
        """Of a list or map; or a list begins here, of whose elements nothing is known."""
        node, self._last = self._last, None
        self._elements.append(node and (node.additional or node.items))
        self._add(1 if node else 0)

    def _read_call(self, position: int, name: str, receiver: Node | None) -> int:
        if name in MACROS and receiver is not None:
            return self._open_macro(position, receiver)
        self._add(1)
        size = 1 if receiver is None else largest_count(receiver)
        if name == "matches":
            pattern = self._text(position + 2)
            self._add(STRING_FACTOR * (size + 1) * max(1.0, REGEX_FACTOR * len(pattern)))
        elif name in _STRING_CALLS:
            self._add(STRING_FACTOR * size)
        elif name in _LIST_CALLS:
            self._add(size)
        self._scopes.append(_Scope(self._scopes[-1].times))
        self._last = None
        return position + 2

    def _open_macro(self, position: int, receiver: Node) -> int:
        bound = self._text(position + 2)
        self._scopes.append(_Scope(self._scopes[-1].times * max(1, largest_count(receiver)), bound))
        self._variables[bound] = _KEY if receiver.additional is not None else receiver.items
        self._add(3)
        self._last = None
        return position + 4


def is_visible(node: Node) -> bool:
    """Whether rules can see a field: data without a type cannot be seen, nor lists or maps of it."""
    if node.schema.get("x-kubernetes-int-or-string"):
        return True
    if node.items is not None:
        return is_visible(node.items)
    if node.additional is not None:
        return is_visible(node.additional)
    return bool(node.schema.get("type"))
