"""The scale benchmark with a dozen workers: the controller comes to the end of all that is measured."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import virtual_time
from benchmarks.scale import AT, CELLS, measure_all
from benchmarks.scale_fleet import Fleet
from benchmarks.scale_report import exponent

WORKERS = 12
RUNS = CELLS | {cell: run for cell, (run, _) in AT.items()}


@pytest.mark.real
@pytest.mark.parametrize("cell", RUNS)
def test_a_cell_tells_its_figures(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        await RUNS[cell](Fleet(WORKERS))

    virtual_time.run(scenario())
    figures: dict[str, float] = {}
    for line in capsys.readouterr().out.splitlines():
        figures |= json.loads(line)
    spent = [figure for name, figure in figures.items() if name.endswith("/cpu")]
    assert spent
    assert all(seconds > 0 for seconds in spent)


def test_a_steady_job_costs_no_write(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        fleet = Fleet(WORKERS)
        await fleet.trains()
        with fleet.measured("steady"):
            await fleet.beats_for(60.0)

    virtual_time.run(scenario())
    figures = json.loads(capsys.readouterr().out)
    assert figures["steady/writes"] == 0
    assert figures["steady/looks"] <= 1, "is the goodput that kubectl shows still true? (REFRESH_SECONDS)"


@pytest.mark.real
def test_cells_of_several_processes_come_into_one_report(tmp_path: Path) -> None:
    arguments = Namespace(sizes=[2, 3], only=["steady"], within=600.0, jobs=2, out=tmp_path)
    assert measure_all(arguments) == 0
    figures = json.loads((tmp_path / "scale.json").read_text())["figures"]
    assert (
        {"steady look/cpu", "take-over/cpu", "sizes/resident"} <= figures["2"].keys() == figures["3"].keys()
    )
    assert "| CPU seconds | 2 | 3 |" in (tmp_path / "scale.md").read_text()


def test_the_exponent_of_a_square_is_two() -> None:
    assert exponent({100: 5.0, 1_000: 1.0, 10_000: 100.0}) == pytest.approx(2.0)
    assert exponent({100: 5.0, 1_000: 1.0}) is None
