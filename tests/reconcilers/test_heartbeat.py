"""Since when an agent is silent, by our own clock."""

from __future__ import annotations

from typing import Any

from controller.contact import Contact
from controller.resources import LEASES, PODS
from controller.store import Change
from crds.elasticworker import ElasticWorker
from reconcilers.runtime.clock import Clock
from reconcilers.worker.silences import Heartbeats
from tests.reconcilers.build import pod, report, worker
from tests.reconcilers.caches import shaped_cache, tools_of

LEASE: dict[str, Any] = {
    "metadata": {"name": "digits-worker-0", "namespace": "default", "uid": "lease-0", "resourceVersion": "1"},
    "spec": {"holderIdentity": "digits-worker-0-1", "renewTime": "2026-01-01T11:59:59.000000Z"},
}


class Listener:
    """Hears of a Lease, in perfect contact with the API server."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        contact = Contact(now=lambda: self.seconds, gap_seconds=float("inf"))
        contact.answered()
        cache = shaped_cache()
        self.pods, self.leases = cache.store(PODS), cache.store(LEASES)
        self.leases.apply(LEASE)
        clock = Clock(monotonic=lambda: self.seconds)
        self.heartbeats = Heartbeats(tools_of(cache, contact=contact, clock=clock))

    def age_after(self, seconds: float, of: dict[str, Any], spoken: ElasticWorker) -> float | None:
        self.seconds += seconds
        self.see(of)
        return self.heartbeats.age_seconds(LEASE, of, spoken)

    def see(self, pod: dict[str, Any]) -> None:
        """The Pod is in the cache."""
        self.pods.apply(pod | {"metadata": {"resourceVersion": str(int(self.seconds))} | pod["metadata"]})


def test_the_lease_of_a_pod_of_the_same_name_before_a_suspension_is_nothing_heard_of_the_new_one() -> None:
    listener = Listener()
    resumed = pod() | {"metadata": {"name": "digits-worker-0-1", "uid": "the-next"}}
    before = worker(agent=report(), podUid="the-next")
    assert listener.age_after(60, pod(), worker(agent=report())) == 0
    assert listener.age_after(0, resumed, before) is None
    assert listener.age_after(60, resumed, before) is None
    there = worker(agent=report(pod_uid="the-next"), podUid="the-next")
    assert listener.age_after(60, resumed, there) == 0, "it is silent from now on, if it is"
    assert listener.age_after(7, resumed, there) == 7


def test_a_renewal_counts_from_when_it_came_though_nobody_looked_then() -> None:
    listener, spoken = Listener(), worker(agent=report())
    assert listener.age_after(60, pod(), spoken) == 0
    listener.seconds += 10
    renewed = renewed_at("12:00:09")
    listener.heartbeats.note(Change(LEASE, renewed))
    listener.seconds += 20
    assert listener.heartbeats.age_seconds(renewed, pod(), spoken) == 20


def test_a_standby_that_comes_to_lead_goes_on_with_the_ages_that_it_has_seen() -> None:
    listener, spoken = Listener(), worker(agent=report())
    listener.see(pod())
    listener.heartbeats.note(Change(None, LEASE))
    listener.heartbeats.note_pod(Change(None, pod()))
    listener.seconds += 25
    assert listener.heartbeats.age_seconds(LEASE, pod(), spoken) == 25


def test_a_container_that_is_started_again_has_time_until_its_agent_listens() -> None:
    listener = Listener()
    status = {
        "name": "main",
        "state": {"running": {}},
        "restartCount": 1,
        "lastState": {"terminated": {"exitCode": 1}},
    }
    spec = {"containers": [{"name": "main"}], "restartPolicy": "Always", "nodeName": "node-0"}
    again = pod() | {"spec": spec, "status": {"phase": "Running", "containerStatuses": [status]}}
    first = again | {
        "status": {"phase": "Running", "containerStatuses": [status | {"restartCount": 0, "lastState": {}}]}
    }
    listener.see(first)
    listener.heartbeats.note_pod(Change(None, first))
    assert not listener.heartbeats.restarts(first)
    listener.seconds += 5
    listener.heartbeats.note_pod(Change(first, again))
    assert listener.heartbeats.restarts(again)
    listener.seconds += 60
    assert not listener.heartbeats.restarts(again)


def test_of_21_000_leases_each_is_remembered_as_long_as_it_is_there() -> None:
    listener, spoken = Listener(), worker(agent=report())
    assert listener.age_after(0, pod(), spoken) == 0
    others = [
        LEASE | {"metadata": LEASE["metadata"] | {"name": f"w-{i}", "uid": f"l-{i}"}} for i in range(21_000)
    ]
    for second in range(600):
        listener.seconds += 1
        for other in others if second % 300 == 0 else ():
            listener.leases.apply(other)
            listener.heartbeats.note(Change(None, other))
    assert listener.heartbeats.age_seconds(LEASE, pod(), spoken) == 600
    for other in others:
        listener.leases.delete(other)
        listener.heartbeats.note(Change(other, None))
    assert len(listener.heartbeats._renewals._seen) == 1, "what is gone is forgotten"
    assert listener.heartbeats.age_seconds(LEASE, pod(), spoken) == 600


def renewed_at(time: str) -> dict[str, Any]:
    return LEASE | {"spec": LEASE["spec"] | {"renewTime": f"2026-01-01T{time}.000000Z"}}
