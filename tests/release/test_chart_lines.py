"""Lines of a template give either rendering back, whatever differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import deploy
from release.chart import TEXTS, either, files

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


@pytest.mark.parametrize("jobs_namespace", [None, deploy.DEFAULT_JOBS_NAMESPACE])
def test_queues_have_the_rights_of_the_manifests_everywhere_and_in_one_namespace(
    jobs_namespace: str | None,
) -> None:
    values = {".Values.kueue": True, ".Values.jobsNamespace": bool(jobs_namespace)}
    values["and .Values.kueue .Values.jobsNamespace"] = bool(jobs_namespace)
    lines: list[str] = []
    for name in ("kueue", "kueue-namespaced"):
        text = files()[f"templates/{name}.yaml"].replace("{{ end }}", "{{- end }}")
        lines += rendered(text.splitlines(), values)
    text = "\n".join(lines)
    for plain, action in TEXTS.items():
        text = text.replace(action, plain)
    expected = deploy.documents(jobs_namespace=jobs_namespace, kueue=True)
    named = [each for each in expected if "kueue" in each["metadata"]["name"]]
    assert [each for each in yaml.safe_load_all(text) if each] == named
