"""An object that cannot be read says so itself, and only as long as that is so."""

import asyncio

import pytest

from controller.manager import Manager, ManagerOptions
from controller.serving.servers import Listen
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.setup import add_all
from tests.controller.fake_api import client_of, fake_api
from tests.controller.waiting import eventually
from tests.hostile.test_informer import JOBS, job, nested, serve_as

pytestmark = pytest.mark.real

EVENTS = "/api/v1/namespaces/team-b/events/"
NO_PORTS = Listen(address="127.0.0.1", health_port=None, metrics_port=None)


async def test_it_gets_an_event_and_a_condition_that_goes_when_it_is_corrected(monkeypatch):
    serve_as(monkeypatch, nested(2_000))
    async with fake_api() as api, client_of(api) as client:
        condition = {
            "type": "Succeeded",
            "status": "False",
            "reason": "x",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        evil = job("evil", "team-b", x="@hostile@") | {"status": {"conditions": [condition]}}
        api.put(JOBS, evil)
        manager = Manager(client, ManagerOptions(leader_election=False, listen=NO_PORTS))
        add_all(manager)
        stop = asyncio.Event()
        running = asyncio.create_task(manager.run(stop))

        def stored():
            return api.objects[f"{JOBS.removesuffix('/elasticjobs')}/namespaces/team-b/elasticjobs/evil"]

        def conditions():
            return {c["type"]: c for c in stored().get("status", {}).get("conditions", ())}

        def events():
            return [
                o
                for path, o in api.objects.items()
                if path.startswith(EVENTS) and o["reason"] == "Unreadable"
            ]

        await eventually(lambda: "Reconciled" in conditions() and events())
        told = conditions()["Reconciled"]
        assert (told["status"], told["reason"], told["observedGeneration"]) == ("False", "Unreadable", 1)
        assert "nested too deeply; correct or delete it" in told["message"]
        assert conditions()["Succeeded"] == condition, "other conditions stay"
        assert stored()["status"]["reason"] == "Unreadable", "`kubectl get` shows it"
        (event,) = events()
        assert event["type"] == "Warning" and event["involvedObject"]["name"] == "evil"

        corrected = stored()
        del corrected["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["x"]
        corrected["metadata"]["generation"] = 2
        api.put(JOBS, corrected)
        await eventually(lambda: conditions()["Reconciled"]["status"] == "True")
        assert stored()["status"].get("reason") != "Unreadable"
        assert len(events()) == 1, "its own write has led to no other"
        assert not manager.cache.unreadable_counts()[ELASTICJOBS.group_resource]
        stop.set()
        await running
