"""CEL expressions: what they see, what they give, how they fail."""

from __future__ import annotations

import pytest

from localcluster.cel import CelEvaluationError, CelSyntaxError, compile_expression


def evaluate(source: str, **variables):
    return compile_expression(source).evaluate(variables)


OBJECT = {
    "name": "worker-0",
    "spec": {"replicas": 3, "list": [1, 2, 3], "items": [{"a": 1}, {"a": 2}], "map": {"k": "v"}},
    "nothing": None,
}


@pytest.mark.parametrize(
    "source",
    [
        "has(self.spec.replicas) && !has(self.spec.absent)",
        "self.spec.replicas == 3 && self.spec.replicas > 2.5",
        "size(self.spec.list) == 3 && self.name.size() == 8",
        "self.name.matches('^worker-[0-9]+$') && self.name.startsWith('w') && self.name.contains('-')",
        "self.spec.list.all(x, x > 0) && self.spec.list.exists(x, x == 2) && self.spec.list.exists_one(x, x == 1)",
        "self.spec.items.map(i, i.a) == [1, 2] && self.spec.items.filter(i, i.a > 1).size() == 1",
        "self.spec.map.all(key, self.spec.map[key] == 'v') && 'k' in self.spec.map && !('z' in self.spec.map)",
        "self.nothing == null && has(self.nothing)",
        "self.name.split('-')[0] == 'worker' && self.name.replace('-', '_') == 'worker_0'",
        "self.spec.list.sum() == 6 && self.name.lowerAscii().trim().substring(0, 4) == 'work'",
        "duration('1h') > duration('5m') && string(self.spec.replicas) == '3'",
        "self.absent || true",
    ],
)
def test_expression_holds(source: str) -> None:
    assert evaluate(source, self=OBJECT) is True


@pytest.mark.parametrize("source", ["self.", "foo(", "unknownFunction(1)", "quantity(self.a) == 1", ""])
def test_bad_expression_is_refused_when_compiled(source: str) -> None:
    with pytest.raises(CelSyntaxError):
        compile_expression(source)


@pytest.mark.parametrize("pattern", [r"\Q(700)\E", "[[]", r"(?:\w{30}){33}", r"(?:\pL?){400}x", r"\123"])
def test_patterns_that_go_takes_are_taken(pattern: str) -> None:
    source = "''.matches(self) in [true, false] && 'matches (' .matches ('matches [(]')"
    assert evaluate(source, self=pattern) is True


@pytest.mark.parametrize(
    "pattern", ["(unclosed", "a{1001}", "(?:a{100}){11}", "(?=ahead)", "a**", r"[a-z&&\R]"]
)
def test_patterns_that_go_refuses_are_refused(pattern: str) -> None:
    with pytest.raises(CelEvaluationError, match="error parsing regexp: "):
        evaluate("''.matches(self) in [true, false]", self=pattern)


def test_classes_are_those_of_ascii_as_in_go() -> None:
    assert evaluate(r"'7'.matches('^\\d$') && !'\u0667'.matches('^\\d$')") is True


def test_unknown_variable_is_refused_but_macro_variables_are_not() -> None:
    compile_expression("self.l.all(x, x > 0)").check_variables(frozenset({"self"}))
    with pytest.raises(CelSyntaxError, match="undeclared reference to 'request'"):
        compile_expression("request.a == 1").check_variables(frozenset({"self"}))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("self.absent == 1", "no such key: absent"),
        ("self.spec.replicas / 0 == 1", "zero"),
        ("self.name > 1", "overload"),
        ("self.spec.list[9] == 1", "index out of bounds"),
    ],
)
def test_evaluation_without_a_result_fails_with_its_cause(source: str, message: str) -> None:
    with pytest.raises(CelEvaluationError, match=message):
        evaluate(source, self=OBJECT)
