"""The server as a process: what survives it, and how it refuses to start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from localcluster.apiserver.database import Database
from localcluster.apiserver.server import CannotListen, serve
from localcluster.apiserver.store import Store
from localcluster.paths import Home
from tests.localcluster.apiserver.conftest import start

pytestmark = pytest.mark.real


async def test_sigterm_ends_it_and_its_pidfile(home: Home) -> None:
    process = start(home)
    process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=300) == 0
    assert not home.pidfile("apiserver").exists()


async def test_a_port_in_use_is_told_in_a_sentence(home: Home) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        process = start(home, port)
        _, errors = process.communicate(timeout=300)
        with pytest.raises(CannotListen):
            async with serve(home, port):
                pass
    assert process.returncode == 1
    assert errors.strip() == (
        f"error: port {port} on 127.0.0.1 is in use by another process: stop that, or choose another port "
        "(0 finds a free one)"
    )


async def test_two_servers_cannot_share_a_home(home: Home) -> None:
    async with serve(home):
        process = start(home)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert errors.strip().endswith("another API server is using it")


def obj(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "a", "name": name}}


def test_versions_never_go_back_even_when_the_last_change_was_a_deletion(tmp_path: Path) -> None:
    database = Database(tmp_path / "state")
    store = Store(database)
    store.put("configmaps", obj("one"))
    last = store.remove("configmaps", "a", "one").version
    database.close()
    database = Database(tmp_path / "state")
    assert Store(database).version == last
    database.close()
