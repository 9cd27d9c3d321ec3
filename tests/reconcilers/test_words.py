"""No code of the controller reads a sentence back: other words in what it has written change nothing but words.

The text of a training process itself (`status.agent.failure`) is evidence, and stays: of it, class and signature
are made when it is first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from crds.agent_report import AgentCheckpointTrouble, FailureCause, RankStack, RoundProgress, Slow
from crds.checkpoint_files import CheckpointTrouble
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.conditions.facts import Neighbour
from reconcilers.job.plan import Plan, plan_job
from reconcilers.job.seen import Seen
from reconcilers.observed.worker_state import REFUSALS
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Act
from simulator import objects, planned
from simulator.planned import PlannedJob
from tests.reconcilers.judging import with_status

Wire = dict[str, Any]

WORDS = (
    "",
    "the",
    "round 7: worker 1 failed",
    "never answered",
    "0",
    "at step 3 of round 2",
    "waits…",
    "ps 1 ",
)
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.2]:4711"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
SENTENCES = {
    "message": lambda path: "failure" not in path or "history" in path,
    "reason": lambda path: path[-1:] in (["rendezvous"], ["history"], ["growth"]),
    "waitsFor": lambda path: True,
    "logTail": lambda path: path[-1:] == ["lastExit"],
}
"""Fields with a sentence, and the objects of which they are fields; `path` has the keys that lead there."""


def reworded(wire: Any, word: Callable[[], str], path: tuple[str, ...] = ()) -> Any:
    """The object with each of its sentences replaced."""
    if isinstance(wire, list):
        return [reworded(each, word, path) for each in wire]
    if not isinstance(wire, dict):
        return wire
    return {
        key: word()
        if isinstance(value, str) and key in SENTENCES and SENTENCES[key](list(path))
        else reworded(value, word, (*path, key))
        for key, value in wire.items()
    }


def in_other_words(seen: Seen, word: Callable[[], str]) -> Seen:
    status = reworded(seen.raw["status"], word)
    job = ElasticJob.model_validate({**seen.job.to_wire(), "status": status})
    workers = [
        ElasticWorker.model_validate({**each.to_wire(), "status": reworded(each.status.to_wire(), word)})
        for each in seen.workers
    ]
    return replace(seen, job=job, raw={**seen.raw, "status": status}, workers=Workers(workers))


def without_words(seen: Seen, plan: Plan) -> list[Any]:
    """What the plan comes to, but for its sentences."""

    def of_act(act: Act | None) -> Any:
        if act is None:
            return None
        told = [(event.type, event.reason) for event in act.events]
        return act.verb, act.resource, act.name, reworded(act.body, str), told

    status = objects.patched(seen.raw["status"], plan.status_patch)
    return [
        reworded(status, str),
        [(event.type, event.reason) for event in plan.events],
        of_act(plan.check),
        [of_act(act) for act in plan.first],
        [of_act(act) for act in plan.acts],
        plan.look_again_seconds,
        plan.is_interim,
    ]


# --- histories --------------------------------------------------------------------------------------------

DEEDS = [
    "starts",
    "starts",
    "starts",
    "runs",
    "runs",
    "runs",
    "steps",
    "rests",
    "rests",
    "raises",
    "follows",
    "breaks",
    "hangs",
    "waits",
    "well",
    "killed",
    "unschedulable",
    "refused",
    "lost",
    "silent",
    "preempted",
    "deleted",
    "oom",
    "nan",
    "full",
    "stale",
    "slow",
    "fast",
    "edited",
    "rejected",
    "suspends",
    "resumes",
    "grows",
    "shrinks",
    "checked",
]
DEED = st.tuples(st.sampled_from(DEEDS), st.integers(0, 3), st.sampled_from((0.1, 1.0, 11.0, 61.0)))


@dataclass
class Life:
    """A job to which things happen; each look is compared with one at the same job in other words."""

    job: PlannedJob
    seed: int
    now: datetime = objects.EPOCH
    more: Wire = field(default_factory=dict)
    """What the look sees besides; by field of `Seen`."""
    looks: int = 0

    def look(self) -> None:
        real = planned.plan_job
        planned.plan_job = self._compared  # type: ignore[assignment]
        try:
            self.job.look(self.now)
        finally:
            planned.plan_job = real

    def _compared(self, seen: Seen, now: datetime) -> Plan:
        seen = replace(seen, **self.more)
        draw = Random(self.seed + self.looks)
        self.looks += 1
        # Whatever is written takes the account with it: so that something is, both have another `status.message`.
        same = seen
        if seen.raw["status"]:
            status = {**seen.raw["status"], "message": "a word"}
            job = with_status(seen.job, message="a word")
            same = replace(seen, raw={**seen.raw, "status": status}, job=job)
        other = in_other_words(seen, lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 4))).strip())
        assert without_words(other, plan_job(other, now)) == without_words(same, plan_job(same, now))
        return plan_job(seen, now)

    def do(self, deed: str, index: int) -> None:
        worker = self.job.workers.get(index)
        if deed in ("suspends", "resumes", "grows", "shrinks"):
            return self._edit(deed)
        if deed == "edited":
            self.more["outdated_pods"] = index
            return None
        if worker is not None and deed in ALIVE and worker.status.agent is not None:
            return self.job.put(ALIVE[deed](self, worker))
        if worker is not None and deed in OF_PODS:
            return self.job.put(OF_PODS[deed](self, worker))
        return self._of_all(deed)

    def _of_all(self, deed: str) -> None:
        if deed == "rests":
            self.job.stop(self.now)
        elif deed == "runs":
            self.job.run_round(10 * self.job.world.round, self.now)
        elif deed == "steps":
            self.job.report_steps(10, 20 + self.looks, 9.0, self.now)
        elif deed == "starts":
            for each in list(self.job.workers.values()):
                if each.status.phase != "Running" or each.status.agent is None:
                    self.job.put(
                        objects.ready(objects.with_pod(each, f"n{each.spec.index}", self.now), self.now)
                    )
        elif deed == "checked":
            for check in [c for c in self.job.checks if not (c.status.phase and c.status.phase.finished)]:
                nodes = [f"n{each}" for each in self.job.workers]
                found = {"nodes": nodes, "nodeResults": [{"node": n, "verdict": "Healthy"} for n in nodes]}
                self.job.end_check(check.to_wire(), found, self.now)

    def _edit(self, deed: str) -> None:
        spec = self.job.job.spec
        if deed in ("suspends", "resumes"):
            spec = spec.model_copy(update={"suspend": deed == "suspends"})
        else:
            worker = spec.replica_specs["worker"].model_copy(update={"replicas": 4 if deed == "grows" else 2})
            spec = spec.model_copy(update={"replica_specs": {"worker": worker}})
        metadata = self.job.job.metadata
        metadata = metadata.model_copy(update={"generation": metadata.generation + 1})
        self.job.job = self.job.job.model_copy(update={"spec": spec, "metadata": metadata})


def _fails(**failure: Any) -> Callable[[Life, ElasticWorker], ElasticWorker]:
    def failed(life: Life, worker: ElasticWorker) -> ElasticWorker:
        rank = worker.spec.index
        where = [stack | {"rank": rank} for stack in failure.get("stacks", ())]
        told = {
            **failure,
            "rank": rank,
            "stacks": tuple(TypeAdapter(RankStack).validate_python(each) for each in where),
        }
        return objects.failed(worker, life.job.world.round, life.now, **told)

    return failed


def _slow(life: Life, worker: ElasticWorker) -> ElasticWorker:
    life.more["neighbours"] = [Neighbour("another-job-worker-0", f"n{worker.spec.index}", life.now)]
    slow = Slow(step=30 + life.looks, since=life.now, seconds_per_step=2.0, usual_seconds=0.5)
    return objects.reporting(worker, slow=slow)


def _non_finite(life: Life, worker: ElasticWorker) -> ElasticWorker:
    told = RoundProgress(round=life.job.world.round, first_step=1, last_step=9, non_finite_step=8)
    return objects.reporting(worker, rounds=(told,))


def _troubled(life: Life, worker: ElasticWorker) -> ElasticWorker:
    trouble = AgentCheckpointTrouble(reason=CheckpointTrouble.STORAGE, message=f"step {life.looks}: full")
    told = RoundProgress(round=life.job.world.round, first_step=1, last_step=9)
    return objects.reporting(worker, rounds=(told,), checkpoint_trouble=trouble)


def _silenced(life: Life, worker: ElasticWorker) -> ElasticWorker:
    return objects.silent(worker, 40.0, life.now)


ALIVE: Mapping[str, Callable[[Life, ElasticWorker], ElasticWorker]] = {
    "raises": _fails(exit_code=1, message="ValueError: bad"),
    "follows": _fails(exit_code=1, message=PEER),
    "breaks": _fails(exit_code=1, message=ECC),
    "killed": _fails(exit_code=-9, message="the process was killed by SIGKILL"),
    "hangs": _fails(cause=FailureCause.HANG, message="no step", stacks=[{"inCollective": False}]),
    "waits": _fails(cause=FailureCause.HANG, message="no step", stacks=[{"inCollective": True}]),
    "well": _fails(message="does not hang"),
    "oom": _fails(exit_code=-9, cause=FailureCause.OOM, message="out of memory"),
    "nan": _non_finite,
    "full": _troubled,
    "slow": _slow,
    "fast": lambda _, worker: objects.reporting(worker, slow=None, checkpoint_trouble=None),
}


def _rejected(life: Life, worker: ElasticWorker) -> ElasticWorker:
    waits, index = objects.waiting(worker, life.now, unschedulable=True), worker.spec.index
    refused = [
        each.model_copy(update={"reason": REFUSALS[index % len(REFUSALS)], "message": f"no: {life.looks}"})
        for each in waits.status.conditions
    ]
    return waits.model_copy(update={"status": waits.status.model_copy(update={"conditions": refused})})


OF_PODS: Mapping[str, Callable[[Life, ElasticWorker], ElasticWorker]] = {
    "unschedulable": lambda life, worker: objects.waiting(worker, life.now, unschedulable=True),
    "rejected": _rejected,
    "lost": _silenced,
    "deleted": lambda life, worker: objects.deleted(worker, life.now, preempted=False),
    "preempted": lambda life, worker: objects.deleted(worker, life.now, preempted=True),
}


@given(
    st.lists(DEED, min_size=4, max_size=24),
    st.booleans(),
    st.integers(0, 1),
    st.integers(0, 10**9),
)
@settings(max_examples=15, deadline=None)
def test_other_words_in_what_was_written_change_nothing_of_the_plan_but_its_words(
    deeds: list[tuple[str, int, float]], checks: bool, standby: int, seed: int
) -> None:
    spec = {"nodeCheck": {"enabled": checks}, "elasticPolicy": {"minReplicas": 1}}
    worker = {"replicas": 3, "standby": standby, "restartCount": 3}
    life = Life(PlannedJob(objects.new_job(worker, spec)), seed)
    for deed, index, seconds in [("starts", 0, 0.0), *deeds]:
        life.look()
        life.do(deed, index)
        life.now = life.now + timedelta(seconds=seconds)
    life.look()
    life.look()
