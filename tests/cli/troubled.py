"""A made-up job with a troubled life, as the API server would show it: for the status screen and the timeline.

Three workers. Worker 1 raised at 60 s and restarted in place, node-2 was lost at 120 s with worker 2 on it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dlr.job.case import Case
from tests.cli.scripted import JSON, event, job, worker

SUBMITTED = datetime(2026, 1, 1, tzinfo=UTC)
END_SECONDS = 300.0
NOW = SUBMITTED + timedelta(seconds=END_SECONDS)


def at(seconds: float) -> str:
    return (SUBMITTED + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def episode(
    state: str,
    since: float,
    round_: int = 0,
    members: str = "",
    reason: str = "",
    failure: JSON | None = None,
) -> JSON:
    told = {} if failure is None else {"failure": failure}
    return {"state": state, "since": at(since), "round": round_, "members": members, "reason": reason} | told


def failed(index: int, seconds: float, exit_class: str, message: str, round_: int | None = None) -> JSON:
    """`failure` of an episode; without a round, a Pod's end."""
    where = {} if round_ is None else {"round": round_}
    who = {"worker": f"digits-worker-{index}", "exitClass": exit_class}
    return {**who, "message": message, "time": at(seconds), **where}


def life(incarnation: int, node: str, created: float, running: float | None, **more: Any) -> JSON:
    body: JSON = {"incarnation": incarnation, "nodeName": node, "createdAt": at(created)}
    return body | ({} if running is None else {"runningAt": at(running)}) | more


RAISED = {
    "sequence": 1,
    "round": 1,
    "rank": 1,
    "exitCode": 1,
    "step": 118,
    "message": 'ValueError: a <bad> batch\nTraceback (most recent call last):\n  File "train.py", line 9',
    "logTail": "loading\nTraceback (most recent call last):\nValueError: a <bad> batch\n",
    "time": at(60),
}


def troubled_job(**status: Any) -> JSON:
    made = job(
        workers=3,
        phase="Running",
        replicaStatuses={"worker": {"desired": 3, "active": 3}},
        conditions=[
            {"type": "Running", "status": "True", "lastTransitionTime": at(150), "reason": "Running"},
            {
                "type": "Scaled",
                "status": "False",
                "reason": "Waiting",
                "message": "1 worker is too old",
                "lastTransitionTime": at(150),
            },
        ],
        rendezvous={
            "round": 3,
            "phase": "Formed",
            "members": "0-2",
            "worldSize": 3,
            "masterAddress": "127.0.0.7",
            "masterPort": 4242,
            "reason": "worker 2 was lost",
            "formedAt": at(150),
        },
        restarts={"UserError": 1},
        failures={"UserError": 1, "NodeLost": 1},
        lastFailure={
            "worker": "digits-worker-1",
            "rank": 1,
            "exitClass": "UserError",
            "exitCode": 1,
            "round": 1,
            "step": 118,
            "message": RAISED["message"],
            "time": at(60),
        },
        goodput={
            "state": "Training",
            "since": at(152),
            "seconds": {"Pending": 10.0, "Forming": 2.0, "Training": 98.0, "Recovering": 42.0},
            "firstStep": 1,
            "lastStep": 210,
            "stepsRedone": 17,
            "stepsTimed": 190,
            "steppingSeconds": 95.0,
            "round": 2,
            "ratio": 0.3,
        },
        history=[
            episode("Pending", 0),
            episode("Forming", 10, 1, "0-2", "all 3 workers are ready"),
            episode("Training", 12, 1, "0-2"),
            episode(
                "Recovering",
                60,
                1,
                "0-2",
                "digits-worker-1 rank 1: ValueError: a <bad> batch",
                failed(1, 60, "UserError", "ValueError: a <bad> batch", 1),
            ),
            episode("Training", 72, 2, "0-2"),
            episode(
                "Recovering",
                120,
                2,
                "0-2",
                "worker 2 was lost: its node node-2 is gone",
                failed(2, 120, "NodeLost", "its node node-2 is gone"),
            ),
            episode("Training", 152, 3, "0-2"),
        ],
    )
    made["metadata"]["annotations"] = {"elastic.iml.github.io/total-steps": "1000"}
    made["status"] |= status
    return made


def troubled_workers() -> list[JSON]:
    def report(step: int, incarnation: int = 1) -> JSON:
        return {
            "incarnation": incarnation,
            "podUid": "a-pod",
            "address": "127.0.0.7",
            "storePort": 4242,
            "localWorldSize": 1,
            "observedRound": 3,
            "state": "Running",
            "since": at(152),
            "progress": {"step": step, "time": at(299), "secondsPerStep": 0.42},
            "rounds": [{"round": 3, "firstStep": 201, "lastStep": step, "steppingSeconds": 105.0}],
        }

    return [
        worker(0, agent=report(400), history=[life(1, "node-0", 0, 5)]),
        worker(1, agent=report(401) | {"failure": RAISED}, history=[life(1, "node-1", 0, 6)]),
        worker(
            2,
            incarnation=2,
            nodeName="node-3",
            agent=report(401, 2),
            restarts={"NodeLost": 1},
            restartCount=1,
            lastExit={
                "incarnation": 1,
                "exitClass": "NodeLost",
                "reason": "NodeLost",
                "nodeName": "node-2",
                "message": "the node is gone",
                "time": at(121),
            },
            history=[
                life(1, "node-2", 0, 8, endedAt=at(121), exitClass="NodeLost", reason="the node is gone"),
                life(2, "node-3", 122, 148),
            ],
        ),
    ]


def troubled_events() -> list[JSON]:
    return [
        event("ElasticJob", "digits", "WorldFormed", at(10), "round 1: 3 workers"),
        event("ElasticJob", "digits", "WorldBroken", at(60), "round 1: worker 1 failed", type="Warning"),
        event("ElasticJob", "digits", "WorldFormed", at(150), "round 3: 3 workers"),
    ]


def troubled_case(made: JSON | None = None, workers: list[JSON] | None = None, **more: Any) -> Case:
    """Return the job, or another one, as commands and pages see it."""
    of_job = troubled_workers() if workers is None else workers
    return Case(made or troubled_job(), of_job, troubled_events(), NOW, **more)
