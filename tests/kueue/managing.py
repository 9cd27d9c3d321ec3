"""Kueue's manager: the writes that its controller and its scheduler would do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.kueue.controlling import Change, Look, Outcome
from tests.kueue.objects import (
    EVICTED,
    FINISHED,
    PREEMPTED,
    RESERVED,
    Info,
    Key,
    Object,
    shown,
    stamp,
    with_condition,
)
from tests.kueue.queueing import Queues
from tests.kueue.quota import ClusterQueue
from tests.kueue.scheduling import Mode, Plan, Planner
from tests.kueue.statuses import Config, evicted, synced, unreserved


@dataclass(frozen=True)
class Step:
    """A write that could come next."""

    name: str
    key: Key
    about: str
    write: Callable[[], Object]
    """Returns what is to be written: status, active, finalizers."""
    forget: Callable[[], None] | None = None


class Manager:
    """Decides from the queues, and from what it still has to do for a replaced Workload."""

    def __init__(self, queues: Queues, config: Config) -> None:
        self._queues = queues
        self._config = config
        self._finishing: dict[Key, tuple[str, Key]] = {}
        """Replaced Workloads that are to be Finished: their uid, and by which Workload."""

    def restart(self, now: float) -> None:
        """Forget everything that is not in objects."""
        self._finishing.clear()
        self._queues.restart(now)

    # --- steps --------------------------------------------------------------------------------------------

    def steps(self, now: float) -> Iterator[Step]:
        """Return the writes that could come next, of all that could."""
        for key, (uid, by) in list(self._finishing.items()):
            found = self._queues.infos.get(key)
            if found is None or found.uid != uid or found.true(FINISHED):
                del self._finishing[key]
                continue
            yield Step(
                "finish replaced", key, by[1], partial(self._finish, found, by, now), partial(self._lose, key)
            )
        for info in list(self._queues.infos.values()):
            change, _ = self._look(info, now)
            if change is not None:
                yield Step(change.name, info.key, "", partial(_as_write, change))
        for queue in list(self._queues.cluster_queues.values()):
            yield from self._heads(queue, now)

    def next_clock(self, now: float) -> float | None:
        dues = [due for info in self._queues.infos.values() if (due := self._look(info, now)[1]) is not None]
        return min(dues, default=None)

    def _look(self, info: Info, now: float) -> Outcome:
        return Look(info, self._queues.place(info.local_queue), self._config, now).outcome()

    def _lose(self, key: Key) -> None:
        self._finishing.pop(key, None)

    def _finish(self, info: Info, by: Key, now: float) -> Object:
        self._finishing.pop(info.key, None)
        slice_ = self._queues.infos.get(by)
        message = (
            f"Replaced to accommodate a workload (UID: {slice_.uid if slice_ else ''}, "
            f"JobUID: {slice_.job_uid if slice_ else ''}) due to workload slice aggregation"
        )
        at = stamp(int(now))
        return {
            "status": with_condition(
                info.status, FINISHED, True, "WorkloadSliceReplaced", message, at, info.generation
            )
        }

    # --- the scheduler ------------------------------------------------------------------------------------

    def _heads(self, queue: ClusterQueue, now: float) -> Iterator[Step]:
        if not self._queues.may_admit(queue):
            return
        while (head := self._queues.head(queue)) is not None:
            plan = self._plan(head, queue)
            if plan.mode is Mode.FIT:
                yield Step("admit", head.key, queue.name, partial(self._admit, head, queue, plan, now))
                return
            if plan.victims:
                yield from self._preempting(head, queue, plan, now)
                return
            status = self._waiting(head, plan.message, now)
            if status is not head.status:
                yield Step("pending", head.key, "", partial(self._write_and_park, head, queue, status))
                return
            if queue.strict:
                return
            self._queues.park(head, queue)

    def _plan(self, info: Info, queue: ClusterQueue) -> Plan:
        quota = self._queues.quota()
        replaced = quota.holders.get(info.replaces) if info.replaces else None
        if replaced is not None and replaced.cluster_queue != queue.name:
            replaced = None
        return Planner(info, queue, quota, self._queues.flavors, replaced).plan()

    def _preempting(self, head: Info, queue: ClusterQueue, plan: Plan, now: float) -> Iterator[Step]:
        spared = [victim for victim in plan.victims if not victim.true(EVICTED)]
        for victim in spared:
            write = partial(self._preempt, victim, head, queue, now)
            yield Step("preempt", victim.key, head.key[1], write)
        if spared:
            return
        self._queues.stick(head, queue)
        message = f"{plan.message}. Pending the preemption of {len(plan.victims)} workload(s)"
        status = self._waiting(head, message, now)
        if status is not head.status:
            yield Step("pending", head.key, "", partial(dict, status=status))

    def _preempt(self, victim: Info, by: Info, queue: ClusterQueue, now: float) -> Object:
        self._queues.stick(by, queue)
        at = stamp(int(now))
        message = (
            f"Preempted to accommodate a workload (UID: {by.uid}, JobUID: {by.job_uid or 'UNKNOWN'}) due to "
            f"prioritization in the ClusterQueue; preemptor path: /{queue.name}; preemptee path: /{queue.name}"
        )
        status = with_condition(victim.status, PREEMPTED, True, "InClusterQueue", message, at)
        return {"status": evicted(victim, "Preempted", message, at, "", status)}

    def _waiting(self, info: Info, message: str, now: float) -> Object:
        """Return the status of one that waits; the very same if it says so already."""
        status = unreserved(info, "Pending", message, stamp(int(now)))
        requests = [
            {
                "name": each.name,
                "resources": {name: shown(name, value * each.count) for name, value in each.requests.items()},
            }
            for each in info.sets
        ]
        if status.get("resourceRequests") == requests:
            return status
        return status | {"resourceRequests": requests}

    def _write_and_park(self, head: Info, queue: ClusterQueue, status: Object) -> Object:
        if not queue.strict:
            self._queues.park(head, queue)
        return {"status": status}

    def _admit(self, head: Info, queue: ClusterQueue, plan: Plan, now: float) -> Object:
        at, generation = stamp(int(now)), head.generation
        admission = {"clusterQueue": queue.name, "podSetAssignments": list(plan.assignments)}
        status = {key: value for key, value in head.status.items() if key != "resourceRequests"}
        status["admission"] = admission
        reserved = f"Quota reserved in ClusterQueue {queue.name}"
        status = with_condition(status, RESERVED, True, RESERVED, reserved, at, generation)
        for kind in (EVICTED, PREEMPTED):
            found = head.conditions.get(kind)
            if found is not None and found["status"] == "True":
                before = f"Previously: {found['message']}"
                status = with_condition(status, kind, False, RESERVED, before, at, generation)
        if set(queue.checks) <= {check["name"] for check in head.checks}:
            status = synced(head, status, at)
        replaced = self._queues.quota().holders.get(head.replaces) if head.replaces else None
        if replaced is not None and replaced.cluster_queue == queue.name:
            self._finishing[replaced.key] = replaced.uid, head.key
        return {"status": status}


def _as_write(change: Change) -> Object:
    parts = {"status": change.status, "active": change.active, "finalizers": change.finalizers}
    return {
        name: list(value) if name == "finalizers" else value
        for name, value in parts.items()
        if value is not None
    }
