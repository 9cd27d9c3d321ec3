"""How long workers have been as they are, whatever is remembered of them in between."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.cache import Models
from controller.store import Store
from crds.agent_report import AgentState
from crds.elasticworker import ElasticWorker
from reconcilers.job.seen import AgesView
from reconcilers.observed.observations import Observations
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers
from reconcilers.world.participants import Ages, checkpoint_of, is_waiting, seconds_behind_checkpoint
from tests.reconcilers.build import report, worker

STEPS = st.sampled_from([None, 5, 10])
LOOKS = st.lists(
    st.one_of(
        st.tuples(st.just("tells"), st.sampled_from([AgentState.READY, AgentState.RUNNING]), STEPS),
        st.tuples(st.just("has another Pod"), st.integers(1, 2)),
        st.tuples(st.just("is made again"), st.none()),
        st.tuples(st.just("check"), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("relist"), st.none()),
        st.tuples(st.just("time passes"), st.none()),
    ),
    max_size=12,
)


def told(uid: str, version: int, state: AgentState, step: int | None, pod: int) -> dict[str, Any]:
    """As the API server has it."""
    progress = {"step": 12, "checkpointStep": step, "secondsPerStep": 0.5, "time": "2026-01-01T12:00:00Z"}
    agent = report(0, state, pod_uid=f"uid-0-{pod}").to_wire()
    raw = worker(0, agent=agent | {"progress": progress if step is not None else None}).to_wire()
    return raw | {"metadata": raw["metadata"] | {"uid": uid, "resourceVersion": str(version)}}


def asked_each_time(
    found: ElasticWorker, checking: str | None, joined: Observations, saved: Observations
) -> Ages:
    """The same, by what is observed in each look."""
    uid, said = found.metadata.uid, current_report(found)
    step, checkpoint = checkpoint_of(said), dict[str, float]()
    if step is not None:
        checkpoint[uid] = max(saved.age_seconds(uid, step), seconds_behind_checkpoint(said))
    return Ages({uid: joined.age_seconds(uid, (is_waiting(said), checking))}, checkpoint)


@given(LOOKS)
def test_ages_are_those_of_who_asks_each_worker_in_each_look(looks: list[tuple[Any, ...]]) -> None:
    seconds, store = [100.0], Store()
    view = AgesView(store, lambda: seconds[0])
    joined, saved = (Observations(store, lambda: seconds[0]) for _ in range(2))
    models = Models(store, ElasticWorker)
    life, state, step, pod, checking = 1, AgentState.READY, None, 1, None
    for version, (what, *how) in enumerate([("time passes", None), *looks], 1):
        match what, how:
            case "tells", [state, step]:
                pass
            case "has another Pod", [pod]:
                pass
            case "is made again", _:
                life += 1
            case "check", [checking]:
                pass
        if what == "relist":
            list(store.replace_stepwise(store.list()))
        elif what not in ("check", "time passes") or version == 1:
            store.apply(told(f"w{life}", version, state, step, pod))
        seconds[0] += 1.0
        found = models.parse(store.list()[0])
        ages = view.of(Workers([found]), checking)
        assert ages == asked_each_time(found, checking, joined, saved)
