"""The agent's own lines in the container's log."""

from __future__ import annotations

import os
import threading

import pytest

from agent.logs import write_parts
from crds.log_parts import log_parts

pytestmark = pytest.mark.real


def test_a_profile_is_whole_in_a_log_that_another_program_has_set_to_non_blocking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    read = bytearray()

    def drain() -> None:
        while chunk := os.read(readable, 1 << 16):
            read.extend(chunk)

    reader = threading.Thread(target=drain)
    reader.start()
    data = os.urandom(1 << 19)
    with os.fdopen(writable, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        write_parts("profile", data)
    reader.join(300)
    os.close(readable)
    assert read.decode().splitlines() == list(log_parts("profile", data))
