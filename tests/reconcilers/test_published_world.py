"""The ElasticWorld follows from the ElasticJob, and only from what agents act on."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import Member, WorldView
from crds.elasticworld import ElasticWorld
from crds.names import ANNOTATION_STACKS, LABEL_JOB, LABEL_JOB_UID
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.published import world_of, writes_of_world
from reconcilers.runtime.acts import RequestVerb
from reconcilers.runtime.kinds import ELASTICWORLDS

JSON = dict[str, Any]
words = st.text(max_size=40)


def job(uid: str = "u-1", workers: int = 3, **status: Any) -> JSON:
    world = Rendezvous(
        round=4,
        phase=RendezvousPhase.FORMED,
        members=list(range(workers)),
        incarnations=[1] * (workers - 1) + [2],
        world_size=workers,
        master_address="10.0.0.1",
        master_port=29_400,
        reason="all workers are ready",
    )
    return {
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": uid, "resourceVersion": "9"},
        "spec": {"replicaSpecs": {"worker": {"template": {}}}},
        "status": {"phase": "Running", "rendezvous": world.to_wire(), **status},
    }


def stored(job: JSON) -> JSON:
    world = world_of(job)
    return world | {"metadata": world["metadata"] | {"uid": "w-1", "resourceVersion": "7"}}


@given(words, words, words, st.integers(0, 9))
def test_what_people_read_is_no_news_to_an_agent(message: str, reason: str, why: str, active: int) -> None:
    edited = job(
        message=message,
        reason=reason,
        conditions=[{"type": "Scaled", "status": "False", "reason": reason, "message": message}],
        replicaStatuses={"worker": {"active": active}},
        usage={"round": active},
        history=[{"state": "Training", "reason": why}],
    )
    edited["status"]["rendezvous"]["reason"] = why
    assert writes_of_world(edited, stored(job())) == ()


def test_what_agents_read_is_what_the_crd_takes() -> None:
    world = world_of(job(startTime="2026-01-01T00:00:00Z", restarts={"UserError": 2, "Hang": 1}))
    parsed = ElasticWorld.model_validate(world)
    assert parsed.spec.round == 4 and parsed.spec.failures == 3
    view = WorldView.parse(world)
    assert view.world is not None and view.world.members == (Member(0, 1), Member(1, 1), Member(2, 2))
    assert world["metadata"]["labels"][LABEL_JOB] == "digits"
    assert world["metadata"]["labels"][LABEL_JOB_UID] == "u-1"


def test_a_look_after_a_crash_between_the_two_writes_writes_the_world() -> None:
    before, after = job(), job()
    after["status"]["rendezvous"]["brokenRound"] = 4
    (act,) = writes_of_world(after, stored(before))
    assert (act.verb, act.resource) == (RequestVerb.PATCH, ELASTICWORLDS)
    assert act.body == {"metadata": {"resourceVersion": "7"}, "spec": {"brokenRound": 4}}
    assert [each.verb for each in writes_of_world(after, None)] == [RequestVerb.CREATE]


def test_the_world_of_an_earlier_job_of_that_name_goes_first() -> None:
    old, new = writes_of_world(job(uid="u-2"), stored(job(uid="u-1")))
    assert (old.verb, old.uid, new.verb) == (RequestVerb.DELETE, "w-1", RequestVerb.CREATE)


def test_a_request_for_stacks_reaches_the_agents_and_ends_with_its_annotation() -> None:
    asking = job()
    asking["metadata"]["annotations"] = {ANNOTATION_STACKS: "now"}
    assert WorldView.parse(world_of(asking)).asks_for_stacks == "now"
    (act,) = writes_of_world(job(), stored(asking))
    assert act.body["spec"] == {"asked": None}
