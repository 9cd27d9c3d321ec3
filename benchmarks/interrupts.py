"""Ctrl-C at random moments of ten commands: what each left behind. Run by hand, it takes some minutes.

    python -m benchmarks.interrupts --moments 10

As in a terminal, the signal goes to the whole process group. The exit code is 1 if any of them left a
traceback, a process or a file.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

COMMANDS = (
    "--help",
    "--version",
    "job list",
    "job status digits",
    "job events digits",
    "job submit -f examples/digits/elasticjob.yaml --namespace nosuch",
    "manifests",
    "doctor",
    "node-check --local",
    "up --nodes 2",
)
END_SECONDS = 60.0
OWN_FILES = "home"
"""The cluster's folder, which `dlr up` is to make."""


@dataclass(frozen=True)
class Ended:
    code: int
    seconds: float
    said: str

    @property
    def is_pythons(self) -> bool:
        """It was interrupted before a line of ours could run, while Python imported its own `site`."""
        return "<frozen site>" in self.said and "dlr" not in self.said

    @property
    def trouble(self) -> str:
        return "traceback" if "Traceback" in self.said or "Exception ignored" in self.said else ""


def run(dlr: Path, line: str, folder: Path, after_seconds: float | None) -> Ended:
    """One command, with an interrupt after so long."""
    environment = os.environ | {
        "DLR_HOME": str(folder / OWN_FILES),
        "TMPDIR": str(folder / "tmp"),
    }
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, str(dlr), *line.split()],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if after_seconds is not None:
        time.sleep(after_seconds)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=END_SECONDS)
    return Ended(child.returncode, time.monotonic() - began, said)


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def left_by(dlr: Path, line: str, folder: Path) -> str:
    if line.startswith("up") and (folder / OWN_FILES).is_dir():
        if processes := processes_of(folder):
            return f"processes {processes}"
        scratch = [path.name for path in (folder / OWN_FILES).rglob(".*")]
        return f"scratch files {scratch}" if scratch else ""
    files = [str(path.relative_to(folder)) for path in (folder / "tmp").rglob("*")]
    return f"files {files}" if files else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=10, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's would be ignored
    chance = random.Random(arguments.seed)
    dlr = Path(__file__).parents[1] / "bin" / "dlr"  # what is installed, on this Python
    failures = starts = 0
    for line in COMMANDS:
        with tempfile.TemporaryDirectory(prefix="dlr-interrupts-") as name:
            folder = Path(name)
            (folder / "tmp").mkdir()
            whole = run(dlr, line, folder, None).seconds
            if line.startswith("up"):
                run(dlr, "down", folder, None)
            for _ in range(arguments.moments):
                moment = chance.uniform(0, whole)
                ended = run(dlr, line, folder, moment)
                left = left_by(dlr, line, folder) if ended.code else ""
                if line.startswith("up"):
                    run(dlr, "down", folder, None)
                if ended.is_pythons and not left:
                    starts += 1
                elif ended.trouble or left:
                    failures += 1
                    print(f"dlr {line}, after {moment:.3f} s: {ended.trouble} {left}\n{ended.said}")
            print(
                f"dlr {line}: {whole:.2f} s, {arguments.moments} interrupts; {failures} of all left something"
            )
    print(f"{starts} tracebacks were of Python's own start, before the first line of dlr")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
