"""What the facts of a cluster mean: a line each, with what to do."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import deploy
from dlr.commands.doctor.facts import ClusterFacts
from dlr.commands.doctor.queues import FRAMEWORK, KueueFacts
from dlr.commands.doctor.verdicts import Level, verdicts
from tests.cli.scripted import JSON

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCUMENTS = deploy.documents()
ESTABLISHED = {"conditions": [{"type": "Established", "status": "True"}]}
ROLLED_OUT = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "observedGeneration": 1}


def deployment(**status: Any) -> JSON:
    (found,) = (copy.deepcopy(each) for each in DOCUMENTS if each["kind"] == "Deployment")
    found["metadata"]["generation"] = 1
    return found | {"status": ROLLED_OUT | status}


def lease(seconds_ago: float = 1.0) -> JSON:
    renewed = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    return {
        "spec": {"holderIdentity": "dlr-controller-x_u", "renewTime": renewed, "leaseDurationSeconds": 15}
    }


def pod(**status: Any) -> JSON:
    return {"metadata": {"name": "p"}, "status": status}


INSTALLED = ClusterFacts(
    server="https://s",
    version={"major": "1", "minor": "33", "gitVersion": "v1.33.2"},
    now=NOW,
    namespace="dlr-system",
    documents=DOCUMENTS,
    controllers=[deployment()],
    lease=lease(),
)
OBJECTS = {topic: INSTALLED.wanted(topic) for topic in ("crds", "admission", "rights")}
OBJECTS["crds"] = {title: each | {"status": ESTABLISHED} for title, each in OBJECTS["crds"].items()}
INSTALLED = replace(INSTALLED, objects=OBJECTS)
EMPTY = replace(INSTALLED, objects={key: {} for key in OBJECTS}, controllers=[], lease=None)
JOBS = "customresourcedefinition.apiextensions.k8s.io/elasticjobs.elastic.iml.github.io"


def with_objects(topic: str, objects: JSON | None, **facts: Any) -> ClusterFacts:
    return replace(INSTALLED, objects=OBJECTS | {topic: objects}, **facts)


def told(facts: ClusterFacts, topic: str) -> list[str]:
    return [f"{line.level}: {line.text}" for line in verdicts(facts) if line.topic == topic]


@pytest.mark.parametrize("facts", [INSTALLED, EMPTY])
def test_a_sound_cluster_is_ok_with_dlr_and_without(facts: ClusterFacts) -> None:
    assert {line.level for line in verdicts(facts)} == {Level.OK}


def a_node(name: str, kubelet: str) -> JSON:
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": "containerd://2.1.3"}
    return {"metadata": {"name": name}, "status": {"nodeInfo": info}}


@pytest.mark.parametrize(
    ("kubelets", "text"),
    [
        ([], "ok: There are no nodes yet."),
        (["v1.36.1"], "ok: Pods whose command is dlr's or torchrun mount its image"),
        (["v1.36.1", "v1.35.4"], "ok: An init container copies it into each Pod"),
    ],
)
def test_how_the_agent_comes_into_pods_is_by_the_nodes(kubelets: list[str], text: str) -> None:
    nodes = [a_node(f"node-{index}", kubelet) for index, kubelet in enumerate(kubelets)]
    (found,) = told(replace(INSTALLED, nodes=nodes), "agent")
    assert found.startswith(text)
    assert ("node-1" in found, "node-0" in found) == (len(kubelets) == 2, False)


@pytest.mark.parametrize(
    ("minor", "level"), [("29", "problem"), ("29+", "problem"), ("30", "ok"), ("36+", "ok"), ("", "ok")]
)
def test_kubernetes_before_1_30_has_no_admission_policies(minor: str, level: str) -> None:
    (text,) = told(replace(INSTALLED, version={"major": "1", "minor": minor, "gitVersion": "v"}), "server")
    assert text.startswith(f"{level}: Kubernetes v at https://s")


def test_what_helm_has_installed_is_mended_by_helm() -> None:
    live = deployment()
    live["metadata"]["annotations"] = {"meta.helm.sh/release-name": "training"}
    facts = replace(INSTALLED, controllers=[live], objects={key: {} for key in OBJECTS})
    texts = [text for topic in OBJECTS for text in told(facts, topic)]
    assert len(texts) == 3 and all("Run `helm upgrade training -n dlr-system`" in text for text in texts)


@pytest.mark.parametrize(
    ("topic", "follows"),
    [("crds", ""), ("admission", "report in another's name"), ("rights", "may not do all that it needs")],
)
def test_what_is_not_there_of_another_version_or_not_to_be_seen(topic: str, follows: str) -> None:
    title, changed = next(iter(OBJECTS[topic])), copy.deepcopy(OBJECTS[topic])
    name = title.partition("/")[2]
    changed[title]["metadata"]["labels"] = {}
    if topic == "crds":
        changed[title]["spec"]["names"]["shortNames"] = ["j"]
    elif topic == "rights":
        changed[title]["rules"].pop()
    (text,) = told(with_objects(topic, changed), topic)
    assert text == f"warn: {name} of another version than this dlr. To have this one's: `dlr install`."
    del changed[title]
    (text,) = told(with_objects(topic, changed), topic)
    assert text.startswith(f"problem: {name} not there") and follows in text
    assert text.endswith(" Run `dlr install`.")
    (text,) = told(with_objects(topic, None, refused={topic: "forbidden"}), topic)
    assert text == "warn: Could not be checked: forbidden"


def test_crds_of_another_operator_or_not_established() -> None:
    foreign = copy.deepcopy(OBJECTS["crds"])
    del foreign[JOBS]["spec"]["names"]["categories"]
    (text,) = told(with_objects("crds", foreign), "crds")
    assert text.startswith(
        "problem: Another operator has defined elasticjobs.elastic.iml.github.io (DLRover's"
    )
    refused = {"type": "NamesAccepted", "status": "False", "message": "ej is taken"}
    waiting = OBJECTS["crds"][JOBS] | {"status": {"conditions": [refused]}}
    (text,) = told(with_objects("crds", OBJECTS["crds"] | {JOBS: waiting}), "crds")
    assert "not established yet: elasticjobs.elastic.iml.github.io (ej is taken)." in text


def test_dlrover_s_operator_is_told_with_how_to_stop_it() -> None:
    operator = {"metadata": {"name": "dlrover-controller-manager", "namespace": "dlrover"}, "spec": {}}
    (text,) = told(replace(EMPTY, operators=[operator]), "dlrover")
    assert text.startswith("problem: ")
    assert "kubectl scale deployment dlrover-controller-manager -n dlrover --replicas=0" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"controllers": [deployment(availableReplicas=1)]},
            "problem: 1 of 2 Pods of the controller are ready.",
        ),
        (
            {"controllers": [deployment(observedGeneration=0)]},
            "problem: 0 of 2 Pods of the controller are ready.",
        ),
        ({"controllers": [deployment(replicas=3)]}, "problem: 2 of 2 Pods of the controller are ready."),
        ({"lease": lease(16.0)}, "problem: The controller's Pods are ready, and none of them leads yet."),
        ({"lease": None}, "problem: The controller's Pods are ready, and none of them leads yet."),
        (
            {"namespace": "x"},
            "warn: Not in namespace x; `dlr install` puts it there. There is one in dlr-system",
        ),
    ],
)
def test_a_controller_that_is_not_ready_or_does_not_lead(change: JSON, says: str) -> None:
    assert told(replace(INSTALLED, **change), "controller")[0].startswith(says)


def test_a_controller_s_pods_say_what_they_wait_for() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    crashing = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    creating = {"waiting": {"reason": "ContainerCreating"}}
    quota = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"}
    facts = replace(
        INSTALLED,
        controllers=[deployment(availableReplicas=0, conditions=[quota])],
        pods=[
            pod(conditions=[unscheduled]),
            pod(containerStatuses=[{"state": crashing}]),
            pod(containerStatuses=[{"state": creating}]),
        ],
    )
    (text,) = told(facts, "controller")
    assert (
        "(CrashLoopBackOff: back-off 10s; exceeded quota: small; not scheduled: 0/3 nodes are available)"
        in text
    )


CONFIGURATION = """
integrations:
  frameworks:
  - "batch/job"
  - "pod"
"""


@pytest.mark.parametrize(
    ("asked", "kueue", "says"),
    [
        (False, None, []),
        (True, None, ["warn: The controller runs with --kueue, and Kueue is not here"]),
        (False, KueueFacts(("v1beta2",)), ["ok: Kueue is here; jobs can wait"]),
        (True, KueueFacts(("v1beta1",)), ["warn: Kueue serves v1beta1, and dlr needs v1beta2"]),
        (True, KueueFacts(("v1beta1", "v1beta2")), ["ok: Jobs with the label"]),
        (
            True,
            KueueFacts(("v1beta2",), CONFIGURATION),
            ["ok: Jobs with", "warn: Kueue's Pod integration is on"],
        ),
        (
            True,
            KueueFacts(("v1beta2",), f"{CONFIGURATION}  externalFrameworks: [{FRAMEWORK}]"),
            ["ok: Jobs with"],
        ),
    ],
)
def test_kueue_is_found_and_what_it_lacks_is_named(
    asked: bool, kueue: KueueFacts | None, says: list[str]
) -> None:
    controller = deployment()
    if asked:
        controller["spec"]["template"]["spec"]["containers"][0]["args"].append("--kueue")
    found = told(replace(INSTALLED, controllers=[controller], kueue=kueue), "kueue")
    assert len(found) == len(says) and all(map(str.startswith, found, says))
