"""The life of an elastic job in a queue: job, controller, Pods, Kueue and those it competes with, played by a seed.

Kueue is the stand-in, the decisions are the product's. The controller sees late what others do, dies between any two
writes, and forgets then what it has counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from controller.errors import ApiError
from crds import names
from crds.elasticjob import ElasticJob
from crds.phases import JobPhase
from reconcilers.kueue.gate import why_not_granted
from reconcilers.kueue.manifest import wish_of
from reconcilers.kueue.plan import QueueSeen, Verb, Write, plan_queue
from reconcilers.kueue.sorting import JobWorkloads, sorted_workloads
from reconcilers.kueue.workload import Workload
from reconcilers.observed.ownership import belongs_to
from reconcilers.observed.slots import as_granted, slot_count
from tests.kueue import build
from tests.kueue.build import GPU, NAMESPACE
from tests.kueue.standin import Kueue

JSON = dict[str, Any]
UID = "9c8b7a65-0000-4000-8000-000000000001"
START = datetime(2026, 1, 1, tzinfo=UTC)
CALM_ROUNDS = 60
ACTS = 120
WORKER = names.WORKER


class Killed(Exception):
    """The controller dies."""


class Life:
    """One job, from its creation to its end.

    Args:
        seed: decides the sizes, and who acts when.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        draw = self.random
        self.now = 1_000.0
        self.kueue = Kueue(lambda: self.now)
        self.quota = draw.randint(1, 9)
        self.others: list[str] = []
        self.made = 0
        self.most = draw.randint(1, 6)
        least = draw.randint(1, self.most)
        self.job = _job(self.most, least, draw.choice((0, 0, 1)))
        self.queue = "one"
        self.priority = draw.choice((0, 0, 5))
        self.growth = draw.choice((0, 5))
        self.has_checks = draw.random() < 0.2
        self.pods: dict[int, bool] = {}
        """By slot, whether the Pod is on its way out."""
        self.trace: list[str] = []
        self.wrong: list[str] = []
        self.has_joined = False
        """The job came into its queue with Pods, which were not granted."""
        self.writes = self.quiet_rounds = 0
        self.is_calm = False
        self.cuts = False
        self._put_queues()
        self._forget()
        self._watch()

    # --- what the controller sees ---

    def _forget(self) -> None:
        """A new leader counts ages afresh."""
        self._ages: dict[str, tuple[object, float]] = {}

    def _watch(self) -> None:
        self.view = dict(self.kueue.workloads)

    def workloads_of_job(self, objects: dict[tuple[str, str], JSON] | None = None) -> JobWorkloads:
        found = (self.view if objects is None else objects).values()
        return sorted_workloads([Workload(raw) for raw in found if belongs_to(raw, UID)])

    def _age(self, what: str, value: object) -> float:
        known = self._ages.get(what)
        if known is None or known[0] != value:
            known = self._ages[what] = (value, self.now)
        return self.now - known[1]

    has_class = True

    def _class(self, value: int) -> JSON:
        return _priority(value) if self.has_class else {}

    def look(self) -> None:
        """One look of the reconciler; it may be its last."""
        workloads = self.workloads_of_job()
        held, slice_ = workloads.held, workloads.slice
        state = (
            None
            if held is None or slice_ is None
            else (slice_.uid, held.uid, held.is_evicted, held.granted(WORKER))
        )
        priority, growth = self._class(self.priority), self._class(min(self.priority, self.growth))
        queue = "" if self.queue == "none" else self.queue
        seen = QueueSeen(
            self.job,
            wish_of(self.job, queue, priority, growth),
            workloads,
            {WORKER: len(self.pods)} if self.pods else {},
            {WORKER: sum(not going for going in self.pods.values())},
            self._age("slice", state),
            self._age("replaced", workloads.replaced and workloads.replaced.uid),
            "it has checks" if self.has_checks else "",
        )
        plan = plan_queue(seen, START + timedelta(seconds=self.now))
        if plan.admission != self.job.status.admission:
            self.job = self.job.having(admission=plan.admission)
            self._maybe_die()
        if plan.write is not None:
            self._carry_out(plan.write)
            self._maybe_die()

    def _carry_out(self, write: Write) -> None:
        name = "" if write.of is None else write.of.name
        self.trace.append(f"{write.verb.value} {name}")
        self.writes += 1
        try:
            self._write(write, name)
        except ApiError as error:
            self.trace.append(f"refused: {error}")
            if error.status in (403, 422) and not self._is_late(write):
                self.wrong.append(
                    f"refused, though decided from what is stored: {write.verb} {name}: {error}"
                )
            self._watch()
            return
        self._watch_own(write.of)

    def _is_late(self, write: Write) -> bool:
        return (
            write.of is not None and self.kueue.workloads.get((NAMESPACE, write.of.name)) is not write.of.raw
        )

    def _watch_own(self, of: Workload | None) -> None:
        """The answer to a write shows at once; the rest is as late as before."""
        names_of = {of.name} if of is not None else set()
        for key, raw in self.kueue.workloads.items():
            if key not in self.view or key[1] in names_of:
                self.view[key] = raw
        self.view = {key: raw for key, raw in self.view.items() if key in self.kueue.workloads}

    def _write(self, write: Write, name: str) -> None:
        if write.of is None:
            self.kueue.create(write.body)
            return
        version = write.of.raw["metadata"]["resourceVersion"]
        match write.verb:
            case Verb.DELETE:
                self.kueue.delete(NAMESPACE, name)
            case Verb.STATUS:
                self.kueue.put_status({**write.of.raw, "status": write.body})
            case _:
                metadata = {"resourceVersion": version, **write.body.get("metadata", {})}
                self.kueue.patch(NAMESPACE, name, {**write.body, "metadata": metadata})

    def _maybe_die(self) -> None:
        if not self.is_calm and self.random.random() < 0.1:
            raise Killed

    # --- what everybody else does ---

    def core(self) -> None:
        """The job's reconciler: as many Pods as are wanted, and granted."""
        job = self.job
        runs = not (job.stops or job.status.finished)
        wanted = slot_count(as_granted(job).spec.replica_specs[WORKER]) if runs else 0
        for slot in self.pods:
            if slot >= wanted:
                self.pods[slot] = True
        for slot in range(wanted):
            if slot not in self.pods and (
                self.queue == "none" or not why_not_granted(self.workloads_of_job(), WORKER, len(self.pods))
            ):
                self.pods[slot] = False

    def pod_ends(self) -> None:
        going = [slot for slot, is_going in self.pods.items() if is_going]
        if going:
            del self.pods[self.random.choice(going)]

    def pod_crashes(self) -> None:
        if self.pods:
            del self.pods[self.random.choice(list(self.pods))]

    def kueue_moves(self) -> None:
        moves = self.kueue.moves()
        if not moves:
            return
        move = self.random.choice(moves)
        self.trace.append(str(move))
        if not self.is_calm and move.can_be_lost and self.random.random() < 0.3:
            move.lose()
        else:
            move.do()

    def clock(self) -> None:
        self.now += self.random.choice((0.2, 1.0, 4.0, 12.0))

    def user(self) -> None:
        spec = self.job.spec
        act = self.random.randrange(8)
        if act == 0:
            worker = spec.replica_specs[WORKER]
            count = self.random.randint(worker.min_replicas or 1, 7)
            self._respec(replica_specs={WORKER: worker.model_copy(update={"replicas": count})})
        elif act <= 2:
            self._respec(suspend=not spec.suspend)
        elif act == 3:
            mine = [raw for raw in self.kueue.workloads.values() if belongs_to(raw, UID)]
            if mine:
                self.kueue.delete(NAMESPACE, self.random.choice(mine)["metadata"]["name"])
        elif act == 6:
            self.priority = self.random.choice((0, 5))
        elif act == 7:
            pass
        elif act == 4:
            before, self.queue = self.queue, self.random.choice(("one", "two", "none"))
            self.has_joined = self.has_joined or before == "none"
        else:
            self._retemplate(self.random.choice(("a", "b")))
        self.trace.append(f"user {act}: {self.queue}, suspend={self.job.spec.suspend}")

    def _respec(self, **update: Any) -> None:
        self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update=update)})

    def _retemplate(self, zone: str) -> None:
        worker = self.job.spec.replica_specs[WORKER]
        template = {**worker.template, "spec": {**worker.template["spec"], "overhead": {"zone": zone}}}
        self._respec(replica_specs={WORKER: worker.model_copy(update={"template": template})})

    def competitor(self) -> None:
        """Another job comes, goes, or gives back what it is to give back."""
        draw = self.random
        if self.others and draw.random() < 0.5:
            name = self.others.pop(draw.randrange(len(self.others)))
            self.kueue.delete(NAMESPACE, name)
            return
        self.comes(draw.randint(1, 4), draw.choice((0, 0, 10)))

    def comes(self, count: int, priority: int) -> None:
        """Another job comes, which keeps to what Kueue says."""
        self.made += 1
        name = f"other-{self.made}"
        self.kueue.create(build.workload(name, count, queue="one", priority=priority))
        self.others.append(name)

    def _others_release(self) -> None:
        for name in list(self.others):
            raw = self.kueue.workloads.get((NAMESPACE, name))
            if raw is not None and Workload(raw).is_evicted:
                self.others.remove(name)
                self.kueue.delete(NAMESPACE, name)

    def administrator(self) -> None:
        before, self.quota = self.quota, self.random.randint(1, 9)
        self.cuts = self.cuts or self.quota < before
        self._put_queues()

    def check(self) -> None:
        """The controller of an admission check answers."""
        for raw in list(self.kueue.workloads.values()):
            status = raw.get("status") or {}
            if checks := status.get("admissionChecks"):
                state = (
                    "Ready"
                    if self.is_calm
                    else self.random.choice(("Ready", "Ready", "Retry", "Rejected", "Pending"))
                )
                answered = [each | {"state": state, "message": state.lower()} for each in checks]
                if answered != checks:
                    self.kueue.put_status({**raw, "status": {**status, "admissionChecks": answered}})
                    return

    def person(self) -> None:
        """Somebody sets a Workload that Kueue has given up active again."""
        for raw in list(self.kueue.workloads.values()):
            if not raw["spec"].get("active", True) and not Workload(raw).is_paused:
                self.kueue.patch(
                    raw["metadata"]["namespace"], raw["metadata"]["name"], {"spec": {"active": True}}
                )

    def manager(self) -> None:
        self.kueue.down = not self.kueue.down

    # --- a life ---

    def play(self) -> list[str]:
        """Play the life; return what went wrong."""
        acts = (
            [self.look] * 8
            + [self.core] * 6
            + [self.pod_ends] * 4
            + [self.kueue_moves] * 8
            + [self._watch] * 6
            + [self.clock] * 3
            + [self.competitor] * 2
            + [self._others_release] * 3
            + [self.administrator, self.pod_crashes, self.check, self.person]
            + ([self.user] if self.random.random() < 0.7 else [])
            + ([self.manager] if self.random.random() < 0.2 else [])
        )
        for _ in range(ACTS):
            act = self.random.choice(acts)
            self._do(act)
            if self.wrong:
                return self.wrong
        self._calm()
        return self.wrong

    def _do(self, act: Any) -> None:
        self.trace.append(act.__name__.strip("_"))
        try:
            act()
        except Killed:
            self._forget()
            self._watch()
        except ApiError as error:
            assert self.kueue.down, error
        self.wrong += self.violations()

    def _calm(self) -> None:
        """Everybody else goes, there is room for all, and nothing fails: the job comes to what it wants."""
        self.is_calm, self.kueue.down = True, False
        for name in self.others:
            self.kueue.delete(NAMESPACE, name)
        self.others = []
        if self.queue == "none":
            self.queue, self.has_joined = "one", True
        if self.job.spec.suspend:
            self._settle(
                lambda: self._is_quiet() and not (self.pods or self._used()), "suspended, it holds quota"
            )
            self._respec(suspend=False)
        for quota, is_done, why in (
            (self.quota, self._is_quiet, "it goes on writing"),
            (20, self._is_whole, "with room for all it has not what it wants"),
        ):
            self.quota = quota
            self._put_queues()
            self._settle(is_done, why)
        self.job = self.job.having(phase=JobPhase.SUCCEEDED)
        self._settle(self._is_over, "the job has ended, and its quota is not free")

    def _settle(self, is_done: Any, why: str) -> None:
        for _ in range(CALM_ROUNDS):
            for act in (
                self._watch,
                self.look,
                self.core,
                self.pod_ends,
                self.check,
                self.person,
                self._kueue_settles,
                self._watch,
                self.look,
            ):
                self._do(act)
            if self.wrong or is_done():
                return
            self.now += 3.0
        mine = [
            (Workload(raw).name, Workload(raw).conditions, raw["spec"].get("active"))
            for raw in self.kueue.workloads.values()
        ]
        self.wrong.append(
            f"{why}: {len(self.pods)} Pods, {self.job.status.admission}, {mine}, {self.trace[-30:]}"
        )

    def _kueue_settles(self) -> None:
        self.kueue.settle()

    def _is_quiet(self) -> bool:
        """Whether nothing is written any more, whatever is granted."""
        self.quiet_rounds = 0 if self.writes else self.quiet_rounds + 1
        self.writes = 0
        return self.quiet_rounds > 5

    def _is_whole(self) -> bool:
        wanted = slot_count(self.job.spec.replica_specs[WORKER])
        workloads = self.workloads_of_job(self.kueue.workloads)
        if self.has_checks and workloads.held is not None:  # then it cannot grow
            wanted = min(wanted, workloads.held.granted(WORKER))
        is_quiet = workloads.slice is None and workloads.replaced is None
        return (
            len(self.pods) == wanted and not any(self.pods.values()) and is_quiet and self._used() == wanted
        )

    def _is_over(self) -> bool:
        return (
            not self.pods
            and all(Workload(raw).is_finished for raw in self.kueue.workloads.values())
            and not any(Workload(raw).has_finalizer for raw in self.kueue.workloads.values())
        )

    def _used(self) -> int:
        return self.kueue.used("shared", "default", GPU)

    def violations(self) -> Iterator[str]:
        """Yield what must never be, of what is stored."""
        mine = [Workload(raw) for raw in self.kueue.workloads.values() if belongs_to(raw, UID)]
        charged = [each for each in mine if each.has_quota and not each.is_finished]
        granted = max((each.granted(WORKER) for each in charged), default=0)
        is_admitted = any(each.is_admitted for each in charged)
        self.has_joined = self.has_joined and not (is_admitted and len(self.pods) <= granted)
        if self.queue == "none" or self.has_joined:
            return
        if self.pods and not is_admitted:
            yield f"granted: {len(self.pods)} Pods without an admitted Workload"
        if self.pods and any(each.is_paused for each in charged):
            yield f"granted: {len(self.pods)} Pods of a Workload that we made inactive"
        if len(self.pods) > granted:
            yield f"granted: {len(self.pods)} Pods, and {granted} are granted"
        waiting = [each for each in mine if each.replaces and not each.has_quota and not each.is_finished]
        if len([each for each in waiting if not each.is_deleted]) > 1:
            yield "slices: more than one waits"

    def _put_queues(self) -> None:
        preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Never"}
        checks = (
            {"admissionChecksStrategy": {"admissionChecks": [{"name": "check"}]}} if self.has_checks else {}
        )
        self.kueue.put(build.flavor("default"))
        self.kueue.put(
            build.cluster_queue("shared", {"default": self.quota}, preemption=preemption, **checks)
        )
        if self.has_checks:
            active = {"conditions": [{"type": "Active", "status": "True"}]}
            self.kueue.put(
                {"kind": "AdmissionCheck", "metadata": {"name": "check"}, "spec": {}, "status": active}
            )
        for name in ("one", "two"):
            self.kueue.put(build.local_queue(name, queue="shared"))


def _priority(value: int) -> JSON:
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": f"p{value}"}
    return {"priorityClassRef": reference, "priority": value}


def _job(most: int, least: int, standby: int) -> ElasticJob:
    worker = {
        "replicas": most,
        "minReplicas": least,
        "standby": standby,
        "template": {"spec": {"containers": [build.container()]}},
    }
    return ElasticJob.model_validate(
        {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": {
                "name": "job",
                "namespace": NAMESPACE,
                "uid": UID,
                "generation": 1,
                "resourceVersion": "1",
            },
            "spec": {"replicaSpecs": {WORKER: worker}},
        }
    )
