"""A profile of a real process: by torch where it offers that, by py-spy where there is one, else why not."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.monitor import profile
from agent.monitor.profile import PY_SPY, TORCH, Profile, ProfileError, Subject, take
from agent.monitor.stacks import DEFAULT_SIGNAL
from agent.supervision import asked as asking
from agent.supervision.asked import ProfileRequest, asked_profile
from agent.warm.profiler import Profiler
from crds.agent_report import MAX_PROFILE_BYTES
from crds.log_parts import MARK, from_log, log_parts
from crds.progress_record import PROFILE_ERROR, PROFILE_SECONDS

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
SELF = """
from itertools import count
from torch.profiler import ProfilerActivity
from agent.torch_compat.training import is_profiling
def train(is_over):
    while not is_over():
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        time.sleep(0.002)
def is_told():
    return os.path.exists(os.environ["TOLD"])
print("trains", flush=True)
if os.environ["MOMENT"] == "before":
    train(is_profiling)
own = torch.profiler.profile(activities=[ProfilerActivity.CPU])
own.start()
train(is_told)
steps = count()
train(lambda: next(steps) == 30)
own.stop()
open(os.environ["COUNT"] + ".new", "w").write(str(sum(event.name == "aten::mm" for event in own.events())))
os.rename(os.environ["COUNT"] + ".new", os.environ["COUNT"])
train(lambda: False)
"""
WARMS_UP = SELF.replace("[ProfilerActivity.CPU])", "[ProfilerActivity.CPU], schedule=warms_up)").replace(
    "own.start()", "own.start(); train(is_told); own.step()"
)
WARMS_UP = f"import torch\nwarms_up = torch.profiler.schedule(wait=0, warmup=1, active=1)\n{WARMS_UP}"
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
@pytest.mark.parametrize(("script", "moment"), [(SELF, "amid"), (SELF, "before"), (WARMS_UP, "amid")])
def test_a_script_that_profiles_itself_has_its_own_profile_whole(
    start: Callable[..., Subject], script: str, moment: str, tmp_path: Path
) -> None:
    """Asked before it begins, while it is at it, or warms up.

    Who asked is told, and may ask again when it has ended.
    """
    count = tmp_path / "count"
    told = tmp_path / PROFILE_ERROR
    subject = start(OFFER, script, MOMENT=moment, TOLD=str(told), COUNT=str(count))
    with pytest.raises(ProfileError, match="the script profiles itself"):
        take(subject, 30.0, TORCH)
    assert not (tmp_path / PROFILE_SECONDS).exists(), "the signal at its end finds nothing to begin"
    deadline = time.monotonic() + 300
    while not count.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert int(count.read_text()) > 20
    assert take(subject, 0.2, TORCH).data


def test_signal_that_nobody_waits_for_begins_nothing(tmp_path: Path) -> None:
    Profiler(tmp_path)(DEFAULT_SIGNAL, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_a_process_that_offers_nothing_is_not_harmed(
    start: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = start("")
    monkeypatch.setattr(profile.shutil, "which", lambda _: None)
    with pytest.raises(ProfileError, match="no py-spy"):
        take(subject, 0.1, "")
    with pytest.raises(ProfileError, match="offers no"):
        take(subject, 0.1, TORCH)
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


@pytest.mark.real
def test_an_agent_answers_once_for_its_own_ranks_and_forgets_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    subject = Subject(1, Path("stacks.txt"), 40)
    guard: Any = SimpleNamespace(subject_of=lambda _, rank: subject if rank == 3 else None)
    processes: Any = SimpleNamespace(alive=dict)
    monkeypatch.setattr(asking, "take", lambda *_: Profile(TORCH, 1.0, b"trace", "short"))
    asked = asked_profile(guard, "old/0/1/")

    def answer(text: str) -> Any:
        asked.look(text, processes, lambda: told.append("told"))
        if asked._taking is not None:
            asked._taking.join()
        return asked.to_status()

    assert answer("old/3/1/") is not None, "another text than when it came"
    assert answer("new/0/1/").request == "old/3/1/", "that is for another agent"
    status = answer("new/3/1/")
    assert (status.size, status.note) == (len(b"trace"), "short")
    assert from_log("new/3/1/", capfd.readouterr().err.splitlines()) == b"trace"
    assert told == ["told"] * 2
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: float("inf")))
    assert asked.to_status() is None


def test_lines_of_a_log_that_somebody_else_wrote_are_passed_over() -> None:
    good = [*log_parts("a", b"trace")]
    bad = [
        f"{MARK}a {number}/{total} {text}"
        for number, total, text in (("9" * 5_000, "1", ""), ("2", "9" * 5_000, ""), ("1", "1", "é"))
    ]
    assert from_log("a", [*bad, *good, *bad]) == b"trace"
    assert from_log("a", bad) is None
