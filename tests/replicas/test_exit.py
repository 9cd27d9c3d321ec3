"""A process that ends while it still connects to other groups."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ENDS = """
import os, sys, threading, torch
from agent.replicas.client import AgentConnection, LineStore
from dlr.replicas.exchange import Exchange, Seat

class Last:
    def flush(self):  # the interpreter is ending
        os.write(1, b"ending")
        os.read(0, 1)

exchange = Exchange(
    Seat(1, 0, 1, 2), lambda: LineStore(AgentConnection(sys.argv[1])), torch.device("cpu"), lambda: False, threading.Condition(), None
)
exchange.start()
os.read(0, 1)
sys.stdout = Last()
"""


@pytest.mark.real
def test_a_process_that_ends_while_it_connects_ends_in_peace(tmp_path: Path) -> None:
    """The agent's answer comes when the interpreter is ending, and C++ waits for it."""
    with socket.create_server(str(tmp_path / "agent"), family=socket.AF_UNIX) as agent:
        process = subprocess.Popen(
            [sys.executable, "-c", ENDS, str(tmp_path / "agent")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        try:
            agent.settimeout(60)  # it may have ended
            connection, _ = agent.accept()
            with connection, connection.makefile("r") as requests:
                while "get" not in json.loads(requests.readline()):
                    connection.sendall(b"{}\n")
                process.stdin.write(b".")
                assert process.stdout.read(6) == b"ending", (process.wait(), process.stderr.read())
                with contextlib.suppress(OSError):
                    connection.sendall(b'{"value": null}\n' * 2)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(5)  # it reached the process
                with contextlib.suppress(OSError):
                    process.stdin.write(b".")
                assert (process.wait(60), process.stderr.read()) == (0, b"")
        finally:
            process.kill()
