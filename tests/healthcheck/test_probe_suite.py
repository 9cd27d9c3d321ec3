"""Which local probes are run, for how long, and on what."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from crds.agent_report import ProbeEnding
from healthcheck.local import LocalHealth, judge
from healthcheck.probes import suite
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.runner import Probe

ALL = list(suite.TIMEOUT_SECONDS)


class Clock:
    """Stands still unless a probe takes its time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


Run = Callable[..., list[Probe]]
FIGURES = True
"""Each probe that passes measures something."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Given endings and seconds by probe (the others pass at once), what will have been run."""

    def script(endings: dict[str, tuple[ProbeEnding, float]], figures: bool = False) -> list[Probe]:
        clock, started = Clock(), []

        def run(probe: Probe, cancellation: object) -> ProbeReport:
            started.append(probe)
            ending, seconds = endings.get(probe.name, (ProbeEnding.PASSED, 0.0))
            clock.now += min(seconds, probe.timeout_seconds)
            measured = {f"of {probe.name}": 1.0} if figures and ending is ProbeEnding.PASSED else {}
            return ProbeReport(ending, figures=measured, probe=probe.name, seconds=seconds)

        monkeypatch.setattr(suite, "run", run)
        monkeypatch.setattr(suite, "time", clock)
        return started

    return script


def test_without_a_budget_each_probe_has_its_own_limit(asked: Run) -> None:
    started = asked({})
    suite.run_local(require_gpu=False)
    assert {probe.name: probe.timeout_seconds for probe in started} == suite.TIMEOUT_SECONDS


def test_a_probe_gets_no_more_than_is_left_of_the_budget(asked: Run) -> None:
    started = asked({"device_state": (ProbeEnding.PASSED, 10.0), "gemm": (ProbeEnding.PASSED, 50.0)})
    suite.run_local(require_gpu=False, budget_seconds=100.0)
    assert [probe.timeout_seconds for probe in started] == [30.0, 90.0, 40.0, 40.0]


@pytest.mark.parametrize("hung", [ALL[0], ALL[-1]])
def test_after_a_hang_the_rest_is_not_run(asked: Run, hung: str) -> None:
    started = asked({hung: (ProbeEnding.TIMED_OUT, 1e9)})
    results = suite.run_local(require_gpu=False, budget_seconds=1000.0)
    assert [result.probe for result in results] == ALL[: ALL.index(hung) + 1]
    assert [probe.name for probe in started] == [*ALL[: ALL.index(hung) + 1], hung], "tried once more"
    assert results[-1].ending is ProbeEnding.TIMED_OUT


@pytest.mark.parametrize("ending", [ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED])
def test_what_passes_when_it_is_tried_once_more_was_an_accident(
    monkeypatch: pytest.MonkeyPatch, ending: ProbeEnding
) -> None:
    monkeypatch.setattr(suite, "time", Clock())
    ends = iter([ending])

    def run(probe: Probe, cancellation: object) -> ProbeReport:
        ended = next(ends, ProbeEnding.PASSED) if probe.name == "gemm" else ProbeEnding.PASSED
        return ProbeReport(ended, "ended by SIGKILL", signal="SIGKILL", probe=probe.name, seconds=1.0)

    monkeypatch.setattr(suite, "run", run)
    results = suite.run_local(require_gpu=False, budget_seconds=1000.0)
    assert [result.ending for result in results] == [ProbeEnding.PASSED] * len(ALL)
    assert results[1].notes == ("gemm was tried twice; first: ended by SIGKILL",)


def test_what_crashes_twice_is_told_and_what_cannot_even_be_killed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "time", Clock())
    started = []

    def run(probe: Probe, cancellation: object) -> ProbeReport:
        started.append(probe.name)
        killed = ProbeReport(ProbeEnding.CRASHED, "ended by SIGKILL", signal="SIGKILL")
        wedged = ProbeReport(ProbeEnding.TIMED_OUT, "no end after 90 s", wedged=True)
        reports = {"gemm": killed, "copies": wedged}
        return replace(
            reports.get(probe.name, ProbeReport(ProbeEnding.PASSED)), probe=probe.name, seconds=1.0
        )

    monkeypatch.setattr(suite, "run", run)
    results = suite.run_local(require_gpu=False, budget_seconds=1000.0)
    assert started == ["device_state", "gemm", "gemm", "copies"]
    assert [result.ending.value for result in results] == ["Passed", "Crashed", "TimedOut"]


def test_what_finds_the_budget_spent_was_not_tested_and_blames_nobody(asked: Run) -> None:
    started = asked({"gemm": (ProbeEnding.PASSED, 38.0)})
    results = suite.run_local(require_gpu=False, budget_seconds=40.0)
    assert [probe.name for probe in started] == ["device_state", "gemm"]
    assert [result.ending for result in results[2:]] == [ProbeEnding.UNAVAILABLE] * 2
    assert results[2].reason == "copies was not run: the 40 s for all local tests were spent before"
    assert judge(results).health is LocalHealth.UNKNOWN


def test_a_time_out_with_what_slow_probes_left_of_the_budget_blames_nobody(asked: Run) -> None:
    asked({"gemm": (ProbeEnding.PASSED, 60.0), "copies": (ProbeEnding.TIMED_OUT, 1e9)})
    results = suite.run_local(require_gpu=False, budget_seconds=100.0)
    assert results[-1].probe == "copies" and results[-1].ending is ProbeEnding.UNAVAILABLE
    assert results[-1].reason == "copies did not end: the 100 s for all local tests were spent before"
    assert judge(results).health is LocalHealth.UNKNOWN


def test_what_was_measured_before_the_budget_was_spent_speaks(asked: Run) -> None:
    asked({"gemm": (ProbeEnding.PASSED, 60.0), "copies": (ProbeEnding.TIMED_OUT, 1e9)}, FIGURES)
    results = suite.run_local(require_gpu=False, budget_seconds=100.0)
    assert results[-1].ending is ProbeEnding.SKIPPED, "the node goes on, with its slow products"


def test_a_suspect_measures_again_with_all_that_has_figures(asked: Run) -> None:
    started = asked({}, FIGURES)
    result = suite.measure_again(False, cpu_only=True, budget_seconds=100.0, cancellation=None)
    assert [probe.name for probe in started] == ["gemm", "copies"]
    assert result.ending is ProbeEnding.PASSED and result.figures == {
        "of gemm": 1.0,
        "of copies": 1.0,
    }


def test_a_fault_while_measuring_again_is_told(asked: Run) -> None:
    asked({"copies": (ProbeEnding.FAILED, 1.0)}, FIGURES)
    result = suite.measure_again(False, cpu_only=True, budget_seconds=100.0, cancellation=None)
    assert result.ending is ProbeEnding.FAILED and not result.figures


def test_gpus_are_left_alone_if_so_asked(asked: Run) -> None:
    started = asked({})
    suite.run_local(require_gpu=False, cpu_only=True)
    assert [probe.name for probe in started] == ["gemm", "copies"]
    assert {probe.arguments for probe in started} == {("--device=cpu",)}
