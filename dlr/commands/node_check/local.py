"""`dlr node-check --local`: checks whether this machine is fit for training."""

from __future__ import annotations

from typing import Any

from dlr.commands.errors import CouldNotTell
from dlr.commands.output import Format, cell, print_json, show, table, verdict_line
from dlr.job.wording import significant
from dlr.kube.waiting import show_passing
from healthcheck.local import LocalHealth, judge
from healthcheck.measurements import Metric
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.suite import run_local

HEADERS = ("PROBE", "RESULT", "SECONDS", "MEASURED")
FIGURES = {
    GPU_COUNT: "{} GPUs",
    Metric.GEMM_BF16_TFLOPS.value: "bf16 {} TFLOP/s",
    Metric.GEMM_FP16_TFLOPS.value: "fp16 {} TFLOP/s",
    Metric.GEMM_FP32_TFLOPS.value: "fp32 {} TFLOP/s",
    Metric.HOST_TO_DEVICE_GBPS.value: "to device {} GB/s",
    Metric.DEVICE_TO_HOST_GBPS.value: "to host {} GB/s",
    Metric.INTRA_NODE_BUS_GBPS.value: "bus {} GB/s",
}


def check_this_machine(output: Format, *, gpu: bool) -> LocalHealth:
    """Run the probes and show their results.

    Raises:
        CouldNotTell: there is no GPU, though `gpu` requires one.
    """
    results = run_local(gpu, _show_progress)
    verdict = judge(results)
    if output is Format.JSON:
        shown = [_as_json(result) for result in results]
        print_json({"verdict": verdict.health, "reason": verdict.reason, "probes": shown})
        return verdict.health
    has_what_it_needs = not gpu or any(GPU_COUNT in result.figures for result in results)
    if has_what_it_needs:
        show(verdict_line(verdict.health, f"{verdict.health}: {verdict.reason}".removesuffix(": ")))
        print()
    show(table(HEADERS, map(_row, results)))
    if not has_what_it_needs:
        raise CouldNotTell(f"{verdict.reason[:1].upper()}{verdict.reason[1:]}.")
    for note in (note for result in results for note in result.notes):
        show(cell(note))
    return verdict.health


def _show_progress(probe: str, result: ProbeReport | None) -> None:
    show_passing("" if result else f"{probe} …")


def _row(result: ProbeReport) -> tuple[object, ...]:
    measured = (
        text.format(significant(result.figures[name]))
        for name, text in FIGURES.items()
        if name in result.figures
    )
    return result.probe, result.ending.value, f"{result.seconds:.1f}", result.reason or ", ".join(measured)


def _as_json(result: ProbeReport) -> dict[str, Any]:
    return {
        "probe": result.probe,
        "result": result.ending.value,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "figures": dict(result.figures),
        "faults": list(result.faults),
        "notes": list(result.notes),
    }
