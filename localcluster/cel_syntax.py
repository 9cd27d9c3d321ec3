"""CEL expressions as trees, as the type checker needs them.

The grammar: https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax. The library that evaluates
expressions keeps its own tree to itself. Not known here, and so refused, are optional syntax (`a.?b`) and
messages.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import NamedTuple


class CelError(Exception):
    """Something is wrong with an expression, or came out wrong."""


class CelSyntaxError(CelError):
    """The expression cannot be compiled."""


def error_at(source: str, position: int, text: str) -> CelSyntaxError:
    """Word and draw an error as the CEL library of Kubernetes does."""
    line = source.count("\n", 0, position) + 1
    column = position - source.rfind("\n", 0, position)
    drawn = f"\n | {source.splitlines()[line - 1]}\n | {'.' * (column - 1)}^" if source.strip() else ""
    return CelSyntaxError(f"ERROR: <input>:{line}:{column}: {text}{drawn}")


_TOKEN = re.compile(
    r"""
    (?P<string>[rRbB]{0,2}(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>0x[0-9a-fA-F]+u?|(?:\d+\.\d+|\.\d+|\d+)(?:[eE][+-]?\d+)?[uU]?)
  | (?P<space>\s+|//[^\n]*)
  | (?P<symbol>&&|\|\||==|!=|<=|>=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
WORDS = frozenset({"true", "false", "null", "in"})


class Token(NamedTuple):
    """A word of an expression."""

    kind: str
    """string, name, number or symbol"""
    text: str
    position: int


def tokens_of(source: str) -> list[Token]:
    """An expression's words, for those who look at expressions without evaluating them."""
    return [
        Token(found.lastgroup or "", found[0], found.start())
        for found in _TOKEN.finditer(source)
        if found.lastgroup != "space"
    ]


@dataclass(eq=False, kw_only=True)
class Expr:
    """A node of a tree; `position` is where its operator, dot, bracket or name is in the text."""

    position: int = 0


@dataclass(eq=False)
class Literal(Expr):
    value: str | bytes | int | float | bool | None
    type: str
    """CEL's name of the value's type; an unsigned int is an int in Python."""


@dataclass(eq=False)
class Ident(Expr):
    name: str


@dataclass(eq=False)
class Select(Expr):
    operand: Expr
    field: str
    test_only: bool = False
    """`has(operand.field)`"""


@dataclass(eq=False)
class Call(Expr):
    """A call; operators are calls of `_+_`, `!_`, `_[_]`, `@in`, `_?_:_` and so on."""

    function: str
    target: Expr | None
    arguments: list[Expr]


@dataclass(eq=False)
class ListExpr(Expr):
    elements: list[Expr]


@dataclass(eq=False)
class MapExpr(Expr):
    entries: list[tuple[Expr, Expr]]


@dataclass(eq=False)
class Macro(Expr):
    """`range.name(variable, arguments)`, as in `self.all(x, x > 0)`."""

    name: str
    variable: str
    range: Expr
    arguments: list[Expr]


_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
"""Binary operators, those that bind least first."""


def parse(source: str) -> Expr:
    """The tree of an expression; raises CelSyntaxError."""
    return _Parser(source).whole()


@dataclass
class _Parser:
    source: str
    tokens: list[Token] = field(init=False)
    at: int = 0

    def __post_init__(self) -> None:
        self.tokens = tokens_of(self.source)

    def whole(self) -> Expr:
        tree = self._expression()
        if self.at < len(self.tokens):
            raise self._unexpected()
        return tree

    def _peek(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else Token("end", "", len(self.source))

    def _next(self) -> Token:
        token = self._peek()
        self.at += 1
        return token

    def _takes(self, text: str) -> bool:
        token = self._peek()
        if token.text != text or token.kind == "string":
            return False
        self.at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._unexpected(f", expecting '{text}'")

    def _unexpected(self, wanted: str = "") -> CelSyntaxError:
        token = self._peek()
        shown = token.text or "<EOF>"
        return error_at(self.source, token.position, f"Syntax error: unexpected '{shown}'{wanted}")

    def _expression(self) -> Expr:
        condition = self._binary(0)
        position = self._peek().position
        if not self._takes("?"):
            return condition
        first = self._binary(0)
        self._expect(":")
        return Call("_?_:_", None, [condition, first, self._expression()], position=position)

    def _binary(self, level: int) -> Expr:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek().text in _LEVELS[level] and self._peek().kind != "string":
            operator = self._next()
            function = "@in" if operator.text == "in" else f"_{operator.text}_"
            left = Call(function, None, [left, self._binary(level + 1)], position=operator.position)
        return left

    def _unary(self) -> Expr:
        token = self._peek()
        if token.kind == "symbol" and token.text in ("!", "-"):
            self.at += 1
            operand = self._unary()
            if token.text == "-" and isinstance(operand, Literal) and operand.type in ("int", "double"):
                assert isinstance(operand.value, int | float)
                return Literal(-operand.value, operand.type, position=token.position)
            return Call(f"{token.text}_", None, [operand], position=token.position)
        return self._member()

    def _member(self) -> Expr:
        tree = self._primary()
        while True:
            token = self._peek()
            if self._takes("."):
                tree = self._selected(tree, token)
            elif self._takes("["):
                index = self._expression()
                self._expect("]")
                tree = Call("_[_]", None, [tree, index], position=token.position)
            else:
                return tree

    def _selected(self, operand: Expr, dot: Token) -> Expr:
        name = self._peek()
        if name.kind != "name":
            raise self._unexpected(", expecting a field's name")
        self.at += 1
        opening = self._peek().position
        if not self._takes("("):
            return Select(operand, name.text, position=dot.position)
        arguments = self._until(")")
        if name.text in MACROS and len(arguments) in (2, 3):
            return self._macro(name.text, operand, arguments, opening)
        return Call(name.text, operand, arguments, position=opening)

    def _until(self, end: str) -> list[Expr]:
        """Expressions with commas between them, up to a closing bracket."""
        found: list[Expr] = []
        while not self._takes(end):
            if found:
                self._expect(",")
                if self._takes(end):
                    break
            found.append(self._expression())
        return found

    def _primary(self) -> Expr:
        token = self._next()
        match token.kind, token.text:
            case "string", text:
                return _string(text, token.position)
            case "number", text:
                return _number(text, token.position)
            case "name", "true" | "false":
                return Literal(token.text == "true", "bool", position=token.position)
            case "name", "null":
                return Literal(None, "null_type", position=token.position)
            case "name", name if name not in WORDS:
                return self._named(name, token.position)
            case "symbol", "(":
                inner = self._expression()
                self._expect(")")
                return inner
            case "symbol", "[":
                return ListExpr(self._until("]"), position=token.position)
            case "symbol", "{":
                return self._map(token.position)
        self.at -= 1
        raise self._unexpected()

    def _named(self, name: str, position: int) -> Expr:
        opening = self._peek().position
        if not self._takes("("):
            return Ident(name, position=position)
        arguments = self._until(")")
        if name != "has":
            return Call(name, None, arguments, position=opening)
        if len(arguments) != 1 or not isinstance(arguments[0], Select):
            raise error_at(self.source, position, "invalid argument to has() macro")
        asked = arguments[0]
        return Select(asked.operand, asked.field, test_only=True, position=asked.position)

    def _map(self, position: int) -> Expr:
        entries: list[tuple[Expr, Expr]] = []
        while not self._takes("}"):
            if entries:
                self._expect(",")
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
        return MapExpr(entries, position=position)

    def _macro(self, name: str, over: Expr, arguments: list[Expr], position: int) -> Expr:
        variable, *rest = arguments
        if not isinstance(variable, Ident):
            raise error_at(self.source, variable.position, "argument must be a simple name")
        if len(rest) == 2 and name != "map":
            raise error_at(self.source, position, f"{name}() takes a variable and an expression")
        return Macro(name, variable.name, over, rest, position=position)


def _string(text: str, position: int) -> Literal:
    """CEL's escapes are Python's, but for those that only CEL has."""
    prefix = re.match(r"[rRbB]*", text)
    flags = prefix[0].lower() if prefix else ""
    body = text[len(flags) :]
    if "r" not in flags:
        body = re.sub(r"\\([?`])", r"\1", body)
    try:
        value = ast.literal_eval(("r" if "r" in flags else "") + body)
    except (SyntaxError, ValueError) as error:
        raise CelSyntaxError(f"ERROR: <input>: invalid string literal {text}") from error
    if "b" in flags:
        return Literal(value.encode(), "bytes", position=position)
    return Literal(value, "string", position=position)


def _number(text: str, position: int) -> Literal:
    if text[-1] in "uU":
        return Literal(int(text[:-1], 0), "uint", position=position)
    if text.startswith("0x") or text.isdigit():
        return Literal(int(text, 16 if text.startswith("0x") else 10), "int", position=position)
    return Literal(float(text), "double", position=position)
