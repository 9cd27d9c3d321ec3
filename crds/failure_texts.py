"""Texts of failures: those that follow from a peer's death, and those that the agent writes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FOLLOWS_FROM_A_PEER = (
    # gloo/transport/tcp/pair.cc: "[…/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:53"
    r"gloo/[^\n]*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused)",
    r"gloo/[^\n]*(?:Read error|Socket closed)",
    r"Connection closed by peer",
    # c10d/TCPStore.cpp: "Failed to recv, got 0 bytes", "sendBytes failed on SocketImpl(…): Broken pipe"
    r"[Ff]ailed to recv|(?:sendBytes|recvValue|recvValueWithTimeout) failed on",
    r"The client socket has (?:timed out|failed to connect)",
    r"DistNetworkError|DistStoreError",
    # c10d/ProcessGroupNCCL.cpp: the watchdog, and the errors of the other ranks afterwards
    r"[Ww]atchdog thread terminated with exception",
    r"remote process exited or there was a network error|ncclRemoteError",
    r"NCCL communicator was aborted|another rank reported",
    r"caused by unexpected exit of a remote peer",
)
"""Texts from the sources of torch 2.x and its libraries."""

COLLECTIVE_TIMED_OUT = (
    # gloo/transport/tcp: "Timed out waiting 12000ms for recv operation to complete"; and ProcessGroupGloo.cpp
    r"gloo/[^\n]*(?:Timed out waiting|Application timeout caused pair closure)",
    r"(?:failed to pass|timed out in) monitoredBarrier|reached monitoredBarrier, but received errors",
    # c10d/ProcessGroupNCCL.cpp
    r"[Cc]aught collective operation timeout|milliseconds before timing out|timed out in blocking wait",
    r"due to a collective timeout|Observed flight recorder dump signal from another rank",
    # The first meeting of a group: distributed_c10d.py, c10d/TCPStore.cpp
    r"Timed out initializing process group|[Ww]ait timeout after \d+ms|\d+/\d+ clients joined",
)
"""Texts of a process that timed out waiting for another one."""

ITS_OWN_FAILURE = (
    # The port is taken, or the master's name is wrong
    r"EADDRINUSE|[Aa]ddress already in use|failed to listen|failed to bind",
    r"Name or service not known|Temporary failure in name resolution",
    # NCCL errors of the rank's own call, device or build
    r"ncclInvalidUsage|ncclInvalidArgument|ncclInternalError|ncclUnhandledCudaError|unhandled cuda error",
    r"invalid usage|Duplicate GPU detected",
)
"""Texts that show the process's own failure, whatever else the message says."""

DAMAGED_CHECKPOINT = "DamagedCheckpointError"
"""Exception of a process whose checkpoint in memory is damaged; the next start resumes from another one."""
KILLED_BY = "the process was killed by"
KILLED_CHILD = "a process that it had started was killed by"
FROM_OUTSIDE = "from outside (dlr did not send it)"
EXITED_WITH = "the process exited with code"
"""Beginning of the agent's message if the process left no exception; its log may show the cause."""
ASKED = "It says so because another rank reported a hang."
"""A line of that message, which matches FOLLOWS_FROM_A_PEER, so that the failure does not count as the
process's own."""


def early_finish_text(who: str, step: int | None) -> str:
    """Return the failure message for ranks that finished while their peers, which need them, still train."""
    at = "" if step is None else f", at step {step}"
    return (
        f"{who} finished early{at}; the others cannot go on\n"
        "It ended with exit code 0 while they still trained. Do all ranks make the same number of steps?"
    )


class PeerDeathTexts:
    """Judges from its text whether a failure merely follows from a peer's death.

    Args:
        compile: `re.compile`, or the faster `re2.compile` for many texts.
    """

    def __init__(self, compile: Callable[[str], Any]) -> None:
        self._following = compile("|".join((*FOLLOWS_FROM_A_PEER, *COLLECTIVE_TIMED_OUT)))
        self._timed_out = compile("|".join(COLLECTIVE_TIMED_OUT))
        self._own = compile("|".join(ITS_OWN_FAILURE))

    def explain(self, message: str, log_tail: str = "") -> bool:
        """Return whether a peer's death explains the failure.

        Args:
            message: message of the failure, as the agent reports it.
            log_tail: end of the process's log; it counts only if the message has no exception.
        """
        return self._says(self._following, message, log_tail)

    def time_out(self, message: str, log_tail: str = "") -> bool:
        """Return whether the process timed out waiting for another; the arguments are those of `explain`."""
        return self._says(self._timed_out, message, log_tail)

    def _says(self, texts: Any, message: str, log_tail: str) -> bool:
        silent = not message or message.startswith((KILLED_BY, EXITED_WITH))
        text = f"{message}\n{log_tail}" if silent else message
        return texts.search(text) is not None and self._own.search(text) is None
