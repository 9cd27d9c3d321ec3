from __future__ import annotations

import json
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import agent.warm.script
from agent.facts.failure import (
    LocalFailure,
    clip,
    exit_text,
    failure_of_process,
    last_crash,
    last_traceback,
)
from crds.agent_report import FailureCause

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def report(exit_code: int, *, error_file: Path | str = "", stderr: Path | None = None) -> LocalFailure:
    process = ProcessFailure(local_rank=1, pid=7, exitcode=exit_code, error_file=str(error_file))
    return failure_of_process(process, sequence=3, round_=5, rank=9, stderr=stderr, time=NOW)


def test_recorded_exception_comes_first_with_its_traceback(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    recorded = {
        "message": "ValueError: bad",
        "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1"},
    }
    error_file.write_text(json.dumps({"message": recorded}))
    failure = report(1, error_file=error_file)
    assert failure.message == "ValueError: bad\nTraceback ..."
    assert (failure.rank, failure.local_rank, failure.exit_code, failure.signal) == (9, 1, 1, None)


def test_exception_whose_text_has_no_encoding_is_told_all_the_same(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    recorded = {
        "message": "ValueError: \ud800 is bad",
        "extraInfo": {"timestamp": "1", "py_callstack": "\udcff"},
    }
    error_file.write_text(json.dumps({"message": recorded}))
    failure = report(1, error_file=error_file)
    assert failure.message == "ValueError: ? is bad\n?"
    failure.message.encode()
    long = clip("\ud800" + "x" * 5000, 4096)
    assert long.startswith("?xxx")
    assert len(long) == 4096


def test_error_file_that_a_program_wrote_itself_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    error_file.write_text(json.dumps({"message": "no more data", "timestamp": 1}))
    assert report(1, error_file=error_file).message == "no more data"
    process = ProcessFailure(local_rank=1, pid=7, exitcode=1, error_file="")
    process.error_file_data = {"message": {"message": "bad", "extraInfo": "none"}}
    failure = failure_of_process(process, sequence=1, round_=1, rank=0, stderr=None, time=NOW)
    assert failure.message == "bad"


def test_without_a_record_the_traceback_on_stderr_serves(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text(
        "loading\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 3, in <module>\n'
        "[rank1]:     main()\n"
        "[rank1]: RuntimeError: out of luck\n"
        "[W123] process group was not destroyed\n"
    )
    failure = report(1, stderr=stderr)
    assert failure.message.splitlines()[0] == "RuntimeError: out of luck"
    assert 'File "train.py", line 3' in failure.message
    assert failure.log_tail.endswith("process group was not destroyed\n")


def test_the_rank_before_a_line_is_left_out_however_often_it_is_there(tmp_path: Path) -> None:
    """torch's excepthook is set once more by each `init_process_group`."""
    stderr = tmp_path / "stderr.log"
    stderr.write_text(
        "[rank1]: [rank1]: Traceback (most recent call last):\n"
        '[rank1]: [rank1]:   File "train.py", line 3, in <module>\n'
        "[rank1]: [rank1]: RuntimeError: out of luck\n"
    )
    assert report(1, stderr=stderr).message.splitlines()[0] == "RuntimeError: out of luck"
    stderr.write_text("[rank1]: [rank1]: no such file\n")
    assert report(2, stderr=stderr).message == "the process exited with code 2: no such file"


def test_signal_has_a_name() -> None:
    failure = report(-11)
    assert (failure.signal, failure.message) == ("SIGSEGV", "the process was killed by SIGSEGV")
    assert report(-40).signal == "signal 40"


def test_a_script_that_cannot_be_compiled_is_said_with_its_line() -> None:
    try:
        compile("import torch\ndef train(:\n    pass\n", "/app/train.py", "exec")
    except SyntaxError as error:
        said = "".join(traceback.format_exception_only(error))
    for prefix in ("", "[rank1]: "):
        log = "loading\n" + "".join(f"{prefix}{line}\n" for line in said.splitlines())
        first, second, *_ = exit_text(1, log).splitlines()
        assert first == "SyntaxError: invalid syntax (train.py, line 2)"
        assert second == '  File "/app/train.py", line 2'
        assert exit_text(1, f"{log}usage: train\n") == "the process exited with code 1: usage: train"


def test_of_chained_exceptions_the_last_counts() -> None:
    log = (
        "Traceback (most recent call last):\n  File a\nKeyError: 1\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File b\nTypeError: 2\n"
    )
    assert last_traceback(log) == "TypeError: 2\nTraceback (most recent call last):\n  File b"


KILLED = "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. "
GONE = "RuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly"


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("first", [KILLED, GONE])
@pytest.mark.parametrize("links", [0, 5])
def test_a_killed_child_is_found_wherever_in_a_chain_of_exceptions_it_is(
    tmp_path: Path, *, first: str, links: int, recorded: bool
) -> None:
    frames = "".join(f'  File "loader.py", line {line}, in fetch\n    fetch()\n' for line in range(60))
    chain = f"Traceback (most recent call last):\n{frames}{first}\n"
    for link in range(links):
        word = ("The above exception was the direct cause of the following exception:",
                "During handling of the above exception, another exception occurred:")[link % 2]  # fmt: skip
        chain += f"\n{word}\n\nTraceback (most recent call last):\n{frames}OSError: no batch {link}\n"
    error_file, stderr = tmp_path / "error.json", tmp_path / "stderr.log"
    if recorded:
        message = {"message": "OSError: no batch", "extraInfo": {"py_callstack": chain, "timestamp": "1"}}
        error_file.write_text(json.dumps({"message": message}))
    else:
        stderr.write_text("".join(f"[rank1]: {line}\n" for line in chain.splitlines()))
    assert report(1, error_file=error_file if recorded else "", stderr=stderr).was_killed
    stderr.write_text(f"{chain}caught\nTraceback (most recent call last):\n{frames}ValueError: other\n")
    assert not report(1, stderr=stderr).was_killed, "an exception that was caught before"


CRASHED = "ERROR: Unexpected {} encountered in worker.{}\n"
RESET = 'Traceback (most recent call last):\n  File "loader.py", line 24, in <module>\n{}\n'
LOST = "ConnectionResetError: [Errno 104] Connection reset by peer"
SHM = " This might be caused by insufficient shared memory (shm)."


@pytest.mark.parametrize("lost", [LOST, GONE])
@pytest.mark.parametrize(
    ("words", "more", "signal"), [("segmentation fault", "", "SIGSEGV"), ("bus error", SHM, "SIGBUS")]
)
def test_the_crash_of_a_loaders_worker_is_what_the_failure_is(
    words: str, more: str, signal: str, lost: str, tmp_path: Path
) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text("epoch 0\n" + CRASHED.format(words, more) + RESET.format(lost))
    failure = report(1, stderr=stderr)
    first, second, *_ = failure.message.splitlines()
    assert (first, second) == (f"DataLoader: Unexpected {words} encountered in worker.{more}", lost)
    assert (failure.child_signal, failure.is_consequence, failure.was_killed) == (signal, False, False)


def test_a_loaders_crash_that_was_survived_is_no_reason_of_a_later_failure(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text(CRASHED.format("segmentation fault", "") + RESET.format("ValueError: bad"))
    failure = report(1, stderr=stderr)
    assert (failure.message.splitlines()[0], failure.child_signal) == ("ValueError: bad", None)


def printed_group(*, nested: bool) -> str:
    """As Python prints it, with torch's prefix."""

    def fail() -> None:
        raise ValueError("the real cause\nin two lines")

    inner: list[Exception] = []
    try:
        fail()
    except ValueError as error:
        inner = [error]
    if nested:
        inner = [ExceptionGroup("inner", inner)]
    try:
        raise ExceptionGroup("in a TaskGroup", [KeyError("k"), *inner])
    except ExceptionGroup as group:
        lines = "".join(traceback.format_exception(group)).splitlines()
    return "".join(f"[rank0]: {line}\n" for line in ["", *lines])


@pytest.mark.parametrize("nested", [False, True])
def test_of_a_group_of_exceptions_the_last_is_told(nested: bool) -> None:
    said = last_traceback(printed_group(nested=nested) + "[rank0]:[W] a later line\n")
    assert said.splitlines()[0] == "ValueError: the real cause"


CONTINUED = """Traceback (most recent call last):
  File "/app/train.py", line 9, in learn
    loss = (
           ^
    + mean(x)
    | mask
RuntimeError: Connection closed by peer
"""


def test_a_line_of_the_script_that_begins_with_an_operator_is_no_drawing() -> None:
    assert last_traceback(CONTINUED).splitlines()[0] == "RuntimeError: Connection closed by peer"


CRASH = """loading
Fatal Python error: Segmentation fault

Thread 0x00007f0001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f0002 (most recent call first):
  File "/app/train.py", line 9 in learn
  File "/app/train.py", line 20 in <module>

Extension modules: numpy, torch (total: 2)
"""


def test_crash_is_told_with_the_place_where_the_interpreter_was(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text(CRASH)
    assert report(-11, stderr=stderr).message.splitlines() == [
        "the process was killed by SIGSEGV",
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f0002 (most recent call first):",
        '  File "/app/train.py", line 9 in learn',
        '  File "/app/train.py", line 20 in <module>',
    ]
    launcher = Path(agent.warm.script.__file__)
    ours = f'  File "/app/train.py", line 20 in <module>\n  File "{launcher}", line 9 in run\n  File "<frozen runpy>", line 1 in x'
    stderr.write_text(CRASH.replace('  File "/app/train.py", line 20 in <module>', ours))
    assert report(-11, stderr=stderr).message.endswith('File "/app/train.py", line 20 in <module>')
    assert last_crash("Fatal Python error: Aborted\n\n") == "Fatal Python error: Aborted"
    assert last_crash("all is well") == ""


def test_death_of_a_peer_is_no_reason_of_its_own() -> None:
    failure = report(1)
    assert replace(failure, message="RuntimeError: [gloo] Connection closed by peer [::1]:4").is_consequence
    assert replace(failure, message="torch.distributed.DistNetworkError: failed").is_consequence
    assert not replace(failure, message="ValueError: the data is bad").is_consequence
    in_use = "torch.distributed.DistNetworkError: The server socket has failed to bind to [::]:29500"
    assert not replace(failure, message=in_use).is_consequence
    aborted = replace(report(-6), log_tail="[rank1] Watchdog caught collective operation timeout: WorkNCCL")
    assert aborted.is_consequence
    assert replace(aborted, message="ValueError: bad", cause=FailureCause.TIMED_OUT).is_consequence
    assert not replace(aborted, message="ValueError: bad").is_consequence, "what else was logged says nothing"
    assert not replace(aborted, cause=FailureCause.OOM).is_consequence


def test_a_message_with_control_characters_keeps_its_exceptions_type(tmp_path: Path) -> None:
    """Only what is drawn over before and after it is left out: progress bars."""
    stderr = tmp_path / "stderr"
    raised = f"{RAISED}    learn()\nmine.DataError: at 50 %\rthen \x07a bell \x1b[31min red\x1b[0m\n"
    bars = "\r 50%|##  |\r 51%|##  |"
    for prefix in ("", "[rank1]: "):
        stderr.write_text(bars + "\n" + "".join(f"{prefix}{line}\n" for line in raised.split("\n")) + bars)
        failure = report(1, stderr=stderr)
        assert failure.message.splitlines()[0] == "mine.DataError: at 50 % then  a bell in red"
        assert " 50%|" not in failure.log_tail and "\x1b" not in failure.log_tail
    error_file = tmp_path / "error.json"
    error_file.write_text(
        json.dumps({"message": {"message": "ValueError: a\rb\x07", "extraInfo": {"timestamp": "1"}}})
    )
    assert report(1, error_file=error_file).message == "ValueError: a b "


NCCL = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] "
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=20, OpType=ALLREDUCE) ran for 600012 "
    "milliseconds before timing out."
)
GLOO = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for recv"


RAISED = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'


@pytest.mark.parametrize(
    ("exit_code", "log", "is_timeout"),
    [
        (1, f"{RAISED}RuntimeError: {GLOO} operation to complete\n", True),
        (1, f"{RAISED}RuntimeError: Rank 1 failed to pass monitoredBarrier in 9000 ms\n", True),
        (1, f"{RAISED}torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /1\n", True),
        (-6, f"terminate called after throwing an instance of 'c10::E'\n  what():  {NCCL}\n{CRASH}", True),
        (-6, f"[rank0]:[E1118 ProcessGroupNCCL.cpp:1] {NCCL}\n{CRASH}", True),
        (-9, f"[rank0]:[E1118 ProcessGroupNCCL.cpp:1] {NCCL}\n", False),  # killed, whatever was said before
        (1, f"{RAISED}TimeoutError: wait timeout after 3 tries\n", False),
        (1, f"{GLOO}\n{RAISED}ValueError: bad\n", False),
    ],
)
def test_a_collective_that_timed_out_is_known_by_the_words_of_gloo_nccl_and_store(
    tmp_path: Path, exit_code: int, log: str, *, is_timeout: bool
) -> None:
    noise = '  File "/app/loader.py", line 7 in wait\n' * 400  # of many threads, in the dump of a crash
    stderr = tmp_path / "stderr"
    stderr.write_text(log + (noise if exit_code == -6 else ""))
    failure = report(exit_code, stderr=stderr)
    assert (failure.cause is FailureCause.TIMED_OUT) == is_timeout
    if exit_code == -6:
        assert "SIGABRT" in failure.message and "OpType=ALLREDUCE" in failure.message.splitlines()[0]
