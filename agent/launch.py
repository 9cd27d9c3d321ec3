"""`dlr run`, from its first moment on: the warm parent imports torch while the agent does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from agent.warm.warm_parent import WarmParent

THREADS = "OMP_NUM_THREADS"


def main(argv: Sequence[str]) -> int:
    """The exit code of `agent.run.main`."""
    env = foreseen_environment(argv, os.environ)
    parent = WarmParent(env, preloads(argv)) if env is not None else None
    try:
        from agent.run import main as run
    except BaseException:
        if parent is not None:
            parent.close()
        raise
    return run(argv, parent)


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
