"""`dlr job logs --failed`: the culprit's Pod is found, and its log up to the failure, or what status kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dlr.job.failures import find_culprit
from tests.cli.scripted import GROUP_PATH, JSON, Answer, Dlr, Script, listing, pod, refusal, show, worker
from tests.cli.troubled import RAISED, SUBMITTED, at, life, troubled_job, troubled_workers

JOB = f"GET {GROUP_PATH}/default/elasticjobs/digits"
WORKERS = f"GET {GROUP_PATH}/default/elasticworkers"
POD = "GET /api/v1/namespaces/default/pods/digits-worker-1-1"


def script(server: Script, log: str | None, workers: list[JSON] | None = None) -> None:
    show(server, troubled_job(), workers or troubled_workers())
    gone = refusal(404, "NotFound", "no such Pod", name="digits-worker-1-1")
    server.answers[POD] = gone if log is None else pod("digits-worker-1-1")
    server.answers[f"{POD}/log"] = log


def stamped(*lines: tuple[float, str]) -> str:
    return "".join(f"{at(second)} {text}\n" for second, text in lines)


def test_shows_who_when_why_and_the_log_up_to_the_failure(server: Script, dlr: Dlr) -> None:
    script(server, stamped((50, "step 117"), (60, "ValueError: a <bad> batch"), (72, "started again")))
    done = dlr("job", "logs", "digits", "--failed")
    assert done.exit_code == 0
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert lines[0].split(maxsplit=1)[1] == "digits-worker-1, rank 1, Pod digits-worker-1-1 on node-1"
    assert "2026-01-01 00:01:00 UTC" in lines[1] and lines[1].endswith("round 1, step 118")
    assert lines[2].split(maxsplit=1)[1] == "UserError, exit code 1"
    assert lines[3].split(maxsplit=1)[1] == "ValueError: a <bad> batch"
    assert 'File "train.py", line 9' in done.out
    assert lines[-3:] == [
        "Log of Pod digits-worker-1-1 up to the failure, 2 lines:",
        "step 117",
        "ValueError: a <bad> batch",
    ]
    assert server.requests[-1].query["sinceTime"] == "2025-12-31T23:46:00Z"


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, "Forbidden", 'pods "digits-worker-1-1" is forbidden'),
        refusal(500, "InternalError", "Get https://10.0.0.7:10250/containerLogs: dial tcp: no route to host"),
    ],
)
def test_log_that_is_gone_or_cannot_be_read_is_what_status_kept(
    server: Script, dlr: Dlr, answer: Answer
) -> None:
    script(server, None)
    gone = dlr("job", "logs", "digits", "--failed")
    assert (gone.exit_code, gone.err) == (0, "")
    assert "End of the process's log, as status kept it:\nloading\n" in gone.out
    script(server, "")
    server.answers[f"{POD}/log"] = answer
    done = dlr("job", "logs", "digits", "--failed")
    assert done.exit_code == 0
    assert "End of the process's log, as status kept it:\nloading\n" in done.out
    assert "dlr: warning: the log of Pod digits-worker-1-1 cannot be read: " in done.err
    nothing_kept = troubled_workers()
    nothing_kept[1]["status"]["agent"]["failure"] = RAISED | {"logTail": ""}
    server.answers[WORKERS] = listing(*nothing_kept)
    assert dlr("job", "logs", "digits", "--failed").exit_code == 1


def test_stacks_of_a_hang_are_those_of_all_ranks_the_cause_first(server: Script, dlr: Dlr) -> None:
    hung = troubled_workers()
    waits = {"rank": 0, "inCollective": True, "step": 8, "frames": "all_reduce (distributed.py:1)"}
    stuck = {"rank": 1, "step": 7, "frames": "acquire (locks.py:4)\ntrain (train.py:9)"}
    hung[0]["status"]["agent"]["failure"] = RAISED | {"rank": 0, "stacks": [waits]}
    hung[1]["status"]["agent"]["failure"] = RAISED | {"stacks": [stuck]}
    hung[2]["status"]["agent"]["failure"] = RAISED | {"rank": 2, "round": 7, "stacks": [{"rank": 2}]}
    script(server, None, hung)
    lines = dlr("job", "logs", "digits", "--failed").out.splitlines()
    at = lines.index("Stacks, the innermost frame first:")
    assert lines[at + 1 : at + 6] == [
        "rank 1, step 7:",
        "    acquire (locks.py:4)",
        "    train (train.py:9)",
        "rank 0, step 8, waiting for other ranks:",
        "    all_reduce (distributed.py:1)",
    ]
    assert lines[at - 2].endswith("ValueError: a <bad> batch")  # what the stacks show is not said twice


def test_no_failure_and_no_worker_any_more_are_said(server: Script, dlr: Dlr) -> None:
    script(server, None)
    server.answers[JOB] = [troubled_job(lastFailure=None), troubled_job()]
    server.answers[WORKERS] = listing()
    nothing = dlr("job", "logs", "digits", "--failed")
    assert (nothing.exit_code, nothing.out) == (0, "")
    assert nothing.err == "Nothing has failed in ElasticJob 'digits'.\n"
    gone = dlr("job", "logs", "digits", "--failed")
    assert "which is no worker of the job any more" in gone.out
    assert gone.err == "The log is gone, and status kept nothing of it.\n"


def failure_at(seconds: float, **more: Any) -> JSON:
    body = {"worker": "digits-worker-1", "exitClass": "Killed", "time": at(seconds)} | more
    return troubled_job(lastFailure=body)


@pytest.mark.parametrize(
    ("seconds", "status", "incarnation"),
    [
        (90, {"history": [life(1, "node-1", 0, 5), life(2, "node-2", 100, 110)]}, 1),
        (101, {"history": [life(1, "node-1", 0, 5), life(2, "node-2", 100, 110)]}, 2),
        (101, {"lastExit": {"incarnation": 4, "exitClass": "Killed", "time": at(100)}}, 4),
        (200, {"lastExit": {"incarnation": 4, "exitClass": "Killed", "time": at(100)}}, 5),
        (60, {"agent": {"incarnation": 3, "failure": RAISED}}, 3),
        (90, {"agent": {"incarnation": 3, "failure": RAISED}}, 5),
    ],
    ids=["history", "younger", "its end", "another end", "the agent's word", "an older failure"],
)
def test_incarnation_is_the_one_that_failed(seconds: float, status: JSON, incarnation: int) -> None:
    found = find_culprit(failure_at(seconds), [worker(1, incarnation=5, **status)])
    assert found is not None
    assert found.pod == f"digits-worker-1-{incarnation}"
    assert found.time == SUBMITTED + timedelta(seconds=seconds)


@pytest.mark.parametrize(("round_", "incarnation"), [(1, 3), (2, 5)])
def test_a_failure_in_place_is_found_by_its_round_however_late_it_was_recorded(
    round_: int, incarnation: int
) -> None:
    agent = {"incarnation": 3, "failure": RAISED}
    found = find_culprit(failure_at(103, round=round_, rank=1), [worker(1, incarnation=5, agent=agent)])
    assert found is not None and found.pod == f"digits-worker-1-{incarnation}"


def test_a_job_that_failed_by_no_worker_says_by_what(server: Script, dlr: Dlr) -> None:
    script(server, None)
    message = "shard set 'files': 1 element failed for good (element 7), and max_failed is 0"
    ended = {"phase": "Failed", "reason": "ShardsFailed", "message": message}
    server.answers[JOB] = troubled_job(lastFailure=None, **ended)
    done = dlr("job", "logs", "digits", "--failed")
    assert (done.exit_code, done.out) == (0, "")
    assert done.err == (
        f"No worker failed first in ElasticJob 'digits'; it failed by ShardsFailed: {message}. "
        "Its logs: dlr job logs digits -n default\n"
    )
