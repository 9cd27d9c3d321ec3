"""Lines of a template give either rendering back, whatever differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from release.chart import either

LINES = st.lists(st.sampled_from("abcd"), max_size=12)


def rendered(lines: Sequence[str], values: Mapping[str, bool]) -> list[str]:
    """What Helm makes of lines that stand between if, else and end."""
    found, truths = [], []
    for line in lines:
        if line.startswith("{{- if "):
            condition = line.removeprefix("{{- if ").removesuffix(" }}")
            truths.append(values[condition.removeprefix("not ")] != condition.startswith("not "))
        elif line == "{{- else }}":
            truths[-1] = not truths[-1]
        elif line == "{{- end }}":
            truths.pop()
        elif all(truths):
            found.append(line)
    assert not truths
    return found


@given(LINES, LINES)
def test_a_template_of_two_renderings_gives_each_of_them(off: list[str], on: list[str]) -> None:
    template = either(off, on, ".x")
    assert rendered(template, {".x": False}) == off
    assert rendered(template, {".x": True}) == on
