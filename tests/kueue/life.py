"""The life of an elastic job in a queue, played by a seed: who acts next is drawn, and everybody sees late what others do.

Reconcilers and caches are the product's, Kueue is the stand-in. The controller dies after any of its writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

from controller.errors import ApiError
from controller.resources import PODS
from crds.elasticjob import ElasticJob
from crds.names import WORKER
from reconcilers.kueue.workload import LOCALQUEUES, PRIORITY_LABEL, QUEUE_LABEL, Workload
from reconcilers.observed.ownership import belongs_to
from reconcilers.observed.slots import slot_count
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.kueue.cluster import GPU, Cluster
from tests.reconcilers.api import NAMESPACE, Write
from tests.reconcilers.cluster_model import Script, act, renew_leases
from tests.reconcilers.process import Killed, Lag, Process

JSON = dict[str, Any]
Act = Callable[[], Awaitable[None] | None]
ACTS = 150
CALM_SECONDS, CALM_ROUNDS = 30.0, 30
ROOM = 20


class Life(Cluster):
    """One job, from its creation to its end.

    Args:
        seed: decides the sizes, and who acts when.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = self.random = Random(seed)
        self.has_checks = draw.random() < 0.2
        self.is_calm = self.has_joined = False
        self.others: list[str] = []
        self.made = 0
        self.trace: list[str] = []
        self.has_class("high", 5)
        self.api._put_of_kueue(LOCALQUEUES, "other", {"clusterQueue": "shared"}, NAMESPACE)
        if self.has_checks:
            active = {"conditions": [{"type": "Active", "status": "True"}]}
            check = {"kind": "AdmissionCheck", "metadata": {"name": "check"}, "spec": {}, "status": active}
            self.api.kueue.put(check)
        self._give(draw.randint(1, 9))
        most = draw.randint(1, 6)
        self.submit(most, draw.randint(1, most))
        self._edit(standby=draw.choice((0, 0, 1)))

    @property
    def job(self) -> JSON:
        return self.api.get(ELASTICJOBS, "j")

    @property
    def queue(self) -> str:
        return str(self.job["metadata"].get("labels", {}).get(QUEUE_LABEL, ""))

    def mine(self) -> list[Workload]:
        uid = self.job["metadata"]["uid"]
        return [Workload(raw) for raw in self.api.kueue.workloads.values() if belongs_to(raw, uid)]

    # --- the controller -----------------------------------------------------------------------------------

    def _controller(self) -> Process:
        if self.process is None:
            lag = Lag(0 if self.is_calm else 6, seed=self.random.randrange(2**32))
            self.process = Process(self.api, lag, queues=True, after_write=self._after)
        return self.process

    def _after(self, _: Write) -> None:
        if not self.is_calm and self.random.random() < 0.05:
            assert self.process is not None
            self.process.die()

    async def look(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            try:
                await self._controller().step()
            except Killed:
                self.process = None

    # --- what everybody else does -------------------------------------------------------------------------

    def nodes_and_agents(self) -> None:
        act(self.api, self.script)

    def pod_is_deleted(self) -> None:
        if self.pods:
            self.api.delete(PODS, self.random.choice(self.pods)["metadata"]["name"])

    def kueue_moves(self) -> None:
        if moves := self.api.kueue.moves():
            move = self.random.choice(moves)
            move.lose() if move.can_be_lost and self.random.random() < 0.3 else move.do()

    def time_passes(self) -> None:
        self.api.seconds += self.random.choice((0.2, 1.0, 4.0, 12.0))
        renew_leases(self.api)

    def user(self) -> None:
        """Edits the job, suspends it, has it change its queue, or deletes a Workload of it."""
        draw = self.random
        match draw.randrange(7):
            case 0:
                least = self.job["spec"]["replicaSpecs"][WORKER]["minReplicas"]
                self._edit(replicas=draw.randint(least, 7))
            case 1 | 2:
                self._suspend(not self.job["spec"].get("suspend", False))
            case 3 if mine := self.mine():
                self.api.kueue.delete(NAMESPACE, draw.choice(mine).name)
            case 4:
                self._label(QUEUE_LABEL, draw.choice(("team", "other", None)))
            case 5:
                self._label(PRIORITY_LABEL, draw.choice(("high", None)))
            case _:
                overhead = {"overhead": {"zone": draw.choice(("a", "b"))}}
                self._edit(template={"spec": {"containers": [GPU]} | overhead})

    def _edit(self, **worker: Any) -> None:
        self.api.patch(ELASTICJOBS, "j", {"spec": {"replicaSpecs": {WORKER: worker}}})

    def _suspend(self, suspend: bool) -> None:
        self.api.patch(ELASTICJOBS, "j", {"spec": {"suspend": suspend}})

    def _label(self, label: str, value: str | None) -> None:
        self.has_joined = self.has_joined or (label == QUEUE_LABEL and not self.queue)
        self.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {label: value}}})

    def competitor(self) -> None:
        """Another job comes, or goes."""
        if self.others and self.random.random() < 0.5:
            self.goes(self.others.pop(self.random.randrange(len(self.others))))
            return
        self.made += 1
        self.comes(f"other-{self.made}", self.random.randint(1, 4), priority=self.random.choice((0, 0, 10)))
        self.others.append(f"other-{self.made}")

    def others_give_back(self) -> None:
        for name in list(self.others):
            if Workload(self.api.kueue.workloads[NAMESPACE, name]).is_evicted:
                self.others.remove(name)
                self.goes(name)

    def administrator(self) -> None:
        self._give(self.random.randint(1, 9))

    def _give(self, quota: int) -> None:
        checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "check"}]}}
        self.api.set_quota(quota, **(checks if self.has_checks else {}))

    def check(self) -> None:
        """The controller of an admission check answers."""
        for raw in list(self.api.kueue.workloads.values()):
            if checks := raw["status"].get("admissionChecks"):
                states = ("Ready",) if self.is_calm else ("Ready", "Ready", "Retry", "Rejected", "Pending")
                state = self.random.choice(states)
                answered = [each | {"state": state, "message": state.lower()} for each in checks]
                self.api.kueue.put_status(raw | {"status": raw["status"] | {"admissionChecks": answered}})

    def person(self) -> None:
        """Sets a Workload active again that Kueue has given up."""
        for found in map(Workload, list(self.api.kueue.workloads.values())):
            if not found.raw["spec"].get("active", True) and not found.is_paused:
                self.api.kueue.patch(NAMESPACE, found.name, {"spec": {"active": True}})

    def manager(self) -> None:
        self.api.kueue.down = not self.api.kueue.down

    # --- a life -------------------------------------------------------------------------------------------

    async def play(self) -> list[str]:
        """Play the life; return what went wrong."""
        acts: list[Act] = [self.look] * 16 + [self.nodes_and_agents] * 10 + [self.kueue_moves] * 8
        acts += [self.time_passes] * 3 + [self.competitor] * 2 + [self.others_give_back] * 3
        acts += [self.administrator, self.pod_is_deleted, self.check, self.person]
        acts += [self.user] * (self.random.random() < 0.7) + [self.manager] * (self.random.random() < 0.2)
        for _ in range(ACTS):
            if wrong := await self._do(self.random.choice(acts)):
                return wrong
        return await self._calm()

    async def _do(self, act: Act) -> list[str]:
        self.trace.append(act.__name__)
        with suppress(ApiError):  # of those who ask a Kueue that is down
            if (waiting := act()) is not None:
                await waiting
        self.api.mirror()
        return [f"{wrong}; {self.trace[-20:]}" for wrong in self.violations()]

    async def _calm(self) -> list[str]:
        """All others go, there is room, and nothing fails: the job comes to what it wants, and to its end."""
        self.is_calm, self.api.kueue.down = True, False
        self._controller().lag.versions = 0
        while self.others:
            self.goes(self.others.pop())
        if not self.queue:
            self._label(QUEUE_LABEL, "team")
        if self.job["spec"].get("suspend"):
            if not await self._comes_to(lambda: not (self.pods or self._used())):
                return [self._told("suspended, it holds quota")]
            self._suspend(False)
        self._give(ROOM)
        if not await self._comes_to(self._is_whole):
            return [self._told("with room for all it has not what it wants")]
        self.script = Script(done=True)
        if not await self._comes_to(self._is_over):
            return [self._told("the job has ended, and its quota is not free")]
        return []

    async def _comes_to(self, is_done: Callable[[], bool]) -> bool:
        for _ in range(CALM_ROUNDS):
            self.check()
            self.person()
            self.api.mirror()
            await self.settle(CALM_SECONDS)
            if is_done():
                return True
        return False

    def _is_whole(self) -> bool:
        wanted = slot_count(ElasticJob.model_validate(self.job).spec.replica_specs[WORKER])
        if self.has_checks:  # with which it does not grow
            wanted = max((each.granted(WORKER) for each in self.mine() if each.is_admitted), default=0)
        return 0 < wanted == len(self.pods) == self._used()

    def _is_over(self) -> bool:
        return not self.pods and all(each.is_finished and not each.has_finalizer for each in self.mine())

    def _used(self) -> int:
        return self.api.kueue.used("shared", "default", "nvidia.com/gpu")

    def _told(self, why: str) -> str:
        mine = [(each.name, each.conditions, each.raw["spec"].get("active")) for each in self.mine()]
        status = self.job["status"]
        return f"{why}: {len(self.pods)} Pods, {status['phase']}, {status.get('admission')}, {mine}, {self.trace[-30:]}"

    def violations(self) -> Iterator[str]:
        """Yield what must never be, of what is stored."""
        pods, mine = len(self.pods), self.mine()
        charged = [each for each in mine if each.has_quota and not each.is_finished]
        granted = max((each.granted(WORKER) for each in charged), default=0)
        is_admitted = any(each.is_admitted for each in charged)
        self.has_joined = self.has_joined and not (is_admitted and pods <= granted)
        if not self.queue or self.has_joined:
            return
        if pods and not is_admitted:
            yield f"granted: {pods} Pods without an admitted Workload"
        if pods and any(each.is_paused for each in charged):
            yield f"granted: {pods} Pods of a Workload that we made inactive"
        if pods > granted:
            yield f"granted: {pods} Pods, and {granted} are granted"
        waiting = [each for each in mine if each.replaces and not each.has_quota and not each.is_finished]
        if len([each for each in waiting if not each.is_deleted]) > 1:
            yield "slices: more than one waits"
