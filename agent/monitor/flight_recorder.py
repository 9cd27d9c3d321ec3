"""Finds the NCCL collective that a process waits for, by torch's flight recorder.

Collectives on a GPU are enqueued, and the host goes on until a line needs a number from the device. That line
may look like any other (`if loss < best:`). torch records the last collectives with their states. A rank that
keeps the others waiting has completed all of them, since the others have joined each. A rank that waits has
an incomplete one.

The process answers by torch's own server (`agent.torch_compat.training.serve_records`), whose C++ threads
answer even while the interpreter's lock is held.
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crds.progress_record import ENV_RECORDER_SOCKET

MAX_BYTES = 4 << 20
"""Largest size of a response, without stacks, at half a kilobyte for each entry."""
PATIENCE_SECONDS = 4.0
"""Time limit for a process to answer all requests."""

HANDLERS = ("dump_nccl_trace_json", "fr_trace_json?backend=nccl2", "fr_trace_json?backend=nccl-lazy")
"""Handlers of torch's server: for ProcessGroupNCCL, and for the backends that torch's hooks record. Until
2.14 the last two are one, which includes gloo's collectives."""

_FILE_VARIABLES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
_SIZE_VARIABLES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
"""Names until and since `_RENAMED_IN`."""
_RENAMED_IN = (2, 10)
_COLLECTIVES = 2_000
"""Number of recorded collectives, enough for several steps; torch's default since 2.7."""
_AT_ONCE = 16


def variables(socket_: Path, environ: Mapping[str, str], torch_version: str, records: Path) -> dict[str, str]:
    """Return the variables by which a process records collectives; the user's own settings of torch stay.

    Args:
        socket_: path at which the process will listen; a socket of an earlier process is removed.
        records: folder into which NCCL itself writes when a collective takes too long.
    """
    socket_.unlink(missing_ok=True)
    new = tuple(int(part) for part in torch_version.split(".")[:2]) >= _RENAMED_IN
    settings = {
        _FILE_VARIABLES[new]: str(records / "nccl_trace_rank_"),
        _SIZE_VARIABLES[new]: str(_COLLECTIVES),
    }
    own = {ENV_RECORDER_SOCKET: str(socket_)}
    return own if any(name in environ for name in (*_FILE_VARIABLES, *_SIZE_VARIABLES)) else own | settings


@dataclass(frozen=True)
class CollectiveRecord:
    """State of one process's collectives on a device."""

    pending: str
    """The first incomplete collective, such as `all_reduce 57 of [3] in default_pg`; "" if there is none."""


class RecordQuery:
    """Asks all processes at once for their records; `answers` waits for them.

    Args:
        sockets: paths at which they listen, by local rank.
    """

    def __init__(self, sockets: Mapping[int, Path]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dlr-recorder")
        self._responses = {
            local: [self._pool.submit(ask, path, handler, deadline) for handler in HANDLERS]
            for local, path in sockets.items()
        }

    def answers(self) -> dict[int, CollectiveRecord]:
        """Return the records that arrive in time, by local rank; a process without collectives has none."""
        found: dict[int, CollectiveRecord] = {}
        for local, responses in self._responses.items():
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                record = read([entry for response in responses for entry in entries(response.result())])
                if record is not None:
                    found[local] = record
        self._pool.shutdown()
        return found


def ask(path: Path, handler: str, deadline: float) -> bytes:
    """Return the body of a handler's response; b"" if there is none by the deadline.

    Args:
        deadline: time of `time.monotonic`.
    """
    request = (
        f"POST /handler/{handler} HTTP/1.1\r\nHost: dlr\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    response = bytearray()
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_left(deadline))
        connection.connect(str(path))
        connection.sendall(request.encode())
        while data := connection.recv(1 << 16):
            response += data
            if len(response) > MAX_BYTES:
                return b""
            connection.settimeout(_left(deadline))
        head, _, body = response.partition(b"\r\n\r\n")
        return bytes(body) if head.split()[1:2] == [b"200"] else b""
    return b""


def _left(deadline: float) -> float:
    """Return the seconds until a deadline, above 0, which would mean not to wait at all."""
    return max(deadline - time.monotonic(), 0.001)


def entries(body: bytes) -> list[dict[str, Any]]:
    """Return the collectives of a response, the oldest first.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: it is not a recorder's response.
    """
    return list(json.loads(body)["entries"]) if body else []


def read(collectives: list[dict[str, Any]]) -> CollectiveRecord | None:
    """Return the record of a process; None if no device has had a collective.

    gloo's collectives are left out: the host waits for them, and its stack shows where.

    Raises:
        KeyError, TypeError, AttributeError: another version of torch has another format.
    """
    of_device = [each for each in collectives if not each["profiling_name"].startswith("gloo:")]
    if not of_device:
        return None
    pending = next((each for each in of_device if not _is_completed(each)), None)
    return CollectiveRecord("" if pending is None else _describe(pending))


def _is_completed(entry: Mapping[str, Any]) -> bool:
    """Whether a collective has ended. Those recorded by torch's hooks have no state, but are retired."""
    return entry["state"] == "completed" or bool(entry.get("retired"))


def _describe(entry: Mapping[str, Any]) -> str:
    name = str(entry["profiling_name"]).rpartition(":")[2].lstrip("_")
    number = entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"]
    sizes = ", ".join(map(str, entry["input_sizes"][:2]))
    _, group = entry["process_group"]
    return f"{name} {number} of {sizes}" + (f" in {group}" if group not in ("", "undefined") else "")
