"""The status screen: what it says of a job with a troubled life, and how it keeps to a terminal's size."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dlr.commands.job import screen
from dlr.dashboard.fleet import fleet_page
from dlr.job import goodput
from dlr.job.case import Case
from dlr.job.report import sort_workers
from tests.cli.scripted import job, worker
from tests.cli.troubled import NOW, at, troubled_case, troubled_events, troubled_job


def drawn(case: Case, width: int = 200, height: int = 60, *, terminal: bool = True) -> list[str]:
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        height=height,
        highlight=False,
        no_color=True,
    )
    with console.capture() as capture:
        console.print(screen.render(replace(case), console))
    text = capture.get().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def troubled() -> Case:
    return troubled_case()


def entry(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(label)).removeprefix(label).strip()


def test_says_phase_world_progress_goodput_restarts_and_the_culprit(troubled: Case) -> None:
    lines = drawn(troubled, terminal=False)
    assert entry(lines, "Phase") == "Running for 2m30s; Training for 2m28s"
    assert entry(lines, "World").startswith("round 3 Formed, 2m30s ago, 3 workers, 3 processes")
    forming = troubled.job["status"]["goodput"] | {"state": "Forming"}
    waits = replace(troubled, job=troubled.job | {"status": troubled.job["status"] | {"goodput": forming}})
    said = entry(drawn(waits, terminal=False), "Phase")
    assert said == "Running for 2m30s; Forming until the first step for 2m28s"
    assert entry(lines, "Progress") == "40%, step 401 of 1000, 0.42 s a step, about 4m11s left"
    assert entry(lines, "Time").startswith("Training 4m6s (82%), Recovering 42s (14%), Pending 10s")
    assert entry(lines, "Failures") == "NodeLost 1, UserError 1"
    assert entry(lines, "Last failure") == (
        "digits-worker-1 rank 1, UserError, exit code 1, step 118, round 1, 4m ago: ValueError: a <bad> batch"
    )
    assert entry(lines, "Scaled") == "False, Waiting: 1 worker is too old"


def test_each_worker_has_a_line_with_its_last_failure(troubled: Case) -> None:
    lines = drawn(troubled, terminal=False)
    first = " ".join(entry(lines, "1 ").split())
    assert first == "digits-worker-1-1 node-1 Running 401 0.42 0 UserError, 4m ago: ValueError: a <bad> batch"
    assert entry(lines, "2 ").endswith("1 (NodeLost 1)  NodeLost, 2m59s ago: the node is gone")


def test_on_80_columns_the_reason_of_a_failure_is_there(troubled: Case) -> None:
    lines = drawn(troubled, width=80)
    assert max(map(len, lines)) <= 80
    assert entry(lines, "RANK").split() == ["POD", "STATE", "STEP", "RESTARTS", "LAST", "FAILURE"]
    first = next(number for number, line in enumerate(lines) if line.startswith("2  "))
    told = [*lines[first].split(), *lines[first + 1].split()]
    assert " ".join(told) == "2 digits-worker-2-2 Running 401 1 NodeLost, 2m59s ago: the node is gone"
    low = drawn(troubled, width=80, height=27)
    assert "NodeLost, 2m59s ago: the node…" in next(line for line in low if line.startswith("2  "))


def test_newest_checkpoints_are_those_that_the_whole_world_has(troubled: Case) -> None:
    assert not any(line.startswith("Checkpoints") for line in drawn(troubled))
    for worker_, step in zip(troubled.workers, (400, 396, 400), strict=True):
        worker_["status"]["agent"]["memory"] = {"step": step, "replicatedStep": step - 4, "every": 4}
    told = "step 396 in memory, step 392 in other Pods' memory too, saved every 4 steps"
    assert entry(drawn(troubled), "Checkpoints") == told
    troubled.workers[1]["status"]["agent"]["progress"]["checkpointStep"] = 200
    assert entry(drawn(troubled), "Checkpoints") == f"{told}, step 200 in storage"
    del troubled.workers[2]["status"]["agent"]["memory"]["step"]
    assert entry(drawn(troubled), "Checkpoints").startswith("step 392 in other Pods'"), "one has none yet"
    troubled.workers[2]["status"]["agent"]["memory"] = {"step": 400, "replicatedStep": None}
    told = "step 396 in memory, saved every 4 steps, step 200 in storage"
    assert entry(drawn(troubled), "Checkpoints") == told, "nobody asked for copies"
    troubled.job["spec"]["replicaSpecs"]["worker"]["memoryCheckpoint"] = {"size": "1Gi", "replicas": 1}
    told = "step 396 in memory, none in other Pods' memory yet, saved every 4 steps, step 200 in storage"
    assert entry(drawn(troubled), "Checkpoints") == told
    troubled.job["status"]["rendezvous"]["members"] = "2"
    told = "step 400 in memory, no other Pod to hold a copy, step 200 in storage"
    assert entry(drawn(troubled), "Checkpoints") == told, "of a world with one worker"
    troubled.job["status"]["phase"] = "Succeeded"
    assert entry(drawn(troubled), "Checkpoints") == "step 200 in storage"


def test_job_that_failed_says_why_how_long_it_took_and_where_its_log_is() -> None:
    why = {"type": "Failed", "status": "True", "lastTransitionTime": at(240)}
    condition = why | {"reason": "SameErrorRepeated", "message": "three times\nmore"}
    failed = troubled_job(phase="Failed", conditions=[condition], completionTime=at(240))
    lines = drawn(Case(failed, [], [], NOW), terminal=False)
    assert entry(lines, "Phase") == "Failed 1m ago, 4m after its submission: SameErrorRepeated: three times"
    assert "its log: dlr job logs digits -n default --failed" in "\n".join(lines)
    assert entry(lines, "Time").startswith("Training 3m6s")  # to the job's end, not to now


@pytest.mark.parametrize("height", [24, 40])
def test_thousand_workers_are_one_screen_with_those_in_trouble(height: int) -> None:
    training = {"incarnation": 1, "state": "Running"}
    crowd = [worker(index, agent=training) for index in range(1_000)]
    crowd[700] = worker(700, phase="Pending", podName="digits-worker-700-1")
    shown = drawn(Case(troubled_job(), sort_workers(crowd), troubled_events(), NOW), 100, height)
    assert len(shown) < height
    assert any("digits-worker-700-1" in line for line in shown)
    assert any("more workers" in line for line in shown)
    assert "WorldFormed" in shown[-1]


@given(lines=st.integers(-20, 100), worker_count=st.integers(0, 1_000), event_count=st.integers(0, 10))
def test_room_is_kept_to_and_never_left_empty(lines: int, worker_count: int, event_count: int) -> None:
    shown_workers, shown_events = screen.room(lines, worker_count, event_count)
    assert shown_events >= 1
    assert min(1, worker_count) <= shown_workers <= worker_count
    says_more = shown_workers < worker_count
    if lines >= 5:
        assert shown_workers + min(shown_events, event_count) + says_more <= lines
    if worker_count + event_count <= lines:
        assert (shown_workers, min(shown_events, event_count)) == (worker_count, event_count)


def test_goodput_is_reckoned_up_to_now_with_what_workers_have_told_since(troubled: Case) -> None:
    account = goodput.account_of(troubled.job, troubled.workers, NOW)
    assert account is not None
    # By rank 0: 400 steps are kept, (95 + 105) s / (190 + 199) each, of 300 s; 10 of round 3 were trained before.
    assert account.ratio == pytest.approx(400 * 200 / 389 / 300)
    assert entry(drawn(troubled, terminal=False), "Goodput") == (
        "68.6% of the time since submission; 27 of 427 trained steps are repeats"
    )
    (line,) = fleet_page([troubled.job], troubled.workers[:1], NOW)["jobs"]
    assert line["goodput"] == account.ratio, "the page of all jobs has the same"


def test_each_shard_set_has_a_line_with_what_workers_have_reported_of_their_leases() -> None:
    files = {"name": "files", "size": 100, "done": 20, "leased": 30, "waiting": 49, "failed": 1}
    files |= {"leases": "0.1.7=20-34;1.1.8=35-49", "startedAt": (NOW - timedelta(seconds=50)).isoformat()}
    told = {"name": "files", "lease": 7, "rest": "30-34", "failed": "21"}
    nonsense = {"name": "files", "lease": 8, "rest": "5-1"}
    workers_ = [worker(at, agent={"incarnation": 1, "shards": [s]}) for at, s in enumerate((told, nonsense))]
    sets = [{"status": files}]
    lines = drawn(Case(job(), workers_, [], NOW, sets=sets), terminal=False)
    assert entry(lines, "Shards") == (
        "files: 29%, 29 of 100 done, 21 leased, 49 waiting, 1 failed, 0.58 a second, about 2m left"
    )
    ended = job(phase="Failed", completionTime=(NOW - timedelta(seconds=21)).isoformat())
    lines = drawn(Case(ended, workers_, [], NOW, sets=sets), terminal=False)
    assert entry(lines, "Shards") == "files: 29%, 29 of 100 done, 70 left undone, 1 failed, 1 a second"
