"""Inside of a probe's process: it measures, prints its report as the only line on stdout, and exits.

Other output, such as NCCL's, goes to stderr. At its time-out the process ends itself and prints on stderr
where it hung. It also ends with the runner that started it, so that none outlives a killed agent.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from crds.agent_report import ProbeEnding
from healthcheck.probes.report import ProbeError, ProbeReport

CPU, CUDA, AUTO = "cpu", "cuda", "auto"
"""Kinds of device that a probe may use."""
DEFAULT_TIMEOUT_SECONDS = 300.0
_PR_SET_PDEATHSIG = 1

Measure = Callable[[argparse.Namespace], ProbeReport]


def argument_parser(module_docstring: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every probe has."""
    parser = argparse.ArgumentParser(description=(module_docstring or "").partition("\n")[0])
    parser.add_argument(
        "--deadline",
        type=float,
        default=time.monotonic() + DEFAULT_TIMEOUT_SECONDS,
        help=f"time on this machine's monotonic clock; default: {DEFAULT_TIMEOUT_SECONDS:.0f} s from now",
    )
    parser.add_argument("--parent", type=int, help="id of the parent process, with which this one ends")
    return parser


def add_device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=(AUTO, CUDA, CPU), default=AUTO)


def serve(parser: argparse.ArgumentParser, measure: Measure) -> NoReturn:
    """Run `measure` and end the process. An exception other than ProbeError ends it with a traceback."""
    arguments = parser.parse_args()
    if arguments.parent is not None:
        _end_with(arguments.parent)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(arguments.deadline - time.monotonic(), 0.001), exit=True)
    report_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        report = measure(arguments)
    except ProbeError as error:
        report = ProbeReport(error.ending, str(error), action=error.action)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy", "pynvml"):
            raise
        report = ProbeReport(
            ProbeEnding.UNAVAILABLE, f"the Python package {error.name} is not installed here"
        )
    os.write(report_fd, report.to_json().encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # so that a library cannot hang or crash at exit


def _end_with(parent: int) -> None:
    """Have this process killed when `parent`, or the thread that started it, ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has already ended
