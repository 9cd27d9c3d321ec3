"""A tenant's word takes no node from others and gives none back, and no object of a tenant's stops another's.

`evil` is a namespace without the label `may-cordon`, `team-a` is another one, `ops` is the administrators'.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reconciler import Request
from controller.resources import NODES
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from crds.rendezvous import Rendezvous
from reconcilers.findings.finished import FinishedCheck
from reconcilers.job.workers import plan_relaunches
from reconcilers.nodecheck.claiming import ClaimView
from reconcilers.nodecheck.claims import HOLD_SECONDS, REST_SECONDS, Precedence
from reconcilers.nodecheck.condition import finding_of
from reconcilers.nodecheck.job_checks import JobChecksView, standing_of
from reconcilers.nodecheck.reconciler import MOST_AT_ONCE
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.world.vetting import Standing
from tests.reconcilers.build import BAD, GOOD, NOW, later
from tests.reconcilers.check_stage import Agents, Stage

EVIL, VICTIM, OPS = "evil", "team-a", "ops"
SIX = [f"n{i}" for i in range(1, 7)]
LABEL = {names.LABEL_MAY_CORDON: "true"}
BAD_DATES = (
    "2026-01-01T00:00:00+99:99",
    "0000-01-01T00:00:00Z",
    "2026-01-01T00:00:00Zt x",
    "2026-01-01T00:00:00x5Z",
)
"""The API server's format check takes them (`strfmt.IsDateTime`), and Python does not."""


def stage(agents: Agents | None = None, nodes: Sequence[str] = SIX) -> Stage:
    made = Stage(agents=agents or Agents())
    made.add_nodes(*nodes, created=NOW - timedelta(days=1))
    made.add_namespace(EVIL)
    made.add_namespace(VICTIM)
    made.add_namespace(OPS, **LABEL)
    return made


async def lie(made: Stage, namespace: str = EVIL) -> NodeCheck:
    """A check of all nodes, whose Pods say what the stage's agents say."""
    with made.within(namespace):
        made.add_check("innocent-looking", nodeSelector={}, accelerator="none")
        return await made.play("innocent-looking")


# --- verdicts (security.md 2) -----------------------------------------------------------------------------


def victim(faulty: Sequence[str] = ()) -> tuple[ElasticJob, list[ElasticWorker]]:
    """A job on n1 and n2 that checks its nodes; its first worker has just run out of memory."""
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    job = {
        "metadata": {"name": "prod", "namespace": VICTIM, "uid": "uid-prod"},
        "spec": {
            "nodeCheck": {"enabled": True, "freshSeconds": 3_600},
            "replicaSpecs": {"worker": {"replicas": 2, "template": template}},
        },
        "status": {"phase": "Running"},
    }
    workers = []
    for index in (0, 1):
        status: dict[str, Any] = {
            "observedIncarnation": 1,
            "podUid": f"p{index}",
            "nodeName": f"n{index + 1}",
            "phase": "Running",
        }
        if index == 0:
            end = {"incarnation": 1, "exitClass": "OOM", "nodeName": "n1", "time": NOW.isoformat()}
            status |= {"phase": "Failed", "lastExit": end}
        spec = {"jobName": "prod", "type": "worker", "index": index, "incarnation": 1}
        workers.append(
            ElasticWorker.model_validate(
                {
                    "metadata": {"name": f"prod-worker-{index}", "namespace": VICTIM, "uid": f"w{index}"},
                    "spec": spec | {"faultyNodes": list(faulty)},
                    "status": status,
                }
            )
        )
    return ElasticJob.model_validate(job), workers


async def standing_beside(made: Stage, faulty: Sequence[str] = ()) -> Standing:
    job, workers = victim(faulty)
    checks = await JobChecksView(made.process.client, made.stores).of(job, workers)
    return standing_of(job, workers, checks, None, later(60))


async def test_a_tenants_check_that_calls_every_node_broken_keeps_nobody_elses_job_off_them() -> None:
    made = stage(Agents(local=lambda node: BAD))
    assert sorted((await lie(made)).status.faulty_nodes) == SIX
    standing = await standing_beside(made)
    assert standing.faulty_nodes == () and not standing.faulty
    job, workers = victim()
    (relaunch,) = plan_relaunches(workers, Rendezvous(), later(120), standing).relaunches
    assert relaunch.faulty_nodes == ()
    spec = workers[0].spec.model_copy(update={"incarnation": 2, "faulty_nodes": list(relaunch.faulty_nodes)})
    pod = build_job_pod(job, workers[0].model_copy(update={"spec": spec}))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert required not in pod["spec"].get("affinity", {}).get("nodeAffinity", {})


async def test_a_tenants_check_that_calls_every_node_well_clears_and_vouches_for_none() -> None:
    made = stage()
    await lie(made)
    standing = await standing_beside(made, faulty=("n5", "n6"))
    assert standing.cleared == frozenset() and standing.unvetted == {0, 1}


@pytest.mark.parametrize("namespace", [VICTIM, OPS])
async def test_verdicts_of_the_jobs_own_namespace_and_of_administrators_count(namespace: str) -> None:
    made = stage(Agents(local=lambda node: BAD if node == "n5" else GOOD))
    await lie(made, namespace)
    standing = await standing_beside(made, faulty=("n6",))
    assert standing.faulty_nodes == ("n5",) and "n6" in standing.cleared and standing.unvetted == frozenset()


async def test_the_label_counts_from_when_it_is_there_and_until_it_is_taken_away() -> None:
    made = stage(Agents(local=lambda node: BAD if node == "n5" else GOOD))
    await lie(made)
    made.add_namespace(EVIL, **LABEL)
    assert (await standing_beside(made)).faulty_nodes == ("n5",)
    made.add_namespace(EVIL)
    assert (await standing_beside(made)).faulty_nodes == ()


@pytest.mark.parametrize(("namespace", "tested"), [(EVIL, SIX), (OPS, [])])
async def test_passes_of_others_make_no_node_fresh_but_those_of_administrators_do(
    namespace: str, tested: list[str]
) -> None:
    made = stage()
    await lie(made, namespace)
    made.seconds += 60
    with made.within(VICTIM):
        made.add_check("mine", nodes=SIX, freshSeconds=3_600)
        await made.play("mine")
        status = made.status("mine")
    assert [node for node in status["nodes"] if node not in status.get("reused", ())] == tested


# --- claims (security.md 5) -------------------------------------------------------------------------------


def hold(made: Stage, nodes: Sequence[str] = SIX, name: str = "hold") -> None:
    with made.within(EVIL):
        made.add_check(name, nodes=list(nodes), timeoutSeconds=3_600, accelerator="none", created=later(-9))


async def test_a_check_whose_pods_never_start_holds_up_nobody_else() -> None:
    made = stage()
    hold(made)
    made.dead = {*SIX}
    with made.within(EVIL):
        await made.reconcile("hold")
        await made.reconcile("hold")
        assert made.status("hold")["phase"] == "Pending" and len(made.status("hold")["nodes"]) == 6
    made.dead = set()
    assert all("status" not in worker for worker in made.stores.store(ELASTICWORKERS).list())
    with made.within(VICTIM):
        made.add_job("j", replicas=2, activeCheck="j-check-1")
        for index, node in enumerate(("n1", "n2")):
            made.add_worker(index, node)
        made.add_check("j-check-1", jobName="j")
        await made.reconcile("j-check-1")
        assert made.status("j-check-1")["phase"] == "Running"
    with made.within(OPS):
        made.add_check("nightly", nodes=["n3", "n4"])
        await made.play("nightly")
        assert made.seconds == 0.0 and set(made.verdicts("nightly").values()) == {"Healthy"}


async def test_gathering_ends_after_300_seconds_where_no_administrator_says_otherwise() -> None:
    for namespace, seconds in ((EVIL, HOLD_SECONDS), (OPS, 3_600.0)):
        made = stage()
        made.dead = {*SIX}
        with made.within(namespace):
            made.add_check("hold", nodes=SIX, timeoutSeconds=3_600)
            await made.play("hold")
            assert made.status("hold")["inconclusive"] == SIX
        assert seconds <= made.seconds <= seconds + 1


async def until(made: Stage, name: str, phase: str) -> None:
    for _ in range(9):
        await made.reconcile(name)
        if made.status(name).get("phase") == phase:
            return
        made.act(name)
    raise AssertionError(f"{name} is {made.status(name)}")


async def hold_running(made: Stage, *, of_job: bool) -> None:
    """Have the stranger's check of a job's workers, or of nodes, run on all six."""
    if of_job:
        made.add_job("j", replicas=6, activeCheck="hold")
        for index, node in enumerate(SIX):
            made.add_worker(index, node)
        made.add_check("hold", jobName="j", timeoutSeconds=3_600)
    else:
        hold(made)
    await until(made, "hold", "Running")


MUTE = Agents(local=lambda node: None)


@pytest.mark.parametrize("of_job", [False, True])
async def test_a_strangers_check_that_never_ends_leaves_its_nodes_to_an_administrators_after_300_seconds(
    of_job: bool,
) -> None:
    made = stage(MUTE)
    with made.within(EVIL):
        await hold_running(made, of_job=of_job)
    with made.within(OPS):
        made.add_check("nightly", nodes=["n1", "n2"])
        await made.reconcile("nightly")
        waiting = made.condition("Running", "nightly")
    assert waiting["reason"] == "WaitingForCheck" and "in another namespace" in waiting["message"]
    assert "hold" not in waiting["message"] and EVIL not in waiting["message"]
    with made.within(EVIL):
        assert await made.reconcile("hold") == pytest.approx(HOLD_SECONDS, abs=1)
        made.seconds += HOLD_SECONDS
        await made.reconcile("hold")
        left = made.status("hold")["withdrawn"]
        assert [(each["node"], each["reason"]) for each in left] == [("n1", "Yielded"), ("n2", "Yielded")]
        assert OPS not in str(left) and "nightly" not in str(left)
    theirs = {worker["spec"].get("nodeName") for worker in made.stores.store(ELASTICWORKERS).list(EVIL)}
    assert of_job or theirs == {"n3", "n4", "n5", "n6"}
    made.agents = Agents()
    with made.within(OPS):
        await made.play("nightly")
        assert made.status("nightly")["phase"] == "Succeeded" and not made.status("nightly").get(
            "inconclusive"
        )


def take_all(made: Stage) -> None:
    """Let nothing be to look at."""
    for request in made.process.woken("nodecheck"):
        made.process.take("nodecheck", request)


@pytest.mark.parametrize(("of_job", "waits_from_the_start"), [(False, True), (False, False), (True, True)])
async def test_a_check_that_answers_in_the_last_second_tests_a_node_for_300_seconds_if_anybody_waits(
    of_job: bool, waits_from_the_start: bool
) -> None:
    made = stage()
    with made.within(EVIL):
        await hold_running(made, of_job=of_job)
        await made.reconcile("hold")
        made.add_check("next", nodes=["n1"], accelerator="none")
        await made.reconcile("next")
        if not waits_from_the_start:
            made.seconds += 3_599
    woken: list[Request] = []
    made.reconciler.wake = woken.append
    with made.within(VICTIM):
        made.add_check("mine", nodes=["n2", "n1"])
        await made.reconcile("mine")
        assert made.condition("Running", "mine")["reason"] == "WaitingForCheck"
    assert woken == [Request(EVIL, "hold")]
    with made.within(EVIL):
        if waits_from_the_start:
            assert await made.reconcile("hold") == pytest.approx(HOLD_SECONDS)
            assert not made.status("hold")["withdrawn"]
            made.seconds += HOLD_SECONDS
        take_all(made)
        await made.reconcile("hold")
        assert [each["node"] for each in made.status("hold")["withdrawn"]] == ["n1", "n2"]
        assert Request(VICTIM, "mine") in made.process.woken("nodecheck")
        made.add_check("another", nodes=["n1"], accelerator="none")
        assert await made.reconcile("another") == pytest.approx(REST_SECONDS)
        assert "just left nodes to others" in made.condition("Running", "another")["message"]
    take_all(made)
    with made.within(VICTIM):
        await made.play("mine")
        assert set(made.verdicts("mine").values()) == {"Healthy"}
        assert Request(EVIL, "next") in made.process.woken("nodecheck")


async def test_a_job_waits_for_a_strangers_check_for_its_own_timeout_and_then_trains_without() -> None:
    made = stage(MUTE)
    with made.within(EVIL):
        made.add_job("j", replicas=1, activeCheck="hold")
        made.add_worker(0, "n1")
        made.add_check("hold", jobName="j", timeoutSeconds=3_600)
        await until(made, "hold", "Running")
    made.agents = Agents()
    with made.within(VICTIM):
        made.add_job("prod", replicas=2, activeCheck="prod-check-1")
        for index, node in enumerate(("n1", "n2")):
            made.add_worker(index, node, job="prod")
        made.add_check("prod-check-1", jobName="prod", timeoutSeconds=60)
        assert await made.reconcile("prod-check-1") == pytest.approx(60, abs=1)
        check = NodeCheck.model_validate(made.get(NODECHECKS, "prod-check-1"))
        job = ElasticJob.model_validate(made.get(ELASTICJOBS, "prod"))
        said = finding_of(job, active=check)
        assert said is not None and "waits: node n1 is being checked by a check in another" in said.message
        done = await made.play("prod-check-1")
        assert made.seconds == pytest.approx(60, abs=2)
        assert made.verdicts("prod-check-1") == {"n1": "Inconclusive", "n2": "Healthy"}
        told = finding_of(job, finished=(FinishedCheck(done),))
        assert told is not None and told.reason == "Inconclusive"
        assert "a check in another namespace had it for all of timeoutSeconds (60 s)" in told.message
        assert EVIL not in told.message and "hold" not in told.message
        found = [ElasticWorker.model_validate(raw) for raw in made.stores.store(ELASTICWORKERS).list(VICTIM)]
        checks = await JobChecksView(made.process.client, made.stores).of(job, found)
        policy = job.spec.node_check.model_copy(update={"enabled": True})
        wanting = job.model_copy(update={"spec": job.spec.model_copy(update={"node_check": policy})})
        assert standing_of(wanting, found, checks, None, later(61)).unvetted == frozenset()


async def test_workers_of_a_large_check_are_made_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.slices.LARGE", 10_000)
    many = [f"n{i}" for i in range(2 * MOST_AT_ONCE + 100)]
    made = stage(nodes=many)
    made.dead = {*many}
    with made.within(EVIL):
        made.add_check("large", nodes=many)
        await made.reconcile("large")
        for wanted in (MOST_AT_ONCE, 2 * MOST_AT_ONCE, len(many)):
            await made.reconcile("large")
            assert len(made.stores.store(ELASTICWORKERS)) == wanted


# --- claims: any checks, in any order ----------------------------------------------------------------------

TICK_SECONDS = 10.0
SOME_NODES = st.sets(st.sampled_from(SIX), min_size=1).map(sorted)


def nodes_in_tests(made: Stage) -> list[str]:
    """The nodes that checks test now, each as often as it is tested."""
    statuses = [raw["status"] for raw in made.stores.store(NODECHECKS).list()]
    return [
        node
        for status in statuses
        if status.get("phase") == "Running"
        for node in {*status["nodes"]} - {left["node"] for left in status.get("withdrawn", ())}
    ]


@given(
    st.lists(st.tuples(st.sampled_from([EVIL, VICTIM]), SOME_NODES), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.0, TICK_SECONDS, HOLD_SECONDS])),
        min_size=8,
        max_size=40,
    ),
    SOME_NODES,
    st.data(),
)
def test_never_two_checks_test_one_node_and_an_administrators_waits_no_longer_than_the_bound(
    checks: list[tuple[str, list[str]]],
    looks: list[tuple[int, float]],
    wanted: list[str],
    data: st.DataObject,
) -> None:
    """For checks of strangers that hardly ever end, however their agents come and whoever is looked at."""
    made = stage(MUTE)
    names_of = [(namespace, f"c{number}") for number, (namespace, _) in enumerate(checks)]

    async def look(namespace: str, name: str) -> None:
        with made.within(namespace):
            await made.reconcile(name)
            made.act(name)
        testing = nodes_in_tests(made)
        assert len(testing) == len({*testing}), "two checks test one node"

    def ours() -> dict[str, Any]:
        with made.within(OPS):
            return made.status("nightly")

    async def play() -> None:
        for (namespace, name), (_, nodes) in zip(names_of, checks, strict=True):
            with made.within(namespace):
                made.add_check(name, nodes=nodes, timeoutSeconds=3_600, accelerator="none")
        for at, seconds in looks:
            made.dead = data.draw(st.just(set()) | st.sets(st.sampled_from(SIX)))
            await look(*names_of[at % len(names_of)])
            made.seconds += seconds
        with made.within(OPS):
            made.add_check("nightly", nodes=wanted)
        made.dead, began = set(), made.seconds
        order = data.draw(st.permutations([*names_of, (OPS, "nightly")]))
        while ours().get("phase") != "Running":
            assert made.seconds - began <= HOLD_SECONDS + 3 * TICK_SECONDS
            for each in order:
                await look(*each)
            made.seconds += TICK_SECONDS
        assert not ours().get("withdrawn")

    asyncio.run(play())


@given(
    namespace=st.sampled_from([EVIL, OPS]),
    job_name=st.sampled_from([None, "train", "other"]),
    owner=st.sampled_from([None, "uid-train", "uid-other"]),
    controls=st.booleans(),
    active=st.sampled_from([None, "c", "c2"]),
    nodes=st.sampled_from([(), ("n1",)]),
)
def test_only_a_check_that_its_job_waits_for_has_the_precedence_of_jobs(
    namespace: str, job_name: str | None, owner: str | None, controls: bool, active: str | None, nodes: Any
) -> None:
    """Whatever its author writes into it; `activeCheck` is in a status, which the controller alone writes."""
    made = stage()
    with made.within(namespace):
        spec = {"nodes": ["n1"]} if job_name is None else {"jobName": job_name}
        made.add_check("c", **spec)
        references = [{"apiVersion": "x", "kind": "ElasticJob", "name": "train", "uid": owner}]
        references[0] |= {"controller": True} if controls else {}
        change = {"metadata": {"ownerReferences": references if owner else []}}
        made.update(NODECHECKS, "c", change | {"status": {"nodes": list(nodes)}})
        status = {"activeCheck": active} if active else {}
        job = {"metadata": {"name": "train", "namespace": namespace, "uid": "uid-train"}, "spec": {}}
        made.put(ELASTICJOBS, job | {"status": status})
        check = NodeCheck.model_validate(made.get(NODECHECKS, "c"))
    found = ClaimView(made.stores).claim_of(check, ["n1"]).precedence
    is_jobs = (job_name, owner, controls, active) == ("train", "uid-train", True, "c")
    expected = Precedence.JOBS if is_jobs else Precedence.OTHERS
    assert found is (Precedence.ADMINISTRATORS if namespace == OPS else expected)


# --- poison (security.md 4) --------------------------------------------------------------------------------


def poisoned(made: Stage, date: str, **status: Any) -> None:
    """A worker on n5, of a job under check, whose agent reports a date that cannot be read."""
    with made.within(EVIL):
        made.add_job("e", replicas=1, activeCheck="e-check-1")
        made.add_worker(0, "n5", job="e", since=date)
        made.update(ELASTICWORKERS, "e-worker-0", {"status": status})
        made.add_check("e-check-1", jobName="e")


@pytest.mark.parametrize("date", BAD_DATES)
async def test_an_unreadable_report_keeps_neither_other_checks_nor_administrators_cordons_from_being_made(
    date: str,
) -> None:
    made = stage(Agents(local=lambda node: BAD if node == "n1" else GOOD))
    end = {"incarnation": 1, "exitClass": "HardwareError", "nodeName": "n5", "time": NOW.isoformat()}
    poisoned(made, date, lastExit=end)
    await lie(made, OPS)
    with made.within(OPS):
        found = made.verdicts("innocent-looking")
        assert found.pop("n1") == "Faulty" and set(found.values()) == {"Healthy"}
    made.seconds += 20
    await made.process.reconcile("nodecordon", Request(None, "n1"))
    assert made.get(NODES, "n1")["spec"]["taints"][0]["key"] == names.TAINT_UNHEALTHY
    version = made.version
    await made.process.reconcile("nodecordon", Request(None, "n5"))
    assert made.version == version, "the word of a tenant's exit code takes a node from others"


# --- reports that say anything -----------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(-1e18, 1e18),
    st.sampled_from([1e18, -1e18, 5e-324, 0.0, -0.0, 1e12]),
    st.integers(-(2**53), 2**53),
)
METRICS = st.sampled_from(
    ["gemm_fp32_tflops", "host_to_device_gbps", "pair_bus_gbps", "pair_latency_us", "gpu_count", "unknown"]
)
ENDINGS = st.sampled_from(["Passed", "Failed", "TimedOut", "Crashed", "Skipped", "Unavailable"])
TEXTS = st.text(max_size=20) | st.sampled_from(["Xid " + "9" * 900, "x" * 1_024, "ended by SIGKILL"])
OUTCOMES = st.fixed_dictionaries(
    {
        "probe": st.text(max_size=9),
        "ending": ENDINGS,
        "reason": TEXTS,
        "figures": st.dictionaries(METRICS, NUMBERS, max_size=6),
        "faults": st.lists(TEXTS, max_size=3),
    }
)
REPORTS = st.lists(OUTCOMES, max_size=4)


class Liars(Agents):
    """What each node says is drawn once."""

    def __init__(self, data: st.DataObject) -> None:
        super().__init__()
        self._said: dict[object, Any] = {}
        self.local = lambda node: self._drawn(data, REPORTS, "local", node)
        self._data = data

    def pair(self, node: str, round_: int, members: Sequence[str]) -> Any:
        said = self._drawn(self._data, st.none() | OUTCOMES, node, round_)
        return said and said | {"round": round_}

    def _drawn(self, data: st.DataObject, strategy: st.SearchStrategy[Any], *key: object) -> Any:
        if key not in self._said:
            self._said[key] = data.draw(strategy)
        return self._said[key]


@given(st.data(), st.sampled_from([{}, {"storePort": 0}, {"address": ""}, {"incarnation": 9}]))
@settings(max_examples=30, deadline=None)
def test_whatever_nodes_report_their_check_ends_with_a_status_that_can_be_written(
    data: st.DataObject, taken_back: dict[str, Any]
) -> None:
    async def play() -> None:
        made = stage(Liars(data), nodes=SIX[:5])
        with made.within(EVIL):
            made.add_check("c", nodes=SIX[:5], timeoutSeconds=10)
            await until(made, "c", "Running")
            made.update(ELASTICWORKERS, "c-check-0", {"status": {"agent": taken_back}})
            done = await made.play("c")
            assert done.status.phase == "Succeeded" and len(done.status.nodes) == 5

    asyncio.run(play())


def test_what_follows_is_the_same_whatever_figures_beyond_reason_stand_beside_the_measured_ones() -> None:
    def verdicts(junk: dict[str, float]) -> dict[str, str]:
        def local(node: str) -> list[dict[str, Any]]:
            speed = 0.05 if node == "n1" else 0.1
            figures = {"gemm_fp32_tflops": speed} | junk
            return [{"probe": "gemm", "ending": "Passed", "figures": figures}]

        async def play() -> dict[str, str]:
            made = stage(Agents(local=local))
            await lie(made)
            with made.within(EVIL):
                return made.verdicts("innocent-looking")

        return asyncio.run(play())

    expected = verdicts({})
    assert expected["n1"] == "Straggler"
    for junk in itertools.product([-1e18, -1.0, 1e18], repeat=2):
        figures = dict(zip(["gemm_bf16_tflops", "host_to_device_gbps"], junk, strict=True))
        assert verdicts(figures) == expected
