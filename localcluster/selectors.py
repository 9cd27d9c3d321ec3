"""Label and field selectors: which objects a list, a watch, a binding or a budget means.

A selector is parsed once a request and then asked once an object, so parsing gives a predicate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.resource import JSON

Labels = Mapping[str, str]


class SelectorError(ValueError):
    """A selector that cannot be read; the message says which part and why."""


@dataclass(frozen=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: str
    """in, notin, exists, !exists"""
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        present = self.key in labels
        match self.operator:
            case "in":
                return present and labels[self.key] in self.values
            case "notin":
                return not present or labels[self.key] not in self.values
            case "exists":
                return present
            case _:
                return not present


@dataclass(frozen=True)
class LabelSelector:
    """Conditions that must all hold; none at all selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels | None) -> bool:
        present = labels or {}
        return all(requirement.matches(present) for requirement in self.requirements)


_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KEY_PATTERN = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{_NAME}")
_VALUE_PATTERN = re.compile(rf"(?:{_NAME})?")
_LABEL_LIMIT = 63
_SET_PATTERN = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY_PATTERN = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s=!<>]*)")


def parse_labels(text: str) -> LabelSelector:
    """Read `a=b,c!=d,e in (f,g),h notin (i),j,!k`."""
    return LabelSelector(tuple(_parse_requirement(part) for part in _split(text)))


def _split(text: str) -> list[str]:
    """The parts between commas that are not inside parentheses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    if not text.strip():
        return []
    return [part.strip() for part in parts]


def _parse_requirement(part: str) -> Requirement:
    if found := _SET_PATTERN.fullmatch(part):
        values = frozenset(_value(value.strip(), part) for value in found["values"].split(","))
        return Requirement(_key(found["key"], part), found["operator"], values)
    if found := _EQUALITY_PATTERN.fullmatch(part):
        operator = "notin" if found["operator"] == "!=" else "in"
        values = frozenset((_value(found["value"], part),))
        return Requirement(_key(found["key"], part), operator, values)
    if part.startswith("!"):
        return Requirement(_key(part[1:].strip(), part), "!exists")
    return Requirement(_key(part, part), "exists")


def _key(key: str, part: str) -> str:
    if not _KEY_PATTERN.fullmatch(key) or len(key.rsplit("/", 1)[-1]) > _LABEL_LIMIT:
        raise SelectorError(f"unable to parse requirement: {part!r}: {key!r} is not a label key")
    return key


def _value(value: str, part: str) -> str:
    if not _VALUE_PATTERN.fullmatch(value) or len(value) > _LABEL_LIMIT:
        raise SelectorError(f"unable to parse requirement: {part!r}: {value!r} is not a label value")
    return value


_EXPRESSION_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!exists"}


def from_expressions(expressions: list[JSON]) -> LabelSelector:
    """Read the `matchExpressions` of a label selector."""
    requirements = []
    for expression in expressions:
        key, name = expression.get("key", ""), expression.get("operator", "")
        operator = _EXPRESSION_OPERATORS.get(name)
        if operator is None:
            raise SelectorError(f"{name!r} is not a valid label selector operator (key {key!r})")
        values = expression.get("values") or []
        if operator in ("in", "notin") and not values:
            raise SelectorError(f"for {name!r} on key {key!r}, values set can't be empty")
        if operator in ("exists", "!exists") and values:
            raise SelectorError(f"for {name!r} on key {key!r}, values set must be empty")
        requirements.append(Requirement(key, operator, frozenset(values)))
    return LabelSelector(tuple(requirements))


def from_selector(selector: JSON) -> LabelSelector:
    """Read a `{matchLabels, matchExpressions}` object; an empty one selects everything."""
    equalities = tuple(
        Requirement(key, "in", frozenset((value,)))
        for key, value in (selector.get("matchLabels") or {}).items()
    )
    expressions = from_expressions(selector.get("matchExpressions") or [])
    return LabelSelector(equalities + expressions.requirements)


@dataclass(frozen=True)
class FieldRequirement:
    """One field that must, or must not, have a value."""

    path: tuple[str, ...]
    value: str
    negated: bool = False

    def matches(self, obj: Any) -> bool:
        return (_text_at(obj, self.path) == self.value) is not self.negated


@dataclass(frozen=True)
class FieldSelector:
    """Conditions on fields that must all hold."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, obj: Any) -> bool:
        return all(requirement.matches(obj) for requirement in self.requirements)

    def value_of(self, field: str) -> str | None:
        """The value that a field must equal, when the selector says so (`metadata.name` allows a look-up)."""
        path = tuple(field.split("."))
        for requirement in self.requirements:
            if requirement.path == path and not requirement.negated:
                return requirement.value
        return None


_FIELD_PATTERN = re.compile(
    r"(?P<path>[A-Za-z][\w-]*(?:\.[\w-]+)*)\s*(?P<operator>==|=|!=)\s*(?P<value>.*)", re.DOTALL
)


def parse_fields(text: str) -> FieldSelector:
    r"""Read `metadata.name=a,status.phase!=Running`; a backslash protects `,`, `=` and itself in a value."""
    requirements = []
    for part in re.findall(r"(?:[^\\,]|\\.|\\$)+", text, re.DOTALL):
        if not part.strip():
            continue
        found = _FIELD_PATTERN.fullmatch(part.strip())
        if found is None:
            raise SelectorError(f"invalid selector: {text!r}; can't understand {part.strip()!r}")
        value = re.sub(r"\\([\\,=])", r"\1", found["value"])
        requirements.append(
            FieldRequirement(tuple(found["path"].split(".")), value, negated=found["operator"] == "!=")
        )
    return FieldSelector(tuple(requirements))


def _text_at(obj: Any, path: tuple[str, ...]) -> str:
    """A field as selectors compare it: absent, null and empty are alike."""
    for part in path:
        obj = obj.get(part) if isinstance(obj, dict) else None
    if obj is None:
        return ""
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj)


def predicate(labels: LabelSelector, fields: FieldSelector) -> Callable[[JSON], bool] | None:
    """Both selectors as one test of an object, or None when they select everything."""
    if not labels.requirements and not fields.requirements:
        return None

    def selects(obj: JSON) -> bool:
        return labels.matches(obj["metadata"].get("labels")) and fields.matches(obj)

    return selects
