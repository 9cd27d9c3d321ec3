"""Kueue's manager: its queues in memory, and the writes that its scheduler and its controller would do next.

A Workload that waits is in its ClusterQueue's heap (*active*), or *parked* after a try for which there was no room.
Parked ones are tried again when something of the ClusterQueue or its cohort comes free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.kueue.controlling import Change, Config, Look, Outcome, Place, evicted, synced, unreserved
from tests.kueue.objects import (
    EVICTED,
    FINISHED,
    PREEMPTED,
    REQUEUED,
    RESERVED,
    Info,
    Key,
    Object,
    shown,
    stamp,
    with_condition,
)
from tests.kueue.quota import ClusterQueue, Quota, cluster_queue, queued_at
from tests.kueue.scheduling import Mode, Plan, Planner

_WORDS = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
}


@dataclass(frozen=True)
class Step:
    """A write that could come next."""

    name: str
    key: Key
    about: str
    write: Callable[[], Object]
    """What is to be written: status, active, finalizers."""
    forget: Callable[[], None] | None = None


class Brain:
    """The manager's memory, and what it decides from it."""

    def __init__(self, config: Config) -> None:
        self.infos: dict[Key, Info] = {}
        self._config = config
        self._locals: dict[Key, Object] = {}
        self._queues: dict[str, ClusterQueue] = {}
        self._flavors: dict[str, Object] = {}
        self._checks: dict[str, bool] = {}
        self._active: set[Key] = set()
        self._parked: set[Key] = set()
        self._sticky: dict[str, Key] = {}
        """Of each ClusterQueue the Workload that waits for what it has preempted: it stays the first."""
        self._bypassed: dict[str, dict[object, str]] = {}
        """Of each ClusterQueue the shapes for which there was no room, with the reason."""
        self._finishing: dict[Key, tuple[str, Key]] = {}
        """Replaced Workloads that are to be Finished, with their uid, by whom."""
        self._quota: Quota | None = None

    # --- what is there ------------------------------------------------------------------------------------

    def put(self, obj: Object) -> None:
        kind, name = obj["kind"], obj["metadata"]["name"]
        self._quota = None
        if kind == "LocalQueue":
            key = obj["metadata"]["namespace"], name
            self._locals[key] = obj
            self._reopen(key)
        elif kind == "ClusterQueue":
            known = name in self._queues
            self._queues[name] = cluster_queue(obj)
            for key in self._locals if not known else ():
                self._reopen(key)
            self._wake(name)
        elif kind == "ResourceFlavor":
            self._flavors[name] = obj
            self._wake_all()
        elif kind == "AdmissionCheck":
            conditions = (obj.get("status") or {}).get("conditions") or ()
            self._checks[name] = any(
                each["type"] == "Active" and each["status"] == "True" for each in conditions
            )
            self._wake_all()

    def remove(self, kind: str, namespace: str, name: str) -> None:
        self._quota = None
        if kind == "LocalQueue":
            del self._locals[namespace, name]
            self._reopen((namespace, name))
        elif kind == "ClusterQueue":
            del self._queues[name]
        elif kind == "ResourceFlavor":
            del self._flavors[name]
        elif kind == "AdmissionCheck":
            del self._checks[name]

    def _reopen(self, local: Key) -> None:
        """Queue the Workloads of a LocalQueue that is open, also those still to be requeued [05]; else none."""
        is_open = self._is_open(local) and self._target(local) in self._queues
        for key, info in self.infos.items():
            if info.local_queue != local:
                continue
            if not is_open:
                self._drop(key)
            elif info.admissible and key not in self._parked:
                self._active.add(key)

    def _is_open(self, local: Key) -> bool:
        found = self._locals.get(local)
        return found is not None and (found["spec"].get("stopPolicy") or "None") == "None"

    def _target(self, local: Key) -> str:
        found = self._locals.get(local)
        return found["spec"]["clusterQueue"] if found is not None else ""

    def restart(self, now: float) -> None:
        """Forget everything that is not in objects."""
        self._active.clear()
        self._parked.clear()
        self._sticky.clear()
        self._bypassed.clear()
        self._finishing.clear()
        for info in self.infos.values():
            if info.admissible:
                self._push(info, None, now)

    def stored(self, info: Info, now: float) -> None:
        """Take note of a new version of a Workload."""
        old = self.infos.get(info.key)
        if old is not None and old.uid != info.uid:
            old = None
        self.infos[info.key] = info
        if info.charged or (old is not None and old.charged):
            self._quota = None
        state, before = info.state, old.state if old is not None else ""
        queue = info.cluster_queue or (old.cluster_queue if old else "") or self._target(info.local_queue)
        if state == FINISHED or not info.active:
            self._drop(info.key)
            self._wake(queue, now)
        elif state == "Pending":
            if before in ("Admitted", RESERVED):
                self._wake(queue, now)
            if info.admissible:
                self._push(info, old, now)
            else:
                self._drop(info.key)
        else:
            self._drop(info.key)
            if old is not None and _less(old, info):
                self._wake(queue, now)

    def gone(self, key: Key, now: float) -> None:
        info = self.infos.pop(key)
        self._quota = None
        self._drop(key)
        self._finishing.pop(key, None)
        self._wake(info.cluster_queue or self._target(info.local_queue), now)

    # --- queues in memory ---------------------------------------------------------------------------------

    def _drop(self, key: Key) -> None:
        self._active.discard(key)
        self._parked.discard(key)
        for queue, sticky in list(self._sticky.items()):
            if sticky == key:
                del self._sticky[queue]

    def _push(self, info: Info, old: Info | None, now: float) -> None:
        queue = self._target(info.local_queue)
        if not self._is_open(info.local_queue) or queue not in self._queues:
            self._drop(info.key)
            return
        key = info.key
        if key in self._parked:
            if old is not None and _same_wait(old, info):
                return
            self._parked.discard(key)
        elif key in self._active:
            return
        bypassed = not self._queues[queue].strict and info.shape in self._bypassed.get(queue, {})
        if bypassed or not _backoff_over(info, now):
            self._parked.add(key)
        else:
            self._active.add(key)

    def _wake(self, queue: str, now: float | None = None) -> None:
        """Try what is parked in a ClusterQueue and its cohort again."""
        found = self._queues.get(queue)
        if found is None:
            return
        names = {each.name for each in self._queues.values() if found.cohort and each.cohort == found.cohort}
        for name in names | {queue}:
            self._bypassed.pop(name, None)
            for key in [key for key in self._parked if self._target(self.infos[key].local_queue) == name]:
                if _backoff_over(self.infos[key], now):
                    self._parked.discard(key)
                    self._active.add(key)

    def _wake_all(self) -> None:
        for name in self._queues:
            self._wake(name)

    def _may_admit(self, queue: ClusterQueue) -> bool:
        return (
            queue.stop == "None"
            and all(flavor in self._flavors for _, flavors in queue.groups for flavor in flavors)
            and all(self._checks.get(check, False) for check in queue.checks)
        )

    def quota(self) -> Quota:
        if self._quota is None:
            holders = {key: info for key, info in self.infos.items() if info.charged}
            self._quota = Quota(self._queues, holders)
        return self._quota

    # --- steps --------------------------------------------------------------------------------------------

    def steps(self, now: float) -> Iterator[Step]:
        """Return the writes that could come next, of all that could."""
        for key, (uid, by) in list(self._finishing.items()):
            found = self.infos.get(key)
            if found is None or found.uid != uid or found.true(FINISHED):
                del self._finishing[key]
                continue
            yield Step(
                "finish replaced",
                key,
                by[1],
                partial(self._finish, found, by, now),
                partial(self._lose, key),
            )
        for info in list(self.infos.values()):
            change, _ = self._look(info, now)
            if change is not None:
                yield Step(change.name, info.key, "", partial(_as_write, change))
        for queue in list(self._queues.values()):
            yield from self._heads(queue, now)

    def next_clock(self, now: float) -> float | None:
        dues = [due for info in self.infos.values() if (due := self._look(info, now)[1]) is not None]
        return min(dues, default=None)

    def _look(self, info: Info, now: float) -> Outcome:
        name = self._target(info.local_queue)
        queue = self._queues.get(name)
        local = self._locals.get(info.local_queue)
        place = Place(
            local=local is not None,
            local_stop=(local["spec"].get("stopPolicy") or "None") if local is not None else "None",
            name=name,
            queue=queue,
            active=queue is not None and self._may_admit(queue),
            bypassed=self._bypassed.get(name, {}).get(info.shape, "") if info.key in self._parked else "",
        )
        return Look(info, place, self._config, now).outcome()

    def _lose(self, key: Key) -> None:
        self._finishing.pop(key, None)

    def _finish(self, info: Info, by: Key, now: float) -> Object:
        self._finishing.pop(info.key, None)
        slice_ = self.infos.get(by)
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

    def _head(self, queue: ClusterQueue) -> Info | None:
        waiting = [
            info for key in self._active if self._target((info := self.infos[key]).local_queue) == queue.name
        ]
        sticky = None if queue.strict else self._sticky.get(queue.name)
        order = lambda info: (info.key != sticky, -info.priority, queued_at(info), info.number)  # noqa: E731
        return min(waiting, key=order, default=None)

    def _heads(self, queue: ClusterQueue, now: float) -> Iterator[Step]:
        if not self._active or not self._may_admit(queue):
            return
        while (head := self._head(queue)) is not None:
            plan = self._plan(head, queue)
            if plan.mode is Mode.FIT:
                yield Step("admit", head.key, queue.name, partial(self._admit, head, queue, plan, now))
                return
            if plan.victims:
                yield from self._preempting(head, queue, plan, now)
                return
            status = self._waiting(head, plan.message, plan.reason, now)
            if status is not head.status:
                yield Step(
                    "pending",
                    head.key,
                    plan.reason,
                    partial(self._park_told, head, queue, plan.reason, status),
                )
                return
            if queue.strict:
                return
            self._park(head, queue, plan.reason)

    def _plan(self, info: Info, queue: ClusterQueue) -> Plan:
        quota = self.quota()
        replaced = quota.holders.get(info.replaces) if info.replaces else None
        if replaced is not None and (replaced.cluster_queue != queue.name or replaced.key[0] != info.key[0]):
            replaced = None
        return Planner(info, queue, quota, self._flavors, replaced).plan()

    def _preempting(self, head: Info, queue: ClusterQueue, plan: Plan, now: float) -> Iterator[Step]:
        if not queue.strict:
            self._sticky[queue.name] = head.key
        spared = [(victim, reason) for victim, reason in plan.victims if not victim.true(EVICTED)]
        for victim, reason in spared:
            yield Step(
                "preempt",
                victim.key,
                head.key[1],
                partial(self._preempt, victim, reason, head, queue, now),
            )
        message = f"{plan.message}. Pending the preemption of {len(plan.victims)} workload(s)"
        status = self._waiting(head, message, plan.reason, now)
        if not spared and status is not head.status:
            yield Step("pending", head.key, plan.reason, partial(dict, status=status))

    def _preempt(self, victim: Info, reason: str, by: Info, queue: ClusterQueue, now: float) -> Object:
        at = stamp(int(now))
        message = (
            f"Preempted to accommodate a workload (UID: {by.uid}, JobUID: {by.job_uid or 'UNKNOWN'}) due to "
            f"{_WORDS[reason]}; preemptor path: {queue.path}; "
            f"preemptee path: {self._queues[victim.cluster_queue].path}"
        )
        status = with_condition(victim.status, PREEMPTED, True, reason, message, at)
        return {"status": evicted(victim, "Preempted", message, at, "", status)}

    def _waiting(self, info: Info, message: str, reason: str, now: float) -> Object:
        """Return the status of one that waits; the very same if it says so already."""
        status = unreserved(
            info, reason if self._config.explicit else "Pending", message, stamp(int(now)), self._config
        )
        reclaimed = {each["name"]: each["count"] for each in status.get("reclaimablePods") or ()}
        requests = [
            {
                "name": each.name,
                "resources": {
                    name: shown(name, value * (each.count - reclaimed.get(each.name, 0)))
                    for name, value in each.requests.items()
                },
            }
            for each in info.sets
        ]
        if status.get("resourceRequests") == requests:
            return status
        return status | {"resourceRequests": requests}

    def _park_told(self, head: Info, queue: ClusterQueue, reason: str, status: Object) -> Object:
        if not queue.strict:
            self._park(head, queue, reason)
        return {"status": status}

    def _park(self, head: Info, queue: ClusterQueue, reason: str) -> None:
        """Park it, and all of its shape, which Kueue does not look at then [47]."""
        self._bypassed.setdefault(queue.name, {})[head.shape] = reason
        for key in list(self._active):
            info = self.infos[key]
            if info.shape == head.shape and self._target(info.local_queue) == queue.name:
                self._active.discard(key)
                self._parked.add(key)

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
            status = synced(head, status, at, self._config)
        replaced = self.quota().holders.get(head.replaces) if head.replaces else None
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


def _less(old: Info, new: Info) -> bool:
    """Whether quota may have come free: fewer Pods, more that are done, another priority."""
    fewer = any(after.count < before.count for before, after in zip(old.sets, new.sets, strict=False))
    done = old.status.get("reclaimablePods") != new.status.get("reclaimablePods")
    return fewer or done or old.priority != new.priority


def _same_wait(old: Info, new: Info) -> bool:
    """Whether a parked Workload stays parked after a write."""
    return old.spec == new.spec and all(
        old.conditions.get(kind) == new.conditions.get(kind) for kind in (EVICTED, REQUEUED)
    )


def _backoff_over(info: Info, now: float | None) -> bool:
    if info.false(REQUEUED):
        return False
    at = info.requeue_at
    return at is None or now is None or now >= at
