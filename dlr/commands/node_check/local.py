"""`dlr node-check --local`: is this machine fit to train?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.live import Live
from rich.table import Table

from crds.nodecheck import Accelerator
from dlr.commands.errors import CouldNotTell
from dlr.commands.output import Format, cell, console, print_json, show, table
from dlr.job.wording import significant
from healthcheck.local import Health, judge
from healthcheck.measurements import Metric
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import Report
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


def check_this_machine(accelerator: str | None, output: Format) -> Health:
    """Run the probes and show them.

    Raises:
        CouldNotTell: there is no GPU, and one was asked for, or the probes know no such accelerator.
    """
    if accelerator not in (None, *Accelerator):
        raise CouldNotTell(
            f"The accelerator {accelerator!r} is unknown here; there are {' and '.join(Accelerator)}."
        )
    gpu = accelerator == Accelerator.NVIDIA_GPU
    results = _run(gpu, accelerator == Accelerator.NONE, output)
    verdict = judge(results)
    if output is Format.JSON:
        shown = [_as_json(result) for result in results]
        print_json({"verdict": verdict.health, "reason": verdict.reason, "probes": shown})
    elif gpu and not any(GPU_COUNT in result.figures for result in results):
        raise CouldNotTell(f"{verdict.reason[:1].upper()}{verdict.reason[1:]}.")
    else:
        _show_notes_and_verdict(results, f"{verdict.health}: {verdict.reason}".removesuffix(": "))
    return verdict.health


def _run(gpu: bool, cpu_only: bool, output: Format) -> list[Report]:
    """Run the probes: on a terminal with a table that grows, else with one at the end."""
    if output is Format.JSON:
        return run_local(gpu, cpu_only=cpu_only)
    if not sys.stdout.isatty():
        results = run_local(gpu, cpu_only=cpu_only)
        show(_table({result.probe: result for result in results}))
        return results
    so_far: dict[str, Report | None] = {}
    with Live(console=console(), auto_refresh=False) as live:

        def progress(probe: str, result: Report | None) -> None:
            so_far[probe] = result
            live.update(_table(so_far), refresh=True)

        return run_local(gpu, progress, cpu_only=cpu_only)


def _table(results: Mapping[str, Report | None]) -> Table:
    return table(HEADERS, (_row(probe, result) for probe, result in results.items()))


def _row(probe: str, result: Report | None) -> tuple[object, ...]:
    if result is None:
        return probe, "Running", "", ""
    return probe, result.ending.value, f"{result.seconds:.1f}", result.reason or _figures(result)


def _figures(result: Report) -> str:
    figures = result.figures
    return ", ".join(
        text.format(significant(figures[name])) for name, text in FIGURES.items() if name in figures
    )


def _show_notes_and_verdict(results: list[Report], verdict: str) -> None:
    for note in (note for result in results for note in result.notes):
        show(cell(note))
    show(cell(verdict))


def _as_json(result: Report) -> dict[str, Any]:
    return {
        "probe": result.probe,
        "result": result.ending.value,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "figures": dict(result.figures),
        "faults": list(result.faults),
        "notes": list(result.notes),
    }
