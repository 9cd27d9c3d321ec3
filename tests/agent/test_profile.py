"""A profile of a real process: by torch where it offers that, by py-spy where there is one, else why not."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.monitor import profile
from agent.monitor.profile import PY_SPY, TORCH, Profile, ProfileError, Subject, take
from agent.monitor.stacks import DEFAULT_SIGNAL
from agent.supervision.asked import ProfileRequest
from crds.agent_report import MAX_PROFILE_BYTES

ROOT = Path(__file__).parents[2]

TRAIN = """
import os, time
{offer}
with open(os.environ["DLR_STACKS_FILE"], "ab", buffering=0) as file:
    file.write(b"pid %d\\n" % os.getpid())
{script}
print("trains", flush=True)
a = torch.ones(64, 64) if "torch" in globals() else None
while True:
    if a is None:
        time.sleep(0.01)
    else:
        a = torch.mm(a, a).clamp(0, 1)
        time.sleep(0.002)
"""
OFFER = "import torch; from agent.warm import profiler; profiler.offer(os.environ)"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Subject]]:
    monkeypatch.setattr(profile, "EXPORT_SECONDS", 300.0)
    running: list[subprocess.Popen[str]] = []

    def started(offer: str, script: str = "", **variables: str) -> Subject:
        stacks = tmp_path / "stacks.txt"
        told = {"DLR_STACKS_FILE": str(stacks), "DLR_STACKS_SIGNAL": str(DEFAULT_SIGNAL)}
        environ = os.environ | told | variables | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", TRAIN.format(offer=offer, script=script)]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, process_group=0)
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == "trains\n"
        return Subject(process.pid, stacks, DEFAULT_SIGNAL)

    yield started
    for process in running:
        process.kill()
        process.wait()


def events_of(made: Profile) -> set[str]:
    """The names of a trace's events."""
    return {event.get("name") for event in json.loads(gzip.decompress(made.data))["traceEvents"]}


@pytest.mark.real
def test_torch_profiles_what_runs_and_training_goes_on(start: Callable[[str], Subject]) -> None:
    subject = start(OFFER)
    for _ in range(2):
        while "aten::mm" not in events_of(made := take(subject, 0.2, "")):
            pass  # it was not scheduled in that time
        assert (made.by, made.seconds, made.note) == (TORCH, 0.2, "")
    os.kill(subject.pid, 0)


@pytest.mark.real
def test_py_spy_is_asked_for_a_trace(
    start: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / PY_SPY
    program.write_text('#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done; echo "[]" > "$2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = take(start(""), 0.1, "")
    assert (made.by, gzip.decompress(made.data)) == (PY_SPY, b"[]\n")
    program.write_text("#!/bin/sh\necho 'Error: Permission denied' >&2; exit 1\n")
    with pytest.raises(ProfileError, match="py-spy says Error: Permission denied"):
        take(start(""), 0.1, PY_SPY)


def test_what_is_too_large_to_be_told_becomes_shorter() -> None:
    asked: list[float] = []

    def record(seconds: float) -> bytes:
        asked.append(seconds)
        return bytes(int(seconds * MAX_PROFILE_BYTES))

    made = profile._fitting(5.0, TORCH, record)
    assert asked == [5.0, pytest.approx(0.7)] and len(made.data) <= MAX_PROFILE_BYTES
    assert f"5 s are more than {MAX_PROFILE_BYTES >> 10} KiB" in made.note
    with pytest.raises(ProfileError, match="still have"):
        profile._fitting(5.0, TORCH, lambda _: bytes(2 * MAX_PROFILE_BYTES))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x/3/5/", ProfileRequest(3, 5.0, "")),
        ("x/0/0.5/py-spy", ProfileRequest(0, 0.5, PY_SPY)),
        ("x/0/9999/py-spy", ProfileRequest(0, 60.0, PY_SPY)),
        ("x", None),
        ("x/a/5/", None),
    ],
)
def test_requests_are_read(text: str, read: ProfileRequest | None) -> None:
    assert ProfileRequest.parse(text) == read
