"""What a training script reports: numbers in the file of its agent, and stacks on a signal."""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from crds.progress_record import ENV_PROGRESS_FILE, FIRST_NUMBER, RECORD_BYTES, WORD_BYTES, WORDS_OF_NUMBER
from dlr import busy, checkpoint_saved, progress, report
from dlr.replicas.training_step import TrainingStep
from tests.cli.scripted import Clock
from tests.counting import calls

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


@pytest.fixture
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Path:
    path = tmp_path / "step"
    path.write_bytes(bytes(RECORD_BYTES))
    monkeypatch.setenv(ENV_PROGRESS_FILE, str(path))
    monkeypatch.setattr(progress, "_slot", None)
    monkeypatch.setattr(progress, "_has_stepped", False)
    monkeypatch.setattr(progress, "_places", {})
    return path


def numbers(path: Path) -> tuple[float, ...]:
    return struct.unpack_from("qdqdqdqd", path.read_bytes())


def test_steps_and_checkpoints_are_in_the_file_with_their_times(progress_file: Path, clock: Clock) -> None:
    clock.now = 5.0
    report(41)
    clock.now = 6.0
    report(42)
    assert numbers(progress_file) == (42, 6.0, 0, 0.0, 0, 0.0, 41, 5.0), "no checkpoint yet"
    clock.now = 7.0
    checkpoint_saved(40)
    assert numbers(progress_file) == (42, 6.0, 40, 7.0, 0, 0.0, 41, 5.0)


def test_step_of_replica_groups_counts_as_the_one_that_it_is(progress_file: Path) -> None:
    report(TrainingStep(0))
    checkpoint_saved(TrainingStep(0))
    report(TrainingStep(1) + 1)
    step, _, saved, _, _, _, first, _ = numbers(progress_file)
    assert (first, saved, step) == (1, 1, 2)


@pytest.mark.parametrize("loss", [math.nan, -math.inf])
def test_first_loss_that_is_no_number_is_in_the_file(progress_file: Path, loss: float) -> None:
    report(0, loss=2.5)
    report(1)
    assert numbers(progress_file)[4] == 0
    report(2, loss)
    report(3, math.nan)
    report(4, 2.5)
    assert numbers(progress_file)[4] == 3, "one more than the step"


@pytest.mark.filterwarnings("error")
def test_what_is_no_number_ends_no_training_and_a_loss_needs_no_detach(progress_file: Path) -> None:
    no_numbers: dict[str, Any] = {"lr": None, "name": "a", "huge": 10**400, "vector": torch.ones(2)}
    report(1, loss=torch.tensor(1.5, requires_grad=True), **no_numbers)
    step: Any = torch.tensor(2.0)
    report(step, samples=step)
    checkpoint_saved(step)
    told = progress_file.read_bytes()
    assert numbers(progress_file)[:3:2] == (2, 2)
    assert struct.unpack_from("d24s", told, WORD_BYTES * FIRST_NUMBER) == (1.5, b"loss".ljust(24, b"\0"))
    assert not any(told[WORD_BYTES * (FIRST_NUMBER + WORDS_OF_NUMBER) :])


def test_busy_is_told_until_the_block_ends_and_the_longest_of_several_counts(progress_file: Path) -> None:
    def until() -> float:
        return numbers(progress_file)[5]

    long = busy(600)
    with long:
        report(1)
        with busy(60), long:
            assert until() == 600
        assert until() == 600
        with pytest.raises(ZeroDivisionError), busy(6_000):
            assert until() == 6_000
            raise ZeroDivisionError
        assert until() == 600
    assert until() == 0.0


@pytest.mark.real
def test_a_thread_that_saves_may_be_the_first_to_tell(progress_file: Path) -> None:
    at_once = threading.Barrier(2)

    def tell(say: Callable[[int], None], step: int) -> None:
        at_once.wait(300)
        say(step)

    threads = [threading.Thread(target=tell, args=pair) for pair in ((report, 7), (checkpoint_saved, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert numbers(progress_file)[:4:2] == (7, 5)


def test_outside_of_dlr_nothing_happens(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_PROGRESS_FILE, raising=False)
    monkeypatch.setattr(progress, "_slot", None)
    report(1)
    checkpoint_saved(1)
    report(2)
    with busy(1):
        pass


@pytest.mark.parametrize("content", [None, b"", bytes(24)])
def test_a_file_that_cannot_be_used_never_stops_training(content: bytes | None, progress_file: Path) -> None:
    progress_file.unlink() if content is None else progress_file.write_bytes(content)
    report(1)
    checkpoint_saved(1)
    with busy(1):
        pass


@pytest.mark.parametrize("say", [report, checkpoint_saved])
def test_is_cheap_enough_for_every_step(progress_file: Path, say: Callable[[int], None]) -> None:
    say(0)
    assert calls(lambda: say(1)) - calls(lambda: None) <= 6


HANGS = """
import ctypes, os, signal, sys, threading, dlr
if len(sys.argv) > 1: signal.signal(int(os.environ["DLR_STACKS_SIGNAL"]), signal.SIG_IGN)
def stuck():
    print("here", flush=True)
    ctypes.PyDLL(None).pause()  # in C, and with the interpreter's lock: no Python code runs any more
dlr.report(1)
stuck()
"""


def start_hanging(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
    stacks = tmp_path / "stacks"
    (tmp_path / "step").write_bytes(bytes(RECORD_BYTES))
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "DLR_PROGRESS_FILE": str(tmp_path / "step"),
            "DLR_STACKS_FILE": str(stacks),
            "DLR_STACKS_SIGNAL": str(int(signal.SIGRTMIN) + 5),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process, stacks


@pytest.mark.real
def test_a_script_may_have_an_agent_of_its_own_beside_it(tmp_path: Path) -> None:
    """As in reinforcement learning; ours is then not what `import agent` finds."""
    (tmp_path / "agent.py").write_text("raise ImportError('of the user')")
    (tmp_path / "train.py").write_text("import dlr; dlr.report(7)")
    (tmp_path / "step").write_bytes(bytes(RECORD_BYTES))
    files = {"DLR_PROGRESS_FILE": str(tmp_path / "step"), "DLR_STACKS_FILE": str(tmp_path / "stacks")}
    variables = {**os.environ, **files, "DLR_STACKS_SIGNAL": str(int(signal.SIGRTMIN) + 5)}
    subprocess.run([sys.executable, str(tmp_path / "train.py")], env=variables, check=True, timeout=300)
    assert (tmp_path / "stacks").read_text().startswith("pid ")


@pytest.mark.real
def test_the_first_call_makes_the_process_show_its_stacks_on_a_signal(tmp_path: Path) -> None:
    process, stacks = start_hanging(tmp_path)
    with process:
        process.send_signal(signal.SIGRTMIN + 5)
        deadline = time.monotonic() + 300
        while "in <module>" not in stacks.read_text():
            assert time.monotonic() < deadline
            assert process.poll() is None, "it lives on"
            time.sleep(0.01)
        assert "in stuck" in stacks.read_text()
        process.kill()


@pytest.mark.real
def test_a_signal_that_the_script_uses_itself_is_left_alone(tmp_path: Path) -> None:
    process, stacks = start_hanging(tmp_path, "use it")
    with process:
        assert not stacks.exists()
        process.kill()


class OnGpu:
    """A tensor on a GPU, whose number nobody may wait for."""

    is_cuda = True

    def __init__(self, number: float) -> None:
        self.number = number

    def __float__(self) -> float:
        raise AssertionError("this waits for the GPU")


def test_a_loss_on_a_gpu_is_told_when_it_has_arrived_and_never_waited_for(
    progress_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Copy:
        def __init__(self, tensor: OnGpu, step: int, now: float) -> None:
            self.tensor, self.step, self.begun_at = tensor, step, now
            self.is_reported = self.has_arrived = False
            made.append(self)

        def is_done(self) -> bool:
            return self.has_arrived

        def value(self) -> float:
            return self.tensor.number

    monkeypatch.setattr(progress, "_Copy", Copy)
    monkeypatch.setattr(progress, "_copies", {})
    monkeypatch.setattr(progress, "_COPY_SECONDS", 3_600.0)
    for step in range(100):
        report(step, loss=OnGpu(1.0))
    assert [copy.step for copy in made] == [0], "one copy at a time"
    made[0].tensor.number, made[0].has_arrived = math.nan, True
    report(100, loss=OnGpu(1.0))
    assert numbers(progress_file)[4] == 1, "of step 0"
    report(101, loss=OnGpu(1.0))
    assert len(made) == 1, "once in that time"
    monkeypatch.setattr(progress, "_COPY_SECONDS", 0.0)
    report(102, loss=OnGpu(1.0))
    assert [copy.step for copy in made] == [0, 102]
