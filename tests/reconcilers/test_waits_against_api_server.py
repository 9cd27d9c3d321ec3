"""What a job waits for stands on it, in one sentence, on the real API server; and edits that wait for the next Pods."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controller.resources import EVENTS, PODS
from reconcilers.observed import start
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.cluster import NAMESPACE, Hollow
from tests.reconcilers.test_refused_pods_against_api_server import condition, no_warning, told, warning

pytestmark = pytest.mark.real

SINCE = r"1 Pod cannot {0}: {2} \({1}-worker-0, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\)"
JSON = dict[str, Any]


async def pod(hollow: Hollow, name: str) -> JSON:
    made: JSON = await hollow.until(
        "its Pod", lambda: hollow.client.get(PODS, f"{name}-worker-0-1", NAMESPACE)
    )
    return made


def waiting(reason: str, message: str) -> JSON:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("image", "ErrImagePull", "registry/x: not found"),
        ("secret", "CreateContainerConfigError", 'secret "creds" not found'),
        ("settings", "CreateContainerConfigError", 'configmap "settings" not found'),
        ("odd", "InvalidImageName", 'couldn\'t parse image name "X"'),
    ],
)
async def test_a_container_that_cannot_start_is_told_on_the_job(
    hollow: Hollow, name: str, reason: str, message: str
) -> None:
    await hollow.submit(name, replicas=1)
    await pod(hollow, name)
    await hollow.pod_status(f"{name}-worker-0-1", {"containerStatuses": [waiting(reason, message)]})
    said = (await warning(hollow, name, "WorkersNotStarted"))["message"]
    assert re.match(SINCE.format("start", name, re.escape(f"main: {reason}: {message}")), said), said
    known = "ImagePullBackOff" if reason == "ErrImagePull" else reason
    await hollow.until("an Event", lambda: told(hollow, name, [known]))
    await hollow.run_agent(f"{name}-worker-0")
    await condition(hollow, name, "WorkersReady", "True")
    await no_warning(hollow, name, "WorkersNotStarted")


async def test_a_missing_volume_is_told_on_the_job_though_only_an_event_says_so(
    hollow: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "LATE_SECONDS", 0.5)
    monkeypatch.setattr(start, "AGAIN_SECONDS", 0.5)
    monkeypatch.setattr(start, "ASK_AFTER_SECONDS", (0.1,))
    placed = {"spec": {"nodeName": "node-0", "containers": [{"name": "main", "image": "x"}]}}
    await hollow.submit("volume", replicas=1, worker={"template": placed})
    about = await pod(hollow, "volume")
    why = 'MountVolume.SetUp failed for volume "data": secret "creds" not found'
    await hollow.client.create(
        EVENTS,
        {
            "metadata": {"name": "mount", "namespace": NAMESPACE},
            "involvedObject": {
                "kind": "Pod",
                "name": "x",
                "namespace": NAMESPACE,
                "uid": about["metadata"]["uid"],
            },
            "type": "Warning",
            "reason": "FailedMount",
            "source": {"component": "kubelet"},
            "message": why,
        },
    )
    found = await warning(hollow, "volume", "WorkersNotStarted")
    assert found["reason"] == "FailedMount"
    assert re.match(SINCE.format("start", "volume", re.escape(why)), found["message"])


async def test_pods_without_a_node_say_since_when(hollow: Hollow) -> None:
    await hollow.submit("unplaced", replicas=1)
    await pod(hollow, "unplaced")
    why = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    await hollow.pod_status("unplaced-worker-0-1", {"conditions": [unplaced]})
    first = await warning(hollow, "unplaced", "WorkersUnscheduled")
    assert re.match(SINCE.format("be scheduled", "unplaced", re.escape(why)), first["message"])


async def test_a_job_of_no_replicas_says_what_it_is(hollow: Hollow) -> None:
    await hollow.submit("none", replicas=0)
    said = await condition(hollow, "none", "Running", "False")
    assert said["reason"] == "NoReplicas" and said["message"].startswith(
        "replicas is 0, so the job has no Pods"
    )
    await hollow.until("an Event", lambda: told(hollow, "none", ["NoReplicas"]))
    more = {"spec": {"replicaSpecs": {"worker": {"replicas": 1}}}}
    await hollow.client.patch(ELASTICJOBS, "none", more, NAMESPACE)
    await hollow.run_agent("none-worker-0")
    assert (await condition(hollow, "none", "Running", "True"))["message"] == ""


async def test_an_edit_that_waits_for_the_next_pods_says_so_until_all_have_it(hollow: Hollow) -> None:
    await hollow.train("command")
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["other"]}]}}
    patch = {"spec": {"replicaSpecs": {"worker": {"template": template}}}}
    await hollow.client.patch(ELASTICJOBS, "command", patch, NAMESPACE)
    said = (await warning(hollow, "command", "TemplateChanged"))["message"]
    assert said.startswith("2 of 2 Pods were made before the template was changed")
    await hollow.until("an Event", lambda: told(hollow, "command", ["TemplateChanged"]))
    for index in (0, 1):
        await hollow.delete_pod(f"command-worker-{index}-1")
    for index in (0, 1):
        await hollow.run_agent(f"command-worker-{index}", incarnation=2)
    await no_warning(hollow, "command", "TemplateChanged")
