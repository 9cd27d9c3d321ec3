"""Growth into free room by the real reconcilers over objects in memory: probes, growth, loss, give-back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.resources import PODS
from crds.elasticjob import ElasticJob
from reconcilers.autoscaling.growth import grow
from reconcilers.observed.workers import Workers
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from tests.reconcilers.build import NOW, job
from tests.reconcilers.scale_stage import JOB, Stage

JSON = dict[str, Any]
POLICY = {"opportunistic": {"priorityClassName": "idle", "probeSeconds": 60}}


@dataclass
class Training(Stage):
    """Its agents tell of steps, of which one has `pace(workers)` seconds, and of a checkpoint now and then."""

    pace: Callable[[int], float] = lambda workers: 1.0
    saves: bool = True
    steps_a_checkpoint: int = 10
    fails_with: int | None = None
    """Worlds of so many workers end with the error of the script."""
    error: str = "ValueError: the batch cannot be divided by the world's size"

    def act_one(self, worker: JSON) -> None:
        super().act_one(worker)
        name = worker["metadata"]["name"]
        report = self.get(ELASTICWORKERS, name).get("status", {}).get("agent") or {}
        if report.get("state") != "Running":
            return
        size = len(self.members()[-1])
        seconds = self.seconds - (datetime.fromisoformat(report["since"]) - NOW).total_seconds()
        round_ = report["observedRound"]
        if size == self.fails_with:
            failure = {"sequence": round_, "round": round_, "exitCode": 1, "message": self.error}
            failure["time"] = self.now()
            self._report(worker, {"agent": {"state": "Failed", "failure": failure}})
            return
        steps = int(seconds / self.pace(size))
        told = {"round": round_, "firstStep": 1, "lastStep": 1 + steps, "steppingSeconds": seconds}
        said: JSON = {"rounds": [told]}
        if self.saves:
            checkpoint = steps // self.steps_a_checkpoint
            said["progress"] = {"step": 1 + steps, "time": self.now(), "checkpointStep": checkpoint}
        self._report(worker, {"agent": said})

    async def live(self, seconds: int, look_seconds: int = 5) -> None:
        until = self.seconds + seconds
        while self.seconds < until:
            for _ in range(4):
                before = self.version
                self.deliver_all()
                await self.reconcile_plans()
                await self.reconcile_job()
                self.deliver_all()  # a cache sees what its own controller writes
                await self.reconcile_size()
                self.act()
                if self.version == before:  # nobody wrote anything
                    break
            self.seconds += look_seconds

    def make_room(self, *slots: int) -> None:
        """Pods of these slots get a node."""
        self.unschedulable.difference_update(slots)
        for worker in self.workers():
            if worker["spec"]["index"] in slots:
                found = {"phase": "Running", "nodeName": "node-0", "conditions": []}
                self._report(worker, found)

    def take(self, index: int, why: str = "Preempted", **status: Any) -> None:
        """Its Pod is preempted, or ends for another reason, and nothing of it finds another node."""
        self.unschedulable.add(index)
        (worker,) = [w for w in self.workers() if w["spec"]["index"] == index]
        end = {"incarnation": worker["spec"]["incarnation"], "exitClass": why, "time": self.now()}
        found = {"phase": "Failed", "lastExit": end, **status}
        self._report(worker, found)

    def members(self) -> list[list[int]]:
        return [world["members"] for world in self.formed()]

    def known(self) -> JSON:
        known: JSON = self.job()["status"]["growth"]
        return known

    def count(self) -> int:
        return int(self.job()["spec"]["replicaSpecs"]["worker"]["replicas"])


async def training(
    replicas: int = 2, most: int = 4, room: int = 0, admission: JSON | None = None, **more: Any
) -> Training:
    """A job that trains on all the nodes that there are, but for `room`, and within what its queue grants."""
    stage = Training(**more)
    stage.unschedulable.update(range(replicas + room, 2 * most))
    stage.add_job(replicas, elasticPolicy=POLICY)
    stage.edit_job(maxReplicas=most)
    if admission is not None:
        grant(stage, **admission)
    await stage.live(30)
    return stage


async def test_a_probe_without_a_node_disturbs_nobody_and_goes() -> None:
    stage = await training()
    counts, reasons = [], set()
    for _ in range(60):
        await stage.live(5)
        counts.append(stage.count())
        reasons.add(stage.known()["reason"])
    assert set(counts) == {2, 3}
    assert counts.count(2) >= len(counts) // 4, "a third of the time nothing is asked for"
    assert stage.members() == [[0, 1]], "one world all the time"
    assert reasons == {"", "no node for 1 more worker within 60 s"}
    assert not stage.list(SCALEPLANS), "growth makes no objects"
    assert not [reason for reason, _ in stage.said() if reason in ("Unschedulable", "ScaleRequested")]


def grant(stage: Training, workers: int, message: str = "", **more: Any) -> None:
    """What the job's queue grants from now on."""
    admission = {"queue": "team", "workers": workers, "message": message, **more}
    stage.patch(ELASTICJOBS, JOB, {"status": {"admission": admission}}, "status")


async def test_a_probe_in_a_queue_makes_no_pod_until_it_is_granted_and_grows_by_what_is() -> None:
    words = "2 of 3 Pods are granted: insufficient unused quota for gpu in flavor default, 1 more needed"
    stage = await training(room=2, admission={"workers": 2, "message": words})
    counts, reasons = [], set()
    for _ in range(40):
        await stage.live(5)
        counts.append(stage.count())
        reasons.add(stage.known()["reason"])
        assert len(stage.list(PODS)) == 2
    assert set(counts) == {2, 3}
    assert counts.count(2) >= len(counts) // 4, "a third of the time nobody of the queue is held up"
    assert reasons == {"", f"no quota for 1 more worker within 60 s: {words}"}
    assert stage.members() == [[0, 1]]
    grant(stage, 3)
    await stage.live(180)
    assert stage.members()[-1] == [0, 1, 2] and len(stage.list(PODS)) == 3


async def test_a_job_whose_queue_never_grants_more_is_not_probed_and_says_why() -> None:
    strict = "the ClusterQueue shared is StrictFIFO"
    stage = await training(room=2, admission={"workers": 2, "message": strict, "fixed": True})
    counts = []
    for _ in range(40):
        await stage.live(5)
        counts.append(stage.count())
    assert set(counts) == {2}
    assert stage.known()["reason"] == f"its queue grants no more: {strict}"


async def test_a_job_that_had_grown_gives_back_what_its_queue_takes() -> None:
    stage = await training(room=2, admission={"workers": 4})
    await stage.live(120)
    assert stage.members()[-1] == [0, 1, 2, 3]
    grant(stage, 2, "Preempted to accommodate a workload")
    await stage.live(120)
    assert stage.count() in (2, 3) and stage.members()[-1] == [0, 1]


async def test_room_for_two_is_one_growth_with_the_priority_of_the_extra_workers() -> None:
    stage = await training()
    await stage.live(30)
    stage.make_room(2, 3)
    await stage.live(120)
    assert stage.members()[-1] == [0, 1, 2, 3]
    assert len(stage.members()) <= 3
    pods = {p["metadata"]["name"]: p["spec"].get("priorityClassName") for p in stage.list(PODS)}
    assert pods == {
        "j-worker-0-1": None,
        "j-worker-1-1": None,
        "j-worker-2-1": "idle",
        "j-worker-3-1": "idle",
    }
    assert stage.job()["status"]["scaling"]["by"] == "growth into free room"


async def test_the_next_probe_does_not_wait_for_a_pod_that_a_dead_node_keeps() -> None:
    """Its name is taken until its Node is gone; a new worker of the slot would be given back before that shows."""
    stage = await training(room=2)
    await stage.live(120)
    stage.patch(PODS, "j-worker-3-1", {"spec": {"nodeName": "node-2"}})
    stage.take(3, "NodeLost")
    await stage.live(10)
    assert (stage.count(), stage.members()[-1]) == (3, [0, 1, 2])
    stage.unschedulable.discard(4)
    await stage.live(300)
    assert (stage.count(), stage.members()[-1]) == (4, [0, 1, 2, 4])
    stage.remove(PODS, "j-worker-3-1")
    await stage.live(10)
    assert stage.job()["status"]["retired"] == {"worker": "3"}


async def test_of_many_extra_workers_the_one_that_was_taken_goes_and_nobody_else() -> None:
    """The scheduler preempts any of them, and not the one with the highest index."""
    stage = await training(most=6, room=4)
    await stage.live(180)
    assert stage.members()[-1] == [0, 1, 2, 3, 4, 5]
    stage.worlds.clear()
    stage.take(2)
    stage.deliver_all()
    await stage.reconcile_job()
    assert stage.members() == [[0, 1, 3, 4, 5]], "in the look that sees it"
    await stage.live(50)
    assert stage.members() == [[0, 1, 3, 4, 5]], "one restart"
    assert {world["phase"] for world in stage.worlds} == {"Formed"}
    assert (stage.count(), [worker["spec"]["index"] for worker in stage.workers()]) == (5, [0, 1, 3, 4, 5])
    told = [message for reason, message in stage.said() if reason == "ExtraWorkersGivenBack"]
    assert told == ["1 extra worker is lost: its Pod was taken, or its node"]


async def test_of_a_probe_for_many_those_that_have_found_a_node_stay() -> None:
    stage = await training(most=6, room=1)
    stage.unschedulable.discard(5)  # of 3, 4 and 5, which are asked for together once 2 has its node
    await stage.live(180)
    assert stage.members()[-1] == [0, 1, 2, 5]
    assert len(stage.members()) == 2, "one restart"


async def test_an_extra_worker_that_never_starts_gives_its_node_back_whatever_else_is_probed() -> None:
    stage = await training(most=6)
    while stage.count() == 2:
        await stage.live(5)
    placed = {"nodeName": "node-0", "conditions": []}  # and its image is never pulled, say
    stage.patch(ELASTICWORKERS, "j-worker-2", {"status": placed}, "status")
    await stage.live(2_000, look_seconds=20)
    assert stage.count() == 2
    reason = "1 extra worker is given back: not training 1800 s after having a node"
    assert stage.known()["reason"] == reason
    assert ("ExtraWorkersGivenBack", reason) in stage.said()


async def test_an_extra_worker_whose_pods_fail_again_and_again_goes_and_the_job_trains_on() -> None:
    stage = await training(room=2)
    await stage.live(120)
    budget = {"exitClass": "UserError", "alike": 3, "spent": {"UserError": 3}}
    stage.take(3, "UserError", failureBudget=budget)
    stage.worlds.clear()
    await stage.live(20)
    assert stage.job()["status"]["phase"] == "Running"
    assert (stage.count(), stage.members()) == (3, [[0, 1, 2]])
    reason = "1 extra worker is given back: no further Pod, after too many that failed"
    assert stage.known()["reason"] == reason
    assert ("ExtraWorkersGivenBack", reason) in stage.said()
    await stage.live(1_200, look_seconds=20)
    assert stage.count() == 3, "nothing is tried again for an hour"


async def test_a_script_that_fails_in_the_larger_world_trains_on_in_the_one_before() -> None:
    stage = await training(room=2, fails_with=4)
    await stage.live(1_200, look_seconds=20)
    assert stage.job()["status"]["phase"] == "Running"
    sizes = [len(world) for world in stage.members()]
    assert 4 in sizes
    assert sizes.count(4) <= 12, (
        "two worlds for each try, of which each waits twice as long as the one before"
    )
    assert stage.known()["reason"].startswith("training failed soon after it grew from 2 to 4 workers: ")
    told = [message for reason, message in stage.said() if reason == "ExtraWorkersGivenBack"]
    assert len(told) == stage.known()["inVain"] >= 3


async def test_a_job_that_does_not_scale_stops_after_one_try_and_says_so() -> None:
    stage = await training(room=2, pace=lambda workers: workers / 2)
    await stage.live(600, look_seconds=20)
    assert stage.count() == 2
    assert stage.members() == [[0, 1], [0, 1, 2, 3], [0, 1]]
    assert stage.known()["reason"] == (
        "4 workers instead of 2 add 0% of a linear gain, less than minEfficiency 60%"
    )
    assert [world["workers"] for world in stage.job()["status"]["usage"]["worlds"]] == [2, 4]


async def test_a_job_that_never_saved_does_not_grow_once_that_would_cost_more_than_it_brings() -> None:
    stage = await training(8, 9, saves=False)
    await stage.live(600, look_seconds=20)
    stage.unschedulable.clear()
    await stage.live(200)
    assert stage.members() == [list(range(8))]
    assert stage.known()["reason"] == "a restart would cost more than the expected gain"


async def test_a_tool_that_sets_the_count_back_is_left_alone_for_ever_longer() -> None:
    """GitOps that keeps `replicas` as it is in a repository."""
    stage = await training(room=2)
    pauses = []
    for _ in range(2):
        while stage.count() == 2:
            await stage.live(5)
        stage.edit_job(replicas=2)
        began = stage.seconds
        await stage.live(10)
        assert (stage.known()["base"], stage.count()) == (2, 2)
        assert stage.known()["reason"].startswith("the count was set back from ")
        while stage.count() == 2:
            await stage.live(5)
        pauses.append(stage.seconds - began)
    assert [pause // 60 for pause in pauses] == [2, 4]


async def test_a_job_that_is_not_to_grow_any_more_comes_back_to_the_count_that_it_was_asked_for() -> None:
    stage = await training(room=2)
    await stage.live(120)
    before = stage.members()
    assert before[-1] == [0, 1, 2, 3]
    gone = {"spec": {"elasticPolicy": {"opportunistic": None}}}
    stage.patch(ELASTICJOBS, "j", gone)
    stage.edit_job(autoScale=False)
    await stage.live(60)
    assert (stage.count(), stage.members()) == (2, [*before, [0, 1]]), "in one restart"
    assert "growth" not in stage.job()["status"]
    told = [message for reason, message in stage.said() if reason == "ExtraWorkersGivenBack"]
    assert told == ["2 extra workers given back: elasticPolicy.opportunistic is gone from the job"]


async def test_a_plan_that_adds_workers_makes_of_extra_ones_such_as_are_asked_for() -> None:
    stage = await training(room=2)
    await stage.live(180)
    before = stage.members()
    stage.add_plan("mine", createPods=[{}])
    await stage.live(30)
    assert stage.phase("mine") == "Applied"
    assert (stage.count(), stage.known()["base"], stage.members()) == (4, 3, before)


async def test_a_plan_that_asks_for_the_very_count_of_a_probe_is_not_lost_with_it() -> None:
    stage = await training()
    while stage.count() == 2:
        await stage.live(5)
    stage.add_plan("mine", replicaResourceSpecs={"worker": {"replicas": 3}})
    await stage.live(10)
    assert (stage.known()["base"], stage.job()["status"]["scaling"]["by"]) == (3, "ScalePlan mine")
    await stage.live(120)
    assert stage.count() == 3
    assert stage.job()["status"]["phase"] == "Scaling", "it waits for a node, like any other"


async def test_growth_beyond_the_jobs_limits_is_not_written_and_its_reason_is_told() -> None:
    stage = Training()
    stage.unschedulable.update(range(4, 8))
    stage.add_job(2, elasticPolicy=POLICY, resourceLimits={"memory": "2Gi"})
    stage.edit_job(maxReplicas=4)
    await stage.live(120)
    assert (stage.count(), stage.members()) == (2, [[0, 1]])
    assert stage.known()["reason"] == (
        "the job would request 3Gi of memory in total, more than its resourceLimits, 2Gi"
    )
    assert stage.job()["status"]["scaling"]["by"] == "spec"


async def test_what_an_earlier_job_of_the_name_has_asked_for_is_not_done_to_the_next() -> None:
    """A plan that it owns is there until garbage collection has taken it."""
    stage = await training(room=2)
    await stage.live(5)
    owner = {"apiVersion": ELASTICJOBS.api_version, "kind": "ElasticJob", "name": "j"}
    owner["uid"] = stage.job()["metadata"]["uid"]
    stage.remove(ELASTICJOBS, "j")
    for worker in stage.workers():
        stage.remove(ELASTICWORKERS, worker["metadata"]["name"])
    metadata = {"name": "late", "ownerReferences": [owner]}
    spec = {"ownerJob": "j", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
    stage.create(SCALEPLANS, {"metadata": metadata, "spec": spec})
    stage.add_job(2)
    for _ in range(5):
        stage.deliver_all()
        await stage.look()
    assert stage.plan("late").get("status") is None
    await stage.live(30)
    assert stage.count() == 2 == len(stage.workers())


async def test_what_a_webhook_refuses_is_asked_for_again_after_an_hour_and_said_until_then() -> None:
    stage = await training(room=2, denied="budget of team ads is spent")

    def tries() -> int:
        return sum(reason == "ScaleRefused" for reason, _ in stage.said())

    await stage.live(60)
    assert (stage.count(), tries()) == (2, 1)
    assert stage.known()["reason"].endswith("budget of team ads is spent")
    stage.seconds += 3_300
    await stage.live(60)
    assert tries() == 1, "within the hour nobody asks"
    stage.seconds += 300
    await stage.live(60)
    assert (stage.count(), tries()) == (2, 2)
    stage.denied = ""
    stage.seconds += 3_600
    await stage.live(120)
    assert (stage.count(), stage.members()[-1]) == (4, [0, 1, 2, 3])


@given(st.lists(st.integers(1, 60), max_size=12), st.sampled_from([None, 2, 3]))
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_controller_that_is_killed_at_any_write_ends_with_the_same(
    kills: list[int], taken: int | None
) -> None:
    async def play() -> tuple[int, list[int]]:
        """What was asked for, and who trains; the count may be that of the next probe."""
        stage = await training(room=2)
        stage.crash = killer(kills)
        await stage.live(120)
        if taken is not None:
            stage.take(taken)
        await stage.live(120)
        return stage.known()["base"], stage.members()[-1]

    assert asyncio.run(play()) == (2, [slot for slot in range(4) if slot != taken])


def given_back(of: ElasticJob) -> int | None:
    _, write, _ = grow(of, Workers(()), None, NOW)
    return None if write is None else write.request.replicas["worker"]


def test_what_is_given_back_keeps_to_the_minimum_and_to_whole_units() -> None:
    def back(base: int, unit: int = 1, **worker: Any) -> int | None:
        known = {"replicas": 8, "by": "spec", "at": NOW, "base": base}
        return given_back(
            job(replicas=8, worker=worker, elasticPolicy={"nodeUnit": unit}, status={"scaling": known})
        )

    assert back(3) == 3
    assert back(3, minReplicas=5) == 5, "which was raised since"
    assert back(3, unit=4) == 4, "likewise"
    assert back(8) is None and back(7, unit=4) is None
    gone = job(status={"scaling": {"replicas": 8, "by": "spec", "at": NOW, "base": 3}})
    without = gone.spec.model_copy(update={"replica_specs": {}})
    assert given_back(gone.model_copy(update={"spec": without})) is None


def killer(kills: list[int]) -> Callable[[], bool]:
    """Says whether the controller is killed at a write: after so many writes, again and again."""
    left = list(kills)

    def crash() -> bool:
        if not left:
            return False
        left[0] -= 1
        if left[0] > 0:
            return False
        left.pop(0)
        return True

    return crash


CHANGES: dict[str, tuple[Callable[[Training], object], int, int, list[int]]] = {
    "suspended": (lambda stage: stage.patch(ELASTICJOBS, "j", {"spec": {"suspend": True}}), 3, 3, []),
    "to grow no more": (
        lambda stage: stage.patch(ELASTICJOBS, "j", {"spec": {"elasticPolicy": {"opportunistic": None}}}),
        3,
        3,
        [0, 1, 2],
    ),
    "set back": (lambda stage: stage.edit_job(replicas=3), 3, 3, [0, 1, 2]),
}
"""Of a job that has grown from three to six: the change, and the count, what is asked for and who trains then."""


@given(st.lists(st.integers(1, 20), max_size=6), st.sampled_from(sorted(CHANGES)))
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_controller_that_is_killed_while_a_grown_job_is_changed_ends_with_the_same(
    kills: list[int], change: str
) -> None:
    act, count, base, members = CHANGES[change]

    async def play() -> tuple[int, int, list[int]]:
        stage = await training(3, 6, room=3)
        await stage.live(150)
        assert stage.members()[-1] == [0, 1, 2, 3, 4, 5]
        act(stage)
        stage.crash = killer(kills)
        await stage.live(45)
        scaling = stage.job()["status"]["scaling"]
        world = stage.job()["status"]["rendezvous"]
        needed = scaling.get("base", scaling["replicas"])
        return stage.count(), needed, stage.members()[-1] if world["phase"] == "Formed" else []

    assert asyncio.run(play()) == (count, base, members)
