"""Runs all real tests that `make test` leaves out, in shards: a file of e2e/, or a folder of tests/.

python -m tests.shards [-j N] [SHARD ...]

Shards run N at a time, each in a process of its own. One that fails does not stop the others: at the end a table has the
time of each, and the exit code says whether all were green.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

CHOSEN = ("-m", "real and not named")
NOTHING_COLLECTED = 5


@dataclass(frozen=True)
class Outcome:
    name: str
    seconds: float
    code: int
    output: str

    @property
    def summary(self) -> str:
        """Pytest's last line."""
        return (self.output.strip().splitlines() or ["no output"])[-1].strip("= ")


def shard_of(file: str) -> str:
    """The name of the shard that a test file belongs to."""
    path = Path(file)
    if path.parts[0] == "e2e":
        return f"e2e/{path.stem.removeprefix('test_')}"
    return str(path if len(path.parts) == 2 else Path(*path.parts[:2]))


def collected() -> dict[str, list[str]]:
    """The files of each shard."""
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "tests", "e2e", "--collect-only", "-qq", *CHOSEN],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        raise SystemExit(listed.stdout + listed.stderr)
    files = [line.rpartition(":")[0] for line in listed.stdout.splitlines() if ".py: " in line]
    shards = defaultdict(list)
    for file in files:
        shards[shard_of(file)].append(file)
    return dict(shards)


def run(name: str, files: list[str]) -> Outcome:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *CHOSEN, "-p", "no:cacheprovider"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(name, time.monotonic() - began, done.returncode, done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-j", type=int, default=max(2, os.cpu_count() or 2), dest="at_once", metavar="N")
    parser.add_argument("shards", nargs="*", metavar="SHARD", help="names of those to run; all without any")
    arguments = parser.parse_args()
    shards = collected()
    if unknown := set(arguments.shards) - set(shards):
        parser.error(f"no such shard: {', '.join(sorted(unknown))}; there are {', '.join(sorted(shards))}")
    chosen = {name: shards[name] for name in arguments.shards or sorted(shards)}
    outcomes = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for future in as_completed([pool.submit(run, name, files) for name, files in chosen.items()]):
            outcome = future.result()
            outcomes.append(outcome)
            if outcome.code:
                print(outcome.output)
            print(f"{outcome.name}: {outcome.seconds:.0f} s, {outcome.summary}", flush=True)
    print(f"\n{'shard':<28} {'seconds':>7}  outcome")
    for outcome in sorted(outcomes, key=lambda each: -each.seconds):
        print(f"{outcome.name:<28} {outcome.seconds:>7.0f}  {outcome.summary}")
    failed = sorted(outcome.name for outcome in outcomes if outcome.code)
    print(f"{len(outcomes)} shards, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
