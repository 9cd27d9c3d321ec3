"""Scheduler, kubelets and agents of virtual_cluster.py, which react to objects at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.facts.world import AgentWorld
from benchmarks.virtual_cluster import CONTROLLER, ApiServer, Collection, now, wall_time
from benchmarks.virtual_time import running_loop
from controller.resources import LEASES, NODES, PODS, Object
from crds import names
from crds.agent_report import PROTOCOL, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.phases import RendezvousPhase
from reconcilers.observed.options import AgentSource
from reconcilers.runtime.kinds import ELASTICWORKERS, ELASTICWORLDS, NODECHECKS
from reconcilers.worker.injection import inject_agent
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.worker.silences import lease_of

PODS_A_SECOND = 300.0
"""Rate at which the scheduler binds Pods, as kube-scheduler does with little to weigh."""
AGENT_START_SECONDS = 1.0
POD_STOP_SECONDS = 1.0
RESTART_SECONDS = 1.0
"""Time after a new world within which all agents have reported it, evenly spread."""
NODE_MEMORY = "64Gi"
ONE_BAD_NODE_IN = 100
LOCAL = [
    {"probe": "gemm", "ending": "Passed", "figures": {"gemm_bf16_tflops": 652.3}, "seconds": 9.1},
    {"probe": "copies", "ending": "Passed", "figures": {"host_to_device_gbps": 54.3}, "seconds": 6.0},
    {"probe": "intra_node", "ending": "Passed", "figures": {"intra_node_bus_gbps": 370.5}, "seconds": 11.4},
]
"""Results of a check's local tests, the same for every agent."""
FIGURES = {"pair_bus_gbps": 45.2, "pair_latency_us": 28.3}
PAIR = {"probe": "pair", "ending": "Passed", "figures": FIGURES, "seconds": 8.0}
FAILED = {"probe": "pair", "ending": "Failed", "reason": "connection lost", "seconds": 8.0}


def add_nodes(server: ApiServer, count: int) -> None:
    """Add one node per worker: a worker with eight GPUs has its own node."""
    for index in range(count):
        status = {
            "allocatable": {"memory": NODE_MEMORY, "cpu": "96", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        server.create(NODES, {"metadata": {"name": f"node-{index}"}, "status": status}, "kubelet")


@dataclass(frozen=True)
class _World:
    """World as a job's agents see it."""

    round: int = 0
    phase: RendezvousPhase = RendezvousPhase.FORMING
    members: Mapping[int, int] = field(default_factory=dict)
    """Incarnations by index."""


@dataclass
class _Agent:
    job: str
    index: int
    incarnation: int
    pod_uid: str
    state: AgentState | None = None
    observed_round: int = 0
    check: Object | None = None


class VirtualNodes:
    """Runs every Pod, each worker's on its own node, with an agent in each.

    In a NodeCheck every agent answers at once, and the agent of every hundredth node fails all tests with
    partners.
    """

    def __init__(self, server: ApiServer, nodes: int) -> None:
        self.agents: dict[str, _Agent] = {}
        """Agents by worker."""
        self.worlds = 0
        """Number of formed rounds."""
        self._server = server
        self._nodes = nodes
        self._worlds: defaultdict[str, _World] = defaultdict(_World)
        """Worlds by job."""
        self._bound_at = 0.0
        self._asked = 0
        self._answers: defaultdict[str, list[Object]] = defaultdict(list)
        """Answers to the rounds of the check, by worker."""
        server.listeners.append(self._hear)

    def all_in(self, state: AgentState, count: int) -> bool:
        """Return whether at least `count` agents are in that state, in their job's newest round."""
        rounds = {job: world.round for job, world in self._worlds.items()}
        found = sum(a.state is state and a.observed_round == rounds.get(a.job) for a in self.agents.values())
        return found >= count

    def end_pod(self, worker: str, reason: str, exit_code: int) -> None:
        """End a Pod's only container, as the kernel would."""
        with running_loop().outside():
            pod = f"{worker}-{self.agents.pop(worker).incarnation}"
            terminated = {"exitCode": exit_code, "reason": reason, "finishedAt": wall_time()[:19] + "Z"}
            status = {
                "phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}],
            }
            self._server.patch(PODS, pod, {"status": status}, "status", "kubelet")

    def place(self, job: ElasticJob, worker: Object) -> None:
        """Create a worker with a Pod, a Lease and a ready agent, as if they had been created step by step."""
        server, name = self._server, worker["metadata"]["name"]
        made = server.create(ELASTICWORKERS, worker, CONTROLLER)
        parsed = ElasticWorker.model_validate(made)
        lease = lease_of(parsed, None, job.spec.elastic_policy.heartbeat_timeout_seconds, now())
        server.create(LEASES, lease, CONTROLLER)
        pod, index = build_job_pod(job, parsed), parsed.spec.index
        inject_agent(pod, AgentSource())
        pod["spec"]["nodeName"] = f"node-{index % self._nodes}"
        uid = server.create(PODS, pod, CONTROLLER)["metadata"]["uid"]
        server.patch(PODS, pod["metadata"]["name"], {"status": _running()}, "status", "kubelet")
        status = {
            "observedIncarnation": 1,
            "phase": "Running",
            "podName": pod["metadata"]["name"],
            "podUid": uid,
            "nodeName": pod["spec"]["nodeName"],
        }
        server.patch(ELASTICWORKERS, name, {"status": status}, "status", CONTROLLER)
        self.agents[name] = agent = _Agent(job.metadata.name, index, 1, uid)
        self._report(name, agent, AgentState.READY, 0)

    def renew(self, worker: str) -> None:
        """Renew an agent's Lease."""
        spec = {"holderIdentity": f"{worker}-{self.agents[worker].incarnation}", "renewTime": wall_time()}
        self._server.patch(LEASES, worker, {"spec": spec})

    def _hear(self, collection: Collection, obj: Object, is_new: bool, is_gone: bool) -> None:
        if collection == ELASTICWORLDS.plural:
            self._read_world(obj)
        elif collection == NODECHECKS.plural:
            self._read_check(obj)
        elif collection == PODS.plural and is_new and "nodeName" not in obj["spec"]:
            self._bound_at = max(self._bound_at, running_loop().time()) + 1 / PODS_A_SECOND
            self._later(self._bound_at - running_loop().time(), self._start, obj)
        elif collection == PODS.plural and (is_gone or obj["metadata"].get("deletionTimestamp")):
            self._stop(obj, is_gone)

    def _later(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        def acted() -> None:
            with running_loop().outside():
                act(*arguments)

        running_loop().call_later(seconds, acted)

    # --- Pods ---------------------------------------------------------------------------------------------

    def _start(self, pod: Object) -> None:
        metadata = pod["metadata"]
        labels, name = metadata["labels"], metadata["name"]
        bound = {"spec": {"nodeName": f"node-{int(labels[names.LABEL_INDEX]) % self._nodes}"}}
        if self._server.patch(PODS, name, bound, manager="kube-scheduler") is None:
            return
        self._server.patch(PODS, name, {"status": _running()}, "status", "kubelet")
        index, incarnation = int(labels[names.LABEL_INDEX]), int(labels[names.LABEL_INCARNATION])
        agent = _Agent(labels.get(names.LABEL_JOB, ""), index, incarnation, metadata["uid"])
        worker = name.rpartition("-")[0]
        self.agents[worker] = agent
        self._later(AGENT_START_SECONDS, self._join, worker, agent)

    def _stop(self, pod: Object, is_gone: bool) -> None:
        worker = pod["metadata"]["name"].rpartition("-")[0]
        agent = self.agents.get(worker)
        if agent is not None and agent.pod_uid == pod["metadata"]["uid"]:
            del self.agents[worker]
        if not is_gone:
            self._later(POD_STOP_SECONDS, self._server.remove, PODS, pod["metadata"]["name"])

    # --- agents -------------------------------------------------------------------------------------------

    def _read_world(self, world: Object) -> None:
        name, found = world["metadata"]["name"], AgentWorld.parse(world["spec"])
        before = self._worlds[name]
        if found is None or (found.round, found.phase) == (before.round, before.phase):
            return
        self.worlds += found.round != before.round
        members = {member.index: member.incarnation for member in found.members}
        self._worlds[name] = _World(found.round, found.phase, members)
        followers = [(worker, agent) for worker, agent in self.agents.items() if agent.job == name]
        for number, (worker, agent) in enumerate(followers):
            self._later(RESTART_SECONDS * number / len(followers), self._follow, worker, agent)

    def _join(self, worker: str, agent: _Agent) -> None:
        if self.agents.get(worker) is agent:
            self._report(worker, agent, AgentState.READY, 0)
            self._follow(worker, agent)

    def _follow(self, worker: str, agent: _Agent) -> None:
        """Act as `agent.facts.world.next_action` does, without a search per worker."""
        if self.agents.get(worker) is not agent or agent.state is None:
            return
        world = self._worlds[agent.job]
        is_member = world.members.get(agent.index) == agent.incarnation
        if world.phase is RendezvousPhase.FORMED and is_member:
            if world.round > agent.observed_round:
                self._report(worker, agent, AgentState.RUNNING, world.round)
        elif world.round > agent.observed_round or agent.state is AgentState.RUNNING:
            self._report(worker, agent, AgentState.READY, world.round)

    def _read_check(self, check: Object) -> None:
        status = check.get("status") or {}
        if status.get("phase") != "Running" or status["round"] < self._asked:
            return
        self._asked = status["round"] + 1
        asked = [(node, status["groups"]) for node in status["nodes"]]
        if status["round"]:
            asked = [(node, group["members"]) for group in status["groups"] for node in group["members"]]
        index = {node: number for number, node in enumerate(status["nodes"])}
        bad = {f"node-{index}" for index in range(0, self._nodes, ONE_BAD_NODE_IN)}
        for number, (node, members) in enumerate(asked):
            passed = not status["round"] or bad.isdisjoint(members)
            worker = f"{check['metadata']['name']}-check-{index[node]}"
            self._later(RESTART_SECONDS * number / len(asked), self._answer, check, worker, passed)

    def _answer(self, check: Object, worker: str, passed: bool) -> None:
        agent, round_ = self.agents[worker], check["status"]["round"]
        if round_:
            self._answers[worker].append({"round": round_, **(PAIR if passed else FAILED)})
        agent.check = {"uid": check["metadata"]["uid"], "local": LOCAL, "pairs": self._answers[worker]}
        self._report(worker, agent, AgentState.READY, 0)

    def _report(self, worker: str, agent: _Agent, state: AgentState, observed_round: int) -> None:
        agent.state, agent.observed_round = state, observed_round
        report = _report_of(agent)
        self._server.patch(ELASTICWORKERS, worker, {"status": {"agent": report}}, "status", "agent")


def _running() -> Object:
    """Return a Pod's status, as its kubelet writes it."""
    at = wall_time()[:19] + "Z"
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "startTime": at,
        "conditions": [{"type": type_, "status": "True", "lastTransitionTime": at} for type_ in conditions],
        "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}],
    }


def _report_of(agent: _Agent) -> Object:
    """Return an agent's report of realistic length."""
    return {
        "incarnation": agent.incarnation,
        "podUid": agent.pod_uid,
        "address": f"10.{agent.index // 62_500}.{agent.index // 250 % 250}.{agent.index % 250 + 1}",
        "storePort": 29_400,
        "protocol": PROTOCOL,
        "localWorldSize": 8,
        "observedRound": agent.observed_round,
        "state": agent.state,
        "since": wall_time(),
        "accelerators": {"kind": "nvidia", "count": 8, "model": "NVIDIA H100 80GB HBM3"},
        "progress": {"step": 1_000 * agent.observed_round, "checkpointStep": 0, "time": wall_time()},
        "usage": {"cpuCores": 11.25, "memoryPeakBytes": 123_456_789_012},
        **({} if agent.check is None else {"check": agent.check}),
    }
