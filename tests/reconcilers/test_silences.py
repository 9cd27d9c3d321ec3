"""Agents that fall silent: what the Worker reconciler reads then, what it does, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from controller.errors import Forbidden
from controller.resources import LEASES, NODES, PODS
from reconcilers.observed.worker_state import AGENT_HEARD
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.api import merged
from tests.reconcilers.test_worker_reconciler import running
from tests.reconcilers.worker_stage import JOB, WORKER, Api, Controller

JSON = dict[str, Any]
NODE = "node-0"
BEAT = 10
READY = {"type": "Ready", "status": "True"}


@pytest.fixture
def api() -> Api:
    api = Api()
    api.apply_job()
    api.put(NODES, {"metadata": {"name": NODE}, "status": {"conditions": [READY]}})
    return api


@pytest.fixture
def controller(api: Api) -> Controller:
    return Controller(api)


def node_beats(api: Api, duration: int = 40) -> None:
    spec = {"holderIdentity": NODE, "leaseDurationSeconds": duration, "renewTime": f"at {api.seconds}"}
    api.put(LEASES, {"metadata": {"name": NODE, "namespace": "kube-node-lease"}, "spec": spec})


async def live(
    api: Api, controller: Controller, seconds: float, *, agent: bool = False, node: bool = True
) -> int:
    """Time passes; the controller looks when it wanted to, and who lives renews. Returns the looks."""
    ends = api.seconds + seconds
    due, seconds_left, looks = api.seconds, lambda: 0.0, 0
    while api.seconds < ends:
        if node and api.seconds % BEAT == 0:
            node_beats(api)
        if agent and api.seconds % BEAT == 5:
            api.beat()
        while due <= api.seconds and api.status["phase"] == "Running":
            controller.deliver()
            if (left := seconds_left()) > 0:
                due = api.seconds + left
                continue
            again, looks = await controller.look(), looks + 1
            due = api.seconds + (again.requeue_after_seconds or ends)
            seconds_left = again.seconds_left or (lambda: 0.0)
        api.seconds += 0.5
    return looks


def is_silent(api: Api) -> bool:
    return any(c["type"] == AGENT_HEARD for c in api.status.get("conditions", ()))


async def test_the_agents_way_to_the_api_server_is_cut_and_nothing_is_deleted(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    await live(api, controller, 60, agent=True)
    api.requests.clear()
    await live(api, controller, 29)
    assert not is_silent(api)
    await live(api, controller, 600)
    assert (api.status["phase"], is_silent(api)) == ("Running", True)
    (said,) = [c for c in api.status["conditions"] if c["type"] == AGENT_HEARD]
    assert said["message"].endswith("and its node node-0 is well; the Pod is left alone")
    assert not [verb for verb, _ in api.requests if verb == "delete"]
    assert api.requests.count(("patch", "ElasticWorker")) == 1, "that it is silent is written once"
    reads = [request for request in api.requests if request[0] == "get"]
    assert len(reads) <= 2 * 630 / BEAT, "two reads a look, a look in the time of a renewal"
    await live(api, controller, 21, agent=True)
    assert (api.status["phase"], is_silent(api)) == ("Running", False)


async def test_an_agent_that_renews_its_lease_is_looked_at_no_more(api: Api, controller: Controller) -> None:
    await running(api, controller)
    await live(api, controller, 30, agent=True)
    assert await live(api, controller, 600, agent=True) == 1


async def test_a_shorter_time_out_holds_for_workers_that_wait_for_the_next_renewal(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    await live(api, controller, 30, agent=True)
    job = api.get(ELASTICJOBS, JOB)
    seconds_left = (await controller.look()).seconds_left
    assert seconds_left is not None
    controller.deliver()
    assert seconds_left() > 0
    policy = job["spec"].get("elasticPolicy", {}) | {"heartbeatTimeoutSeconds": 10}
    generation = job["metadata"].get("generation", 1) + 1
    api.put(
        ELASTICJOBS, merged(job, {"metadata": {"generation": generation}, "spec": {"elasticPolicy": policy}})
    )
    controller.deliver()
    assert seconds_left() == 0


async def test_a_node_without_power_is_noticed_by_its_lease_within_31_seconds(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    await live(api, controller, 60, agent=True)
    await live(api, controller, 31, node=False)
    assert (api.status["phase"], api.status["restarts"]) == ("Failed", {"NodeLost": 1})
    message = api.status["message"]
    assert message.startswith(f"no heartbeat from {WORKER}-1 for 30 s, and its node node-0 has not renewed")


async def test_kubelets_that_renew_more_often_make_a_short_time_out_count(
    api: Api, controller: Controller
) -> None:
    """The node is silent after 3/8 of its Lease's duration, whatever that is."""
    await running(api, controller)
    for second in range(60):
        api.seconds += 1
        node_beats(api, duration=12)
        if second % BEAT == 5:
            api.beat()
        await controller.look()
    for _ in range(31):
        await controller.look()
        api.seconds += 1
    assert api.status["restarts"] == {"NodeLost": 1}


@pytest.mark.parametrize("how", ["not ready", "gone"])
async def test_a_node_that_dies_long_after_its_agent_fell_silent_is_noticed(
    api: Api, controller: Controller, how: str
) -> None:
    await running(api, controller)
    await live(api, controller, 100)
    assert is_silent(api)
    if how == "gone":
        api.remove(NODES, NODE)
    else:
        api.put(
            NODES, {"metadata": {"name": NODE}, "status": {"conditions": [READY | {"status": "Unknown"}]}}
        )
    await controller.look()
    assert (api.status["phase"], api.status["restarts"]) == ("Failed", {"NodeLost": 1})


async def test_a_controller_that_may_not_read_leases_of_nodes_goes_by_kubernetes_word(
    api: Api, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    real = controller.client.get

    async def get(resource: Any, name: str, namespace: str | None = None, **_: Any) -> JSON:
        if namespace == "kube-node-lease":
            raise Forbidden(403, "Forbidden", "leases is forbidden")
        return await real(resource, name, namespace)

    controller.client.get = get  # type: ignore[method-assign]
    await running(api, controller)
    await live(api, controller, 60, node=False)
    assert (api.status["phase"], is_silent(api)) == ("Running", True)
    assert caplog.text.count("cannot read Leases of nodes") == 1
    api.put(NODES, {"metadata": {"name": NODE}, "status": {"conditions": [READY | {"status": "Unknown"}]}})
    await controller.look()
    assert api.status["restarts"] == {"NodeLost": 1}


async def test_the_next_leader_takes_no_agent_for_heard_before_it_has_heard_it(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    await live(api, controller, 60)
    assert is_silent(api)
    successor = Controller(api)
    for _ in range(20):
        await successor.look()
        assert is_silent(api)
        api.seconds += 1
    api.beat()
    await successor.look()
    assert not is_silent(api)


async def test_an_outage_of_the_api_server_is_no_silence_of_nodes_either(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    await live(api, controller, 60, agent=True)
    await live(api, controller, 14)
    api.seconds += 300  # neither agents nor kubelets nor we are answered
    controller.contact_broke()
    await live(api, controller, 12, node=False)
    assert (api.status["phase"], is_silent(api)) == ("Running", False)
    api.beat()
    await live(api, controller, 60, agent=True)
    assert (api.status["phase"], is_silent(api)) == ("Running", False)


async def test_an_outage_of_the_api_server_makes_no_silent_agent_a_heard_one(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    await live(api, controller, 60, agent=True)
    await live(api, controller, 60)
    controller.contact_broke()
    for _ in range(120):
        await live(api, controller, 1)
        assert is_silent(api), "nothing was heard since"
    await live(api, controller, 21, agent=True)
    assert not is_silent(api)


async def test_one_stuck_agent_beside_one_that_is_heard_is_replaced_and_its_node_is_not_blamed(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    other, other_pod = neighbour(api), 0
    for second in range(200):
        if second % BEAT == 0:
            node_beats(api)
            spec = {"holderIdentity": f"{other}-1", "renewTime": f"at {second}"}
            api.patch(LEASES, other, {"spec": spec})
        await controller.look()
        api.seconds += 1
        if api.status["phase"] != "Running":
            other_pod = second
            break
    assert 90 <= other_pod <= 92
    assert api.status["restarts"] == {"Unknown": 1} and api.status["lastExit"]["reason"] == "AgentSilent"
    assert api.status["lastExit"]["message"].endswith("although its node node-0 is well: its agent is stuck")


def neighbour(api: Api) -> str:
    """Another worker of the job, which runs and has a Lease."""
    mine = api.worker()
    name = WORKER.replace("-0", "-1")
    metadata = {"name": name, "ownerReferences": mine["metadata"]["ownerReferences"]}
    api.put(ELASTICWORKERS, {"metadata": metadata, "spec": mine["spec"], "status": {"phase": "Running"}})
    lease = api.get(LEASES, WORKER)
    labels = lease["metadata"]["labels"]
    api.put(LEASES, {"metadata": {"name": name, "labels": labels}, "spec": {}})
    assert api.find(PODS, name) is None
    return name
