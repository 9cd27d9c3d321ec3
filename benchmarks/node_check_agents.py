"""The agents of node_check.py: all that the agent of a check's Pod tells and hears, with answers at once."""

import asyncio
import contextlib
import random
from collections.abc import Sequence

import orjson

from benchmarks.hollow_agents import NAMESPACE, STORE_PORT, WATCH_SECONDS, wall_time
from controller.client import Client
from controller.errors import ApiError, Unavailable
from controller.resources import (
    LEASES,
    PODS,
    Object,
    Resource,
)
from controller.store import Change
from crds import names
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS

RETRY_SECONDS = 1.0

LOCAL = [
    {"probe": "device_state", "ending": "Passed", "figures": {"gpu_count": 8.0}, "seconds": 1.2},
    {
        "probe": "gemm",
        "ending": "Passed",
        "figures": {"gemm_bf16_tflops": 652.3, "gemm_fp16_tflops": 660.1, "gemm_fp32_tflops": 51.2},
        "seconds": 9.1,
    },
    {
        "probe": "copies",
        "ending": "Passed",
        "figures": {"host_to_device_gbps": 54.3, "device_to_host_gbps": 53.2},
        "seconds": 6.0,
    },
    {"probe": "intra_node", "ending": "Passed", "figures": {"intra_node_bus_gbps": 370.5}, "seconds": 11.4},
]
PAIR = {
    "probe": "pair",
    "ending": "Passed",
    "figures": {"pair_algorithm_gbps": 45.2, "pair_bus_gbps": 45.2, "pair_latency_us": 28.3},
    "seconds": 8.0,
}
FAILED = {"probe": "pair", "ending": "Failed", "reason": "connection lost", "seconds": 8.0}


class Agent:
    """The protocol's part of one agent."""

    def __init__(self, client: Client, pod: Object, bad: frozenset[str], heartbeat_seconds: float) -> None:
        self._client = client
        self._bad = bad
        self._pod = pod["metadata"]
        self._name = self._pod["name"].rpartition("-")[0]
        self._index = int(self._pod["labels"][names.LABEL_INDEX])
        self._heartbeat_seconds = heartbeat_seconds
        self._local: list[Object] = []
        self._pairs: list[Object] = []

    async def report_ready(self) -> None:
        report = {
            "incarnation": 1,
            "podUid": self._pod["uid"],
            "address": f"127.77.{self._index // 250}.{self._index % 250 + 1}",
            "storePort": STORE_PORT,
            "localWorldSize": 1,
            "state": "Ready",
            "since": wall_time(),
            "accelerators": {"kind": "nvidia", "count": 8, "model": "hollow"},
        }
        await self._report(report)

    async def beat(self) -> None:
        await asyncio.sleep(random.uniform(0, self._heartbeat_seconds))
        while True:
            spec = {"holderIdentity": self._pod["name"], "renewTime": wall_time()}
            with contextlib.suppress(ApiError):
                await self._client.patch(LEASES, self._name, {"spec": spec}, NAMESPACE)
            await asyncio.sleep(self._heartbeat_seconds)

    async def act(self, check: Object) -> None:
        """Answer what the check asks for, if it has not been answered yet."""
        status = check.get("status", {})
        if status.get("phase") != "Running":
            return
        node = status["nodes"][self._index]
        round_ = status["round"]
        if round_ == 0 and not self._local:
            self._local = LOCAL
        elif round_ and all(pair["round"] != round_ for pair in self._pairs):
            group = next((g["members"] for g in status["groups"] if node in g["members"]), None)
            if group is None:
                return
            self._pairs.append({"round": round_, **(FAILED if self._bad.intersection(group) else PAIR)})
        else:
            return
        await self._report(
            {"check": {"uid": check["metadata"]["uid"], "local": self._local, "pairs": self._pairs}}
        )

    async def _report(self, report: Object) -> None:
        await _patch(self._client, ELASTICWORKERS, self._name, {"agent": report})


class HollowPods:
    """Calls Pods Running as they appear, and lets an agent live in each."""

    def __init__(
        self, kubelet: Client, agents: Client, check: str, bad: frozenset[str], heartbeat_seconds: float
    ) -> None:
        self.watches = 0
        self._kubelet = kubelet
        self._client = agents
        self._check = check
        self._bad = bad
        self._heartbeat_seconds = heartbeat_seconds
        self._appeared: asyncio.Queue[Object] = asyncio.Queue()
        self._last: tuple[bytes, Object] | None = None

    def handle(self, change: Change) -> None:
        if change.old is None and change.new is not None:
            self._appeared.put_nowait(change.new)

    async def run(self, agents_per_watch: int) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            sharing: list[Agent] = []
            while True:
                pod = await self._appeared.get()
                agent = Agent(self._client, pod, self._bad, self._heartbeat_seconds)
                if len(sharing) % agents_per_watch == 0:
                    sharing = []
                    tasks.create_task(self._follow(sharing))
                    self.watches += 1
                sharing.append(agent)
                tasks.create_task(self._start(pod, agent))
                tasks.create_task(agent.beat())

    async def _start(self, pod: Object, agent: Agent) -> None:
        status = {"phase": "Running", "podIP": "127.77.0.1", "startTime": wall_time()[:19] + "Z"}
        await _patch(self._kubelet, PODS, pod["metadata"]["name"], status)
        await agent.report_ready()

    async def _follow(self, agents: Sequence[Agent]) -> None:
        """Follow the check as agents do, for as long as it lasts, whatever the server does."""
        while True:
            with contextlib.suppress(ApiError):
                await self._list_and_watch(agents)
            await asyncio.sleep(RETRY_SECONDS)

    async def _list_and_watch(self, agents: Sequence[Agent]) -> None:
        selector = f"metadata.name={self._check}"
        body = await self._client.list(NODECHECKS, NAMESPACE, field_selector=selector)
        for check in body["items"]:
            await _tell(agents, check)
        async with self._client.watch(
            NODECHECKS,
            NAMESPACE,
            resource_version=body["metadata"]["resourceVersion"],
            timeout_seconds=WATCH_SECONDS,
            field_selector=selector,
        ) as stream:
            while (lines := await stream.lines(WATCH_SECONDS)) is not None:
                for event in map(self._parsed, filter(None, lines)):
                    if event["type"] == "MODIFIED":
                        await _tell(agents, event["object"])

    def _parsed(self, line: bytes) -> Object:
        """Once for all agents, who parse it on machines of their own otherwise."""
        if self._last is None or self._last[0] != line:
            self._last = (line, orjson.loads(line))
        return self._last[1]


async def _patch(client: Client, resource: Resource, name: str, status: Object) -> None:
    while True:
        try:
            await client.patch(resource, name, {"status": status}, NAMESPACE, subresource="status")
            return
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)


async def _tell(agents: Sequence[Agent], check: Object) -> None:
    await asyncio.gather(*(agent.act(check) for agent in list(agents)))
