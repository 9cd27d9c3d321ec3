"""The plugin that tells pure, played and real tests apart."""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kinds import GUARD, Deadlock, NotPlayed

REAL = {
    "a thread": lambda: threading.Thread(target=print).start(),
    "a process": lambda: subprocess.run(["true"], check=False),
    "a fork": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "a socket": socket.socket,
    "a sleep": lambda: time.sleep(0),
    "a wait": lambda: threading.Event().wait(1),
    "a descriptor": select.poll,
    "the clock": time.monotonic,
}


@pytest.mark.parametrize("act", REAL.values(), ids=REAL.keys())
def test_what_is_not_marked_real_must_do_nothing_real(act: Callable[[], object]) -> None:
    with pytest.raises(NotPlayed):
        act()
    assert len(GUARD.found) == 1, "or a test that catches the refusal would pass"
    GUARD.found.clear()


def test_the_first_test_to_import_a_module_may_do_what_the_module_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opens_a_socket.py").write_text("import socket\nsocket.socket().close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("opens_a_socket")


@pytest.mark.real
@pytest.mark.parametrize("act", REAL.values(), ids=REAL.keys())
def test_what_is_marked_real_may(act: Callable[[], object]) -> None:
    act()


async def test_clock_of_a_loop_jumps_when_nobody_can_move() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.sleep(86_400)
    assert loop.time() - begun == pytest.approx(86_400)


def test_a_wait_for_what_nobody_can_bring_is_an_error() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        asyncio.run(wait())
