from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import resources
from controller.cache import Cache
from controller.reconciler import Request
from controller.resources import NAMESPACES
from crds import names
from crds.cordon import reason_of
from crds.findings import Finding
from crds.nodecheck import NodeCheck
from reconcilers.cordon import wiring as cordons
from reconcilers.cordon.findings import NodeFindings, failed_nodes
from reconcilers.cordon.policy import NodeCordon, decide_cordon, newest
from reconcilers.cordon.reconciler import NodeCordonReconciler
from reconcilers.cordon.statement import Statement, statement_on
from reconcilers.findings.faulty import decision_of, decisions_of, finding_of_worker, last_error, suspicion_of
from reconcilers.findings.finished import FinishedCheck, decided_nodes
from reconcilers.observed.options import CordonMode, CordonOptions
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from reconcilers.setup import add_indexes
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, later, node_sets, verdicts, worker
from tests.reconcilers.caches import shaped_cache, tools_of
from tests.reconcilers.check_stage import stamp

NODES = ("node-1", "node-2", "node-3", "node-4")


def check(passed: tuple[str, ...] = NODES, cordon: bool = True, **status: Any) -> dict[str, Any]:
    ended = {"phase": "Succeeded", "completionTime": "2026-01-01T12:00:00Z"}
    ended |= verdicts(NODES, passed, **status)
    return {
        "metadata": {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": "1"},
        "spec": {"nodes": list(NODES), "cordon": cordon},
        "status": ended | status,
    }


NODE = {"metadata": {"name": "node-1", "uid": "m1", "creationTimestamp": "2026-01-01T00:00:00Z"}}
HARDWARE_ERROR = {"incarnation": 1, "exitClass": "HardwareError", "nodeName": "node-1", "nodeUid": "m1"}


def verdict_on(node: str, raw: dict[str, Any]) -> Finding | None:
    return decision_of(FinishedCheck(NodeCheck.model_validate(raw)), node)


# --- checks -----------------------------------------------------------------------------------------


@given(st.sets(st.sampled_from(NODES)), st.sampled_from(["inconclusive", "stragglers"]))
def test_those_it_could_not_judge_and_the_slow_are_neither_accused_nor_cleared(
    nodes: set[str], kind: str
) -> None:
    raw = check(**{kind: sorted(nodes)})
    assert {node for node in NODES if verdict_on(node, raw) is None} == nodes


def test_node_that_passed_no_round_is_not_cleared() -> None:
    assert verdict_on("node-4", check(passed=NODES[:3])) is None


def test_nodes_of_a_faulty_link_are_well() -> None:
    link = {"a": "node-1", "b": "node-2", "symptom": "failed"}
    found = verdict_on("node-1", check(faultyLinks=[link]))
    assert found is not None and found.healthy


@pytest.mark.parametrize(
    "raw", [check(phase="Running"), check(phase="Failed"), check(cordon=False), {**check(), "status": {}}]
)
def test_only_finished_checks_that_may_cordon_decide(raw: dict[str, Any]) -> None:
    assert not decided_nodes(raw)
    assert not any(verdict_on(node, raw) for node in NODES)


# --- workers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("began", "clears"), [("11:30:00", False), ("11:50:00", True)])
def test_check_that_began_before_a_hardware_error_does_not_clear_the_node_of_it(
    began: str, clears: bool
) -> None:
    end = HARDWARE_ERROR | {"time": later(-900)}
    error = finding_of_worker(worker(lastExit=end), NODE)
    assert error is not None
    done = FinishedCheck(NodeCheck.model_validate(check(startTime=f"2026-01-01T{began}Z")))
    decides = newest([error, *decisions_of([done], "node-1", last_error([error]))])
    assert decides is not None and decides.healthy is clears


def test_hardware_error_accuses_the_node_it_happened_on_and_others_accuse_nobody() -> None:
    end = HARDWARE_ERROR | {"nodeName": "node-3", "time": NOW}
    node = {"metadata": NODE["metadata"] | {"name": "node-3"}}
    said = finding_of_worker(worker(lastExit=end), node)
    assert said is not None and (said.healthy, reason_of(said), said.time) == (False, "HardwareError", NOW)
    assert failed_nodes({"status": {"lastExit": end}}) == ["node-3"]
    for harmless in (end | {"exitClass": "UserError"}, end | {"nodeName": ""}):
        assert finding_of_worker(worker(lastExit=harmless), node) is None
        assert failed_nodes({"status": {"lastExit": harmless}}) == []


# --- which machine ----------------------------------------------------------------------------------


def read_by(
    clock: timedelta, made: float, *, as_of: float | None = None, machine: str = "m1"
) -> NodeFindings:
    """What a controller reads whose clock is off, of a check and a worker that accuse node-1.

    Args:
        made: when the check was made, in seconds after node-1 joined, as the API server says.
        as_of: the newest creation of the check's nodes, likewise.
        machine: the node on which the worker's Pod ended.
    """
    ended = stamp(NOW + timedelta(seconds=made + 180) + clock)
    raw = check(passed=NODES[1:], faultyNodes=["node-1"], completionTime=ended, startTime=ended)
    raw["metadata"]["creationTimestamp"] = stamp(later(made))
    if as_of is not None:
        raw["status"]["nodesAsOf"] = stamp(later(as_of))
    accuser = worker(lastExit=HARDWARE_ERROR | {"nodeUid": machine, "time": ended}).to_wire()
    cache = shaped_cache()
    add_indexes(cache)
    cordons.add_indexes(cache)
    may_cordon = {
        "name": "default",
        "uid": "x",
        "resourceVersion": "1",
        "labels": {names.LABEL_MAY_CORDON: "true"},
    }
    for resource, obj in (
        (NAMESPACES, {"metadata": may_cordon}),
        (NODECHECKS, raw),
        (ELASTICWORKERS, accuser),
    ):
        cache.store(resource).apply(obj)
    return NodeFindings(cache)


JOINED = {"metadata": NODE["metadata"] | {"creationTimestamp": stamp(NOW)}}
CLOCKS = [timedelta(minutes=minutes) for minutes in (-60, 0, 60)]


@pytest.mark.parametrize("clock", CLOCKS)
async def test_what_is_found_of_a_new_node_counts_whatever_the_controllers_clock_says(
    clock: timedelta,
) -> None:
    """A verdict and a hardware error, for cordon and record alike; also of a check that waited for the node."""
    for findings in (read_by(clock, made=60), read_by(clock, made=-60, as_of=0)):
        found = findings.deciding(JOINED)
        assert [(each.kind, each.verdict) for each in found] == [
            ("NodeCheck", "Faulty"), ("ElasticWorker", "Faulty")
        ]  # fmt: skip
        assert len(findings._finished.record_of(JOINED)) == 1


@pytest.mark.parametrize("clock", CLOCKS)
async def test_what_was_found_of_an_earlier_machine_of_that_name_counts_no_more(clock: timedelta) -> None:
    findings = read_by(clock, made=-60, as_of=-30, machine="m0")
    assert findings.deciding(JOINED) == [] and findings._finished.record_of(JOINED) == []
    assert findings.suspicions(JOINED) == [] and await findings.ignored(JOINED) == []


# --- many -------------------------------------------------------------------------------------------


class OwnWrites:
    """A client whose writes are in the store at once, and that answers nothing else."""

    def __init__(self, cache: Cache) -> None:
        self._store, self._versions = cache.store(resources.NODES), count(1_000)

    async def patch(
        self, _: Any, name: str, patch: dict[str, Any], __: None = None, subresource: str = ""
    ) -> dict[str, Any]:
        new = merged(self._store.get(None, name), patch)
        new["metadata"]["resourceVersion"] = str(next(self._versions))
        self._store.apply(new)
        return new

    def event(self, *_: Any) -> None: ...


@pytest.mark.parametrize("accused", [10, 40])
async def test_of_many_accused_each_is_looked_at_once_and_the_limit_holds_by_counters(
    accused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, options = shaped_cache(), CordonOptions()
    add_indexes(cache)
    cordons.add_indexes(cache)
    labels = {names.LABEL_MAY_CORDON: "true"}
    namespace = {"name": "default", "uid": "x", "resourceVersion": "1", "labels": labels}
    cache.store(NAMESPACES).apply({"metadata": namespace})
    fleet = [f"n{index}" for index in range(5 * accused)]
    for name in fleet:
        node = NODE["metadata"] | {"name": name, "uid": name, "resourceVersion": "1"}
        cache.store(resources.NODES).apply({"metadata": node, "spec": {}, "status": {}})
    raw = check()
    raw["metadata"]["creationTimestamp"] = stamp(NOW)
    raw["status"] |= {"nodes": fleet, "nodeResults": [], "rounds": []}
    raw["status"]["nodeSets"] = node_sets(fleet, dict.fromkeys(fleet[:accused], "Faulty"))
    cache.store(NODECHECKS).apply(raw)
    client = cast(Any, OwnWrites(cache))
    reconciler = NodeCordonReconciler(tools_of(cache, client, client), options)
    read = Counter[str]()
    for name in ("_state", "_has_room"):
        real = getattr(reconciler, name)
        monkeypatch.setattr(
            reconciler, name, lambda *args, name=name, real=real: read.update([name]) or real(*args)
        )
    monkeypatch.setattr(cache.store(resources.NODES), "list", None)
    monkeypatch.setattr(cache.store(resources.NODES), "by_index", None)
    held = [await reconciler.reconcile(Request(None, name)) for name in fleet[:accused]]
    assert read == {"_state": accused, "_has_room": accused}
    specs = [cache.store(resources.NODES).get(None, name)["spec"] for name in fleet]  # type: ignore[index]
    assert sum("taints" in spec for spec in specs) == accused // 2, "ten percent"
    assert sum(result.requeue_after_seconds is not None for result in held) == accused // 2


# --- what is said -----------------------------------------------------------------------------------

ENFORCE, REPORT = CordonOptions(), CordonOptions(CordonMode.REPORT)


def said(
    node: NodeCordon, options: CordonOptions = ENFORCE, *, has_room: bool = True, accused: bool = False
) -> Statement:
    statement = statement_on(node, decide_cordon(node, lambda: has_room), options, accused=accused)
    assert statement is not None
    return statement


@pytest.fixture
def faulty() -> NodeCordon:
    raw = check(faultyNodes=["node-4"])
    told = {"message": "gemm: a product is wrong", "causes": ["LocalTest"], "action": "Replace"}
    raw["status"]["nodeResults"] = [{"node": "node-4", "verdict": "Faulty"} | told]
    return NodeCordon("node-4", finding=verdict_on("node-4", raw))


@pytest.fixture
def passed() -> Finding | None:
    return verdict_on("node-4", check(completionTime="2026-01-01T13:00:00Z"))


def test_condition_names_the_check_and_when_and_what_to_do(faulty: NodeCordon) -> None:
    statement = said(faulty)
    assert (statement.unhealthy, statement.suspected) == ("True", "False")
    assert (statement.reason, statement.event_reason) == ("CheckFailed", "Cordoned")
    assert statement.message == (
        "NodeCheck default/c found this node faulty at 2026-01-01T12:00:00Z; cordoned. "
        "Why: gemm: a product is wrong. Do: replace it."
    )


def test_dry_run_says_that_nothing_is_done(faulty: NodeCordon, passed: Finding) -> None:
    statement = said(faulty, REPORT)
    assert (statement.unhealthy, statement.suspected, statement.reason) == ("False", "True", "CordonReported")
    assert "not cordoned: the controller runs with --cordon=report" in statement.message
    cordoned = decide_cordon(faulty)
    assert said(cordoned, REPORT).message == said(faulty).message
    assert "lifts no cordon" in said(replace(cordoned, finding=passed), REPORT).message


def test_node_that_could_not_be_tested_is_not_suspected() -> None:
    withdrawn = [{"node": "node-4", "message": "ErrImagePull", "reason": "ErrImagePull"}]
    raw = check(inconclusive=["node-4"], withdrawn=withdrawn)
    assert suspicion_of(FinishedCheck(NodeCheck.model_validate(raw)), "node-4") is None


def test_accusation_of_a_deleted_check_is_taken_back_where_nothing_was_done() -> None:
    assert said(NodeCordon("node-4"), accused=True).reason == "VerdictGone"
    assert statement_on(NodeCordon("n"), NodeCordon("n"), ENFORCE, accused=False) is None
