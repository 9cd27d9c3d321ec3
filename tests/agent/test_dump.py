from __future__ import annotations

from pathlib import Path

import pytest

from agent.monitor.dump import (
    Frame,
    format_frames,
    innermost_place,
    is_complete,
    line_of_the_script,
    main_thread,
    oldest_thread,
    threads,
    waits_for_others,
    with_source,
)
from crds.agent_report import MAX_FRAMES

SITE = "/venv/lib/python3.11/site-packages"
DUMP = f"""pid 12
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner

Current thread 0x00007f2 (most recent call first):
  File "{SITE}/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "{SITE}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line 9 in <module>
"""


def frame(file: str, source: str = "") -> Frame:
    return Frame(file, 1, "f", source)


USER = frame("/app/train.py")


def test_main_thread_is_the_one_that_took_the_signal() -> None:
    frames = main_thread(DUMP)
    assert [f.function for f in frames] == ["all_reduce", "wrapper", "<module>"]
    assert frames[2] == Frame("/app/train.py", 9, "<module>")


def test_all_threads_are_found_by_their_identifiers_and_the_oldest_is_the_last() -> None:
    assert {ident: frames[-1].function for ident, frames in threads(DUMP).items()} == {
        0x7F1: "_bootstrap_inner",
        0x7F2: "<module>",
    }
    by_another = DUMP.replace("Thread 0x", "Current thread 0x", 1).replace(
        "Current thread 0x00007f2", "Thread 0x00007f2"
    )
    assert oldest_thread(by_another) == main_thread(DUMP) != main_thread(by_another)


def test_newer_pythons_name_threads_and_add_the_stack_in_c() -> None:
    newer = DUMP.replace("7f2 (most", "7f2 [python] (most") + (
        "\nCurrent thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python3", at _Py_DumpStack+0x31 [0x55]\n'
    )
    assert len(main_thread(newer)) == 3


def test_dump_is_complete_when_the_thread_that_writes_it_is_in_it() -> None:
    assert is_complete(DUMP)
    assert not is_complete(DUMP.partition("Current")[0])
    assert not is_complete(DUMP.partition('  File "/venv')[0])
    assert not is_complete("")
    assert main_thread("") == ()


@pytest.mark.parametrize(
    "file", [f"{SITE}/torch/cuda/__init__.py", "/workspace/pytorch/torch/distributed/distributed_c10d.py"]
)
def test_innermost_in_torch_waits_for_others(file: str) -> None:
    assert waits_for_others([frame(file), USER]) and not waits_for_others([frame(file), USER], computes=True)
    assert waits_for_others([frame("/usr/lib/python3.11/contextlib.py"), frame(file), USER])


@pytest.mark.parametrize(
    "file",
    [
        f"{SITE}/torch/utils/data/dataloader.py",
        f"{SITE}/torch/serialization.py",
        "/home/me/torch/train.py",
    ],
)
def test_data_files_and_other_code_wait_for_nobody(file: str) -> None:
    stack = [frame("/usr/lib/python3.11/multiprocessing/queues.py"), frame(file), USER]
    assert not waits_for_others(stack)


@pytest.mark.parametrize("folder", [f"{SITE}/dlr", "dlr.pyz/dlr"])
@pytest.mark.parametrize("nccl_is_done", [False, True])
def test_a_rank_that_waits_for_other_replica_groups_waits_for_others(
    folder: str, *, nccl_is_done: bool
) -> None:
    library = frame("/usr/lib/python3.11/threading.py", "waiter.acquire()")
    optimizer = frame(f"{SITE}/torch/optim/optimizer.py")
    stack = [library, frame(f"{folder}/replicas/patience.py"), optimizer, USER]
    assert waits_for_others(stack, nccl_is_done=nccl_is_done)
    assert not waits_for_others([library, frame(f"{folder}/shards/pull.py"), USER])


def test_a_line_that_waits_for_the_device_may_wait_for_a_collective() -> None:
    assert waits_for_others([frame("/app/train.py", "total += loss.item()")])
    assert waits_for_others([frame("/app/train.py", "work.wait()")])
    assert not waits_for_others([frame("/app/train.py", "lock.acquire()")])
    in_library = frame("/usr/lib/python3.11/threading.py", "waiter.acquire()")
    assert not waits_for_others([in_library, frame("/app/train.py", "event.wait()")])


def test_frames_are_told_with_short_paths_and_their_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import threading\nlock.acquire()  # never\n")
    (shown,) = with_source([Frame(str(script), 2, "stuck")])
    assert str(shown) == f"{tmp_path.name}/train.py:2 in stuck: lock.acquire()  # never"
    (unknown,) = with_source([Frame("<string>", 3, "<module>")])
    assert str(unknown) == "<string>:3 in <module>"
    library = Frame(f"{SITE}/torch/distributed/distributed_c10d.py", 7, "barrier")
    assert str(library) == "torch/distributed/distributed_c10d.py:7 in barrier"
    assert innermost_place([Frame("/usr/lib/python3.11/threading.py", 1, "wait"), shown]) == str(shown)


def test_described_are_whole_lines_that_fit() -> None:
    text = format_frames([Frame(f"/app/{'x' * 90}.py", n, "f") for n in range(100)])
    assert MAX_FRAMES - 110 < len(text) <= MAX_FRAMES
    assert text.splitlines()[-1].endswith(" in f")
    assert len(format_frames([Frame("/app/train.py", 1, "f", "x" * 5_000)])) == MAX_FRAMES


def test_line_of_the_script_lies_below_those_of_packages_and_the_standard_library() -> None:
    packages = "/usr/lib/python3.11/site-packages"
    mine = Frame("/app/train.py", 31, "load", "for batch in loader:")
    frames = [
        Frame("/usr/lib/python3.11/selectors.py", 415, "select"),
        Frame(f"{packages}/torch/utils/data/dataloader.py", 1275, "_try_get_data"),
        mine,
        Frame("/app/train.py", 60, "main"),
    ]
    assert line_of_the_script(frames) == str(mine)
    assert line_of_the_script(frames[:2]) == ""
