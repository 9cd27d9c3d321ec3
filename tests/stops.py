"""Hunts for tests that hang on the pace of processes: runs some of them while what they start is stopped at random.

python -m tests.stops [--times N] [--seed N] [--burn] [--logs FOLDER] PYTEST_ARGUMENT ...

While pytest runs, processes below it get SIGSTOP for 0.3 to 3 s, one at a time; pytest itself runs on. At the end a
table has the runs, failures and seconds of each test. The output of a run with a failure is kept in FOLDER. Where
pytest does not come to run tests (a wrong argument, a broken import), its output and exit code end the hunt.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PR_SET_CHILD_SUBREAPER = 36
STOPPED_SECONDS = (0.3, 3.0)
BETWEEN_SECONDS = (0.3, 3.0)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    started: str
    """In clock ticks since boot: with the pid it names one process for ever."""


@dataclass
class Record:
    """What became of a test."""

    seconds: list[float] = field(default_factory=list)
    failures: int = 0


def look(pid: int) -> Process | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Process(pid, int(fields[1]), fields[0], fields[19])


def below(ancestor: int) -> list[Process]:
    """All descendants of a process."""
    children: dict[int, list[Process]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := look(int(entry.name))):
            children[found.parent].append(found)
    found, waiting = [], [ancestor]
    while waiting:
        young = children[waiting.pop()]
        found += young
        waiting += [process.pid for process in young]
    return found


class Stopper:
    """Stops one process after the other among those that a test run has started."""

    def __init__(self, rng: random.Random, spared: set[int]) -> None:
        self._rng = rng
        self._spared = spared
        self.count = 0

    def stop_one(self) -> None:
        ours = below(os.getpid())
        for zombie in ours:  # orphans are ours to wait for
            if zombie.state == "Z" and zombie.parent == os.getpid() and zombie.pid not in self._spared:
                os.waitpid(zombie.pid, os.WNOHANG)
        able = [each for each in ours if each.pid not in self._spared and each.state not in "TtZX"]
        if able:
            self._hold(self._rng.choice(sorted(able, key=lambda each: each.pid)))
        time.sleep(self._rng.uniform(*BETWEEN_SECONDS))

    def _hold(self, victim: Process) -> None:
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGSTOP)
            self.count += 1
            try:
                time.sleep(self._rng.uniform(*STOPPED_SECONDS))
            finally:
                now = look(victim.pid)
                if now and now.started == victim.started:
                    os.kill(victim.pid, signal.SIGCONT)


def run(arguments: list[str], rng: random.Random, folder: Path, spared: set[int]) -> tuple[int, Path]:
    """Run pytest once; return its exit code, and its log, beside its results."""
    log, results = folder / "pytest.log", folder / "results.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--junitxml={results}"]
    results.unlink(missing_ok=True)
    with log.open("wb") as output:
        tests = subprocess.Popen([*command, *arguments], stdout=output, stderr=output)
    stopper = Stopper(rng, spared | {tests.pid})
    while tests.poll() is None:
        stopper.stop_one()
    print(f"exit code {tests.returncode}, {stopper.count} stops", flush=True)
    return tests.returncode, log


def note(results: Path, records: dict[str, Record]) -> bool:
    """Whether all were green."""
    failures = 0
    for case in ElementTree.parse(results).iter("testcase"):
        if not case.get("classname"):  # of a run that was interrupted
            continue
        record = records[f"{case.get('classname')}::{case.get('name')}"]
        record.seconds.append(float(case.get("time", 0)))
        failed = case.find("failure") is not None or case.find("error") is not None
        record.failures += failed
        failures += failed
    return not failures


def table(records: dict[str, Record]) -> str:
    lines = [f"{'runs':>4} {'failures':>8} {'mean s':>7} {'max s':>7}  test"]
    for name, record in sorted(records.items(), key=lambda item: (-item[1].failures, item[0])):
        runs, seconds = len(record.seconds), record.seconds
        lines.append(
            f"{runs:>4} {record.failures:>8} {sum(seconds) / runs:>7.1f} {max(seconds):>7.1f}  {name}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20, help="runs of all of them (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--burn", action="store_true", help="keep one core busy beside them")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "dlr-stops")
    options, arguments = parser.parse_known_args()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.burn else None
    try:
        return hunt(options, arguments, {burner.pid} if burner else set())
    finally:
        if burner:
            burner.kill()


def hunt(options: argparse.Namespace, arguments: list[str], spared: set[int]) -> int:
    """Run all of them so often; return the exit code: pytest's own if it did not come to run tests."""
    records: dict[str, Record] = defaultdict(Record)
    try:
        for number in range(options.times):
            seed = options.seed + number
            print(f"run {number + 1} of {options.times}, --seed {seed}: ", end="", flush=True)
            folder = options.logs / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            code, log = run(arguments, random.Random(seed), folder, spared)
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                print(log.read_text(errors="replace"), end="")
                return code
            if not note(folder / "results.xml", records):
                print(f"failures: {log}", flush=True)
    finally:
        if records:
            print(table(records))
    return any(record.failures for record in records.values())


if __name__ == "__main__":
    raise SystemExit(main())
