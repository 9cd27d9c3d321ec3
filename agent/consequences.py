"""Failures that merely follow from a peer's death: of several processes of one worker, another is to blame.

The same texts as in reconcilers/failure/consequences.py, which judges between workers and says where they
come from: a test compares the two. The agent cannot import that one.
"""

from __future__ import annotations

import re

FOLLOWING = (
    r"gloo/[^\n]*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused)",
    r"gloo/[^\n]*(?:Timed out waiting|Application timeout caused pair closure|Read error|Socket closed)",
    r"Connection closed by peer",
    r"[Ff]ailed to recv|(?:sendBytes|recvValue|recvValueWithTimeout) failed on",
    r"The client socket has (?:timed out|failed to connect)",
    r"DistNetworkError|DistStoreError",
    r"Watchdog caught collective operation timeout|[Ww]atchdog thread terminated with exception",
    r"remote process exited or there was a network error|ncclRemoteError",
    r"NCCL communicator was aborted|another rank reported",
    r"caused by unexpected exit of a remote peer",
    r"DistBackendError",
)

OWN = (
    r"EADDRINUSE|[Aa]ddress already in use|failed to listen|failed to bind",
    r"Name or service not known|Temporary failure in name resolution",
    r"ncclInvalidUsage|ncclInvalidArgument|ncclInternalError|ncclUnhandledCudaError|unhandled cuda error",
    r"invalid usage|Duplicate GPU detected",
)
"""With one of these in it, it is the process's own failure."""

SILENT = ("the process was killed by", "the process exited with code")
"""How a message begins if the process left no exception: its log may tell."""

_FOLLOWING = re.compile("|".join(FOLLOWING))
_OWN = re.compile("|".join(OWN))


def follows_from_a_peer(message: str, log_tail: str = "") -> bool:
    text = f"{message}\n{log_tail}" if not message or message.startswith(SILENT) else message
    return _FOLLOWING.search(text) is not None and _OWN.search(text) is None
