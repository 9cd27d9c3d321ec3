"""`dlr simulate`, as a person calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlr.commands.simulate import simulate
from dlr.kube.errors import UsageError

FLEET = "name: small\nnodes: 16\nspares: 2\nfaults: {per1000NodeDays: 500}\n"


def test_a_table_and_what_would_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fleet := tmp_path / "fleet.yaml").write_text(FLEET)
    simulate(fleet, days=0.2, seeds=2, effects=True, times=True)
    said = capsys.readouterr().out
    assert "small: 16 nodes and 2 spares, 0.2 days, 2 runs" in said
    assert "WASTED_PROGRESS_FROM_DISRUPTION" in said and "what would help most, alone" in said
    assert "hangTimeoutSeconds: 300" in said and "minNodes: 14" in said
    assert "benchmarks/results/recovery.md" in said


@pytest.mark.parametrize(
    ("text", "days", "sentence"),
    [
        ("nodes: x", 1.0, "fleet.yaml: nodes: "),
        ("nodes: 2026-13-45", 1.0, "fleet.yaml is no YAML: month must be in 1..12"),
        ("nodes: 0x_", 1.0, "fleet.yaml is no YAML: "),
        ("[" * 1000, 1.0, "fleet.yaml is no YAML: "),
        ("a: [1", 1.0, "fleet.yaml: line 1: expected ',' or ']', but got '<stream end>'"),
        (FLEET, 0.0, "--days must be"),
        (None, 1.0, "cannot be read"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, text: str | None, days: float, sentence: str) -> None:
    fleet = tmp_path / "fleet.yaml"
    if text is not None:
        fleet.write_text(text)
    with pytest.raises(UsageError) as caught:
        simulate(fleet, days=days, seeds=1, effects=False, times=False)
    assert sentence in str(caught.value)
