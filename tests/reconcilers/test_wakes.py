"""How many looks a change leads to: counted with the real sources of all controllers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from controller.client import AsyncClient
from controller.manager import Manager, ManagerOptions
from controller.reconciler import Request
from controller.resources import LEASES, NAMESPACES, NODES, Resource
from controller.store import Change
from crds import names
from crds.agent_report import AgentReport
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.setup import add_all
from tests.controller.fake_api import connection_to
from tests.reconcilers import build
from tests.reconcilers.test_cordon_findings import check as raw_check

WORKERS = 200
METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
Object = dict[str, Any]


class Town:
    """A job of many workers, one node each, in the caches of all controllers."""

    def __init__(self) -> None:
        nobody = AsyncClient(connection_to("http://127.0.0.1:1"))
        self.manager = Manager(nobody, ManagerOptions(leader_election=False))
        add_all(self.manager, queues=True)
        for index in range(WORKERS):
            status = {"nodeName": f"node-{index}", "agent": build.report(index).to_wire()}
            wire = build.worker(index, **status).to_wire()
            wire["metadata"]["ownerReferences"] = [owned_by(ELASTICJOBS, "digits", "uid-digits")]
            self.put(ELASTICWORKERS, wire)
        self.put(ELASTICJOBS, build.job(replicas=WORKERS, status={"phase": "Running"}).to_wire())

    def put(self, resource: Resource, new: Object) -> Counter[str]:
        """The looks that it leads to, by controller."""
        store, metadata = self.manager.cache.store(resource), new["metadata"]
        old = store.get(metadata.get("namespace"), metadata["name"])
        before = int(old["metadata"]["resourceVersion"]) if old is not None else 0
        new = new | {"metadata": metadata | {"resourceVersion": str(before + 1)}}
        change = store.apply(new)
        return self.wakes(resource, change) if change is not None else Counter()

    def wakes(self, resource: Resource, change: Change) -> Counter[str]:
        found: Counter[str] = Counter()
        for controller in self.manager._controllers:
            mine = [source.requests(change) for source in controller.sources if source.resource == resource]
            found[controller.name] = len(set().union(*mine))
        return +found

    def update(self, resource: Resource, name: str, **status: Any) -> Counter[str]:
        namespace = "default" if resource.namespaced else None
        known = self.manager.cache.store(resource).get(namespace, name)
        assert known is not None
        return self.put(resource, known | {"status": known.get("status", {}) | status})


def owned_by(resource: Resource, name: str, uid: str) -> Object:
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kind, "name": name, "uid": uid, "controller": True}


def stored(report: AgentReport) -> Object:
    """A report as the API server has it: fields without a value are not there."""
    stored: Object = build.worker(0, agent=report.to_wire()).to_wire()["status"]["agent"]
    return stored


@pytest.fixture
async def town() -> Town:
    return Town()


async def test_the_status_of_a_job_that_runs_wakes_no_worker(town: Town) -> None:
    town.update(ELASTICJOBS, "digits", rendezvous={"phase": "Formed", "round": 1, "members": [0]})
    for round_ in range(2, 10):
        world = {"phase": "Formed", "round": round_, "members": list(range(round_))}
        looks = town.update(ELASTICJOBS, "digits", rendezvous=world, replicas=round_)
        assert looks == {"elasticjob": 1, "autoscaling": 1}


async def test_the_end_of_a_job_wakes_each_worker_once_whatever_its_status_says_of_their_pods(
    town: Town,
) -> None:
    looks = town.update(ELASTICJOBS, "digits", phase="Succeeded")
    beside = dict.fromkeys(
        ("elasticjob", "jobcompanion", "scaleplan", "autoscaling", "shards", "gang", "evictions", "kueue"), 1
    )
    assert looks == {"elasticworker": WORKERS} | beside
    for left in range(WORKERS):
        counts = {"worker": {"desired": WORKERS, "active": left, "succeeded": WORKERS - left}}
        looks = town.update(ELASTICJOBS, "digits", replicaStatuses=counts, replicas=left)
        assert looks == {"elasticjob": 1, "autoscaling": 1}, "the job's own looks alone"


async def test_a_job_that_goes_on_after_a_suspension_wakes_each_worker_once(town: Town) -> None:
    town.update(ELASTICJOBS, "digits", phase="Suspended")
    assert town.update(ELASTICJOBS, "digits", phase="Pending")["elasticworker"] == WORKERS
    assert town.update(ELASTICJOBS, "digits", phase="Running")["elasticworker"] == 0


async def test_an_edit_wakes_the_workers_whose_pods_were_refused_and_no_others(town: Town) -> None:
    since = {"lastTransitionTime": "2026-01-01T12:00:00Z"}
    for index, reason in enumerate(("PodInvalid", "PodForbidden", "PodRefused", "Unschedulable")):
        refused = {"type": "Scheduled", "status": "False", "reason": reason, "message": "no", **since}
        town.update(ELASTICWORKERS, f"digits-worker-{index}", phase="Pending", conditions=[refused])
    edited = build.job(replicas=WORKERS, status={"phase": "Running"}).to_wire()
    edited["metadata"]["generation"] = 7
    assert town.put(ELASTICJOBS, edited)["elasticworker"] == 3


async def test_steps_and_usage_wake_nobody_and_a_state_wakes_the_job_alone(town: Town) -> None:
    for step in range(10):
        reported = stored(build.report(0, progress={"step": step, "time": build.NOW}))
        assert not town.update(ELASTICWORKERS, "digits-worker-0", agent=reported)
    failed = stored(build.report(0, build.AgentState.FAILED))
    assert town.update(ELASTICWORKERS, "digits-worker-0", agent=failed) == {"elasticjob": 1, "autoscaling": 1}


async def test_renewals_of_a_lease_wake_nobody(town: Town) -> None:
    owner = owned_by(ELASTICWORKERS, "digits-worker-0", "w0")
    lease = {
        "metadata": {
            "name": "digits-worker-0",
            "namespace": "default",
            "uid": "l",
            "ownerReferences": [owner],
        }
    }
    for second in range(10):
        spec = {"holderIdentity": "digits-worker-0-1", "renewTime": f"2026-01-01T12:00:{second:02}.000000Z"}
        looks = town.put(LEASES, lease | {"spec": spec})
        assert looks == ({"elasticworker": 1} if second == 0 else {})


async def test_a_node_wakes_its_workers_when_it_becomes_ready_or_not_and_by_no_other_write(
    town: Town,
) -> None:
    created = {"name": "node-7", "uid": "n7", "creationTimestamp": "2026-01-01T00:00:00Z"}

    def ready(status: str, **more: Any) -> Object:
        heard = {"type": "Ready", "status": status, **more}
        return {"metadata": created, "spec": {}, "status": {"conditions": [heard]}}

    town.put(NODES, ready("True"))
    assert town.put(NODES, ready("Unknown")) == {"elasticworker": 1}
    for beat in range(10):
        assert not town.put(NODES, ready("Unknown", lastHeartbeatTime=str(beat)))
    assert town.put(NODES, ready("True")) == {"elasticworker": 1}


async def test_a_check_wakes_its_workers_by_its_end_alone(town: Town) -> None:
    town.put(NODECHECKS, build.check().to_wire())
    for index in range(4):
        wire = build.check_worker(index).to_wire()
        wire["metadata"]["ownerReferences"] = [owned_by(NODECHECKS, "lab", "uid-lab")]
        town.put(ELASTICWORKERS, wire)
    assert town.update(NODECHECKS, "lab", phase="Running", nodes=["node-0"])["elasticworker"] == 0
    assert town.update(NODECHECKS, "lab", phase="Succeeded")["elasticworker"] == 4
    assert town.update(NODECHECKS, "lab", observedGeneration=1)["elasticworker"] == 0


async def test_a_check_that_is_deleted_and_stays_wakes_its_workers_once(town: Town) -> None:
    check = build.check().to_wire()
    town.put(NODECHECKS, check)
    wire = build.check_worker(0).to_wire()
    wire["metadata"]["ownerReferences"] = [owned_by(NODECHECKS, "lab", "uid-lab")]
    town.put(ELASTICWORKERS, wire)
    gone = {"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": ["example.com/hold"]}
    assert town.put(NODECHECKS, check | {"metadata": check["metadata"] | gone})["elasticworker"] == 1
    assert town.update(NODECHECKS, "lab", phase="Failed")["elasticworker"] == 0


async def test_a_node_that_gives_room_under_the_limit_wakes_none_of_those_that_wait(town: Town) -> None:
    """They look again by time: of 1,000 that wait, 1,000 would be woken by each of 100 that are released."""

    taint = {"key": names.TAINT_UNHEALTHY, "value": "CheckFailed", "effect": "NoSchedule"}
    held = {"type": names.CONDITION_SUSPECTED, "status": "True", "reason": "CordonHeld"}

    def node(index: int, *taints: Object) -> Object:
        status = {"conditions": [] if index == 0 else [held]}
        metadata = {"name": f"node-{index}", "uid": f"n{index}"}
        return {"metadata": metadata, "spec": {"taints": list(taints)}, "status": status}

    for index in range(WORKERS):
        town.put(NODES, node(index, *([] if index else [taint])))
    assert town.put(NODES, node(0))["nodecordon"] == 1


async def test_labels_of_a_finished_check_wake_no_node(town: Town) -> None:
    """A tenant may write them as often as it likes, and there is one worker for all cordons."""
    check = raw_check() | {"metadata": {"name": "c", "namespace": "ops", "uid": "c"}}
    town.put(NAMESPACES, {"metadata": {"name": "ops", "labels": {names.LABEL_MAY_CORDON: "true"}}})
    looks = town.put(NODECHECKS, check)
    assert looks["nodecordon"] and looks["noderecord"]
    labelled = town.put(NODECHECKS, check | {"metadata": check["metadata"] | {"labels": {"a": "b"}}})
    assert not labelled["nodecordon"] and not labelled["noderecord"]
    leaving = check["metadata"] | {"deletionTimestamp": "2026-01-01T13:00:00Z", "finalizers": ["a.b/c"]}
    assert town.put(NODECHECKS, check | {"metadata": leaving})["nodecordon"], "its verdicts count no more"


async def test_each_controller_serves_another_namespace_next_and_checks_of_administrators_first(
    town: Town,
) -> None:
    town.put(NAMESPACES, {"metadata": {"name": "ops", "labels": {names.LABEL_MAY_CORDON: "true"}}})
    for controller in town.manager._controllers:
        for name in (f"evil-{number}" for number in range(3_000)):
            controller.look_at(Request("evil", name))
        controller.look_at(Request("team-a", "theirs"))
        controller.look_at(Request("ops", "theirs"))
        served = [(await controller._queue.get()).namespace for _ in range(3)]
        expected = ["ops", "evil", "team-a"] if controller.name == "nodecheck" else ["evil", "team-a", "ops"]
        assert served == expected, controller.name


async def test_the_page_of_metrics_names_every_controller(town: Town) -> None:
    (named,) = re.findall(
        r"select by `controller`, which is one of (.*?)\.\n", METRICS.read_text(), re.DOTALL
    )
    assert set(re.findall(r"`(\w+)`", named)) == {each.name for each in town.manager._controllers}


async def test_a_cordon_wakes_the_jobs_of_the_workers_on_that_node_alone(town: Town) -> None:
    def node(**spec: Any) -> Object:
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        return {"metadata": {"name": "node-7", "uid": "n7"}, "spec": spec, "status": status}

    town.put(NODES, node())
    assert town.put(NODES, node(unschedulable=True)) == {"evictions": 1, "jobcompanion": 1}
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert (
        not {"evictions", "jobcompanion"} & town.put(NODES, node(unschedulable=True, taints=[taint])).keys()
    )
    assert {"evictions", "jobcompanion"} <= town.put(NODES, node()).keys()


async def test_a_fault_that_a_node_reports_or_reports_no_more_wakes_its_worker(town: Town) -> None:
    ready = {"type": "Ready", "status": "True"}
    faulty = [ready, {"type": "GPUMissing", "status": "True", "message": "GPU 3"}]
    town.put(NODES, {"metadata": {"name": "node-7", "uid": "u7"}, "status": {"conditions": [ready]}})
    for conditions in (faulty, [ready]):
        assert town.update(NODES, "node-7", conditions=conditions)["elasticworker"] == 1
    assert town.update(NODES, "node-7", conditions=[ready | {"lastHeartbeatTime": "now"}]) == {}
