"""`dlr run`, from its first moment on: torch is imported once, for the agent and for its warm parent."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from agent.warm.room import ROOM, VARIABLE

if TYPE_CHECKING:
    from agent.warm.warm_parent import WarmParent

THREADS = "OMP_NUM_THREADS"


def main(argv: Sequence[str]) -> int:
    """The exit code of `agent.run.main`; in a training process, after its script, 0.

    Raises: in a training process what `agent.warm.script.become` does, in the agent nothing of its own.
    """
    signal.signal(signal.SIGTERM, _leave)  # without a handler, it does not end a container's first process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    env = foreseen_environment(argv, os.environ)
    if env is None:
        return run(argv, None)
    if VARIABLE not in os.environ:
        with contextlib.suppress(OSError):  # arguments or environment are as long as they may be
            start_with_room(os.environ)
        return run(argv, None)
    del os.environ[VARIABLE], env[VARIABLE]
    argv = argv[:-1]
    gc.disable()  # imports make hundreds of thousands of objects, and hardly any garbage
    from agent.warm.fork import fork_parent, import_torch  # only now: the first start has been short
    from agent.warm.parent import unsafe

    import_torch(env)
    if unsafe():
        return run(argv, None)  # which starts a parent of its own, and tells what that says
    parent = fork_parent(env, preloads(argv))
    return 0 if parent is None else run(argv, parent)


def run(argv: Sequence[str], parent: WarmParent | None) -> int:
    """Be the agent."""
    try:
        from agent.run import main as agent
    except BaseException:
        if parent is not None:
            parent.close()
        raise
    gc.freeze()
    gc.enable()
    return agent(argv, parent)


def _leave(signum: int, _frame: object) -> NoReturn:
    """Until the agent has handlers of its own there is nothing to tidy up; a warm parent ends with us."""
    os._exit(128 + signum)


def start_with_room(environ: Mapping[str, str]) -> None:
    """Start this very command anew, with room for what training processes have to show in `ps` and /proc.

    Raises OSError.
    """
    command = [sys.executable, "-u", *sys.orig_argv[1:], ROOM]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it waits until there is a handler again
    try:
        os.execve(sys.executable, command, {**environ, VARIABLE: ROOM})
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def foreseen_environment(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str] | None:
    """What training processes will have; None if there will be none to fork, or it is too early to say.

    To be wrong costs time only: a parent whose environment differs is renewed.
    """
    if not argv or "--no-warm-start" in _options(argv) or "DLR_JOB_NAME" not in environ:
        return None
    if THREADS in environ:
        return dict(environ)
    count = [environ.get("PET_NPROC_PER_NODE", "1"), *_values(argv, "nproc-per-node")][-1]
    if not count.isdigit():
        return None  # gpu or auto: torch has to count them
    return dict(environ) if int(count) == 1 else {**environ, THREADS: "1"}  # as torchrun does


def preloads(argv: Sequence[str]) -> list[str]:
    """What --preload names."""
    return _values(argv, "preload")


def _values(argv: Sequence[str], option: str) -> list[str]:
    """Of an option of `dlr run`, with dashes or, as torchrun takes them too, underscores."""
    words, found = _options(argv), []
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == f"--{option}":
            found.append(value if equals else "".join(words[number + 1 : number + 2]))
    return found


def _options(argv: Sequence[str]) -> Sequence[str]:
    """Up to the script, whose own options are none of ours."""
    for number, word in enumerate(argv):
        if word.endswith(".py") or word in ("-m", "--module", "--"):
            return argv[:number]
    return argv


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
