"""Start of `dlr run`: torch is imported once, for the agent and for its warm parent."""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from agent.flags import Flags
from agent.standalone import prepare
from agent.warm import Preloads
from crds.names import ENV_JOB_KEY, ENV_JOB_NAME, ENV_MEMORY_BYTES

if TYPE_CHECKING:
    from agent.warm.warm_parent import WarmParent

THREADS = "OMP_NUM_THREADS"
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""torch's variable to allocate tensors from 2 MB on in huge pages (madvise(2), MADV_HUGEPAGE)."""

UNBUFFERED = 2
"""_IONBF (setvbuf(3))."""


def main(argv: Sequence[str], sdk: Sequence[str] = ()) -> int:
    """Run `dlr run`.

    Args:
        sdk: modules that training scripts import; they are imported before training processes are forked.

    Returns:
        The exit code of `agent.run.main`; in a training process, after its script, 0.

    Raises:
        BaseException: in a training process, the exceptions of `agent.warm.script.run_script`.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would make each exit code 0
    signal.signal(signal.SIGTERM, _leave)  # without a handler, a container's first process ignores it
    gc.disable()  # imports make hundreds of thousands of objects, and hardly any garbage
    flags = Flags.read(argv, os.environ)
    if flags.standalone:
        prepare(flags, os.environ)
    prefer_huge_pages(os.environ)
    env = foreseen_environment(flags, os.environ) if argv else None
    preloads = Preloads(tuple(sdk), flags.preloads)
    if env is None:
        return run(argv, preloads, None)
    from agent.warm.parent import reason_not_to_fork

    unbuffer()
    import_torch(env)
    if reason_not_to_fork():
        return run(argv, preloads, None)  # which starts a separate parent, and logs the reason
    parent = fork_parent(env, preloads)
    return 0 if parent is None else run(argv, preloads, parent)


def run(argv: Sequence[str], preloads: Preloads, parent: WarmParent | None) -> int:
    """Run the agent, and return its exit code.

    Args:
        preloads: modules that a warm parent imports.
        parent: a warm parent that is already started, if any.
    """
    try:
        from agent.torch_compat import elastic  # noqa: F401, I001  (first: it refuses a torch that is too old)
        from agent.run import main as agent
    except BaseException:
        if parent is not None:
            parent.close()
        raise
    gc.freeze()
    gc.enable()
    return agent(argv, preloads, parent)


def import_torch(env: Mapping[str, str]) -> None:
    """Import torch with the environment of training processes, and restore ours.

    Raises:
        ImportError: there is no torch, or it cannot be loaded.
    """
    from agent.warm.parent import USUAL_MODULES, set_environment

    ours = dict(os.environ)
    set_environment(env)
    try:
        importlib.import_module(USUAL_MODULES[0])
    finally:
        set_environment(ours)


def fork_parent(env: Mapping[str, str], preloads: Preloads) -> WarmParent | None:
    """Fork the first warm parent of an agent: this process, with torch imported and one thread.

    Returns:
        The parent; None in a training process, after its script.
    """
    from agent.warm.messages import socket_pair
    from agent.warm.parent import run_parent, set_environment
    from agent.warm.warm_parent import ForkedProcess, WarmParent

    control, theirs = socket_pair()
    pid = os.fork()
    if pid:
        theirs.close()
        return WarmParent(ForkedProcess(["dlr-warm-parent"], pid), control, env, preloads)
    control.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a new process
    os.setsid()  # so that Ctrl-C reaches only the agent, which stops the others
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdin is not None:
        sys.stdout.reconfigure(errors=sys.stdin.errors)  # as in a new interpreter; `dlr` has changed stdout's
    set_environment(env)
    run_parent(theirs, preloads, sys.path)
    return None


def _leave(signum: int, _frame: object) -> NoReturn:
    """Exit at once: before the agent has its own handlers there is nothing to clean up."""
    os._exit(128 + signum)


def prefer_huge_pages(environ: MutableMapping[str, str]) -> None:
    """Use huge pages for tensors in a job with checkpoints in memory, unless the user has set the variable.

    A new process that loads a checkpoint touches all of its memory for the first time, and the old one frees
    all of its own: with pages of 4 KiB, this is most of the time of a restart. torch reads the variable at
    the first tensor, which may be in the warm parent. Versions before 2.2 ignore it.
    """
    if ENV_MEMORY_BYTES in environ:
        environ.setdefault(HUGE_PAGES, "1")


def unbuffer() -> None:
    """Make stdout and stderr unbuffered as by `python -u`, the option of torch's training processes."""
    libc = ctypes.CDLL(None)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream.write_through:
            continue
        stream.flush()
        raw = io.FileIO(descriptor, "w", closefd=False)
        raw.name = f"<{name}>"
        unbuffered = io.TextIOWrapper(raw, stream.encoding, stream.errors, "\n", write_through=True)
        unbuffered.__dict__["mode"] = "w"
        setattr(sys, name, unbuffered)
        setattr(sys, f"__{name}__", unbuffered)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, UNBUFFERED, 0)


def foreseen_environment(flags: Flags, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the expected environment of training processes.

    An error only costs time: a parent with another environment is renewed.

    Returns:
        None if there will be no processes to fork, or if it is not determined yet.
    """
    if not flags.warm_start or ENV_JOB_NAME not in environ:
        return None
    environ = {name: value for name, value in environ.items() if name != ENV_JOB_KEY}
    if THREADS in environ:
        return dict(environ)
    if not flags.processes.isdigit():
        return None  # gpu or auto: torch has to count them
    return dict(environ) if int(flags.processes) == 1 else {**environ, THREADS: "1"}  # as torchrun does


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
