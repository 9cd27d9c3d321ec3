"""Kueue's queues in memory: which Workloads wait, and which of them are looked at.

A Workload that waits is in its ClusterQueue's heap (*active*), or *parked* after a try for which there was no room.
Parked ones are tried again when something of the ClusterQueue comes free.
"""

from __future__ import annotations

from tests.kueue.objects import ADMITTED, EVICTED, FINISHED, REQUEUED, RESERVED, Info, Key, Object
from tests.kueue.quota import ClusterQueue, Place, Quota, cluster_queue, queued_at

_WITHOUT_EFFECT = ("WorkloadPriorityClass", "Topology")


class Queues:
    """All queues, and the Workloads in them."""

    def __init__(self) -> None:
        self.infos: dict[Key, Info] = {}
        self.locals: dict[Key, Object] = {}
        self.cluster_queues: dict[str, ClusterQueue] = {}
        self.flavors: dict[str, Object] = {}
        self._checks: dict[str, bool] = {}
        self._active: set[Key] = set()
        self._parked: set[Key] = set()
        self._sticky: dict[str, Key] = {}
        """By ClusterQueue the Workload that waits for what it has preempted: it stays the first."""
        self._bypassed: dict[str, set[object]] = {}
        """By ClusterQueue the shapes for which there was no room."""

    # --- administrators -----------------------------------------------------------------------------------

    def put(self, obj: Object) -> None:
        kind, name = obj["kind"], obj["metadata"]["name"]
        if kind == "LocalQueue":
            key = obj["metadata"]["namespace"], name
            self.locals[key] = obj
            self._reopen(key)
        elif kind == "ClusterQueue":
            is_new = name not in self.cluster_queues
            self.cluster_queues[name] = cluster_queue(obj)
            for key in self.locals if is_new else ():
                self._reopen(key)
            self._wake(name)
        elif kind == "ResourceFlavor":
            self.flavors[name] = obj
            self._wake_all()
        elif kind == "AdmissionCheck":
            conditions = (obj.get("status") or {}).get("conditions") or ()
            self._checks[name] = any(
                each["type"] == "Active" and each["status"] == "True" for each in conditions
            )
            self._wake_all()
        elif kind not in _WITHOUT_EFFECT:
            raise NotImplementedError(f"{kind} {name}: {obj.get('spec')}")

    def _reopen(self, local: Key) -> None:
        """Queue the Workloads of a LocalQueue, also those still to be requeued [05]."""
        is_open = self.target(local) in self.cluster_queues
        for key, info in self.infos.items():
            if is_open and info.local_queue == local and info.admissible and key not in self._parked:
                self._active.add(key)

    def place(self, local: Key) -> Place:
        """Return what a LocalQueue leads to."""
        found = self.locals.get(local)
        name = found["spec"]["clusterQueue"] if found is not None else ""
        queue = self.cluster_queues.get(name)
        return Place(
            local=found is not None,
            name=name,
            queue=queue,
            active=queue is not None and self.may_admit(queue),
        )

    def target(self, local: Key) -> str:
        return self.place(local).name

    def restart(self, now: float) -> None:
        """Forget everything that is not in objects."""
        self._active.clear()
        self._parked.clear()
        self._sticky.clear()
        self._bypassed.clear()
        for info in self.infos.values():
            if info.admissible:
                self._push(info, None, now)

    def stored(self, info: Info, now: float) -> None:
        """Take note of a new version of a Workload."""
        old = self.infos.get(info.key)
        if old is not None and old.uid != info.uid:
            old = None
        self.infos[info.key] = info
        state, before = info.state, old.state if old is not None else ""
        queue = info.cluster_queue or (old.cluster_queue if old else "") or self.target(info.local_queue)
        if state == FINISHED or not info.active:
            self._drop(info.key)
            self._wake(queue, now)
        elif state == "Pending":
            if before in (ADMITTED, RESERVED):
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
        self._drop(key)
        self._wake(info.cluster_queue or self.target(info.local_queue), now)

    # --- queues in memory ---------------------------------------------------------------------------------

    def _drop(self, key: Key) -> None:
        self._active.discard(key)
        self._parked.discard(key)
        for queue, sticky in list(self._sticky.items()):
            if sticky == key:
                del self._sticky[queue]

    def _push(self, info: Info, old: Info | None, now: float) -> None:
        queue = self.target(info.local_queue)
        if not self.place(info.local_queue).local or queue not in self.cluster_queues:
            self._drop(info.key)
            return
        key = info.key
        if key in self._parked:
            if old is not None and _same_wait(old, info):
                return
            self._parked.discard(key)
        elif key in self._active:
            return
        bypassed = not self.cluster_queues[queue].strict and info.shape in self._bypassed.get(queue, ())
        if bypassed or not _backoff_over(info, now):
            self._parked.add(key)
        else:
            self._active.add(key)

    def _wake(self, queue: str, now: float | None = None) -> None:
        """Try what is parked in a ClusterQueue again."""
        self._bypassed.pop(queue, None)
        for key in [key for key in self._parked if self.target(self.infos[key].local_queue) == queue]:
            if _backoff_over(self.infos[key], now):
                self._parked.discard(key)
                self._active.add(key)

    def _wake_all(self) -> None:
        for name in self.cluster_queues:
            self._wake(name)

    def may_admit(self, queue: ClusterQueue) -> bool:
        has_flavors = all(flavor in self.flavors for _, flavors in queue.groups for flavor in flavors)
        return has_flavors and all(self._checks.get(check, False) for check in queue.checks)

    def quota(self) -> Quota:
        return Quota(self.cluster_queues, {key: info for key, info in self.infos.items() if info.charged})

    # --- for the scheduler ----------------------------------------------------------------------------------

    def head(self, queue: ClusterQueue) -> Info | None:
        waiting = [
            info for key in self._active if self.target((info := self.infos[key]).local_queue) == queue.name
        ]
        sticky = None if queue.strict else self._sticky.get(queue.name)
        order = lambda info: (info.key != sticky, -info.priority, queued_at(info), info.number)  # noqa: E731
        return min(waiting, key=order, default=None)

    def stick(self, head: Info, queue: ClusterQueue) -> None:
        if not queue.strict:
            self._sticky[queue.name] = head.key

    def park(self, head: Info, queue: ClusterQueue) -> None:
        """Park it, and all of its shape, which Kueue does not look at then [47]."""
        self._bypassed.setdefault(queue.name, set()).add(head.shape)
        for key in list(self._active):
            info = self.infos[key]
            if info.shape == head.shape and self.target(info.local_queue) == queue.name:
                self._active.discard(key)
                self._parked.add(key)


def _less(old: Info, new: Info) -> bool:
    """Whether quota may have come free: fewer Pods, another priority."""
    fewer = any(after.count < before.count for before, after in zip(old.sets, new.sets, strict=False))
    return fewer or old.priority != new.priority


def _same_wait(old: Info, new: Info) -> bool:
    """Whether a parked Workload stays parked after a write."""
    same = old.spec == new.spec and old.shape == new.shape
    return same and all(old.conditions.get(kind) == new.conditions.get(kind) for kind in (EVICTED, REQUEUED))


def _backoff_over(info: Info, now: float | None) -> bool:
    if info.false(REQUEUED):
        return False
    at = info.requeue_at
    return at is None or now is None or now >= at
