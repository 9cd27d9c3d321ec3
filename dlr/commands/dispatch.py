"""Runs one command: Pod commands such as `run` go to the agent, all others to the typer application.

Training images need not have the command line's packages, so Pod commands are dispatched before anything else
is imported.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Sequence

from controller.wording import printable
from crds.names import POD_COMMANDS
from crds.release import DISTRIBUTION
from dlr.commands import interrupts
from dlr.commands.errors import CommandError
from dlr.kube.errors import ApiError, UsageError

UNUSABLE = 2
"""Exit code for an invalid option or argument."""
CANNOT_LOAD = 69
"""Exit code for a missing or broken package (EX_UNAVAILABLE); 1 is a verdict of `dlr node-check`."""
CRASHED = 70
"""Exit code for a defect of dlr's own (EX_SOFTWARE); Python's would be 1."""
LIMITED = 74
"""Exit code for a full disk, or a wrong path (EX_IOERR)."""
SYSTEM_LIMITS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EFBIG),
    }
)
"""Errors that are due to a machine's state or a wrong path, and not a defect of dlr."""


def call_as_program() -> None:
    """Run this process's own command, and exit with its code."""
    interrupts.begin_program()
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for a terminal with another encoding than UTF-8
    try:
        call(sys.argv[1:])
    finally:
        interrupts.ignore_from_now_on()


def _open_closed_streams() -> None:
    """Discard the output to a stream that the caller has closed (`>&-`).

    For such a stream Python has None, with which `print` writes to stdout.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process


def call(words: Sequence[str]) -> None:
    """Run a command, and exit with its code; an error is printed as one sentence on stderr."""
    try:
        code = _dispatch(list(words))
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = interrupts.EXIT_INTERRUPTED
    except Exception as error:
        enough = isinstance(error, BrokenPipeError) and _nobody_reads()
        code = 1 if enough else _failed(error)
    _drop_unwritten_output()
    sys.exit(code)


def _failed(error: Exception) -> int:
    """Print an error, and return the exit code."""
    code, sentence = _described(error)
    if sentence is None:
        sys.excepthook(*sys.exc_info())
    else:
        # It may quote a worker or a server, whose control sequences must not reach the terminal.
        shown = "\n".join(map(printable, sentence.split("\n")))
        print(f"dlr: {shown}", file=sys.stderr)
    return code


def _described(error: Exception) -> tuple[int, str | None]:
    """Return the exit code and a sentence; no sentence for a defect of dlr."""
    if isinstance(error, CommandError):
        return error.exit_code, str(error)
    if isinstance(error, ApiError):
        return 1, str(error)
    if isinstance(error, UsageError):
        return UNUSABLE, str(error)
    if isinstance(error, ModuleNotFoundError):
        return CANNOT_LOAD, _what_to_install(error)
    if isinstance(error, ImportError):
        return CANNOT_LOAD, f"a package that this command needs cannot be loaded: {error}"
    if isinstance(error, OSError) and error.errno in SYSTEM_LIMITS:
        where = f"{error.filename}: " if error.filename else ""
        return LIMITED, f"{where}{error.strerror}."
    return CRASHED, None


def _nobody_reads() -> bool:
    """Whether the broken pipe is stdout's, whose reader has closed it."""
    stdout = select.poll()
    stdout.register(1, 0)
    return any(event & select.POLLERR for _, event in stdout.poll(0))


def _drop_unwritten_output() -> None:
    """Discard stdout's buffer if it cannot be written; the interpreter would try again, with a traceback."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    if words and words[0] in POD_COMMANDS:
        interrupts.raise_from_now_on()
        from dlr.pod import run_command

        return run_command(words)
    if sys.version_info < (3, 11):  # noqa: UP036 - the SDK and the agent run on 3.10 too
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        print(
            f"dlr: this command needs Python 3.11 or newer, and this is {python}; `dlr run` works here",
            file=sys.stderr,
        )
        return CANNOT_LOAD
    from dlr.commands.application import run

    return run(words, _own_name())


def _own_name() -> str:
    """Return the name by which the user called this program."""
    return "kubectl dlr" if os.path.basename(sys.argv[0]).startswith("kubectl-dlr") else "dlr"  # noqa: PTH119


def _what_to_install(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    extra = "node-health" if package in ("grpc", "google") else "cli"
    how = (
        "pip install torch"
        if package == "torch"
        else f"install dlr with its extra: pip install '{DISTRIBUTION}[{extra}]'"
    )
    return f"this command needs the package {package}, which is not installed here; {how}"
