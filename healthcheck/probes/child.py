"""The inside of a probe's process: it measures, prints its report as the only line on stdout, and is gone.

Whatever else is printed, by NCCL for one, goes to stderr. At its time-out the process ends itself and leaves
on stderr where it hung; so nothing outlives a runner that is gone.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from healthcheck.probes.report import Ending, ProbeError, Report

DEFAULT_TIMEOUT_SECONDS = 300.0

Measure = Callable[[argparse.Namespace], Report]


def argument_parser(module_docstring: str | None) -> argparse.ArgumentParser:
    """With the option that every probe has."""
    parser = argparse.ArgumentParser(description=(module_docstring or "").partition("\n")[0])
    parser.add_argument(
        "--deadline",
        type=float,
        default=time.monotonic() + DEFAULT_TIMEOUT_SECONDS,
        help=f"on this machine's monotonic clock; else {DEFAULT_TIMEOUT_SECONDS:.0f} s from now",
    )
    return parser


def serve(parser: argparse.ArgumentParser, measure: Measure) -> NoReturn:
    """Run `measure` and end the process. An exception that is no ProbeError ends it with a traceback."""
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(arguments.deadline - time.monotonic(), 0.001), exit=True)
    report_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        report = measure(arguments)
    except ProbeError as error:
        report = Report(error.ending, str(error))
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy", "pynvml"):
            raise
        report = Report(Ending.UNAVAILABLE, f"the Python package {error.name} is not installed here")
    os.write(report_fd, report.to_json().encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # a library that hangs or crashes on its way out changes nothing any more
