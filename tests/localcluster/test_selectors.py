"""Label and field selectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.selectors import SelectorError, from_expressions, parse_fields, parse_labels

LABELS = {"app": "digits", "elastic.iml.github.io/rank": "3", "tier": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("app=digits", True),
        ("app = digits", True),
        ("app!=digits", False),
        ("absent!=x", True),
        ("app in (a, digits)", True),
        ("app notin (a,b)", True),
        ("absent notin (a)", True),
        ("app", True),
        ("absent", False),
        ("!app", False),
        ("tier=", True),
        ("elastic.iml.github.io/rank in (1,2,3),app=digits,!x", True),
    ],
)
def test_label_selector_selects(text: str, expected: bool) -> None:
    assert parse_labels(text).matches(LABELS) is expected


@pytest.mark.parametrize("text", ["a b", "a=b=c", "a in (b", "a,,b", "app=-x", "a/b/c=1"])
def test_bad_label_selector_is_refused_with_its_part(text: str) -> None:
    with pytest.raises(SelectorError, match="unable to parse requirement"):
        parse_labels(text)


@pytest.mark.parametrize(
    "expression",
    [
        {"key": "a", "operator": "Equals", "values": ["b"]},
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "Exists", "values": ["b"]},
        {"key": "a", "operator": "Gt", "values": ["1"]},
    ],
)
def test_bad_expression_is_refused(expression: dict) -> None:
    with pytest.raises(SelectorError):
        from_expressions([expression])


POD = {
    "metadata": {"name": "a", "labels": LABELS},
    "spec": {"nodeName": "node-0", "hostNetwork": True, "priority": 3},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("metadata.name=a", True),
        ("spec.nodeName!=node-1,status.phase=Running", True),
        ("status.podIP=", True),
        ("spec.nodeName=", False),
        ("spec.hostNetwork=true", True),
        ("spec.nodeName.deeper=x", False),
        (r"status.phase=Run\,ning", False),
    ],
)
def test_field_selector_selects(text: str, expected: bool) -> None:
    assert parse_fields(text).matches(POD) is expected


@given(value=st.text(max_size=8).map(str.strip))
def test_escaped_field_values_are_compared_as_they_are(value) -> None:
    escaped = value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    selector = parse_fields(f"data.x={escaped},data.y=z")
    assert selector.matches({"data": {"x": value, "y": "z"}})
    assert not selector.matches({"data": {"x": value}})
