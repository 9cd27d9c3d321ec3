"""What rules are estimated to cost at worst: the figures are those of Kubernetes' own estimates."""

from __future__ import annotations

import re
from typing import Any

import pytest

from localcluster.cel_check import Checked
from localcluster.cel_cost import ENDLESS, RULE_LIMIT, CostEstimate
from localcluster.cel_syntax import CelSyntaxError, parse
from localcluster.cel_types import declare
from localcluster.schema_nodes import build

JSON = dict[str, Any]

TEXT = {"type": "string"}
NUMBER = {"type": "number"}
INT_OR_STRING = {"x-kubernetes-int-or-string": True}
THING = {"type": "object", "required": ["required"], "properties": {"required": TEXT, "optional": TEXT}}


def text(**more: Any) -> JSON:
    return {**TEXT, **more}


def array(items: JSON, most: int | None = None) -> JSON:
    return {"type": "array", "items": items} | ({} if most is None else {"maxItems": most})


def mapping(values: JSON, most: int | None = None) -> JSON:
    schema = {"type": "object", "additionalProperties": values}
    return schema | ({} if most is None else {"maxProperties": most})


def obj(**properties: JSON) -> JSON:
    return {"type": "object", "properties": properties}


def checked(rule: str, schema: JSON) -> tuple[Checked, Any]:
    declaration = declare(build(schema, {}, is_resource=False))
    assert declaration is not None
    variables = {"self": declaration.type, "oldSelf": declaration.type}
    return Checked(rule, parse(rule), variables), declaration


def cost(rule: str, schema: JSON) -> int:
    return CostEstimate(*checked(rule, schema)).total


ALL = "self.all(x, true)"


@pytest.mark.parametrize(
    ("rule", "schema", "expected"),
    [
        # How many elements fit into the largest request depends on how small they can be.
        (ALL, array(NUMBER), 4718591),
        (ALL, array(NUMBER, 10), 32),
        (ALL, array(TEXT), 3145727),
        (ALL, array({"type": "boolean"}), 1887437),
        (ALL, array(array(NUMBER)), 3145727),
        (ALL, array(THING | {"required": ["required"]}, 50), 152),
        (ALL, array(INT_OR_STRING), 4718591),
        (ALL, array(text(format="duration")), 2359295),
        (ALL, array(text(format="date")), 725936),
        (ALL, array(text(format="date-time")), 428963),
        (ALL, mapping(NUMBER), 1348169),
        (ALL, mapping(TEXT), 1179647),
        (ALL, mapping({"type": "boolean"}), 943718),
        (ALL, mapping(INT_OR_STRING), 1348169),
        (ALL, mapping(THING), 428963),
        (ALL, mapping(mapping(NUMBER)), 1179647),
        (ALL, mapping(array(NUMBER)), 1179647),
        (ALL, mapping(text(format="duration")), 1048577),
        (ALL, mapping(text(format="date")), 524288),
        (ALL, mapping(text(format="date-time"), 25), 77),
        # Strings are read to their end; limits count four bytes for a character.
        ("self.contains('test')", TEXT, 314574),
        ("self.contains('test')", text(maxLength=10), 5),
        ("self.contains('A')", text(enum=["A", "B", "C", "LongValue"]), 2),
        ("self.startsWith('test')", TEXT, 2),
        ("self.endsWith('test')", text(maxLength=30), 2),
        ('size(self + "hello") > size("hello")', TEXT, 314578),
        ('size(self + "hello") > size("hello")', text(maxLength=4), 7),
        ('self == "x"', TEXT, 2),
        ('self == "x"', text(maxLength=0), 1),
        ('self == b"x"', text(format="byte"), 2),
        ("self.matches('x')", TEXT, 314574),
        ("self.matches('x')", text(maxLength=50), 22),
        ("''.matches('(((((((((())))))))))[0-9]')", TEXT, 7),
        ("self.matches('')", text(maxLength=100), 1),
        ("self.find('[0-9]+') == ''", TEXT, 629147),
        ("self.find('[0-9]+') == ''", text(maxLength=10), 11),
        ("self.lowerAscii() == 'lower!'", TEXT, 314575),
        ("self.lowerAscii() == 'lower!'", text(maxLength=10), 6),
        ("self.join(' ') == 'aa bb'", array(TEXT), 329853068905),
        ("self.join(' ') == 'aa bb'", array(text(maxLength=10), 10), 43),
        ("self.isSorted() == true", array(TEXT), 329854432052),
        ("self.isSorted() == true", array(text(maxLength=10), 10), 52),
        ("self.str.split(self.separator) == []", obj(str=TEXT, separator=TEXT), 629160),
        (
            "self.str.split(self.separator) == []",
            obj(str=text(maxLength=10), separator=text(maxLength=10)),
            22,
        ),
        (
            "self.str.replace(self.before, self.after) == 'fifteen letters'",
            obj(str=TEXT, before=text(maxLength=2), after=text(maxLength=4)),
            629154,
        ),
        # What an index picks, and what is one level down.
        ("self[1] == 0.0", array(NUMBER), 2),
        ("self[1] == self[1]", array(TEXT, 8), 314577),
        ("self['x'] == 0.0", mapping(NUMBER), 2),
        ("self[0] == 5", array(INT_OR_STRING), 3),
        ("self[0][0] == -1.0", array(array(NUMBER)), 3),
        ("self[0].x > 2.0", array(mapping(NUMBER)), 4),
        ("self[0].getHours() == 2", array(text(format="duration")), 4),
        ("self['a'] == self['b']", mapping(text(format="date-time")), 8),
        ("oldSelf.size() == self.size()", mapping({"type": "integer"}), 5),
        ("has(self.x)", mapping(NUMBER), 1),
        ("self.all(x, x == 0.0)", array(NUMBER), 6291454),
        ("self.all(x, x.y == 25.2)", array(mapping(NUMBER)), 6291452),
        ("self.all(x, x.contains(self[x]))", mapping(TEXT), 2752507),
        ("self.all(x, x.contains(self[x]))", mapping(text(maxLength=10), 10), 72),
        ("self.all(x, x['y'].required == 'z')", array(mapping(THING)), 7340027),
        ("self.all(x, self.all(y, true))", array(NUMBER, 10), 352),
        ("self.all(x, self.all(y, self.all(z, true)))", array(NUMBER, 10), 3552),
        ("!sets.intersects([1], [1, 2])", NUMBER, 24),
    ],
)
def test_a_rule_costs_what_kubernetes_estimates(rule: str, schema: JSON, expected: int) -> None:
    assert cost(rule, schema) == expected


@pytest.mark.parametrize(
    ("rule", "schema"),
    [
        ("self.all(x, self.all(y, true))", array(NUMBER)),
        ("'limit ' + string(self) + ' exceeds 10' == ''", {"type": "integer"}),
        ("self.map(x, x + x).all(y, y.contains('a'))", array(TEXT)),
    ],
    ids=["loop-in-loop", "text-of-a-number", "list-made-of-a-list"],
)
def test_what_nobody_can_bound_is_over_the_limit(rule: str, schema: JSON) -> None:
    assert RULE_LIMIT < cost(rule, schema) <= ENDLESS


@pytest.mark.parametrize(
    ("rule", "schema", "result"),
    [
        ("self.map(x, x + 'b')", array(TEXT), "list(string)"),
        ("self.filter(x, x != 'b').size() == 1 && self.exists_one(x, x == 'c')", array(TEXT), "bool"),
        ("[has(self.a), has(self.b)].filter(x, x).size() == 1", obj(a=TEXT, b=TEXT), "bool"),
        ("self.map(k, k.size() > 2, self[k])", mapping(NUMBER), "list(double)"),
        ("self > 1 && self < 2u", NUMBER, "bool"),
        ("type(self) == int ? self < 5 : self.matches('%$')", INT_OR_STRING, "bool"),
        ("'%d of %s'.format([self, string(self)])", {"type": "integer"}, "string"),
        ("[[], ['a']].all(x, x.all(y, y == 'a'))", TEXT, "bool"),
        ("self == oldSelf && self.a['b'].c == 1", obj(a=mapping(obj(c={"type": "integer"}))), "bool"),
        ("self.a == null", obj(a=obj()), "bool"),
        ("quantity(self).isLessThan(quantity('1Gi'))", TEXT, "bool"),
        ("timestamp('2026-01-01T00:00:00Z') - self < duration('1h')", text(format="date-time"), "bool"),
        ("{'a': self}.all(k, k == 'a')", NUMBER, "bool"),
        ("-self % 2 == 0x1 && !(self in [1, 2])", {"type": "integer"}, "bool"),
        ("self.__namespace__ == self.a__dash__b", obj(namespace=TEXT, **{"a-b": TEXT}), "bool"),
    ],
)
def test_the_types_of_expressions_are_found(rule: str, schema: JSON, result: str) -> None:
    assert str(checked(rule, schema)[0].result) == result


@pytest.mark.parametrize(
    ("rule", "schema", "words"),
    [
        ("self == 'x'", NUMBER, "1:6: found no matching overload for '_==_' applied to '(double, string)'"),
        ("self == 1", NUMBER, "found no matching overload for '_==_' applied to '(double, int)'"),
        ("self * 2 > 1", NUMBER, "found no matching overload for '_*_' applied to '(double, int)'"),
        ("self == null", TEXT, "found no matching overload for '_==_'"),
        ("self.startsWith(1)", TEXT, "found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("self.all(x, x)", array(TEXT), "found no matching overload for '_&&_'"),
        ("self.all(x, true)", TEXT, "cannot be range of a comprehension"),
        ("[1, 'a'].size() == 2", TEXT, "expected type 'int' but found 'string'"),
        ("[self, 1].size() == 2", INT_OR_STRING, "expected type 'dyn' but found 'int'"),
        ("self.x", obj(a=TEXT), "1:5: undefined field 'x'"),
        ("self.x", TEXT, "type 'string' does not support field selection"),
        (
            "self.a.b == 1",
            obj(a={"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
            "undefined",
        ),
        ("object == 1", TEXT, "1:1: undeclared reference to 'object'"),
        ("'IP family %d'.format([ip(self)]) == ''", TEXT, "1:26: undeclared reference to 'ip'"),
        ("math.abs(1) == 1", TEXT, "undeclared reference to 'math'"),
        ("self.matches('[')", TEXT, "invalid matches argument"),
        ("has(self)", TEXT, "invalid argument to has() macro"),
        ("self.all(1, true)", array(TEXT), "argument must be a simple name"),
        ("self ==\n 1 )", TEXT, "2:4: Syntax error: unexpected ')'"),
    ],
)
def test_what_does_not_fit_is_refused(rule: str, schema: JSON, words: str) -> None:
    with pytest.raises(CelSyntaxError, match=re.escape(words)):
        checked(rule, schema)
