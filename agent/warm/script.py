"""Runs `python -u script.py …` or `python -u -m module …` in a forked process.

For the script, everything is as under the interpreter: `__main__`, sys.argv, sys.path, tracebacks, exit
codes, atexit and threads at the end. Unusual commands are run by the interpreter itself, with exec.
https://docs.python.org/3/using/cmdline.html
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import json
import os
import runpy
import struct
import sys
import tempfile
import threading
import time
import tokenize
import types
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from agent.torch_compat.training import note_first_group
from agent.warm.step_counter import count_steps
from crds.names import ENV_JOINS, ENV_POD_UID
from crds.progress_record import (
    BOUNDARY,
    ENDED_SUFFIX,
    ENV_PROGRESS_FILE,
    EXIT_LEFT,
    GROUP_SUFFIX,
    ORDER,
    PROGRESS_FORMAT,
    is_to_leave,
)

UNBUFFERED = "-u"
MODULE = "-m"
OURS = __name__.partition(".")[0]
SDK = "dlr"
MARKER = "DLR_PROGRESS_FILE"
"""Variable by which the agent recognises the descendants of its training processes."""


def runs_python(argv: Sequence[str]) -> bool:
    """Return whether `run_script` can run a command: this interpreter, with a script or a module."""
    if len(argv) < 3 or argv[1] != UNBUFFERED or not _same_file(argv[0], sys.executable):
        return False
    return not argv[2].startswith("-") or (argv[2] == MODULE and len(argv) > 3)


def run_script(argv: Sequence[str]) -> None:
    """Run the command in this process.

    It returns when the script does, and the interpreter ends the process. A process that leaves by vote ends
    here, since its peers wait for that.

    Raises:
        SystemExit: the script raised it, or another exception, which the hook for exceptions has printed.
        KeyboardInterrupt: the script was interrupted; the interpreter then ends the process by SIGINT.
    """
    _reset_process(argv)
    is_module = argv[2] == MODULE
    if not is_module and not _is_source(argv[2]):
        os.execv(argv[0], list(argv))  # a directory, an archive, bytecode, or missing
    note_end = _end_mark()
    count_steps(os.environ)
    _mark_group()
    if ENV_JOINS in os.environ:
        from agent.torch_compat.unconnected import make_unconnected

        make_unconnected()
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    # multiprocessing, which torch imports, keeps the main module under a second name.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    safe_path = getattr(sys.flags, "safe_path", False)
    try:
        if is_module:
            sys.argv = [MODULE, *argv[4:]]
            _set_first_path(os.getcwd(), safe_path)  # noqa: PTH109 (pathlib would show in tracebacks)
            runpy._run_module_as_main(argv[3])  # type: ignore[attr-defined]
        else:
            sys.argv = list(argv[2:])
            _set_first_path(os.path.dirname(os.path.realpath(argv[2])), safe_path)  # noqa: PTH120
            _run_source(argv[2], main)
        note_end(0)
    except SystemExit as end:
        note_end(_exit_code(end))
        raise
    except BaseException as error:
        note_end(1, raised=True)
        _print_exception(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = _print_nothing
            raise
        sys.exit(1)


def _end_mark() -> Callable[..., None]:
    """Return a function that writes the mark of the script's end (`ENDED_SUFFIX`), and ends this process if
    it leaves by vote. It does nothing in other processes."""
    record, pid = os.environ.get(ENV_PROGRESS_FILE), os.getpid()

    def note_end(code: int, *, raised: bool = False) -> None:
        if not record or os.getpid() != pid:
            return
        others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
        threads = {hex(thread.ident or 0): thread.name for thread in others}
        mark = {"code": code, "raised": raised, "at": time.monotonic(), "threads": threads}
        with contextlib.suppress(OSError):
            Path(f"{record}{ENDED_SUFFIX}").write_text(json.dumps(mark))
        if code in (0, EXIT_LEFT) and _has_left(Path(record)):
            _end(code)

    return note_end


def _mark_group() -> None:
    """Have the mark of the process group written (`GROUP_SUFFIX`), in this process only."""
    record, pid = os.environ.get(ENV_PROGRESS_FILE), os.getpid()

    def note(began: float, ended: float) -> None:
        if os.getpid() == pid:
            with contextlib.suppress(OSError):
                Path(f"{record}{GROUP_SUFFIX}").write_text(
                    json.dumps({"imported": began, "initialized": ended})
                )

    if record:
        with contextlib.suppress(Exception):  # another torch; training goes on without the mark
            note_first_group(time.monotonic, note)


def _has_left(record: Path) -> bool:
    """Return whether this process has ended the step after which it leaves by vote."""
    try:
        words = struct.unpack_from(PROGRESS_FORMAT, record.read_bytes())
    except (OSError, struct.error):
        return False
    return is_to_leave(words[ORDER], words[BOUNDARY])


def _end(code: int) -> NoReturn:
    """End this process as the interpreter does, but without finalizing modules and objects.

    That takes 0.25 s of CPU with torch, for which all other ranks would wait
    (https://docs.python.org/3/c-api/interp-lifecycle.html#c.Py_FinalizeEx).
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed or replaced it
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _exit_code(end: SystemExit) -> int:
    """Return the exit code by which the interpreter would end the process."""
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1


def _run_source(script: str, main: types.ModuleType) -> None:
    filename = os.path.join(os.getcwd(), script)  # noqa: PTH109, PTH118 (as the interpreter makes it)
    loader = SourceFileLoader("__main__", filename)
    vars(main).update(__file__=filename, __loader__=loader, __cached__=None)
    code = compile(Path(filename).read_bytes(), filename, "exec", dont_inherit=True)
    exec(code, vars(main))


def _print_exception(error: BaseException) -> None:
    """Print an exception as the interpreter would, without the frames of this module."""
    traceback = error.__traceback__
    ours = _print_exception.__code__.co_filename
    while traceback is not None and traceback.tb_frame.f_code.co_filename == ours:
        traceback = traceback.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = (
        type(error),
        error.with_traceback(traceback),
        traceback,
    )
    try:
        sys.excepthook(type(error), error, traceback)
    except SystemExit:
        raise
    except BaseException as of_hook:
        print("Error in sys.excepthook:", file=sys.stderr)
        of_hook.__context__ = None  # which is printed below, as by the interpreter
        below = of_hook.__traceback__ and of_hook.__traceback__.tb_next
        sys.__excepthook__(type(of_hook), of_hook.with_traceback(below), below)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, traceback)


def _print_nothing(*_: Any) -> None:
    """Replace the hook for exceptions after one has been printed."""


def _reset_process(argv: Sequence[str]) -> None:
    """Renew state that a forked process shares with its parent, and a new one would have for itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # Python's own `random` does this by itself
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
    tempfile.tempdir = None  # so that TMPDIR is read again
    if os.environ.get("PYTHONFAULTHANDLER") and not faulthandler.is_enabled():
        faulthandler.enable()
    sys.orig_argv = list(argv)
    show_command(argv)
    show_environment()


def _set_first_path(folder: str, safe_path: bool) -> None:
    """Replace the first entry of sys.path, which the parent had from its own start.

    If the script has an `agent` or a `dlr` of its own in that folder, ours is removed from sys.modules.
    """
    if safe_path:
        return
    sys.path[0] = folder
    shadowed = {ours for ours in (OURS, SDK) if PathFinder.find_spec(ours, [folder]) is not None}
    for name in [name for name in sys.modules if name.partition(".")[0] in shadowed]:
        del sys.modules[name]


def _is_source(script: str) -> bool:
    """Return whether a file is readable Python source."""
    try:
        with tokenize.open(script) as source:
            return "\0" not in source.read(1024)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False


def _same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def show_command(argv: Sequence[str]) -> None:
    """Make `ps` and `pkill -f` show a command, as far as there is room."""
    _show("arguments", argv)


def show_environment() -> None:
    """Make /proc/PID/environ show the environment, as far as there is room.

    Variables by which processes are found come first, then those that the parent does not have, such as RANK.
    """
    shown = Path("/proc/self/environ").read_bytes().split(b"\0")
    inherited = {os.fsdecode(variable.partition(b"=")[0]) for variable in shown}
    names = sorted(
        os.environ, key=lambda name: (name != MARKER, name != ENV_POD_UID, name in inherited, name)
    )
    _show("environment", [f"{name}={os.environ[name]}" for name in names])


def _show(area: str, strings: Sequence[str]) -> None:
    """Overwrite the arguments or the environment of the process's start (proc(5), arg_start, env_start).

    No pointer refers to them any more: `os.environ` was emptied, and Python has copied its arguments.
    """
    first = {"arguments": 45, "environment": 47}[area]
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[first]), int(fields[first + 1])
    except (OSError, ValueError, IndexError):
        return
    if 0 < start < end:
        text = b"".join(os.fsencode(string) + b"\0" for string in strings)
        ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
