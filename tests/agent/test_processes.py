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

from agent.processes import processes
from agent.processes.orphans import PR_SET_CHILD_SUBREAPER, Orphans, become_subreaper, descendants
from agent.processes.processes import TrainingProcesses
from agent.torch_compat.elastic import detach_process
from tests.agent.conftest import runs
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real


def start(tmp_path: Path, *scripts: str) -> tuple[PContext, TrainingProcesses]:
    """One process for each script, ready to be signalled."""
    pcontext = start_processes(
        name="test",
        entrypoint=sys.executable,
        args={
            rank: ("-u", "-c", script + READY.format(str(tmp_path / str(rank))))
            for rank, script in enumerate(scripts)
        },
        envs={rank: {"DLR_TEST_MARKER": str(tmp_path / str(rank))} for rank in range(len(scripts))},
        logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL),
    )
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(len(scripts))))
    return pcontext, TrainingProcesses(pcontext, orphans(tmp_path))


def orphans(tmp_path: Path, *kept_sessions: int) -> Orphans:
    return Orphans(f"DLR_TEST_MARKER={tmp_path}/", lambda: kept_sessions)


READY = "\nopen({!r}, 'w').close()\nimport time; time.sleep(600)"
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


def wait_exit(fds: list[int], timeout_seconds: float = 300.0) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    assert poll.poll(timeout_seconds * 1000)


@pytest.fixture(params=["pidfd", "thread"])
def exit_fds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")  # as in conda's Python


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
    running.join(300)


def test_what_ignores_the_signal_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SAVING_GRACE_SECONDS", 600.0)
    _, running = start(tmp_path, STUBBORN, "")
    started_at = time.monotonic()
    running.stop(signal.SIGTERM, 0.5)
    assert 0.5 <= time.monotonic() - started_at < 300
    assert running.collect_exits() == {}
    assert running.all_exited
    running.join(300)


WITH_CHILDREN = """
import multiprocessing, subprocess, sys, time
loader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
loader.start()
apart = subprocess.Popen(["sleep", "600"], start_new_session=True)
open({children!r}, "w").write(f"{{loader.pid}} {{apart.pid}}")
"""


def test_a_process_that_lives_on_keeps_what_it_started_while_the_others_end(tmp_path: Path) -> None:
    become_subreaper()
    scripts = [WITH_CHILDREN.format(children=str(tmp_path / f"children{rank}")) for rank in (0, 1)]
    pcontext, running = start(tmp_path, *scripts)
    children = {rank: list(map(int, (tmp_path / f"children{rank}").read_text().split())) for rank in (0, 1)}
    kept = detach_process(pcontext, 0)
    running.let_go(0)
    running._orphans.living_on = lambda: [kept.pid]
    dead = running.pids[1]
    running.stop(signal.SIGTERM, 300.0)
    running.join(300)
    wait_for(lambda: not any(runs(pid) for pid in (dead, *children[1])), "the end of the other")
    assert kept.poll() is None and all(map(runs, children[0]))
    running._orphans.reap(spared=())
    running._orphans.living_on = tuple
    assert {kept.pid, *children[0]} <= set(running._orphans.kill())
    kept.wait(300)
    wait_for(lambda: not any(map(runs, children[0])), "the end of its children")


SAVES_AT_SIGTERM = """
import multiprocessing, signal, sys, time
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
child.start()
def save(*_):
    time.sleep(0.3)  # as a step does that is being made
    open({saved!r}, "w").write(str(child.is_alive()))
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
"""


def test_a_script_that_is_asked_to_stop_keeps_its_own_processes_to_save(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    script = SAVES_AT_SIGTERM.format(saved=str(saved))
    file = tmp_path / "script.py"
    file.write_text(script + READY.format(str(tmp_path / "0")))
    pcontext = start_processes(
        name="test",
        entrypoint="sh",
        args={0: ("-c", f"sh -c '{sys.executable} {file}; true'; true")},
        envs={0: {"DLR_TEST_MARKER": str(tmp_path / "0")}},
        logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL),
    )
    wait_for((tmp_path / "0").exists)
    running = TrainingProcesses(pcontext, orphans(tmp_path))
    running.stop(signal.SIGTERM, 300)  # the shells end at once
    assert saved.read_text() == "True", "the script's child got the signal too"
    running.join(300)


WRITES = """
import signal, sys, threading, time
def save(*_):
    with open({file!r}, "wb") as file:
        for _ in range(25):
            file.write(bytes(2 << 20))
            file.flush()
            time.sleep(0.1)
    open({done!r}, "w").close()
    time.sleep(600)  # and then it does nothing any more
signal.signal(signal.SIGTERM, save)
"""


@pytest.fixture
def patient_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a process that saves waits for what it writes next, until it is done."""
    written, look = dict[int, int](), processes._bytes_written

    def bytes_written(pid: int) -> int:
        saves = is_saver(pid) and pid in written
        while saves and not (tmp_path / "done").exists():
            if look(pid) >= written[pid] + processes.SAVING_BYTES:
                break
            time.sleep(0.01)
        written[pid] = look(pid)
        return written[pid]

    def is_saver(pid: int) -> bool:
        return b"def save" in Path(f"/proc/{pid}/cmdline").read_bytes()

    monkeypatch.setattr(processes, "_bytes_written", bytes_written)
    monkeypatch.setattr(processes, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(processes, "SAVING_GRACE_SECONDS", 300.0)


@pytest.mark.usefixtures("patient_looks")
def test_what_still_writes_is_not_killed_in_the_middle_and_what_sits_there_is(tmp_path: Path) -> None:
    done = tmp_path / "done"
    _, running = start(tmp_path, WRITES.format(file=str(tmp_path / "saved"), done=str(done)), STUBBORN)
    started_at = time.monotonic()
    running.stop(signal.SIGTERM, 0.5)
    assert done.exists(), "it was killed while it saved"
    assert time.monotonic() - started_at < processes.SAVING_GRACE_SECONDS
    running.join(300)


@pytest.fixture
def first_process() -> Iterator[None]:
    """Orphans come to us, as to a container's first process."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


DAEMON = """
import os, subprocess, sys, time
file, seconds = sys.argv[1], float(sys.argv[2])
if os.fork():
    os._exit(0)
os.setsid()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open(file + ".part", "w") as pids:
    pids.write(f"{os.getpid()} {child.pid}")
os.rename(file + ".part", file)
time.sleep(seconds)
"""


def starts_a_daemon(tmp_path: Path, seconds: float) -> str:
    """The script of a training process."""
    (tmp_path / "daemon.py").write_text(DAEMON)
    command = [sys.executable, str(tmp_path / "daemon.py"), str(tmp_path / "pids"), str(seconds)]
    return f"import subprocess; subprocess.run({command!r}, check=True)"


@pytest.mark.usefixtures("first_process")
def test_daemons_with_sessions_of_their_own_end_with_the_round(tmp_path: Path) -> None:
    ours = subprocess.Popen(["sleep", "600"])
    kept = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pcontext, _ = start(tmp_path, starts_a_daemon(tmp_path, seconds=600))
    running = TrainingProcesses(pcontext, orphans(tmp_path, kept.pid))
    wait_for((tmp_path / "pids").exists)
    daemons = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert set(daemons) <= {process.pid for process in descendants()}
    running.stop(signal.SIGTERM, 5)
    running.join(300)
    assert not any(Path(f"/proc/{pid}").exists() for pid in daemons)
    assert ours.poll() is None and kept.poll() is None, "they are not the round's"
    for process in (ours, kept):
        process.kill()
        process.wait()
