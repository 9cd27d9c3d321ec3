"""Scheduler, kubelets, garbage collection and agents, as functions of the objects in an `Api`.

They remember nothing, so what they do next depends on the API alone: a run of the controller that was killed meets the
same cluster as one that was not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent.facts.world import AgentVerb, Member, WorldView, next_action
from controller.resources import LEASES, NODES, PODS
from crds import names
from crds.agent_report import PROTOCOL, AgentState
from reconcilers.runtime.kinds import ELASTICWORKERS, ELASTICWORLDS, NODECHECKS
from tests.reconcilers.api import Api
from tests.reconcilers.build import BAD, GOOD, outcome

JSON = dict[str, Any]


@dataclass(frozen=True)
class Hang:
    """All of a round stand still: they wait for one of them, and another one loses patience first."""

    round: int
    culprit: int
    first: int


@dataclass(frozen=True)
class Script:
    """What goes wrong, and when training ends. Each is told by what the API says, so that it happens once."""

    process_failures: dict[int, int] = field(default_factory=dict)
    """By index, the number (`sequence`) of the failure in place that it comes to while it trains."""
    pod_failures: dict[tuple[int, int], JSON] = field(default_factory=dict)
    """By index and incarnation, how its first container ends once it trains."""
    hang: Hang | None = None
    ill: frozenset[str] = frozenset()
    """Nodes that fail their local tests."""
    done: bool = False
    """Training is over when everybody trains."""


def act(api: Api, script: Script) -> bool:
    """Whatever everybody does next; whether that was anything."""
    version = api.version
    api.collect_garbage()
    for pod in api.list(PODS):
        _kubelet(api, pod)
    for pod in api.list(PODS):
        if pod["status"]["phase"] == "Running" and not _is_leaving(pod) and _is_alive(api, pod):
            agent(api, pod, script)
    return api.version != version


def renew_leases(api: Api) -> None:
    """Every agent that lives, whenever time passes."""
    for pod in api.list(PODS):
        if pod["status"]["phase"] == "Running" and not _is_leaving(pod) and _is_alive(api, pod):
            _renew_lease(api, pod)


def _renew_lease(api: Api, pod: JSON) -> None:
    worker = pod["metadata"]["ownerReferences"][0]["name"]
    if api.find(LEASES, worker) is not None:
        spec = {"renewTime": f"{api.seconds:.6f}", "holderIdentity": pod["metadata"]["name"]}
        api.patch(LEASES, worker, {"spec": spec})


def add_nodes(api: Api, count: int) -> None:
    for number in range(count):
        api.create(
            NODES,
            {
                "metadata": {"name": f"node-{number}"},
                "status": {
                    "allocatable": {"memory": "64Gi", "cpu": "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )


def lose_node(api: Api, name: str) -> None:
    conditions = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]
    api.patch(NODES, name, {"status": {"conditions": conditions}}, "status")


def _is_leaving(pod: JSON) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _is_alive(api: Api, pod: JSON) -> bool:
    node = api.find(NODES, pod["spec"].get("nodeName") or "")
    return node is not None and _is_ready(node)


def _is_ready(node: JSON) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


# --- scheduler and kubelet ------------------------------------------------------------------------------------


def _kubelet(api: Api, pod: JSON) -> None:
    name = pod["metadata"]["name"]
    if not pod["spec"].get("nodeName"):
        node = _node_for(api, pod)
        if node is not None:
            api.patch(PODS, name, {"spec": {"nodeName": node}})
            scheduled = {"type": "PodScheduled", "status": "True"}
            status = {"phase": "Running", "startTime": api.now(), "conditions": [scheduled]}
            api.patch(PODS, name, {"status": status}, "status")
    elif _is_leaving(pod) and _is_alive(api, pod):
        api.remove(PODS, pod)


def _node_for(api: Api, pod: JSON) -> str | None:
    """Its own, by its index, or the next that it may have: so the order in which Pods come decides nothing."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    terms = required or [{}]
    nodes = [
        node["metadata"]["name"]
        for node in api.list(NODES)
        if _is_ready(node)
        and (not node.get("spec", {}).get("unschedulable") or _is_for_check(pod))
        and any(_fits(node, term.get("matchFields", ())) for term in terms)
    ]
    wishes = [
        (match["operator"], name)
        for wish in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        for match in wish["preference"].get("matchFields", ())
        for name in match["values"]
    ]
    first = int(pod["metadata"]["labels"][names.LABEL_INDEX])
    nodes = nodes[first % len(nodes) :] + nodes[: first % len(nodes)] if nodes else []
    taken = {p["spec"].get("nodeName") for p in api.list(PODS) if p["status"]["phase"] == "Running"}

    def rank(name: str) -> tuple[bool, bool, bool]:
        return ("NotIn", name) in wishes, name in taken, ("In", name) not in wishes

    return min(nodes, key=rank, default=None)


def _is_for_check(pod: JSON) -> bool:
    return names.LABEL_CHECK in pod["metadata"]["labels"]


def _fits(node: JSON, requirements: Any) -> bool:
    name = node["metadata"]["name"]
    return all((name in match["values"]) is (match["operator"] == "In") for match in requirements)


# --- agents ---------------------------------------------------------------------------------------------------


def agent(api: Api, pod: JSON, script: Script) -> None:
    """What the agent in this Pod does next about the world and its check, as its own last report says."""
    worker = api.find(ELASTICWORKERS, pod["metadata"]["ownerReferences"][0]["name"])
    if worker is None:
        return
    spec, incarnation = worker["spec"], int(pod["metadata"]["labels"][names.LABEL_INCARNATION])
    report = worker.get("status", {}).get("agent") or {}
    if report.get("incarnation", 0) > incarnation:
        return  # its successor speaks now
    job = WorldView.parse(api.find(ELASTICWORLDS, spec.get("jobName") or "") or {})
    if report.get("podUid") != pod["metadata"]["uid"]:
        _begin(api, worker, pod, job, Member(spec["index"], incarnation))
        return
    if "checkName" in spec:
        _answer(api, worker, spec["checkName"], script)
        return
    if job.cluster is not None:
        _play_role(api, worker, pod, job, script)
    else:
        _follow_world(api, worker, pod, job, script)


def _follow_world(api: Api, worker: JSON, pod: JSON, job: WorldView, script: Script) -> None:
    """It starts, stops and trains with its world, and takes part in a check meanwhile."""
    spec, report = worker["spec"], worker["status"]["agent"]
    round_, state = report["observedRound"], AgentState(report["state"])
    if job.active_check:
        _answer(api, worker, job.active_check, script)
    action = next_action(job.world, Member(spec["index"], report["incarnation"]), round_, state, job.phase)
    match action.verb:
        case AgentVerb.START:
            _say(api, worker, pod, "Running", action.round or 0)
        case AgentVerb.STAND_BY if job.world is not None and job.world.hangs and state is AgentState.RUNNING:
            if (report.get("failure") or {}).get(
                "round"
            ) != round_:  # else its processes stay until it is judged
                _tell_where_it_hangs(api, worker, pod, script, "Running", round_)
        case AgentVerb.STAND_BY:
            _say(api, worker, pod, "Ready", action.round or 0)
        case AgentVerb.EXIT:
            _end_pod(api, pod, {"exitCode": 0, "reason": "Completed"})
        case AgentVerb.WAIT if state is AgentState.RUNNING:
            _train(api, worker, pod, script)


def _begin(api: Api, worker: JSON, pod: JSON, job: WorldView, me: Member) -> None:
    """It looks at the world before it reports."""
    if job.world is not None and job.world.has_replaced(me):
        _end_pod(api, pod, {"exitCode": 0, "reason": "Completed"})
        return
    _renew_lease(api, pod)
    _say(api, worker, pod, "Ready", 0, failure=None)


def _play_role(api: Api, worker: JSON, pod: JSON, job: WorldView, script: Script) -> None:
    """Its command runs as the task that it has; the chief's starts anew with each version of the cluster."""
    type_, report, cluster = worker["spec"]["type"], worker["status"]["agent"], job.cluster
    assert cluster is not None
    if job.phase in ("Succeeded", "Failed", "Suspended"):
        _end_pod(api, pod, {"exitCode": 0, "reason": "Completed"})
    elif cluster.place(type_, worker["spec"]["index"]) is None or report["state"] == "Succeeded":
        return
    elif report["state"] != "Running" or (
        type_ == names.CHIEF and report["observedRound"] != cluster.version
    ):
        _say(api, worker, pod, "Running", cluster.version)
    elif script.done and type_ == names.CHIEF:
        _say(api, worker, pod, "Succeeded", cluster.version)


def _train(api: Api, worker: JSON, pod: JSON, script: Script) -> None:
    """Nothing happens before everybody in the world trains."""
    index, report = worker["spec"]["index"], worker["status"]["agent"]
    world = WorldView.parse(api.get(ELASTICWORLDS, worker["spec"]["jobName"])).world
    assert world is not None
    for member in world.members:
        peer = api.find(ELASTICWORKERS, f"{worker['spec']['jobName']}-worker-{member.index}")
        said = ((peer or {}).get("status") or {}).get("agent") or {}
        if (said.get("state"), said.get("observedRound")) not in (
            ("Running", world.round),
            ("Succeeded", world.round),
        ):
            return
    if script.hang is not None and script.hang.round == world.round:
        if index == script.hang.first:
            _tell_where_it_hangs(api, worker, pod, script, "Failed", world.round)
        return
    sequence = script.process_failures.get(index, 0)
    ending = script.pod_failures.get((index, worker["spec"]["incarnation"]))
    if sequence > ((report.get("failure") or {}).get("sequence") or 0):
        failure = {"sequence": sequence, "round": world.round, "rank": index, "exitCode": 1}
        failure |= {"message": f"ValueError: no. {sequence}", "time": api.now()}
        _say(api, worker, pod, "Failed", world.round, failure=failure)
    elif ending is not None:
        _end_pod(api, pod, ending)
    elif script.done:
        _say(api, worker, pod, "Succeeded", world.round)


def _tell_where_it_hangs(api: Api, worker: JSON, pod: JSON, script: Script, state: str, round_: int) -> None:
    index, last = worker["spec"]["index"], worker["status"]["agent"].get("failure") or {}
    waits = script.hang is None or index != script.hang.culprit
    place = "in all_reduce" if waits else "in read_cache"
    failure = {
        "sequence": last.get("sequence", 0) + 1,
        "round": round_,
        "rank": index,
        "exitCode": None,
        "cause": "Hang",
        "message": f"no step for 11 s: rank {index} is {place}",
        "stacks": [{"rank": index, "inCollective": waits, "frames": place}],
        "time": api.now(),
    }
    _say(api, worker, pod, state, round_, failure=failure)


def _end_pod(api: Api, pod: JSON, terminated: JSON) -> None:
    phase = "Failed" if terminated["exitCode"] else "Succeeded"
    container = {"name": pod["spec"]["containers"][0]["name"], "state": {"terminated": terminated}}
    status = {"phase": phase, "containerStatuses": [container]}
    api.patch(PODS, pod["metadata"]["name"], {"status": status}, "status")


def _say(api: Api, worker: JSON, pod: JSON, state: str, observed_round: int, **more: Any) -> None:
    index = worker["spec"]["index"]
    report = {
        "incarnation": int(pod["metadata"]["labels"][names.LABEL_INCARNATION]),
        "podUid": pod["metadata"]["uid"],
        "address": f"10.0.0.{index + 1}",
        "storePort": 20_000,
        "localWorldSize": 1,
        "protocol": PROTOCOL,
        "observedRound": observed_round,
        "state": state,
        "since": api.now(),
        "accelerators": {"kind": "cpu", "count": 2, "model": "a CPU"},
    }
    if names.LABEL_GROUPED_JOB in pod["metadata"]["labels"] and state == "Running":
        report["replicas"] = {"round": observed_round}  # its processes are ready to take part at once
    _patch_report(api, worker, report | more)


def _patch_report(api: Api, worker: JSON, report: JSON) -> None:
    api.patch(ELASTICWORKERS, worker["metadata"]["name"], {"status": {"agent": report}}, "status")


def _answer(api: Api, worker: JSON, name: str, script: Script) -> None:
    """What the check that is published asks of this worker's node, if it has not told that already."""
    check = api.find(NODECHECKS, name)
    status = (check or {}).get("status", {})
    if check is None or status.get("phase") != "Running" or worker["spec"]["index"] not in status["workers"]:
        return
    node = status["nodes"][status["workers"].index(worker["spec"]["index"])]
    said = worker["status"]["agent"].get("check") or {}
    uid = check["metadata"]["uid"]
    local, pairs = (said["local"], said["pairs"]) if said.get("uid") == uid else ([], [])
    if not status["round"]:
        if local or node in status.get("reused", ()):
            return
        local = BAD if node in script.ill else GOOD
    else:
        asked = any(node in group["members"] for group in status["groups"])
        if not asked or any(pair["round"] == status["round"] for pair in pairs):
            return
        pairs = [*pairs, outcome("pair", round=status["round"], figures={})]
    _patch_report(api, worker, {"check": {"uid": uid, "local": local, "pairs": pairs}})
