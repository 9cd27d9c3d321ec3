"""A script that is forked from the warm parent does what it does when the interpreter runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from agent.warm import Preloads
from agent.warm.warm_parent import ForkedProcess, WarmStart
from crds.checkpoint_files import KeptIn
from crds.progress_record import ENDED_SUFFIX, ENV_PROGRESS_FILE, ORDER, RECORD_BYTES, WORD_BYTES, leave_at
from tests.agent.conftest import Agents, children, command, runs, training_processes
from tests.agent.fake_cluster import FakeCluster
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

SECONDS = 300.0
ALL_SECONDS = 600.0
"""For two dozen scripts, one after the other. One took more than 30 s beside two dozen busy processes."""
PRELOADS = Preloads(sdk=("dlr.checkpoint",))
WITHOUT = ("PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED")
ENV = {name: value for name, value in os.environ.items() if name not in WITHOUT}
STUB = str(Path(__file__).with_name("without_torch"))
QUICK = {**ENV, "PYTHONPATH": STUB}
"""Environment of parents that have nothing to import: for tests of what becomes of processes."""


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmStart]:
    starter = WarmStart(PRELOADS)
    starter.prepare(ENV)
    yield starter
    starter.close()


def prepare(warm: WarmStart, env: Mapping[str, str] = ENV) -> None:
    """Have a parent that is ready, or has failed."""
    warm.prepare(env)
    never, writer = os.pipe()
    warm.await_warm(never, lambda: True, SECONDS)
    os.close(never)
    os.close(writer)


def run_warm(warm: WarmStart, argv: list[str], folder: Path, env: Mapping[str, str] | None = None) -> Ended:
    prepare(warm, env or ENV)
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = warm.start(argv, env or ENV, {1: stdout.fileno(), 2: stderr.fileno()})
    assert isinstance(process, ForkedProcess), "it was not forked"
    return Ended(process.wait(SECONDS), out.read_text(), err.read_text())


def run_cold(argv: list[str], env: Mapping[str, str] | None = None) -> Ended:
    done = subprocess.run(
        argv, env=env or ENV, capture_output=True, text=True, timeout=SECONDS, start_new_session=True
    )
    return Ended(done.returncode, done.stdout, done.stderr)


SCRIPTS = {
    "what_it_is": """
        import sys, os
        print(__name__, __file__, __package__, __spec__, __doc__, __builtins__, type(__loader__).__name__)
        print(sys.argv, sys.path[0], os.getcwd(), sorted(k for k in globals()))
        print(sys.stdout, sys.stderr, sys.stdout.write_through, sys.stdin.readline(), os.getpgid(0) == os.getpid())
    """,
    "exception_with_a_cause": """
        def inner():
            raise KeyError("inner")
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error
    """,
    "syntax_error": "x = = 3",
    "exit_with_a_text": "import sys; sys.exit('no data')",
    "own_excepthook": """
        import sys
        def hook(kind, value, traceback):
            print("hook", kind.__name__, value, traceback.tb_frame.f_code.co_name, traceback.tb_next)
        sys.excepthook = hook
        raise RuntimeError("seen by the hook")
    """,
    "last_words": """
        import atexit, threading
        atexit.register(print, "atexit")
        def late():
            threading.main_thread().join()
            print("thread")
        threading.Thread(target=late).start()
        print("end", end="")
    """,
    "abort": """
        import os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    """,
    "terminated": """
        import os, signal
        print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "other_encoding": "# -*- coding: latin-1 -*-\nprint('gr\\xfc\\xdfe')",
    "pickled_main": """
        import pickle, sys
        class Thing: ...
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].Thing is Thing)
    """,
    "loader_processes": """
        import multiprocessing, os
        import torch
        os.environ["PYTHONWARNINGS"] = "ignore"  # of its resource tracker: a plain process has some at times
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return torch.tensor(i * i)
        if __name__ == "__main__":
            for method, workers in (("fork", 2), ("spawn", 1)):  # which imports torch in each
                loader = torch.utils.data.DataLoader(
                    Data(), num_workers=workers, multiprocessing_context=method
                )
                print(method, sorted(int(x) for x in loader))
    """,
    "what_others_see": """
        def words(name):
            return open(f"/proc/self/{name}").read().rstrip("\\0").split("\\0")
        print(words("cmdline"), [each for each in words("environ") if each.startswith("DLR_PROGRESS_FILE=")])
    """,
    "exits_at_once": """
        import ctypes, os, sys
        print("x", end="")
        print("y", end="", file=sys.stderr)
        ctypes.CDLL(None).printf(b"of C")
        os._exit(5)
    """,
}


@dataclass(frozen=True)
class Scripts:
    """Each in a file of its own."""

    folder: Path

    def argv(self, name: str) -> list[str]:
        return [sys.executable, "-u", str(self.folder / f"{name}.py"), "--epochs", "3"]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    folder = tmp_path_factory.mktemp("scripts")
    for name, indented in SCRIPTS.items():
        text = indented.replace("\n        ", "\n").lstrip("\n")
        (folder / f"{name}.py").write_text(text, encoding="latin-1" if "latin" in text else "utf-8")
    return Scripts(folder)


@pytest.fixture(scope="module")
def from_the_agent(scripts: Scripts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All of them, forked from a parent that is a fork of the agent itself, by name."""
    results = tmp_path_factory.mktemp("results")
    orders = {name: scripts.argv(name) for name in SCRIPTS}
    (results / "orders.json").write_text(json.dumps(orders))
    room = ["train.py", "--epochs", "3"]  # a launcher has the script and its arguments
    command = [sys.executable, "-m", "tests.agent.forked_parent", str(results), *room]
    env = {**ENV, ENV_PROGRESS_FILE: str(scripts.folder / "step.0")}
    subprocess.run(command, env=env, check=True, timeout=ALL_SECONDS, stdin=subprocess.DEVNULL)
    codes = json.loads((results / "codes.json").read_text())
    return {
        name: Ended(code, (results / f"{name}.out").read_text(), (results / f"{name}.err").read_text())
        for name, code in codes.items()
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_does_the_same_warm_and_cold(
    name: str, warm: WarmStart, scripts: Scripts, from_the_agent: Mapping[str, Ended], tmp_path: Path
) -> None:
    env = {**ENV, ENV_PROGRESS_FILE: str(scripts.folder / "step.0")}
    cold = run_cold(scripts.argv(name), env)
    assert run_warm(warm, scripts.argv(name), tmp_path, env) == cold
    assert from_the_agent[name] == cold


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("import sys; sys.exit(3)", (3, False, [])),
        ("raise ValueError", (1, True, [])),
        ("import threading as t; t.Timer(0.1, print).start()", (0, False, ["Thread-1"])),
    ],
)
def test_the_end_of_a_script_is_marked_with_its_exit_code_and_what_the_interpreter_waits_for(
    warm: WarmStart, tmp_path: Path, script: str, end: tuple[int, bool, list[str]]
) -> None:
    (tmp_path / "train.py").write_text(script)
    record = tmp_path / "step.0"
    run_warm(
        warm,
        [sys.executable, "-u", str(tmp_path / "train.py")],
        tmp_path,
        {**ENV, ENV_PROGRESS_FILE: str(record)},
    )
    mark = json.loads(record.with_name(f"{record.name}{ENDED_SUFFIX}").read_text())
    assert (mark["code"], mark["raised"], list(mark["threads"].values())) == end


LEAVES = """
import atexit, os, sys, threading, time
from dlr.checkpoint import leaving

class Teardown:
    def __del__(self):
        os.write(1, b"taken apart\\n")

kept = Teardown()
atexit.register(print, "at exit")
threading.Timer(0.1, print, ["a thread"]).start()
sys.stdout = open(1, "w", buffering=4096, closefd=False)  # which is flushed at the end
leaving.take_part()
if leaving.boundary(int(sys.argv[1])):
    print("left")
    leaving.leave()
print("went on")
"""


@pytest.mark.parametrize(
    ("step", "code", "last"), [(7, 143, ["left", "a thread", "at exit"]), (6, 0, ["at exit", "taken apart"])]
)
def test_who_leaves_by_vote_ends_as_always_but_is_not_taken_apart(
    warm: WarmStart, tmp_path: Path, step: int, code: int, last: list[str]
) -> None:
    """The others wait for its end."""
    (tmp_path / "train.py").write_text(LEAVES)
    record, order = tmp_path / "step.0", leave_at(7, KeptIn.MEMORY).to_bytes(WORD_BYTES, sys.byteorder)
    record.write_bytes(order.rjust(WORD_BYTES * (ORDER + 1), b"\0").ljust(RECORD_BYTES, b"\0"))
    argv = [sys.executable, "-u", str(tmp_path / "train.py"), str(step)]
    ended = run_warm(warm, argv, tmp_path, {**ENV, ENV_PROGRESS_FILE: str(record)})
    assert (ended.code, ended.stderr) == (code, "")
    assert ended.stdout.split("\n")[-len(last) - 1 : -1] == last


def test_random_numbers_differ_from_process_to_process(warm: WarmStart, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import random, numpy, torch\n"
        "print(random.random(), numpy.random.rand(), torch.rand(()).item(), torch.initial_seed())"
    )
    argv = [sys.executable, "-u", str(script)]
    of_processes = [run_warm(warm, argv, tmp_path).stdout.split() for _ in range(3)]
    assert [len(set(of_one_kind)) for of_one_kind in zip(*of_processes, strict=True)] == [3, 3, 3, 3]


def test_what_is_read_when_torch_is_imported_renews_the_parent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch; print(torch.get_num_threads())")
    argv = [sys.executable, "-u", str(script)]
    starter = WarmStart(PRELOADS)
    try:
        for threads in ("1", "2"):
            env = {**ENV, "OMP_NUM_THREADS": threads}
            assert run_warm(starter, argv, tmp_path, env).stdout == f"{threads}\n"
    finally:
        starter.close()


@pytest.mark.parametrize(
    ("module", "text", "why"),
    [
        ("no_such_module_at_all", None, "No module named"),
        ("noisy", "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
         "1 threads of its own"),
    ],
)  # fmt: skip
def test_parent_that_must_not_fork_says_why_and_the_process_is_spawned(
    module: str, text: str | None, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text)
    starter = WarmStart(Preloads(users=(module,)))
    env = {**ENV, "PYTHONPATH": f"{tmp_path}:{STUB}"}
    prepare(starter, env)
    assert starter.start([sys.executable, "-u", "x.py"], env, {}) is None
    assert why in caplog.text
    starter.close()


def test_parent_that_is_killed_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')")
    argv = [sys.executable, "-u", str(script)]
    starter = WarmStart(Preloads())
    try:
        assert run_warm(starter, argv, tmp_path, QUICK).stdout == "trained\n"
        assert starter._parent is not None
        starter._parent._process.kill()
        starter._parent._process.wait()
        assert starter.start(argv, QUICK, {}) is None, "nobody waits for a new parent"
        assert run_warm(starter, argv, tmp_path, QUICK).stdout == "trained\n"
    finally:
        starter.close()


def test_processes_are_forked_ahead_and_end_unused_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os; print(os.environ['RANK'])")
    argv = [sys.executable, "-u", str(script)]
    starter = WarmStart(Preloads())
    try:
        assert run_warm(starter, argv, tmp_path, {**QUICK, "RANK": "1"}).stdout == "1\n"
        (ahead,) = forked_ahead(starter)
        out = tmp_path / "next"
        with out.open("wb") as stdout:
            process = starter.start(argv, {**QUICK, "RANK": "2"}, {1: stdout.fileno()})
        assert process is not None and process.pid == ahead
        assert (process.wait(SECONDS), out.read_text()) == (0, "2\n")
        (killed,) = forked_ahead(starter)
        os.kill(killed, signal.SIGKILL)
        ForkedProcess([], killed).wait(SECONDS)
        assert run_warm(starter, argv, tmp_path, {**QUICK, "RANK": "3"}).stdout == "3\n"
        (unused,) = forked_ahead(starter)
    finally:
        starter.close()
    assert ForkedProcess([], unused).wait(SECONDS) == 0


def forked_ahead(starter: WarmStart) -> list[int]:
    """Wait for the parent to fork ahead; children of ours by then, since this process is a subreaper."""
    (session,) = starter.sessions()
    while not (
        found := [pid for pid in children(os.getpid()) if pid != session and os.getsid(pid) == session]
    ):
        time.sleep(0.02)
    return found


def shows(pid: int, words: Sequence[str]) -> bool:
    """Whether `ps` shows these words of a process in a row."""
    return "\0".join(["", *words, ""]) in command(pid)


def test_agent_forks_round_after_round_and_leaves_nothing_behind(
    cluster: FakeCluster, agents: Agents
) -> None:
    script = agents.script("import time, dlr; dlr.report(1); time.sleep(600)")
    agent = agents.start(0, script, warm=True, forked=False)
    cluster.wait_state({0: "Ready"}, 0)
    for round_ in (1, 2, 3):
        cluster.form([0])
        cluster.wait_state({0: "Running"}, round_)
        cluster.wait(lambda: training_processes(agent.pid), "the process", SECONDS)
        (process,) = training_processes(agent.pid)
        wait_for(partial(shows, process, ["-u", script]), "the command that `ps` shows")
        assert b"\0LOCAL_RANK=0\0" in Path(f"/proc/{process}/environ").read_bytes()
        os.kill(process, signal.SIGKILL)
        cluster.wait_state({0: "Failed"}, round_)
        assert cluster.agent(0)["failure"]["signal"] == "SIGKILL"
    while len(helpers := children(agent.pid)) < 2:  # the parent, and the process that it has forked ahead
        time.sleep(0.02)
    assert shows(agent.pid, [script])
    agent.terminate()
    assert agent.wait(300) == 143
    wait_for(lambda: not any(runs(pid) for pid in helpers), "the end of the helpers")


def test_forked_process_does_not_outlive_an_agent_that_is_killed(
    cluster: FakeCluster, agents: Agents
) -> None:
    agent = agents.start(0, agents.script("import time, dlr; dlr.report(1); time.sleep(600)"), warm=True)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_step(0, 1)
    (process,) = training_processes(agent.pid)
    agent.kill()
    wait_for(lambda: not runs(process), "the end of the process")
