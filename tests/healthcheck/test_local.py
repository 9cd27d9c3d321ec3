"""What a machine says of itself, and how `dlr node-check --local` shows it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crds.agent_report import ProbeEnding
from dlr.cli import main
from healthcheck.local import LocalHealth, judge, local_result
from healthcheck.measurements import Metric
from healthcheck.probes import suite
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.runner import Probe
from tests.healthcheck.test_probe_suite import Clock

PASSED = ProbeReport(ProbeEnding.PASSED, figures={"gemm_bf16_tflops": 600.0, "gemm_bf16_spread": 0.01})


def result(probe: str, report: ProbeReport) -> ProbeReport:
    return replace(report, probe=probe, seconds=1.0)


def failing(ending: ProbeEnding, reason: str, **said: Any) -> ProbeReport:
    return ProbeReport(ending, reason, **said)


def test_figures_become_measurements_and_the_rest_stays_out() -> None:
    assert local_result([result("gemm", PASSED)]).measured == {Metric.GEMM_BF16_TFLOPS: 600.0}


@pytest.mark.parametrize("ending", [ProbeEnding.FAILED, ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED])
def test_a_probe_that_fails_hangs_or_crashes_speaks_against_the_machine(ending: ProbeEnding) -> None:
    found = local_result([result("gemm", failing(ending, "ended by SIGSEGV"))])
    assert found.reason == "gemm: ended by SIGSEGV"
    assert judge([result("gemm", failing(ending, "x"))]).health is LocalHealth.FAULTY


def test_device_faults_are_told_once() -> None:
    report = failing(ProbeEnding.FAILED, "GPU 0: broken", faults=("GPU 0: broken",))
    assert local_result([result("device_state", report)]).reason == "GPU 0: broken"


def test_what_could_not_be_tested_blames_nobody() -> None:
    results = [result("device_state", failing(ProbeEnding.UNAVAILABLE, "no driver")), result("gemm", PASSED)]
    assert local_result(results).passed
    assert judge(results).health is LocalHealth.UNKNOWN


def test_a_cpu_machine_is_healthy_without_a_gpu() -> None:
    skipped = failing(ProbeEnding.SKIPPED, "no GPU here")
    assert judge([result("device_state", skipped), result("gemm", PASSED)]).health is LocalHealth.HEALTHY


def test_a_gpu_slower_than_any_is_faulty_and_a_cpu_is_not() -> None:
    slow = result("gemm", ProbeReport(ProbeEnding.PASSED, figures={"gemm_fp32_tflops": 0.01}))
    gpu = result("device_state", ProbeReport(ProbeEnding.PASSED, figures={"gpu_count": 1}))
    assert judge([slow]).health is LocalHealth.HEALTHY
    assert judge([gpu, slow]).health is LocalHealth.FAULTY


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> dict[str, ProbeReport]:
    """By probe, what it reports instead of running; the others pass."""
    reports: dict[str, ProbeReport] = {}

    def run(probe: Probe, cancellation: object) -> ProbeReport:
        return result(probe.name, reports.get(probe.name, PASSED))

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(suite, "time", Clock())
    return reports


@pytest.mark.parametrize(
    ("report", "code", "health"),
    [
        (PASSED, 0, "Healthy"),
        (failing(ProbeEnding.CRASHED, "ended by SIGBUS"), 1, "Faulty"),
        (failing(ProbeEnding.UNAVAILABLE, "torch is built without CUDA"), 2, "Unknown"),
    ],
)
def test_exit_codes(
    endings: dict[str, ProbeReport],
    capsys: pytest.CaptureFixture[str],
    report: ProbeReport,
    code: int,
    health: str,
) -> None:
    endings["gemm"] = report
    assert exit_code("node-check", "--local", "-o", "json") == code
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"] == health
    assert [probe["probe"] for probe in shown["probes"]] == list(suite.TIMEOUT_SECONDS)


def test_the_table_has_a_line_for_each_probe(
    endings: dict[str, ProbeReport], capsys: pytest.CaptureFixture[str]
) -> None:
    endings["copies"] = failing(ProbeEnding.FAILED, "3 bytes changed")
    assert exit_code("node-check", "--local") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[3:]] == [
        ["device_state", "Passed"],
        ["gemm", "Passed"],
        ["copies", "Failed"],
        ["intra_node", "Passed"],
    ]
    assert lines[0] == "Faulty: copies: 3 bytes changed"


def test_a_gpu_asked_for_and_not_there_is_one_sentence(
    endings: dict[str, ProbeReport], capsys: pytest.CaptureFixture[str]
) -> None:
    endings["device_state"] = failing(ProbeEnding.UNAVAILABLE, "a GPU was asked for, but there is no driver")
    assert exit_code("node-check", "--local", "--gpu") == 2
    assert capsys.readouterr().err == "dlr: A GPU was asked for, but there is no driver.\n"


def test_where_there_are_gpus_torch_must_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Probe] = []

    def run(probe: Probe, cancellation: object) -> ProbeReport:
        asked.append(probe)
        return result(probe.name, ProbeReport(ProbeEnding.PASSED, figures={"gpu_count": 8}))

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(suite, "time", Clock())
    suite.run_local(require_gpu=False)
    assert {probe.arguments for probe in asked[1:]} == {("--device=cuda",)}


def test_without_local_it_says_what_it_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("node-check") == 2
    assert "--local" in capsys.readouterr().err


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)
