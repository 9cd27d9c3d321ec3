"""The agents of hollow.py: everything an in-pod agent tells and hears, and nothing it would run.

Pods go to no node: a hollow kubelet calls each Running as soon as it exists.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import orjson

from controller.client import Client
from controller.errors import ApiError, Unavailable
from controller.resources import LEASES, PODS, Object
from controller.store import Change
from crds import names
from crds.agent_report import PROTOCOL
from crds.ranges import from_text
from reconcilers.runtime.kinds import ELASTICWORKERS, ELASTICWORLDS

NAMESPACE = "default"
STORE_PORT = 29_400
STEP_TIMEOUT_SECONDS = 900.0
ODD_INDEX = 37
"""Who is asked for stacks reads a batch here; all others wait for it."""
READS = """\
torch/utils/data/dataloader.py:61 in fetch: return self.dataset[index]
work/loader.py:31 in __getitem__: return read(self.files[index])
work/train.py:84 in main: for batch in loader:
work/train.py:120 in <module>: main()"""
WAITS = """\
torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()
torch/distributed/c10d_logger.py:83 in wrapper: return func(*args, **kwargs)
work/train.py:88 in main: dist.all_reduce(loss)
work/train.py:120 in <module>: main()"""
WATCH_SECONDS = 600
WRITES = ("POST", "PUT", "PATCH", "DELETE")


def now() -> float:
    return asyncio.get_running_loop().time()


def wall_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Writes:
    """Counts the writes that go through a client."""

    def __init__(self, client: Client) -> None:
        self.count = 0
        client.observers.append(self._observe)

    def _observe(self, method: str, status: int | None) -> None:
        self.count += method in WRITES


class Sightings:
    """When each agent first saw each round it is in; wakes whoever waits for all of them."""

    def __init__(self, agents: int) -> None:
        self.bytes = 0
        """Of the world, sent to all of them; the bookmark of each watch, once a minute, is not counted."""
        self._last: tuple[bytes, Object] = (b"", {})
        self._agents = agents
        self._seen: dict[int, dict[int, float]] = {}
        self._news = asyncio.Event()

    def note(self, round_: int, index: int) -> None:
        self._seen.setdefault(round_, {}).setdefault(index, now())
        self._news.set()

    def read(self, line: bytes) -> Object:
        """A watch event: parsed once for all agents, each of which has a processor of its own elsewhere."""
        if self._last[0] != line:
            self._last = (line, orjson.loads(line))
        event = self._last[1]
        if event["type"] != "BOOKMARK":
            self.bytes += len(line)
        return event

    async def by_all(self, round_: int) -> list[float]:
        """The times, in order, once every agent has seen the round."""
        async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
            while len(self._seen.get(round_, {})) < self._agents:
                self._news.clear()
                await self._news.wait()
        return sorted(self._seen[round_].values())


class Agent:
    """The protocol's part of one in-pod agent."""

    def __init__(self, client: Client, pod: Object, sightings: Sightings, heartbeat_seconds: float) -> None:
        labels = pod["metadata"]["labels"]
        self.index = self.number = int(labels[names.LABEL_INDEX])
        self.running = asyncio.Event()
        """Set while the last round seen is also reported as Running."""
        self._client = client
        self._job = labels[names.LABEL_JOB]
        self._name = pod["metadata"]["name"].rpartition("-")[0]
        self._namespace = pod["metadata"]["namespace"]
        self._pod = pod["metadata"]
        self._incarnation = int(labels[names.LABEL_INCARNATION])
        self._sightings = sightings
        self._heartbeat_seconds = heartbeat_seconds
        self._round = 0
        self._failures = 0
        self._answered = ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._follow(self._job, self._sightings, self._act))

    async def report_ready(self) -> None:
        await self._report("Ready")

    async def report_failure(self) -> None:
        self._failures += 1
        failure = {
            "sequence": self._failures,
            "round": self._round,
            "rank": self.index,
            "localRank": 0,
            "exitCode": -9,
            "signal": "SIGKILL",
            "message": "hollow",
            "time": wall_time(),
        }
        await self._report("Failed", failure)

    async def report_steps(self, step: int, checkpoint: int) -> None:
        """What an agent tells of a round that goes on; steps began with 0."""
        told = {"round": self._round, "firstStep": 0, "lastStep": step, "steppingSeconds": step / 10}
        agent = {
            "progress": {"step": step, "checkpointStep": checkpoint, "time": wall_time()},
            "rounds": [told],
            "usage": {"cpuCores": round(random.uniform(1, 2), 3), "memoryPeakBytes": random.randrange(2**30)},
        }
        await self._tell(agent)

    async def _report(self, state: str, failure: Object | None = None) -> None:
        agent = {
            "incarnation": self._incarnation,
            "podUid": self._pod["uid"],
            "address": f"127.77.{self.index // 250}.{self.index % 250 + 1}",
            "storePort": STORE_PORT,
            "localWorldSize": 1,
            "protocol": PROTOCOL,
            "observedRound": self._round,
            "state": state,
            "since": wall_time(),
            "accelerators": {"kind": "cpu", "count": 1, "model": "hollow"},
        }
        if failure is not None:
            agent["failure"] = failure
        await self._tell(agent)

    async def _answer(self, request: str) -> None:
        odd = self.index == ODD_INDEX
        stack = {"rank": self.index, "step": 800, "inCollective": not odd, "frames": READS if odd else WAITS}
        await self._tell({"askedStacks": {"request": request, "time": wall_time(), "stacks": [stack]}})
        self._answered = request

    async def _tell(self, agent: Object) -> None:
        patch = {"status": {"agent": agent}}
        while True:
            with contextlib.suppress(Unavailable):
                await self._client.patch(
                    ELASTICWORKERS, self._name, patch, self._namespace, subresource="status"
                )
                return
            await asyncio.sleep(random.uniform(0, 1))

    async def _beat(self) -> None:
        await asyncio.sleep(random.uniform(0, self._heartbeat_seconds))
        while True:
            spec = {"holderIdentity": self._pod["name"], "renewTime": wall_time()}
            with contextlib.suppress(ApiError):
                await self._client.patch(LEASES, self._name, {"spec": spec}, self._namespace)
            await asyncio.sleep(self._heartbeat_seconds)

    async def _follow(
        self, name: str, sightings: Sightings, act: Callable[[Object], Awaitable[None]]
    ) -> None:
        """Watch an ElasticWorld, also after failures: on a busy machine an answer may come too late."""
        while True:
            with contextlib.suppress(ApiError):
                await self._follow_once(name, sightings, act)
            await asyncio.sleep(random.uniform(0, 1))

    async def _follow_once(
        self, name: str, sightings: Sightings, act: Callable[[Object], Awaitable[None]]
    ) -> None:
        selector = f"metadata.name={name}"
        while True:
            body = await self._client.list(ELASTICWORLDS, self._namespace, field_selector=selector)
            for world in body["items"]:
                await act(world["spec"])
            async with self._client.watch(
                ELASTICWORLDS,
                self._namespace,
                resource_version=body["metadata"]["resourceVersion"],
                timeout_seconds=WATCH_SECONDS,
                field_selector=selector,
            ) as stream:
                while (lines := await stream.lines(WATCH_SECONDS)) is not None:
                    for event in map(sightings.read, filter(None, lines)):
                        if event["type"] in ("ADDED", "MODIFIED"):
                            await act(event["object"]["spec"])

    async def _act(self, world: Object) -> None:
        formed = world.get("phase") == "Formed" and world.get("round", 0) > self._round
        if formed and self.index in from_text(world["members"]):
            self._round = world["round"]
            self._sightings.note(self._round, self.index)
            self.running.clear()
            await self._report("Running")
            self.running.set()
        request = world.get("asked", {}).get("stacks", "")
        if self.running.is_set() and request != self._answered:
            await self._answer(request)


class HollowNodes:
    """Calls Pods Running as they appear, and lets an agent live in each until its Pod goes."""

    def __init__(
        self,
        kubelet: Client,
        agents: Client,
        sightings: Sightings,
        *,
        heartbeat_seconds: float,
        held_back: int | None,
    ) -> None:
        self.agents: dict[int, Agent] = {}
        self.ready = 0
        """How many have said so."""
        self._held_back = held_back
        self._kubelet = kubelet
        self._agents_client = agents
        self._sightings = sightings
        self._heartbeat_seconds = heartbeat_seconds
        self._appeared: asyncio.Queue[Object] = asyncio.Queue()

    def handle(self, change: Change) -> None:
        if change.old is None and change.new is not None:
            self._appeared.put_nowait(change.new)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                pod = await self._appeared.get()
                tasks.create_task(self._start(pod, tasks))

    async def _start(self, pod: Object, tasks: asyncio.TaskGroup) -> None:
        status = {"phase": "Running", "podIP": "127.77.0.1", "startTime": wall_time()[:19] + "Z"}
        metadata = pod["metadata"]
        await self._kubelet.patch(
            PODS, metadata["name"], {"status": status}, metadata["namespace"], subresource="status"
        )
        agent = self._agent_of(pod)
        self.agents[agent.number] = agent
        tasks.create_task(agent.run())
        if agent.index != self._held_back:
            await agent.report_ready()
            self.ready += 1

    def _agent_of(self, pod: Object) -> Agent:
        return Agent(self._agents_client, pod, self._sightings, self._heartbeat_seconds)
