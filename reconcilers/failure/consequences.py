"""Failures that merely follow from a peer's death: whoever tells one was not the first to fail.

Texts of torch 2.x, as its sources and libraries have them. A text alone never condemns: it decides whom to
blame where several processes failed, and that somebody else is to be looked for.

RE2, here and in exit_class.py: a thousand processes tell of one death, at 8 KB each, and Python's `re` would
take a second and a half for every look at them.
"""

from __future__ import annotations

import re2

from crds.elasticworker import AgentFailure

FOLLOWING = (
    # gloo/transport/tcp/pair.cc: "[…/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:53"
    r"gloo/[^\n]*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused)",
    r"gloo/[^\n]*(?:Timed out waiting|Application timeout caused pair closure|Read error|Socket closed)",
    r"Connection closed by peer",
    # c10d/TCPStore.cpp: "Failed to recv, got 0 bytes", "sendBytes failed on SocketImpl(…): Broken pipe"
    r"[Ff]ailed to recv|(?:sendBytes|recvValue|recvValueWithTimeout) failed on",
    r"The client socket has (?:timed out|failed to connect)",
    r"DistNetworkError|DistStoreError",
    # c10d/ProcessGroupNCCL.cpp: the watchdog, and what its other ranks then say
    r"Watchdog caught collective operation timeout|[Ww]atchdog thread terminated with exception",
    r"remote process exited or there was a network error|ncclRemoteError",
    r"NCCL communicator was aborted|another rank reported",
    r"caused by unexpected exit of a remote peer",
    r"DistBackendError",
)

OWN = (
    # The port is taken, or the master's name is wrong
    r"EADDRINUSE|[Aa]ddress already in use|failed to listen|failed to bind",
    r"Name or service not known|Temporary failure in name resolution",
    # What NCCL says of the rank's own call, device or build
    r"ncclInvalidUsage|ncclInvalidArgument|ncclInternalError|ncclUnhandledCudaError|unhandled cuda error",
    r"invalid usage|Duplicate GPU detected",
)
"""With one of these in it, it is the process's own failure."""

SILENT = ("the process was killed by", "the process exited with code")
"""How the agent's message begins if the process left no exception (agent/failure.py): its log may tell."""

_FOLLOWING = re2.compile("|".join(FOLLOWING))
_OWN = re2.compile("|".join(OWN))


def follows_from_a_peer(failure: AgentFailure) -> bool:
    """Whether a process failure is a mere consequence of another's, as far as its text tells."""
    return failure.cause is None and text_follows_from_a_peer(failure.message, failure.log_tail)


def text_follows_from_a_peer(message: str, log_tail: str = "") -> bool:
    text = f"{message}\n{log_tail}" if not message or message.startswith(SILENT) else message
    return _FOLLOWING.search(text) is not None and _OWN.search(text) is None
