"""The process's line to its agent, over real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agent.survival.client import AgentGoneError, RoundLine
from agent.survival.messages import Leave, encode
from tests.agent.patience import SECONDS

pytestmark = pytest.mark.real


def test_a_collective_that_cannot_be_left_is_the_end_of_the_line_on_both_sides(tmp_path: Path) -> None:
    def leave() -> None:
        raise RuntimeError("NCCL error")

    path = str(tmp_path / "world")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    server.listen()
    line = RoundLine(path, leave)
    agent, _ = server.accept()
    agent.settimeout(SECONDS)
    line.enter(None)
    assert agent.recv(1_000)
    agent.send(encode(Leave(1)))
    assert agent.recv(1_000) == b"", "it hands no round over to it"
    with pytest.raises(AgentGoneError):
        line.next_round()
    assert line.is_over(1)
    agent.close()
    server.close()
