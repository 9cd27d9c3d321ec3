"""A stand-in for Kueue 0.19.1: Workloads and queues in memory, what is refused, and what Kueue does next.

It is made from recordings of the real one, which `test_traces.py` replays against it. Nothing happens by itself:
`moves` lists the writes that Kueue could do next, each a step of its own, as each is one with the real Kueue, so a
caller can put its own writes, or a death, between any two of them.

Objects are never changed in place: a write puts a new one, which shares with the old one what is equal in both.
Nobody who gets an object may change it either.

Three things that it does as the real one, and that a controller may not expect: with active=false the quota is free at
once, before the release [09]; Kueue's own active=false rewrites the spec with all quantities as strings [09]; a
Workload of the same Pod sets, counts and priority as one that found no room waits without a look and without a
condition [47], a slice too, though it may need less (kueue #14247).

Modelled is what a job of ours meets. Not modelled: admissions that are decided and not yet written [42, 43], writes
from an old copy, nodes, taints, topologies, cohorts, stopped queues, gates of admission, Pods that are done before the
others, fair sharing, other flavorFungibility than the default, changed values of a WorkloadPriorityClass, retention of
finished Workloads, MultiKueue, dynamic resource allocation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from localcluster.patches import json_patch, merge_patch
from tests.kueue import rules
from tests.kueue.managing import Manager, Step
from tests.kueue.objects import API_VERSION, Info, Key, Object, amount, info_of, stamp
from tests.kueue.queueing import Queues
from tests.kueue.statuses import Config


@dataclass(frozen=True)
class Move:
    """A write that Kueue could do next. It may be done once, and only while nothing else has changed."""

    name: str
    workload: Key
    about: str = ""
    """The other Workload of a finish or preemption, the ClusterQueue of an admission, else the reason."""
    _do: Callable[[], None] = field(repr=False, compare=False, default=lambda: None)
    _lose: Callable[[], None] | None = field(repr=False, compare=False, default=None)

    @property
    def can_be_lost(self) -> bool:
        """Whether it is tried but once: after a 409 or the manager's death in that moment it never comes."""
        return self._lose is not None

    def do(self) -> None:
        """Do it.

        Raises:
            ValueError: something was written since it was listed.
        """
        self._do()

    def lose(self) -> None:
        """Let it never happen.

        Raises:
            ValueError: Kueue tries this one again.
        """
        if self._lose is None:
            raise ValueError(f"{self.name} of {self.workload} is not lost: Kueue does it again")
        self._lose()


class Kueue:
    """The API server's part in Kueue's kinds, and Kueue's manager.

    Args:
        now: the time, in Unix seconds.
        config: what of the manager's configuration counts here.
    """

    def __init__(self, now: Callable[[], float] = time.time, config: Config | None = None) -> None:
        self.workloads: dict[Key, Object] = {}
        """What is stored, by namespace and name."""
        self._now = now
        self._version = 0
        self._made = 0
        self._down = False
        self._queues = Queues()
        self._manager = Manager(self._queues, config or Config())

    # --- administrators -----------------------------------------------------------------------------------

    def put(self, obj: Object) -> None:
        """Store a ClusterQueue, LocalQueue, ResourceFlavor or AdmissionCheck, in place of one of its name.

        An AdmissionCheck counts with `status.conditions` Active=True alone, as its controller writes it. A
        WorkloadPriorityClass and a Topology are accepted, and change nothing.

        Raises:
            NotImplementedError: it asks for something that this stand-in does not model.
        """
        self._version += 1
        self._queues.put(obj)

    @property
    def down(self) -> bool:
        """Whether the manager is down: nothing but deletes is accepted, and nothing moves."""
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        if value != self._down:
            self._down = value
            self._version += 1
            self._manager.restart(self._now())

    # --- requests -----------------------------------------------------------------------------------------

    def create(self, workload: Object) -> Object:
        """Create a Workload, without its status.

        Raises:
            AlreadyExists, Invalid, Forbidden, Unavailable: as the API server does.
        """
        if self._down:
            raise rules.unreachable("mworkload")
        metadata = workload["metadata"]
        key = metadata["namespace"], metadata["name"]
        if key in self.workloads:
            raise rules.already_exists(key[1])
        self._made += 1
        stamps = {
            "uid": f"{self._made:08x}-{key[1]}",
            "generation": 1,
            "creationTimestamp": stamp(int(self._now())),
        }
        obj: Object = {
            "apiVersion": API_VERSION,
            "kind": "Workload",
            "metadata": metadata | stamps,
            "spec": {"active": True} | workload["spec"],
            "status": {},
        }
        rules.check(obj, None)
        return self._store(key, obj)

    def update(self, workload: Object) -> Object:
        """Replace metadata and spec, as a PUT does.

        Raises:
            NotFound, Conflict, Invalid, Forbidden, Unavailable: as the API server does.
        """
        key, old = self._meant(workload)
        system = {name: old["metadata"][name] for name in _SYSTEM if name in old["metadata"]}
        theirs = {name: value for name, value in workload["metadata"].items() if name not in _SYSTEM}
        return self._write(key, old, theirs | system, workload["spec"])

    def patch(self, namespace: str, name: str, patch: Object | list[Object]) -> Object:
        """Change metadata and spec, by a merge patch (a dict) or a JSON patch (a list).

        Raises:
            NotFound, Conflict, Invalid, Forbidden, Unavailable: as the API server does.
        """
        old = self._found(namespace, name)
        return self.update(merge_patch(old, patch) if isinstance(patch, dict) else json_patch(old, patch))

    def put_status(self, workload: Object) -> Object:
        """Replace the status, as a PUT of /status does.

        Raises:
            NotFound, Conflict, Invalid, Forbidden, Unavailable: as the API server does.
        """
        key, old = self._meant(workload)
        if self._down:
            raise rules.unreachable("vworkload")
        status = workload.get("status") or {}
        if status == old["status"]:
            return old
        new = old | {"status": status}
        rules.check(new, old)
        return self._store(key, new)

    def delete(self, namespace: str, name: str) -> None:
        """Delete it, or mark it if it has finalizers.

        Raises:
            NotFound: it is not there.
        """
        old = self._found(namespace, name)
        metadata = old["metadata"]
        if not metadata.get("finalizers"):
            self._gone((namespace, name))
        elif "deletionTimestamp" not in metadata:
            marks = {
                "deletionTimestamp": stamp(int(self._now())),
                "deletionGracePeriodSeconds": 0,
                "generation": metadata["generation"] + 1,
            }
            self._store((namespace, name), old | {"metadata": metadata | marks})

    def _found(self, namespace: str, name: str) -> Object:
        found = self.workloads.get((namespace, name))
        if found is None:
            raise rules.not_found(name)
        return found

    def _meant(self, workload: Object) -> tuple[Key, Object]:
        metadata = workload["metadata"]
        old = self._found(metadata["namespace"], metadata["name"])
        for name in ("uid", "resourceVersion"):
            if metadata.get(name) not in (None, "", old["metadata"][name]):
                raise rules.conflict(metadata["name"])
        return (metadata["namespace"], metadata["name"]), old

    def _write(self, key: Key, old: Object, metadata: Object, spec: Object) -> Object:
        if self._down:
            raise rules.unreachable("vworkload")
        spec = {"active": True} | spec
        if spec == old["spec"]:
            spec = old["spec"]
            if metadata == old["metadata"]:
                return old
        else:
            metadata = metadata | {"generation": metadata["generation"] + 1}
        new = old | {"metadata": metadata, "spec": spec}
        rules.check(new, old)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._gone(key)
            return new
        return self._store(key, new)

    def _store(self, key: Key, obj: Object) -> Object:
        self._version += 1
        obj = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self._version)}}
        self.workloads[key] = obj
        before: Info | None = self._queues.infos.get(key)
        number = before.number if before is not None and before.uid == obj["metadata"]["uid"] else self._made
        self._queues.stored(info_of(obj, number), self._now())
        return obj

    def _gone(self, key: Key) -> None:
        self._version += 1
        del self.workloads[key]
        self._queues.gone(key, self._now())

    # --- Kueue --------------------------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """Return what Kueue could write next; none while it is down.

        The scheduler's are `admit`, `preempt` (of the victim), `pending` and `finish replaced`; the controller's
        `evict`, `requeue`, `backoff over`, `retry time`, `target deactivation`, `deactivate`, `list checks`,
        `update conditions`, `clear requeue state`, `finish orphan`, `remove finalizer`.
        Within one ClusterQueue Kueue decides on one Workload after the other, so of several that wait there only
        what comes of the first is listed.
        """
        if self._down:
            return []
        found = []
        for step in self._manager.steps(self._now()):
            found.append(
                Move(
                    step.name,
                    step.key,
                    step.about,
                    partial(self._carry_out, step, self._version),
                    step.forget,
                )
            )
        return found

    def _carry_out(self, step: Step, version: int) -> None:
        if version != self._version:
            raise ValueError(
                f"{step.name} of {step.key} was listed before the last write: list the moves again"
            )
        key, change = step.key, step.write()
        old = self.workloads[key]
        metadata, spec = old["metadata"], old["spec"]
        if "active" in change:
            # Kueue writes the whole spec here, as it has read it [09]: no quantity is a number any more.
            spec = rules.as_in_go(spec) | {"active": change["active"]}
            metadata = metadata | {"generation": metadata["generation"] + 1}
        if "finalizers" in change:
            metadata = metadata | {"finalizers": change["finalizers"]}
            if not change["finalizers"] and "deletionTimestamp" in metadata:
                self._gone(key)
                return
        self._store(
            key, old | {"metadata": metadata, "spec": spec, "status": change.get("status", old["status"])}
        )

    def next_clock(self) -> float | None:
        """Return when the next of Kueue's clocks is due, in Unix seconds."""
        return self._manager.next_clock(self._now())

    def used(self, cluster_queue: str, flavor: str, resource: str) -> int:
        """Return what is charged, in whole units."""
        value = self._queues.quota().used(cluster_queue, (flavor, resource))
        return -(-value // amount(resource, 1))


_SYSTEM = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
