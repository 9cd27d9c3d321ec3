"""What an agent of a replica group takes from the ElasticWorld of its grouped job."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest

from agent.connection.listener import Listener
from agent.connection.store_server import StoreServer
from agent.environment import Environment
from agent.kube.api import Api
from agent.link import _groups_watcher
from agent.replicas.client import AgentChannel
from agent.replicas.desk import ReplicasDesk
from agent.shards.desk import Desk
from crds.grouping import worker_number

pytestmark = pytest.mark.real

KEY = bytes(range(32))
ME = Environment(
    owner_name="llm-group-1",
    namespace="default",
    worker_name="llm-group-1-worker-0",
    worker_index=0,
    incarnation=1,
    pod_uid="p",
    pod_ip="127.0.0.1",
    grouped_job="llm",
    group_index=1,
    key=KEY,
)


def world(version: int, resource_version: int) -> dict[str, Any]:
    replicas = {"version": version, "groups": [{"index": 1, "round": 2}], "address": "127.0.0.1", "port": 1}
    metadata = {"resourceVersion": str(resource_version)}
    return {"type": "MODIFIED", "object": {"metadata": metadata, "spec": {"replicas": replicas}}}


def test_processes_learn_of_groups_that_were_there_before_the_desk() -> None:
    with contextlib.ExitStack() as cleanup:
        shards, listener = Desk(worker_number(1, 0), 1), Listener("127.0.0.1", KEY)
        store = StoreServer(listener)
        for close in (shards.stop, listener.close, store.close):
            cleanup.callback(close)
        watcher = _groups_watcher(cast(Api, None), ME, shards)
        watcher.feed(world(3, 1))
        desk = ReplicasDesk.start(ME, watcher, store, cleanup)
        desk.serve(lambda: None)
        desk.begin(2, 1)
        channel = AgentChannel(desk.path, 2)
        assert channel.look().version == 3
        watcher.feed(world(4, 1))
        assert channel.look().version == 4
