"""Messages between an agent and a training process that lives on: one JSON object in each datagram.

Messages of a process are not trusted, so each reader checks size and form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.facts.place import Place

MAX_FROM_PROCESS = 64 << 10
"""Largest size of a process's message: in JSON, a text of MAX_TEXT characters has 48 kB at most."""
MAX_FROM_AGENT = 128 << 10
"""Largest size of an agent's message; the kernel's limit is 200 kB (net.core.wmem_max)."""
MAX_TEXT = 4_096
"""Longest error or reason, in characters; a longer text loses its beginning."""
MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True)
class Enters:
    """The process can live on from now on; its first message, when its loop begins."""

    bound_to: Place | None = None
    """The only place that it can go on in; None if it goes on in any."""


@dataclass(frozen=True)
class Left:
    """No thread of the process waits in a collective of that round, or writes into its slots any more."""

    round: int


@dataclass(frozen=True)
class Lost:
    """A collective of that round failed without a `Leave`; the process has left, and waits for the next."""

    round: int
    error: str


@dataclass(frozen=True)
class Unable:
    """The process cannot live on after all: it is an ordinary one from now on."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """The round is over: the process has to leave its collective, and wait for the next round."""

    round: int


@dataclass(frozen=True)
class NextRound:
    """The next round, sent with one descriptor for each of `redirects`."""

    env: Mapping[str, str]
    """Variables of the round, as for a process that is forked for it."""
    redirects: tuple[int, ...] = ()
    """Number that each descriptor gets in the process: 1 or 2."""


FromProcess = Enters | Left | Lost | Unable
FromAgent = Leave | NextRound


def encode(message: FromProcess | FromAgent) -> bytes:
    """Encode a message as a datagram."""
    match message:
        case Enters(bound_to):
            content: Any = {"enters": bound_to}
        case Left(round_):
            content = {"left": round_}
        case Lost(round_, error):
            content = {"lost": {"round": round_, "error": error[-MAX_TEXT:]}}
        case Unable(reason):
            content = {"unable": reason[-MAX_TEXT:]}
        case Leave(round_):
            content = {"leave": round_}
        case NextRound(env, redirects):
            content = {"round": {"env": dict(env), "redirects": list(redirects)}}
    return json.dumps(content).encode()


def read_from_process(data: bytes) -> FromProcess:
    """Decode a message of a process.

    Raises:
        ValueError: it is malformed.
    """
    kind, content = _read(data, MAX_FROM_PROCESS)
    match kind:
        case "enters":
            return Enters(_place(content))
        case "left":
            return Left(_number(content))
        case "lost":
            return Lost(_number(_field(content, "round")), _text(_field(content, "error")))
        case "unable":
            return Unable(_text(content))
    raise ValueError(f"{kind[:40]!r} is no message of a process")


def read_from_agent(data: bytes) -> FromAgent:
    """Decode a message of an agent.

    Raises:
        ValueError: it is malformed.
    """
    kind, content = _read(data, MAX_FROM_AGENT)
    if kind == "leave":
        return Leave(_number(content))
    if kind != "round":
        raise ValueError(f"{kind[:40]!r} is no message of an agent")
    env, redirects = _field(content, "env"), _field(content, "redirects")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise ValueError("the variables of a round are not strings")
    if not isinstance(redirects, list) or redirects not in ([], [1], [2], [1, 2]):
        raise ValueError("the redirects of a round are not 1, 2 or both")
    return NextRound(env, tuple(redirects))


def _read(data: bytes, limit: int) -> tuple[str, Any]:
    """Return the name and the content of a message."""
    if len(data) > limit:
        raise ValueError(f"a message has {len(data):,} bytes, and {limit:,} at most are read")
    try:
        message = json.loads(data)
    except RecursionError as error:
        raise ValueError("a message is nested too deeply") from error
    if not isinstance(message, dict) or len(message) != 1:
        raise ValueError("a message is not an object with one name")
    return next(iter(message.items()))


def _field(content: Any, name: str) -> Any:
    if not isinstance(content, dict) or name not in content:
        raise ValueError(f"a message lacks {name}")
    return content[name]


def _place(value: Any) -> Place | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a place is not a rank with the size of its world")
    return Place(*map(_number, value))


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError("a number of a message is not an integer from 0 on, or too large")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"a text of a message is not a string, or has more than {MAX_TEXT:,} characters")
    return value
