"""A probe that ends in whatever way it is told to."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from crds.agent_report import ProbeEnding
from healthcheck.probes import child
from healthcheck.probes.report import ProbeError, ProbeReport

ERRORS = {
    "raise": RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    "fail": ProbeError("the product is wrong"),
    "no-torch": ModuleNotFoundError("No module named 'torch'", name="torch"),
}


def measure(arguments: argparse.Namespace) -> ProbeReport:
    how = arguments.how
    if how in ERRORS:
        raise ERRORS[how]
    if how == "exit":
        os._exit(0)
    if how == "sleep":
        time.sleep(600)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    if how == "close":
        os.closerange(0, 64)
        time.sleep(600)
    if how == "chat":
        print("NCCL INFO this is no report")
    if how == "leave-a-child":
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(arguments.file).write_text(str(left.pid))
    if how == "say-pid":
        Path(arguments.file).write_text(str(os.getpid()))
    if arguments.then_sleep:
        time.sleep(600)
    return ProbeReport(ProbeEnding.PASSED, figures={"gemm_bf16_tflops": 1.5})


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    parser.add_argument("--how", default="")
    parser.add_argument("--file", default="")
    parser.add_argument("--then-sleep", action="store_true")
    child.serve(parser, measure)
