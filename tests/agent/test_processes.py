from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, Std, start_processes

from agent import exit_fd, processes
from agent.processes import TrainingProcesses


def start(tmp_path: Path, *scripts: str) -> tuple[PContext, TrainingProcesses]:
    """One process for each script, ready to be signalled."""
    pcontext = start_processes(
        name="test",
        entrypoint=sys.executable,
        args={
            rank: ("-u", "-c", script + READY.format(str(tmp_path / str(rank))))
            for rank, script in enumerate(scripts)
        },
        envs={rank: {} for rank in range(len(scripts))},
        logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL),
    )
    deadline = time.monotonic() + 10
    while not all((tmp_path / str(rank)).exists() for rank in range(len(scripts))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return pcontext, TrainingProcesses(pcontext)


READY = "\nopen({!r}, 'w').close()\nimport time; time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """torch sets its own, in whoever starts processes."""
    before = {
        signum: signal.getsignal(signum)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def wait_exit(fds: list[int], timeout_seconds: float = 5.0) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    assert poll.poll(timeout_seconds * 1000)


@pytest.fixture(params=["pidfd", "thread"])
def exit_fds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "thread":
        monkeypatch.setattr(processes, "open_exit_fd", exit_fd._exit_fd_by_thread)


@pytest.mark.usefixtures("exit_fds")
def test_end_of_a_process_is_seen_at_once_with_its_exit_code(tmp_path: Path) -> None:
    _, running = start(tmp_path, "", "")
    assert running.collect_exits() == {}
    os.kill(running.pids[1], signal.SIGSEGV)
    wait_exit(running.exit_fds())
    assert running.collect_exits() == {1: -signal.SIGSEGV}
    assert running.collect_exits() == {}
    assert not running.all_exited
    running.kill()
    assert running.all_exited
    running.join(5)


def test_exit_codes_of_a_shell_and_of_a_signal(tmp_path: Path) -> None:
    _, running = start(tmp_path, "")
    os.kill(running.pids[0], signal.SIGTERM)
    wait_exit(running.exit_fds())
    assert running.collect_exits() == {0: -15}
    running.kill()
    running.join(5)


def test_grace_is_not_waited_out_when_all_have_ended(tmp_path: Path) -> None:
    _, running = start(tmp_path, "", "")
    started_at = time.monotonic()
    running.stop(signal.SIGTERM, 30)
    assert time.monotonic() - started_at < 15
    running.join(5)


def test_what_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    _, running = start(tmp_path, STUBBORN, "")
    started_at = time.monotonic()
    running.stop(signal.SIGTERM, 0.5)
    assert 0.5 <= time.monotonic() - started_at < 15
    assert running.collect_exits() == {}
    assert running.all_exited
    running.join(5)


def test_grace_is_cut_when_the_next_world_waits(tmp_path: Path) -> None:
    _, running = start(tmp_path, STUBBORN)
    wake = os.eventfd(1)
    started_at = time.monotonic()
    running.stop(signal.SIGTERM, 30, wake_fd=wake, hurry_after_seconds=lambda: 0.5)
    assert 0.5 <= time.monotonic() - started_at < 15
    os.close(wake)
    running.join(5)


@pytest.fixture
def first_process() -> Iterator[None]:
    """Orphans come to us, as to a container's first process."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    yield
    prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.usefixtures("first_process")
def test_children_of_a_killed_process_do_not_outlive_it(tmp_path: Path) -> None:
    script = (
        "import subprocess; child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))"
    )
    _, running = start(tmp_path, script)
    child = int((tmp_path / "child").read_text())
    os.kill(running.pids[0], signal.SIGKILL)
    wait_exit(running.exit_fds())
    running.kill()
    running.join(5)
    assert not Path(f"/proc/{child}").exists()  # not even as a zombie


def test_a_process_that_was_collected_already_has_ended() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    fd = exit_fd._exit_fd_by_thread(child.pid)
    wait_exit([fd])
    os.close(fd)
