"""A worker of `dlr map`, with a real desk, and the controller's own decision behind it."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path

import pytest

from crds.intervals import to_text
from dlr.tasks.lines import Lines, chunk_names, packed
from dlr.tasks.task import TASK_FILE, LineTask
from dlr.tasks.worker import EXIT_NO_LINES, EXIT_NOT_FOUND, CommandSlots, main
from tests.agent.shards.conftest import Job, alone, job

pytestmark = pytest.mark.real

__all__ = ["alone", "job"]


def a_task(command: str, lines: Lines, slots: int = 3, **more: object) -> LineTask:
    fields = {"retries": 0, "max_failed": 99} | more
    return LineTask(command, len(lines), lines.digest, slots, **fields)  # type: ignore[arg-type]


def in_folder(folder: Path, task: LineTask, lines: Lines) -> Path:
    (folder / TASK_FILE).write_text(task.to_json())
    parts = packed(lines)
    for name, part in zip(chunk_names(len(parts)), parts, strict=True):
        (folder / name).write_bytes(part)
    return folder


def test_every_line_is_run_once_in_the_slots_and_its_output_is_told_by_number(alone: Job) -> None:
    lines, out = Lines(b"a b\nit's\n\n$HOME\n"), io.BytesIO()
    assert (
        CommandSlots(a_task("printf '%s|\n' {} $DLR_LINE_NUMBER \"$DLR_LINE\"", lines), lines, out).run() == 0
    )
    said = out.getvalue().splitlines()
    expected = [b"%d: %s|" % (n, w) for n, line in enumerate(lines, 1) for w in (line, str(n).encode(), line)]
    assert sorted(said) == sorted(expected)
    assert alone.sets[0].done == 4


def test_lines_that_fail_are_named_with_the_first_reason(
    alone: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, out = Lines(b"".join(b"%d\n" % n for n in range(1, 21))), io.BytesIO()
    command = 'test {} != 7 || { echo "no such utterance" >&2; exit 3; }; test {} != 9 || kill -9 $$'
    assert CommandSlots(a_task(command, lines, retries=1), lines, out).run() == 0
    (known,) = alone.sets
    assert (known.done, to_text(known.failed), known.is_over) == (18, "6,8", True)
    assert known.reason in ("line 7, exit code 3: no such utterance", "line 9, killed by SIGKILL")
    told = capsys.readouterr().err
    assert told.count("line 7, exit code 3: no such utterance") == 2, "each try is told"
    assert told.count("line 9, killed by SIGKILL") == 2


def test_a_line_whose_command_is_too_long_fails(alone: Job) -> None:
    lines = Lines(b"x" * 60_000 + b"\n")
    CommandSlots(a_task("echo {} {} {} >/dev/null", lines), lines, io.BytesIO()).run()
    assert alone.sets[0].reason == "line 1, exit code 126: Argument list too long"


def test_a_daemon_that_keeps_the_pipe_keeps_no_slot(alone: Job, tmp_path: Path) -> None:
    lines, out = Lines(b"1\n2\n"), io.BytesIO()
    command = f"sleep 300 & echo $! >> {tmp_path}/pids; printf 'a\n\nb %s' {{}}; test {{}} = 1"
    assert CommandSlots(a_task(command, lines, slots=1), lines, out).run() == 0
    for pid in (tmp_path / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    assert out.getvalue() == b"1: a\n1: \n1: b 1\n2: a\n2: \n2: b 2\n"
    assert alone.sets[0].reason == "line 2, exit code 1: b 2"


def test_a_worker_that_is_to_go_does_not_count_what_its_commands_come_to(alone: Job, tmp_path: Path) -> None:
    lines, began = Lines(b"1\n2\n3\n4\n"), tmp_path / "began"
    began.mkdir()
    slots = CommandSlots(a_task(f"touch {began}/{{}}; exec sleep 600", lines, slots=2), lines, io.BytesIO())
    thread = threading.Thread(target=slots.run)
    thread.start()
    while len(list(began.iterdir())) < 2:
        thread.join(0.01)
    slots.stop()
    thread.join(300)
    assert not thread.is_alive()
    assert len(list(began.iterdir())) == 2, "no other was begun"
    assert not alone.sets[0].failed and alone.sets[0].done == 0


def test_a_command_that_is_not_there_ends_the_worker_before_any_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(b"a\n")
    assert main(in_folder(tmp_path, a_task("no-such-program {}", lines), lines)) == EXIT_NOT_FOUND
    assert capsys.readouterr().err == "dlr map: this image has no command 'no-such-program'\n"


def test_lines_that_are_not_there_or_not_those_end_the_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(b"a\nb\n")
    assert main(tmp_path) == EXIT_NO_LINES
    assert main(in_folder(tmp_path, a_task("echo", Lines(b"a\n")), lines)) == EXIT_NO_LINES
    assert "has 2 lines, and not the 1 that were submitted" in capsys.readouterr().err
    elsewhere = a_task("echo", lines, lines_path="/no/such/file")
    assert main(in_folder(tmp_path, elsewhere, lines)) == EXIT_NO_LINES
    assert "cannot be read from /no/such/file: No such file" in capsys.readouterr().err
