"""Program that `dlr exec` starts in a Pod of `dlr map`: runs a command for each line leased to this worker.

Each slot is a thread with its own connection to the agent of this Pod, which has the lease. A slot takes a
line, runs its command as a child process, and reports the outcome.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

from agent.processes.orphans import open_exit_fd
from crds.shard_set import SetDefinition
from dlr.shards import Pull, ShardsError
from dlr.tasks.lines import Lines, LinesError, read, read_packed
from dlr.tasks.task import (
    ENV_LINE,
    ENV_NUMBER,
    FOLDER,
    SET_NAME,
    TASK_FILE,
    LineTask,
    command_for,
    log_path,
    program_of,
)

EXIT_NOT_FOUND = 127
EXIT_NO_LINES = 66
"""Exit code without lines (EX_NOINPUT)."""
TAIL_BYTES = 512
PIPE_BYTES = 1 << 20
"""Largest size of a pipe, so that one read empties it. Longer lines are printed in pieces."""


class Stopped(Exception):
    """This Pod is being stopped, so the ends of its commands are no failures of their lines."""


class CommandSlots:
    """The commands of this worker."""

    def __init__(self, task: LineTask, lines: Lines, out: IO[bytes]) -> None:
        self._task, self._lines, self._out = task, lines, out
        self._print_lock, self._lock = threading.Lock(), threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._errors: list[str] = []

    def run(self) -> int:
        """Work until the set is over, in all workers; return the exit code."""
        threads = [threading.Thread(target=self._pull, daemon=True) for _ in range(self._task.slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in self._errors[:1]:
            print(f"dlr map: {error}", file=sys.stderr)
        return 1 if self._errors else 0

    def stop(self) -> None:
        """Terminate all commands, and wait for their ends."""
        self._stopped = True
        with self._lock:
            children = [*self._children]
        for child in children:
            child.terminate()
        for child in children:
            child.wait()

    def _pull(self) -> None:
        task = self._task
        lines = SetDefinition(
            SET_NAME, 0, len(self._lines), self._lines.digest, task.retries, task.max_failed
        )
        try:
            with Pull(lines, range(len(self._lines)), 1) as parts:
                for part in parts:
                    for place in part:
                        if reason := self._do(place):
                            part.fail(reason)
        except ShardsError as error:
            self._errors.append(str(error))
        except Stopped:
            pass
        except Exception as error:  # the other slots take over this one's line
            traceback.print_exc()
            self._errors.append(f"a slot has ended by {type(error).__name__}: {error}")

    def _do(self, place: int) -> str:
        """Run the command for one line; return the reason of a failure, or an empty text."""
        number, line = place + 1, self._lines[place]
        words = ["/bin/sh", "-c", command_for(self._task.command, line, number)]
        env = {**os.environ, ENV_LINE: os.fsdecode(line), ENV_NUMBER: str(number)}
        try:
            with self._log_of(number) as log:
                code, tail = self._execute(words, env, number, log)
        except (OSError, ValueError) as error:  # too long, or a NUL byte in an unchecked file
            code, tail = 126, getattr(error, "strerror", "") or str(error)
        if self._stopped:
            raise Stopped
        if code == 0:
            return ""
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        reason = f"line {number}, {how}" + (f": {tail}" if tail else "")
        print(f"dlr map: {reason}", file=sys.stderr, flush=True)
        return reason

    def _log_of(self, number: int) -> IO[bytes]:
        """Open the line's own output file, or the null device if the Pod's log is used."""
        folder = self._task.log_folder
        if not folder:
            return open(os.devnull, "wb")  # noqa: PTH123
        path = Path(log_path(folder, number))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w+b")

    def _execute(self, words: list[str], env: dict[str, str], number: int, log: IO[bytes]) -> tuple[int, str]:
        """Run a command; return its exit code, and the last line of its output."""
        to_file = bool(self._task.log_folder)
        child = self._start(words, env, log if to_file else None)
        last = b""
        try:
            if child.stdout is not None:
                with child.stdout as output:
                    last = self._print_until_end(child.pid, output.fileno(), number)
            code = child.wait()
        finally:
            with self._lock:
                self._children.discard(child)
        if to_file and code:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            last = log.read().strip().rpartition(b"\n")[2]
        return code, last.strip()[-TAIL_BYTES:].decode(errors="replace")

    def _print_until_end(self, pid: int, output: int, number: int) -> bytes:
        """Print a command's output until its end, and return the last non-empty line.

        Its background processes may keep the pipe open; their later output is not read.
        """
        end, poll = open_exit_fd(pid), select.poll()
        for fd in (output, end):
            poll.register(fd, select.POLLIN)
        os.set_blocking(output, False)
        rest = last = b""
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                try:
                    read = os.read(output, PIPE_BYTES)
                except BlockingIOError:  # the command has ended, and the pipe is empty
                    read = b""
                is_over = not read or end in ready
                *written, rest = (rest + read).split(b"\n")
                if rest and (is_over or len(rest) >= PIPE_BYTES):
                    written, rest = [*written, rest], b""
                last = next((line for line in reversed(written) if line.strip()), last)
                self._print(b"".join(b"%d: %s\n" % (number, line) for line in written))
                if is_over:
                    return last
        finally:
            os.close(end)

    def _start(self, words: list[str], env: dict[str, str], log: IO[bytes] | None) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopped
            child = subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if log is None else log,
                stderr=subprocess.STDOUT,
            )
            self._children.add(child)
        return child

    def _print(self, lines: bytes) -> None:
        if lines:
            with self._print_lock:
                self._out.write(lines)
                self._out.flush()


def main(folder: Path = Path(FOLDER), find: Callable[[str], bool] | None = None) -> int:
    """Run a worker of `dlr map`, and return its exit code."""
    try:
        task = LineTask.from_json((folder / TASK_FILE).read_text())
        lines = read(Path(task.lines_path)) if task.lines_path else read_packed(folder)
        if not task.lines_path and (len(lines), lines.digest) != (task.size, task.digest):
            raise LinesError(f"{folder} has {len(lines)} lines, and not the {task.size} that were submitted")
    except (OSError, TypeError, ValueError) as error:
        print(f"dlr map: {error}", file=sys.stderr)
        return EXIT_NO_LINES
    program = program_of(task.command)
    if program is not None and not (find or _is_there)(program):
        print(f"dlr map: this image has no command {program!r}", file=sys.stderr)
        return EXIT_NOT_FOUND
    slots = CommandSlots(task, lines, sys.stdout.buffer)

    def stop(_signum: int, _frame: FrameType | None) -> None:
        slots.stop()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    return slots.run()


def _is_there(program: str) -> bool:
    found = subprocess.run(
        ["/bin/sh", "-c", 'command -v "$1"', "sh", program], capture_output=True, check=False
    )
    return found.returncode == 0


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


if __name__ == "__main__":
    sys.exit(main())
