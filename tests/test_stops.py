"""The hunt of `tests.stops`, without processes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests import stops

PASSED = '<testsuites><testsuite><testcase classname="a" name="b" time="1"/></testsuite></testsuites>'
FAILED = PASSED.replace("/></testsuite>", "><failure/></testcase></testsuite>")


def hunted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, results: str | None) -> int:
    def run(_arguments: list[str], _rng: object, folder: Path, _spared: set[int]) -> tuple[int, Path]:
        if results is not None:
            (folder / "results.xml").write_text(results)
        log = folder / "pytest.log"
        log.write_text("pytest's own output\n")
        return code, log

    monkeypatch.setattr(stops, "run", run)
    return stops.hunt(argparse.Namespace(times=3, seed=1, logs=tmp_path), [], set())


@pytest.mark.parametrize(
    ("code", "results"), [(4, None), (3, None), (2, "<testsuites/>"), (5, "<testsuites/>")]
)
def test_a_pytest_that_runs_no_test_ends_the_hunt_with_its_output(
    code: int,
    results: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert hunted(monkeypatch, tmp_path, code, results) == code
    assert capsys.readouterr().out == "run 1 of 3, --seed 1: pytest's own output\n"


@pytest.mark.parametrize(("code", "results"), [(0, PASSED), (1, FAILED)])
def test_a_failure_is_counted_and_the_hunt_goes_on(
    code: int,
    results: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert hunted(monkeypatch, tmp_path, code, results) == code
    shown = capsys.readouterr().out
    assert shown.count("run ") == 3 and shown.count("failures: ") == 3 * code
    assert shown.splitlines()[-1].split() == ["3", str(3 * code), "1.0", "1.0", "a::b"]
