"""Replica groups whose processes, agents and authors say anything: their jobs have statuses that can be written."""

from __future__ import annotations

import io
import json
from datetime import UTC
from typing import Any

import orjson
from hypothesis import event, given
from hypothesis import strategies as st
from rich.console import Console

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import MAX_GROUPS, GroupOf
from dlr.commands.job.screen import render
from dlr.dashboard.fleet import fleet_page
from dlr.dashboard.job_page import job_page
from dlr.job.case import Case
from dlr.job.evidence import sections
from dlr.job.verdict import verdict
from reconcilers.groups.plan import GroupsPlan, plan_groups
from reconcilers.job.published import world_spec
from reconcilers.observed.builder import owner_reference
from tests.counting import calls
from tests.hostile.looks import look_at_job
from tests.hostile.strategies import AGENT_SCHEMA, SCHEMAS, of_schema
from tests.hostile.test_objects import VICTIM, VICTIM_RAW, examples, parse_or_none, with_report
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job, report
from tests.reconcilers.test_job_plan import trains

JSON = dict[str, Any]
PART = of_schema(AGENT_SCHEMA["properties"]["replicas"], optional=0.7)
_STATUS = SCHEMAS["ElasticJob"]["properties"]["status"]["properties"]
_OF_GROUPS = (
    *("phase", "reason", "message", "conditions", "warnings", "rendezvous", "replicaGroup", "lastFailure"),
)


def _with_count_of_rounds(status: JSON) -> JSON:
    """The controller counts rounds, one a world."""
    world = status.get("rendezvous")
    rounds = (
        {field: world[field] % 10**9 for field in ("round", "brokenRound") if field in world} if world else {}
    )
    return status | ({"rendezvous": world | rounds} if world else {})


STATUSES = of_schema(
    {"type": "object", "properties": {name: _STATUS[name] for name in _OF_GROUPS}}, optional=0.5
).map(_with_count_of_rounds)
MEMBERSHIPS = of_schema(_STATUS["membership"], optional=0.6).map(
    lambda found: found | {"version": found.get("version", 0) % 10**9}
)


def as_group(of: ElasticJob) -> ElasticJob:
    """The job as the first replica group of another."""
    owner = owner_reference("ElasticJob", "wide", "uid-wide")
    metadata = of.metadata.model_copy(update={"name": "wide-group-0", "owner_references": [owner]})
    return of.model_copy(update={"metadata": metadata})


@examples(200)
@given(PART, st.booleans())
def test_whatever_a_worker_tells_of_its_part_its_group_has_a_status_that_can_be_written(
    part: JSON, is_of_this_round: bool
) -> None:
    group, workers = as_group(VICTIM), [trains(index) for index in range(3)]
    world = VICTIM.status.rendezvous
    round_ = world.round if world else 1
    told = part | ({"round": round_} if is_of_this_round else {})
    agent = report(1).to_wire() | {"state": "Running", "observedRound": round_, "replicas": told}
    workers[1] = ElasticWorker.model_validate(with_report(1, agent, is_current=True))
    assert workers[1].status.agent is not None
    plan = look_at_job(group, VICTIM_RAW, workers)
    event(f"late: {bool((plan.status_patch.get('replicaGroup') or {}).get('lateGroups'))}")


def wide(groups: int, membership: JSON | None = None) -> ElasticJob:
    policy = {"replicaGroups": {"workers": 1, "min": 1}}
    status = {"membership": membership} if membership else {}
    return job("wide", groups, elasticPolicy=policy, status=status)


def look(of: ElasticJob, groups: dict[int, ElasticJob]) -> GroupsPlan:
    plan = plan_groups(of, of.status.to_wire(), groups, NOW)
    orjson.dumps(plan.status_patch)
    orjson.dumps(world_spec({"metadata": {}, "spec": {}, "status": plan.status_patch}))
    return plan


@examples(60)
@given(st.lists(STATUSES, min_size=1, max_size=3), MEMBERSHIPS)
def test_whatever_the_statuses_of_groups_hold_their_job_has_one_that_can_be_written(
    statuses: list[JSON], membership: JSON
) -> None:
    raws = [
        {"metadata": {"name": f"wide-group-{index}", "uid": f"u{index}"}, "spec": {}, "status": status}
        for index, status in enumerate(statuses)
    ]
    spec = job("wide-group-0", 1).to_wire()["spec"]
    read = [parse_or_none(ElasticJob, raw | {"spec": spec}) for raw in raws]
    groups = {index: each for index, each in enumerate(read) if each is not None}
    of = parse_or_none(ElasticJob, wide(3).to_wire() | {"status": {"membership": membership}})
    event(f"readable: {len(groups)}, {of is not None}")
    if of is not None:
        look(of, groups)


REPORTED = of_schema(AGENT_SCHEMA, optional=0.2)


@examples(12)
@given(st.lists(STATUSES, min_size=1, max_size=2), st.lists(REPORTED, min_size=1, max_size=1), MEMBERSHIPS)
def test_people_see_a_job_whatever_its_groups_and_their_workers_tell(
    statuses: list[JSON], reports: list[JSON], membership: JSON
) -> None:
    of = wide(3, {"version": 1}).to_wire()
    of["metadata"] |= {"creationTimestamp": "2026-01-01T11:00:00Z", "uid": "uid-wide"}
    of["status"]["membership"] = membership
    spec, groups, workers = job("wide-group-0", 1).to_wire()["spec"], [], []
    for index, status in enumerate(statuses):
        name, labels = f"wide-group-{index}", GroupOf("wide", "uid-wide", index).labels
        owner = owner_reference("ElasticJob", "wide", "uid-wide")
        metadata = {"name": name, "namespace": "default", "uid": f"u{index}", "labels": labels}
        metadata |= {"ownerReferences": [owner], "creationTimestamp": "2026-01-01T11:00:00Z"}
        groups.append({"metadata": metadata, "spec": spec, "status": status})
        worker = with_report(index, reports[index % len(reports)], is_current=True)
        worker["spec"]["jobName"] = name
        worker["metadata"] |= {"name": f"{name}-worker-0", "labels": labels}
        workers.append(
            worker | {"metadata": worker["metadata"] | {"creationTimestamp": "2026-01-01T11:00:00Z"}}
        )
    read = {at: each for at, raw in enumerate(groups) if (each := parse_or_none(ElasticJob, raw)) is not None}
    groups = [groups[at] for at in read]  # the controller writes no others
    whole = parse_or_none(ElasticJob, of)
    if whole is not None:
        of["status"] = merged(of["status"], look(whole, read).status_patch)
    for shown, of_it in ((of, groups), *((each, []) for each in groups[:1])):
        case = Case(shown, workers, [], NOW.astimezone(UTC), groups=of_it)
        json.dumps(job_page(case))
        out = Console(file=io.StringIO(), width=100)
        out.print(render(case, out))
        sections(case, verdict(case))
    json.dumps(fleet_page([of, *groups], workers, NOW.astimezone(UTC)))


def test_a_look_at_the_most_groups_takes_time_by_their_number() -> None:
    """Each of them has all the warnings and conditions that there may be, with the longest words."""

    def cost(count: int) -> int:
        text = "é" * 200
        conditions = [
            {"type": type_, "status": "False", "reason": "x" * 64, "message": text, "lastTransitionTime": NOW}
            for type_ in ("NodesChecked", "Scaled", "WorkersReady", "WorldFormed")
        ]
        warnings = [{"type": f"Type{at}", "message": text, "since": NOW} for at in range(24)]
        world = {"round": 7, "phase": "Formed", "members": "0", "masterAddress": "10.0.0.1", "masterPort": 1}
        status = {"phase": "Running", "rendezvous": world, "warnings": warnings, "conditions": conditions}
        status |= {"reason": "x" * 64, "message": text, "restarts": {"OOM": 1 << 40}}
        part = {"round": 7, "ready": True, "lateVersion": 3, "lateGroups": [*range(100)]}
        made = job("wide-group-0", 1, status=status | {"replicaGroup": part})
        groups = {
            index: made.model_copy(
                update={"metadata": made.metadata.model_copy(update={"name": f"wide-group-{index}"})}
            )
            for index in range(count)
        }
        of = wide(count, {"version": 3})
        return calls(lambda: look(of, groups))

    assert cost(MAX_GROUPS) < 11 * cost(MAX_GROUPS // 10)
