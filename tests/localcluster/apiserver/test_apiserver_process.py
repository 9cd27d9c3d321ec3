"""The server as a process: what survives it, and how it refuses to start."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from localcluster.apiserver.database import Database, Row
from localcluster.apiserver.server import CannotListen, serve
from localcluster.apiserver.store import ChangeType, Store
from localcluster.paths import Home
from tests.localcluster.apiserver.api import CONFIG_MAPS, CRDS, WIDGETS, config_map, widget, widget_definition
from tests.localcluster.apiserver.conftest import Running, connected, start

pytestmark = pytest.mark.real


async def test_kill_9_loses_nothing_that_was_acknowledged(home: Home) -> None:
    process = start(home)
    assert "listening on https://127.0.0.1:" in process.stdout.readline()
    assert int(home.pidfile("apiserver").read_text()) == process.pid
    async with connected(home, Running(home)) as api:
        await api.created(CRDS, widget_definition())
        created = await api.created(WIDGETS, widget("one"))
        for number in range(20):
            await api.created(CONFIG_MAPS, config_map(f"map-{number}"))
        await api.delete(f"{CONFIG_MAPS}/map-0")
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    async with serve(home) as serving, connected(home, serving) as api:
        assert (await api.get(f"{WIDGETS}/one")).body == created
        names = (await api.get(CONFIG_MAPS)).names
        assert len([name for name in names if name.startswith("map-")]) == 19


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


async def test_keys_survive_a_restart(home: Home) -> None:
    async with serve(home):
        before = (home.ca_certificate.read_bytes(), home.admin_token.read_text())
    async with serve(home):
        assert (home.ca_certificate.read_bytes(), home.admin_token.read_text()) == before


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


def test_history_is_bounded_and_knows_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localcluster.apiserver.store.HISTORY_MAX_EVENTS", 3)
    database = Database(tmp_path / "state")
    store = Store(database)
    for number in range(5):
        store.put("configmaps", obj(f"map-{number}"))
    collection = store.collection("configmaps")
    assert collection.since(1) is None
    assert [event.version for event in collection.since(2) or ()] == [3, 4, 5]
    assert list(collection.since(5) or ()) == []
    assert {event.type for event in collection.history} == {ChangeType.ADDED}
    assert Row("configmaps", "a", "map-0", 1, store.get("configmaps", "a", "map-0").raw) in list(
        database.rows()
    )
    database.close()
