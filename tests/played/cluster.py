"""A cluster of a seed: API server, controller, scheduler, kubelets and agents, each of which moves when the seed says so.

The reconcilers, their caches and the decisions of the agents are the product's. A disturbance is drawn like any other
act, until `calm_at`; from then on everything works, and the job has to come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from agent.environment import Environment
from agent.facts.world import AgentWorld, Member
from agent.report.heartbeat import renewal
from controller.errors import ApiError, Forbidden, Unavailable
from controller.resources import LEASES, NODES, PODS, Resource
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from tests.played.agent import Agent
from tests.played.hosts import API_SERVER, ELSEWHERE, Hosts, PlayedDials
from tests.played.network import Faults, request
from tests.played.schedule import Schedule, Timer
from tests.played.training import Lengths, Training
from tests.reconcilers.api import Api, Entry, Write
from tests.reconcilers.build import NOW
from tests.reconcilers.cluster_model import _is_ready, _node_for, add_nodes
from tests.reconcilers.process import Killed, Lag, Process

JSON = dict[str, Any]
Target = tuple[Resource, str | None]
"""What a write changes: a kind, and its subresource."""
SAVED_EVERY = 4
"""Steps between two checkpoints."""
LATE_SECONDS = 60.0
"""The most that a write of a dead controller is on its way: an API server gives up on it then."""
LEASE_SECONDS = (13.0, 17.0)
"""Time from the end of a leader that falls silent until another one leads."""
HEARS_SECONDS = 45.0
"""The most after which a host that was cut off has stopped what was replaced: judgement of a hang, and grace."""
STARTED_AT = 1_000.0
"""What a schedule's clock says at the beginning."""


@dataclass(frozen=True)
class Delays:
    """The longest time that parts of the cluster take, in seconds; each is drawn."""

    container: float = 5.0
    warm_parent: float = 2.0
    watch: float = 0.5
    controller: float = 0.2
    collector: float = 3.0
    succession: float = 20.0
    node_monitor: float = 40.0
    kubelet: float = 2.0


@dataclass(frozen=True)
class Disturbances:
    """How likely each is, until it is calm."""

    kill: float = 0.0
    """A write of the controller is its last."""
    late: float = 0.0
    """Of a write at which it is killed: that it arrives later."""
    versions: int = 0
    """Versions that the caches of the controller lag, at most."""
    slow_watch: float = 0.0
    """An event of a world comes to an agent seconds late."""
    network: Faults = field(default_factory=Faults)


class ServedApi(Api):
    """The API server in memory, with the clock of a schedule; it calls `on_change` with each line of a watch."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.on_change: Callable[[Resource, Entry], None] = lambda resource, entry: None
        super().__init__()

    @property  # type: ignore[override]
    def seconds(self) -> float:
        return self._schedule.now - STARTED_AT

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        """Time is the schedule's."""

    def _log(self, resource: Resource, entry: Entry) -> None:
        super()._log(resource, entry)
        self.on_change(resource, entry)


class Cluster:
    """See the module.

    Args:
        loop: runs the looks of the controller, which are coroutines that wait for nothing.
    """

    def __init__(
        self, seed: int, loop: asyncio.AbstractEventLoop, disturbances: Disturbances, *, last_step: int
    ) -> None:
        self.schedule = Schedule(seed)
        self.random = self.schedule.random
        self._loop = loop
        self.disturbances = disturbances
        self.delays, self.lengths = Delays(), Lengths()
        self.api, self.hosts = ServedApi(self.schedule), Hosts()
        self.leader_host = ELSEWHERE
        self._severed: list[Agent] = []
        """Agents that lived when their host was no longer cut off."""
        self.agents: dict[str, Agent] = {}
        """Every one that there ever was, by the uid of its Pod."""
        self.trainings: dict[tuple[str, int], Training] = {}
        """By the job's account, which has the uid of the job in its name, and the round."""
        self.wrong: list[str] = []
        """What must never be."""
        self.is_over = self.is_away = False
        self.has_policy = self.random.random() < 0.5
        """Whether `deploy/admission` is installed."""
        self.last_step, self.saved, self.made = last_step, 0, 0
        """Up to where training goes, the step that a world goes on from, and the highest that was made."""
        self.redone = 0
        """Steps that were made more than once, by worlds that could have left by vote."""
        self.kills = 0
        self._controller: Process | None = None
        self._controller_timer: Timer | None = None
        self._is_looking = False
        self._kubelets: set[str] = set()
        self._collects = False
        self._late: dict[int, tuple[Write, int]] = {}
        """Writes that are on their way although the controller that sent them is dead, with the number of
        decisions about the same object that overtake them."""
        self.trap: Target | None = None
        """The decision that is the last write of its controller, and late."""
        add_nodes(self.api, 4)
        self.api.on_change = self._changed
        self._lead()

    # Time and network.

    def time(self) -> datetime:
        return NOW + timedelta(seconds=self.api.seconds)

    def soon(self, name: str, act: Callable[[], object]) -> None:
        self.schedule.soon(name, act)

    def calm(self) -> None:
        """From now on everything works."""
        self.disturbances = Disturbances()
        if self._controller is not None:
            self._controller.lag.versions = 0
        self.come_back()

    def lag(self) -> float:
        """The time that an event takes to an agent."""
        if self.schedule.chance(self.disturbances.slow_watch):
            return self.random.uniform(0.0, 20.0)
        return self.random.choice((0.0, 0.01, self.delays.watch))

    def request(
        self, name: str, act: Callable[[], Any], answer: Callable[[Any], object], host: str = API_SERVER
    ) -> None:
        """Have the API server do something for an agent on a host; errors are answers, too."""

        def serve() -> Any:
            if self.is_away or not self.hosts.reach(host, API_SERVER):
                return Unavailable("away")
            try:
                return act()
            except ApiError as error:
                return error

        request(self.schedule, self.disturbances.network, name, serve, answer)

    # The API server.

    def serve_agent(self, me: Environment, body: JSON) -> Any:
        """Patch the status of an agent's ElasticWorker, if the admission policy, where there is one, lets it."""
        worker = self.api.get(ELASTICWORKERS, me.worker_name)
        speaker = worker["spec"]["incarnation"]
        if self.has_policy and speaker > me.incarnation:
            raise Forbidden(403, "Forbidden", f"only the Pod {me.worker_name}-{speaker} may report")
        return self.api.patch(ELASTICWORKERS, me.worker_name, {"status": body}, "status")

    def renew(self, me: Environment) -> Any:
        return self.api.patch(LEASES, me.worker_name, renewal(me.pod_name, self.time()))

    def _changed(self, resource: Resource, entry: Entry) -> None:
        if self.is_over:
            return
        if resource is PODS:
            self._wake_kubelet(entry.obj["metadata"]["name"])
        if resource is ELASTICWORLDS:
            for agent in self.agents.values():
                if agent.me.owner_name == entry.obj["metadata"]["name"]:
                    agent.feed(None if entry.deleted else entry.obj)
        is_late = resource is LEASES and self._is_orphan(entry.obj)
        if (entry.deleted or resource is PODS or is_late) and not self._collects:
            self._collects = True
            seconds = self.random.uniform(0.0, self.delays.collector)
            self.schedule.after(seconds, "garbage is collected", self._collect)
        self._wake_controller()

    def _is_orphan(self, lease: JSON) -> bool:
        """Whether the Lease's worker went before it was made."""
        (owner,) = lease["metadata"]["ownerReferences"]
        worker = self.api.find(ELASTICWORKERS, owner["name"])
        return worker is None or worker["metadata"]["uid"] != owner["uid"]

    def _collect(self) -> None:
        self._collects = False
        self.api.collect_garbage()

    def show_world(self, agent: Agent) -> None:
        """An agent lists its job's world."""
        agent.feed(self.api.find(ELASTICWORLDS, agent.me.owner_name))

    # The controller.

    def _lead(self) -> None:
        lag = Lag(self.disturbances.versions, seed=self.random.randrange(2**32))

        async def begin() -> Process:
            dials = PlayedDials(self, self.leader_host)
            return Process(self.api, lag, self._before_write, self._after_write, dials=dials)

        self._controller = self._loop.run_until_complete(begin())
        self._is_looking = False
        self._wake_controller()

    def _wake_controller(self) -> None:
        if self._controller is None or self._is_looking:
            return
        self._is_looking = True
        if self._controller_timer is not None:
            self._controller_timer.cancel()
        seconds = self.random.choice((0.0, 0.0, self.delays.controller))
        self.schedule.after(seconds, "the controller looks", self._look)

    def _look(self) -> None:
        process = self._controller
        if process is None:
            return
        try:
            is_busy = self._loop.run_until_complete(process.step())
        except Killed:
            self._bury(process)
            return
        if is_busy or process.cache.catch_up():
            self.soon("the controller looks", self._look)
            return
        self._is_looking = False
        if process.next_due is not None:
            due = process.next_due + STARTED_AT
            self._controller_timer = self.schedule.at(due, "the controller is due", self._wake_controller)

    def _before_write(self, write: Write) -> None:
        if self.is_away:
            raise Unavailable("away")
        is_trapped = self.trap == (write.resource, write.subresource) and _decides(write)
        if is_trapped or (
            self.schedule.chance(self.disturbances.kill) and self.schedule.chance(self.disturbances.late)
        ):
            self.trap = None
            assert self._controller is not None
            self._late[id(write)] = write, self.random.randint(1, 3)
            self.schedule.after(LATE_SECONDS, f"late: {write}", lambda: self._arrive(write))
            self._controller.die()

    def _after_write(self, write: Write) -> None:
        if self._late and _decides(write):
            self._overtake(write)
        if self.schedule.chance(self.disturbances.kill):
            assert self._controller is not None
            self._controller.die()

    def kill_controller(self, seconds: float | None = None) -> bool:
        """End it between two looks; False if there is none.

        Args:
            seconds: time until another one leads; drawn if it is not given.
        """
        process = self._controller
        if process is not None:
            process.dead = True
            self._bury(process, seconds)
        return process is not None

    def come_back(self) -> None:
        """The API server is there again; controllers count silences from now on."""
        self.is_away = False
        if self._controller is not None:
            self._controller.contact.since = self.api.seconds
            self._wake_controller()

    def delete_pod(self, name: str) -> None:
        self.api.delete(PODS, name)

    def _overtake(self, later: Write) -> None:
        """A decision has overtaken those of dead controllers about the same object, which arrive after a few."""
        for key, (write, left) in self._late.items():
            if (write.resource, write.name) == (later.resource, later.name):
                self._late[key] = write, left - 1
                if left == 1:
                    self.soon(f"late: {write}", lambda write=write: self._arrive(write))

    def _arrive(self, write: Write) -> None:
        if self._late.pop(id(write), None):
            with contextlib.suppress(ApiError):
                self.api.apply(write)

    def _bury(self, process: Process, seconds: float | None = None) -> None:
        self.wrong += process.errors
        self.kills += 1
        self._controller = None
        if seconds is None:
            seconds = self.random.uniform(0.0, self.random.choice((1.0, self.delays.succession)))
        self.schedule.after(seconds, "a controller takes the lead", self._lead)

    # Scheduler and kubelets.

    def _wake_kubelet(self, name: str) -> None:
        if name not in self._kubelets:
            self._kubelets.add(name)
            seconds = self.random.choice((0.0, self.random.uniform(0.0, self.delays.kubelet)))
            self.schedule.after(seconds, f"kubelet of {name}", lambda: self._kubelet(name))

    def _kubelet(self, name: str) -> None:
        self._kubelets.discard(name)
        pod = self.api.find(PODS, name)
        if pod is None:
            return
        if self.is_away:
            self._wake_kubelet(name)
            return
        agent = self.agents.get(pod["metadata"]["uid"])
        if not pod["spec"].get("nodeName"):
            self._schedule_pod(pod)
        elif not self._lives(pod):
            return
        elif "deletionTimestamp" in pod["metadata"]:
            if agent is None or not agent.lives:
                self.api.remove(PODS, pod)
                return
            if not agent.is_terminating:
                seconds = pod["metadata"].get("deletionGracePeriodSeconds", 30)
                self.schedule.after(seconds, f"{agent} is killed", lambda: self._kill(agent, name))
            agent.terminate()
        elif agent is None and pod["status"]["phase"] == "Running":
            account = pod["spec"]["serviceAccountName"]
            me = environment_of(pod)
            self.agents[me.pod_uid] = Agent(self, me, account, lambda code: self._end_pod(name, code))

    def _kill(self, agent: Agent, name: str) -> None:
        if agent.lives:
            agent.kill()
            self._wake_kubelet(name)

    def _lives(self, pod: JSON) -> bool:
        node = self.api.find(NODES, pod["spec"].get("nodeName") or "")
        name = node["metadata"]["name"] if node is not None else ""
        is_there = name not in self.lost_nodes and name not in self.hosts.cut_off
        return node is not None and _is_ready(node) and is_there

    lost_nodes: frozenset[str] = frozenset()

    def _schedule_pod(self, pod: JSON) -> None:
        name, node = pod["metadata"]["name"], _node_for(self.api, pod)
        if node is None:
            return
        self.api.patch(PODS, name, {"spec": {"nodeName": node}})
        scheduled = {"type": "PodScheduled", "status": "True"}
        status = {"phase": "Running", "startTime": self.api.now(), "conditions": [scheduled]}
        status["podIP"] = environment_of(self.api.get(PODS, name)).pod_ip
        self.api.patch(PODS, name, {"status": status}, "status")

    def _end_pod(self, name: str, code: int) -> None:
        """The container of a Pod has ended; its kubelet says so as soon as it can."""
        pod = self.api.find(PODS, name)
        if pod is None or not self._lives(pod):
            return
        if self.is_away:
            self.schedule.after(1.0, f"kubelet of {name}", lambda: self._end_pod(name, code))
            return
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
        container = {"name": pod["spec"]["containers"][0]["name"], "state": {"terminated": terminated}}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
        self.api.patch(PODS, name, {"status": status}, "status")

    def crash(self, agent: Agent, code: int = 137) -> None:
        """The container of an agent ends with all in it."""
        if agent.lives:
            agent.kill()
            self._end_pod(agent.me.pod_name, code)

    def lose_node(self, name: str) -> None:
        """A node is gone, and after a while Kubernetes says so."""
        self.lost_nodes |= {name}
        for agent in self.agents.values():
            if agent.me.node_name == name:
                agent.kill()

        def tell() -> None:
            condition = {
                "type": "Ready",
                "status": "Unknown",
                "message": "Kubelet stopped posting node status.",
            }
            self.api.patch(NODES, name, {"status": {"conditions": [condition]}}, "status")

        self.schedule.after(self.random.uniform(1.0, self.delays.node_monitor), f"{name} is lost", tell)

    # Hosts.

    def power_off(self, node: str) -> None:
        """A host has no power any more: nobody is sent a reset, and after a while Kubernetes says so."""
        for agent in self.agents.values():
            if agent.host == node:
                agent.vanish()
        self.lose_node(node)
        self.cut_off(node)

    def cut_off(self, node: str) -> None:
        """Nothing reaches a host, or comes from it."""
        self.hosts.cut_off.add(node)
        if node == self.leader_host:
            self.leader_host = ELSEWHERE
            self.kill_controller(self.random.uniform(*LEASE_SECONDS))
        self.wake_agents()

    def mend(self) -> None:
        """All hosts that have power reach each other again."""
        cut_off = (agent for agent in self.agents.values() if agent.host in self.hosts.cut_off)
        self._severed += [agent for agent in cut_off if agent.lives]
        self.hosts.broken.clear()
        self.hosts.cut_off &= self.lost_nodes
        self.schedule.after(HEARS_SECONDS, "no host goes on that was cut off", self._see_none_severed)
        for agent in self.agents.values():
            if agent.lives:
                self.show_world(agent)
                self._wake_kubelet(agent.me.pod_name)
        for training in self.trainings.values():
            training.go_on()
        self.wake_agents()

    def _is_split(self, training: Training) -> bool:
        hosts = {part.agent.host for part in training.parts.values()}
        return not all(self.hosts.reach(one, other) for one in hosts for other in hosts)

    # Training.

    def wake_agents(self) -> None:
        for agent in self.agents.values():
            agent.wake()
            agent.look_around()

    def store_of(self, world: AgentWorld, seeker: Agent) -> set[int] | None:
        """The meeting of a round at rank 0's agent; None where that cannot be reached, or is not there yet."""
        agent = self.agent_of(world)
        is_there = agent is not None and self.hosts.reach(seeker.host, agent.host)
        return agent.stores.get(world.round) if agent is not None and is_there else None

    def agent_at(self, account: str, member: Member) -> Agent:
        """The agent that a member of a job's world is, or was."""
        agents = reversed(list(self.agents.values()))
        return next(each for each in agents if (each.account, each.me.member) == (account, member))

    def agent_of(self, world: AgentWorld) -> Agent | None:
        """The agent of rank 0, if it lives."""
        first = world.members[0]
        for agent in self.agents.values():
            if agent.lives and agent.me.member == first and agent.me.pod_ip == world.master_address:
                return agent
        return None

    def training(self, account: str, world: AgentWorld) -> Training:
        """The training of a round of an agent's job, which may be gone; its members' processes join it."""
        key = account, world.round
        if key not in self.trainings:
            # Not of the round before: that may have been given up before it had processes.
            before = self.newest_training
            if before is None or not before.is_young:
                self.redone += self.made - self.saved
            self.made = self.saved
            self.trainings[key] = Training(
                self.schedule,
                world,
                self.saved + 1,
                self.last_step,
                self.lengths,
                self._stepped,
                lambda step: self._save(key, step),
            )
            training = self.trainings[key]
            training.is_split = partial(self._is_split, training)
        found = self.trainings[key]
        if found.world.members != world.members:
            self.wrong.append(f"round {world.round} has members {found.world.members} and {world.members}")
        self._see_no_older(key, world)
        return found

    @property
    def newest_training(self) -> Training | None:
        """The training of the newest round that has begun, of the newest job."""
        newest = max(self.trainings, key=self._place, default=None)
        return None if newest is None else self.trainings[newest]

    def _place(self, key: tuple[str, int]) -> tuple[int, int]:
        """What orders the rounds of all jobs that had the name, one after the other."""
        account, round_ = key
        return int(account.rpartition("#")[2]), round_

    def _see_no_older(self, key: tuple[str, int], world: AgentWorld) -> None:
        """No process of a slot may run where another one of it is started; nor all of the world before, where
        nobody of that goes on: without one of them the others end no step."""
        slots = {member.index for member in world.members}
        older = [other for other in self.trainings if self._place(other) < self._place(key)]
        last = max(older, key=self._place, default=None)
        for other in older:
            before = self.trainings[other]
            is_whole = all(part.alive() for part in before.parts.values())
            is_replaced = other == last and is_whole and not set(before.world.members) & set(world.members)
            for member, part in before.parts.items():
                if part.agent.host in self.hosts.cut_off or part.agent in self._severed:
                    continue  # it ends no step, and stops when it hears of the later round
                if part.alive() and (is_replaced or member.index in slots):
                    self.wrong.append(f"round {key[1]} begins and {member} is in round {other[1]}")

    def _see_none_severed(self) -> None:
        """An agent that was cut off, and has heard that it was replaced, has stopped."""
        members = {member for training in self.trainings.values() for member in training.world.members}
        for agent in self._severed:
            mine = agent.me.member
            is_replaced = any(
                each.index == mine.index and each.incarnation > mine.incarnation for each in members
            )
            if is_replaced and agent.lives and agent.host not in self.hosts.cut_off:
                self.wrong.append(f"{mine} goes on, and was replaced")

    def _see_no_later(self, key: tuple[str, int], what: str) -> None:
        if any(it.parts and self._place(other) > self._place(key) for other, it in self.trainings.items()):
            self.wrong.append(f"round {key[1]} {what} and a later one has begun")

    def _stepped(self, training: Training) -> None:
        """No step of a round may end where a later one has begun."""
        key = next(key for key, each in self.trainings.items() if each is training)
        self._see_no_later(key, "ends a step")
        # A job that is suspended when its training has just ended makes the last step once more.
        self.made = min(training.step, self.last_step - 1)
        if training.step % SAVED_EVERY == 0 or training.step >= self.last_step:
            self.saved = self.made
        for part in training.parts.values():
            part.agent.reporter.progress()

    def _save(self, key: tuple[str, int], step: int) -> None:
        """All processes of a world have left after the same step, which they have saved."""
        self._see_no_later(key, f"saves step {step}")
        self.saved = max(self.saved, step)


def _decides(write: Write) -> bool:
    """Whether a controller writes what it has decided from what it has seen, and what others go by."""
    if write.verb != "patch" or "resourceVersion" not in write.body.get("metadata", {}):
        return False
    return write.resource is not ELASTICJOBS or "rendezvous" in write.body.get("status", {})


def environment_of(pod: JSON) -> Environment:
    labels, metadata = pod["metadata"]["labels"], pod["metadata"]
    index = int(labels[names.LABEL_INDEX])
    return Environment(
        owner_name=labels[names.LABEL_JOB],
        namespace=metadata["namespace"],
        worker_name=metadata["ownerReferences"][0]["name"],
        worker_index=index,
        incarnation=int(labels[names.LABEL_INCARNATION]),
        pod_uid=metadata["uid"],
        pod_ip=f"10.{metadata['uid'].rpartition('#')[2]}.{index}.{labels[names.LABEL_INCARNATION]}",
        node_name=pod["spec"]["nodeName"],
    )
