"""Random orders of what job controllers, users and Kueue do in three queues, two of which lend to each other."""

from __future__ import annotations

import random
from collections.abc import Callable

from controller.errors import ApiError
from tests.kueue import build
from tests.kueue.build import NAMESPACE
from tests.kueue.objects import REPLACES, Object, stamp
from tests.kueue.standin import Kueue
from tests.kueue.statuses import Config


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def kueue(gpus: int = 4, clock: Clock | None = None, config: Config | None = None, **spec: object) -> Kueue:
    made = Kueue(clock or Clock(), config)
    made.put(build.flavor("fixed"))
    made.put(
        build.cluster_queue(
            "small", {"fixed": gpus}, **(spec or {"preemption": {"withinClusterQueue": "LowerPriority"}})
        )
    )
    made.put(build.local_queue("small"))
    return made


def is_true(workload: Object, kind: str) -> bool:
    conditions = workload["status"].get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


class Schedule:
    """One of them.

    Args:
        seed: decides all of it.
        slices: whether Workloads are replaced.
    """

    def __init__(self, seed: int, *, slices: bool = True) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        config = Config(timeout_seconds=60, recovery_seconds=30, backoff_seconds=5, most_requeues=2)
        self.kueue = kueue(4, self.clock, config)
        pair = {
            "cohortName": "pair",
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        }
        for name in ("left", "right"):
            self.kueue.put(build.cluster_queue(name, {"fixed": 3}, **pair))
            self.kueue.put(build.local_queue(name))
        self.slices = slices
        self.refused = 0
        self.replaced: set[str] = set()
        """Workloads, by uid, for which others have been admitted, as long as they hold quota."""

    def step(self) -> None:
        weights: dict[Callable[[], None], int] = {
            **{
                self.create: 6,
                self.slice: 5 * self.slices,
                self.shrink: 3,
                self.edit: 1,
                self.finish: 1,
                self.delete: 1,
            },
            **{self.release: 4, self.ready: 2, self.switch: 1, self.wait: 2, self.die: 1, self.nonsense: 1},
            self.move: 20,
        }
        self.random.choices(list(weights), list(weights.values()))[0]()

    def one(self) -> Object | None:
        return self.random.choice(list(self.kueue.workloads.values()) or [None])  # type: ignore[list-item]

    def attempt(self, act: Callable[[], object]) -> None:
        """Do what may be refused: then nothing has changed."""
        before = dict(self.kueue.workloads)
        moves = self.kueue.moves()
        try:
            act()
        except ApiError:
            self.refused += 1
            assert all(self.kueue.workloads[key] is obj for key, obj in before.items())
            assert len(before) == len(self.kueue.workloads)
            assert self.kueue.moves() == moves

    def create(self) -> None:
        count = self.random.randint(1, 5)
        least = self.random.choice([None, self.random.randint(1, count)])
        queue = self.random.choice(["small", "left", "right"])
        name = f"w{self.random.randint(0, 9)}"
        priority = self.random.choice([0, 0, 10])
        self.attempt(
            lambda: self.kueue.create(build.workload(name, count, least, queue=queue, priority=priority))
        )

    def slice(self) -> None:
        old = self.one()
        if old is None or any(
            _replaces(each) == old["metadata"]["name"] for each in self.kueue.workloads.values()
        ):
            return
        count = self.random.randint(1, 6)
        new = build.workload(
            f"s{self.random.randint(0, 9)}",
            count,
            self.random.randint(1, count),
            queue=old["spec"]["queueName"],
            priority=old["spec"]["priority"],
            replaces=old["metadata"]["name"],
        )
        self.attempt(lambda: self.kueue.create(new))

    def shrink(self) -> None:
        found = self.one()
        if found is not None:
            count = found["spec"]["podSets"][0]["count"] - 1
            patch = [{"op": "replace", "path": "/spec/podSets/0/count", "value": count}]
            if count > 0:
                self.attempt(lambda: self.kueue.patch(NAMESPACE, found["metadata"]["name"], patch))

    def edit(self) -> None:
        found = self.one()
        if found is not None:
            patch = {"spec": self.random.choice([{"priority": 10}, {"queueName": "left"}])}
            self.attempt(lambda: self.kueue.patch(NAMESPACE, found["metadata"]["name"], patch))

    def finish(self) -> None:
        found = self.one()
        if found is not None:
            self.attempt(lambda: self.kueue.put_status(build.finished(found, stamp(int(self.clock())))))

    def delete(self) -> None:
        found = self.one()
        if found is not None:
            self.kueue.delete(NAMESPACE, found["metadata"]["name"])

    def release(self) -> None:
        found = self.one()
        if found is not None and is_true(found, "Evicted") and found["status"].get("admission"):
            self.attempt(lambda: self.kueue.put_status(build.released(found)))

    def ready(self) -> None:
        found = self.one()
        if found is not None:
            value = self.random.random() < 0.7
            new = build.with_ready(
                found, value, "Started" if value else "WaitForRecovery", stamp(int(self.clock()))
            )
            self.attempt(lambda: self.kueue.put_status(new))

    def switch(self) -> None:
        """Switch one off, or one on that has given its quota back."""
        found = self.one()
        if found is not None and (found["spec"]["active"] or not is_true(found, "QuotaReserved")):
            patch = {"spec": {"active": not found["spec"]["active"]}}
            self.attempt(lambda: self.kueue.patch(NAMESPACE, found["metadata"]["name"], patch))

    def wait(self) -> None:
        due = self.kueue.next_clock()
        self.clock.seconds = self.random.choice([self.clock.seconds + 1, max(due or 0, self.clock.seconds)])

    def die(self) -> None:
        """Let the manager die; it is back at once, or once in a while with the next move."""
        self.kueue.down = True
        self.kueue.down = self.random.random() < 0.3

    def nonsense(self) -> None:
        found = self.one()
        if found is not None:
            wrong = {"spec": {"podSets": [{**found["spec"]["podSets"][0], "minCount": 99}]}}
            self.attempt(lambda: self.kueue.patch(NAMESPACE, found["metadata"]["name"], wrong))

    def move(self) -> None:
        self.kueue.down = False
        moves = self.kueue.moves()
        if moves:
            chosen = self.random.choice(moves)
            if chosen.can_be_lost and self.random.random() < 0.3:
                chosen.lose()
                return
            old = self.kueue.workloads.get((NAMESPACE, _replaces(self.kueue.workloads[chosen.workload])))
            chosen.do()
            if chosen.name == "admit" and old is not None and _charged(old):
                self.replaced.add(old["metadata"]["uid"])

    def net(self, *queues: str) -> int:
        """Return how many Pods are charged in queues, without what is replaced and not Finished."""
        total = 0
        for obj in self.kueue.workloads.values():
            if not _charged(obj):
                self.replaced.discard(obj["metadata"]["uid"])
            elif (
                obj["status"]["admission"]["clusterQueue"] in queues
                and obj["metadata"]["uid"] not in self.replaced
            ):
                granted = obj["status"]["admission"]["podSetAssignments"][0]["count"]
                total += min(granted, obj["spec"]["podSets"][0]["count"])
        return total


def _replaces(workload: Object) -> str:
    annotations = workload["metadata"].get("annotations") or {}
    return str(annotations.get(REPLACES, "")).rpartition("/")[2]


def _charged(workload: Object) -> bool:
    holds = is_true(workload, "QuotaReserved") and not is_true(workload, "Finished")
    return holds and workload["spec"]["active"]
