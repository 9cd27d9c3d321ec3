"""The `dlr` command's entry point. Until the command runs, Ctrl-C ends the process without a traceback.

An interrupt during an import would print a traceback, or get lost in an `except ImportError`. So nothing is
imported before the interrupt's handler is set; `_signal` is a part of the interpreter.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out one command, and exit with its code.

    Args:
        arguments: the command and its arguments; None for those of this process, whose signals are handled
            then, too.
    """
    if arguments is None and _signal.getsignal(_signal.SIGINT) is not _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from dlr.commands.dispatch import call, call_as_program

    if arguments is None:
        call_as_program()
    else:
        call(arguments)


if __name__ == "__main__":
    main()
