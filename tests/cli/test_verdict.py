"""The verdict: one text that all outputs print, which no forgotten failure and no later one makes smaller."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from crds import names
from crds.agent_report import RoundProgress
from crds.job_status import Goodput, JobState
from crds.phases import JobPhase
from dlr.commands.job import diagnose
from dlr.commands.job.screen import render
from dlr.dashboard.fleet import fleet_page
from dlr.dashboard.job_page import job_page
from dlr.job import report
from dlr.job.case import Case
from dlr.job.evidence import sections
from dlr.job.facts import facts_of
from dlr.job.goodput import goodput_line, redone
from dlr.job.groups import headline_of_jobs
from dlr.job.progress import progress_line, progress_of
from dlr.job.timeline.drawing import svg_file
from dlr.job.tones import TONE_OF
from dlr.job.verdict import JobVerdict, verdict
from reconcilers.observed.behind import far_behind
from tests.cli.scripted import JSON, job, worker
from tests.cli.test_job_groups import group, grouped
from tests.cli.troubled import NOW, at, episode, failed, troubled_job, troubled_workers
from tests.cli.troubled import troubled_case as case


def of(made: JSON, workers: list[JSON] | None = None) -> JobVerdict:
    return verdict(case(made, workers))


def said(made: JSON, workers: list[JSON] | None = None) -> tuple[str, str]:
    found = of(made, workers)
    return found.text, found.word


def in_state(state: str, **status: Any) -> JSON:
    return troubled_job(goodput=troubled_job()["status"]["goodput"] | {"state": state}, **status)


def starting(active: int, **status: Any) -> JSON:
    counts = {"worker": {"active": active, "desired": 3}}
    made = {"goodput": {"state": "Pending", "since": at(270)}, "replicaStatuses": counts, "failures": {}}
    return troubled_job(**{"rendezvous": {"phase": "Forming"}} | made | status)


def warning(kind: str, reason: str | None = None, **data: Any) -> JSON:
    found: JSON = {"type": kind, "message": f"{kind}, a message", "since": at(288)}
    return found | ({"reason": reason} if reason else {}) | ({"data": data} if data else {})


COST = "2 failures cost 42s and 27 steps trained again"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (troubled_job(), (f"Trains on 3 of 3 workers; {COST}", "Training")),
        (
            troubled_job(replicaStatuses={"worker": {"active": 30, "desired": 30}}),  # new ones start
            (f"Trains on 3 of 30 workers; {COST}", "Training"),
        ),
        (
            in_state("Recovering", failures={"UserError": 2, "NodeLost": 1}),
            (
                "Recovers on 3 of 3 workers; 3 failures, the earlier ones cost 42s and 27 steps trained again",
                "Recovering",
            ),
        ),
        (
            in_state("Pending", phase="Pending", reason="Unschedulable", failures={}),
            ("Waits for room, with 3 of 3 workers; 27 steps trained again", "Pending"),
        ),
        (starting(active=1), ("Waits for its Pods to run, with 1 of 3 workers", "Pending")),
        (starting(active=3), ("Waits for its agents to start, with 3 of 3 workers", "Pending")),
        (
            starting(active=3, warnings=[warning("AgentsUnheard")]),
            (
                "Waits for its agents to start, with 3 of 3 workers, and some Pods run without an agent",
                "Pending",
            ),
        ),
        (
            starting(active=3, rendezvous={"waitsFor": "2 of 3 are ready"}),
            ("Waits, with 3 of 3 workers", "Pending"),
        ),
        (
            troubled_job(phase="Failed", completionTime=at(240)),
            ("Failed after 4m; 2 failures cost 42s and 17 steps trained again", "Failed"),
        ),
        (
            troubled_job(phase="Succeeded", completionTime=at(280), goodput=None, failures={}),
            ("Succeeded after 4m40s", "Succeeded"),
        ),
        (grouped(), ("Runs on 2 of 3 groups", "Running")),
        (job(), ("Not seen by a controller yet, with 2 workers", "Unobserved")),
    ],
)
def test_the_text_says_what_a_job_does_on_how_many_and_what_failures_cost(
    made: JSON, expected: tuple[str, str]
) -> None:
    assert said(made) == expected


def test_a_job_that_is_deleted_and_still_there_says_so_and_what_holds_it() -> None:
    deleted = troubled_job(phase="Succeeded", completionTime=at(280), goodput=None, failures={})
    deleted["metadata"] |= {"deletionTimestamp": at(0), "finalizers": ["kueue.x-k8s.io/managed", "b/c"]}
    since = report.deletion_line(deleted, NOW)
    assert re.fullmatch(r"deleted \w+ ago, held by its finalizers kueue\.x-k8s\.io/managed, b/c", since)
    assert of(deleted).text == f"Succeeded after 4m40s; {since}"
    assert report.list_row(deleted, NOW)[-1] == since
    del deleted["metadata"]["finalizers"]
    assert "held" not in report.deletion_line(deleted, NOW)


def test_a_job_that_is_deleted_and_stopped_is_not_to_be_resumed() -> None:
    stopped = troubled_job(phase="Suspended", goodput=None, failures={})
    stopped["metadata"] |= {"deletionTimestamp": at(0), "finalizers": ["b/c"]}
    (found,) = (each for each in of(stopped).findings if each.cause in ("Deleted", "Suspended"))
    assert found.cause == "Deleted"
    assert found.sentence.text == "The job is deleted, and stays without Pods until its finalizers b/c go."
    assert "resume" not in " ".join(each.text for each in found.advice)


def test_a_job_that_hangs_or_makes_no_step_does_not_train() -> None:
    workers = troubled_workers()
    for each in workers:
        each["status"]["agent"]["progress"]["time"] = at(160)
    assert of(troubled_job(), workers).text.startswith("Makes no step on 3 of 3 workers")
    world = troubled_job()["status"]["rendezvous"] | {"hangSince": at(290)}
    assert of(troubled_job(rendezvous=world)).text.startswith("Hangs on 3 of 3 workers")


@pytest.mark.parametrize(
    ("kind", "reason", "expected"),
    [
        ("CheckpointsFailing", "StorageFails", "Trains on 3 of 3 workers, and its checkpoints fail"),
        ("AgentsSilent", None, "Trains on 3 of 3 workers, some of which are silent"),
        ("SidecarsFailed", None, "Trains on 3 of 3 workers, and a sidecar has failed"),
        ("WorkersGivenUp", None, "Trains on 3 of 3 workers, and some are given up"),
        ("NoSteps", None, "Trains on 3 of 3 workers, and reports no step"),
        ("Slow", None, "Trains more slowly than before on 3 of 3 workers"),
        ("WorkersUnscheduled", "Unschedulable", "Trains on 3 of 3 workers, the others wait for room"),
        ("WorkersNotStarted", "ImagePullBackOff", "Trains on 3 of 3 workers, the others cannot start"),
    ],
)
def test_what_is_wrong_while_a_job_trains_is_in_the_text_and_not_green(
    kind: str, reason: str | None, expected: str
) -> None:
    text, word = said(troubled_job(warnings=[warning(kind, reason)]))
    assert text.startswith(f"{expected}; 2 failures")
    assert TONE_OF[word].name == "warn"


def crowd(count: int, behind: int, *, round_: int = 3) -> list[JSON]:
    def report(step: int) -> JSON:
        rounds = [{"round": round_, "firstStep": 1, "lastStep": step}]
        return {"incarnation": 1, "progress": {"step": step, "time": at(299), "secondsPerStep": 0.5}} | {
            "rounds": rounds
        }

    return [worker(each, agent=report(400 if each < count - behind else 200)) for each in range(count)]


def test_ranks_that_are_far_behind_are_counted_in_the_text() -> None:
    counts = {"worker": {"desired": 1_000, "active": 1_000}}
    world = troubled_job()["status"]["rendezvous"] | {"members": "0-999"}
    made = troubled_job(replicaStatuses=counts, rendezvous=world, lastFailure=None)
    found = of(made, crowd(1_000, 8))
    assert found.text.startswith("Trains on 1,000 of 1,000 workers, 8 of them far behind")
    assert (found.word, found.cause) == ("Warning", "RanksBehind")
    assert of(made, crowd(1_000, 0)).word == "Training"
    told = made | {"status": made["status"] | {"warnings": [warning("RanksBehind", count=8)]}}
    assert of(told, crowd(1, 0)).text == found.text, "a list of jobs has one worker, and the warning"


def test_steps_of_an_earlier_round_do_not_compare() -> None:
    late = [*crowd(3, 0)[:2], *crowd(3, 0, round_=2)[2:]]
    late[2]["status"]["agent"]["progress"]["step"] = 9_000  # it has not heard of the new round
    assert case(troubled_job(), late).behind == 0
    assert far_behind([], 30) == []


def test_a_lost_node_is_waited_for_by_name_and_no_healthy_rank_is_shown_as_the_failure() -> None:
    late = warning("HeartbeatLate", worker="digits-worker-1", node="node-3", count=1, limitSeconds=30.0)
    gloo = {"worker": "digits-worker-0", "rank": 0, "exitClass": "Unknown", "round": 2, "time": at(290)}
    gloo["message"] = "[gloo] Connection closed by peer"
    for state in ("Recovering", "Forming"):
        made = in_state(state, warnings=[late], lastFailure=gloo, failures={"Unknown": 1})
        found = of(made)
        assert found.text.startswith("Waits for worker 1 on node-3: silent for 12 s, lost at 30 s; 1 failure")
        assert [each.cause for each in found.findings] == ["HeartbeatLate"]
    said = dict(report_facts(made))["Last failure"]
    assert said == "an unknown peer's; digits-worker-0 rank 0 lost it 10s ago"
    trained = of(troubled_job(warnings=[late]))
    assert trained.text.startswith("Trains on 3 of 3 workers; "), "nobody waits for it"


def report_facts(made: JSON) -> list[tuple[str, str]]:
    return [(fact.label, fact.text) for fact in facts_of(case(made))]


@pytest.mark.parametrize(
    ("class_", "message", "expected"),
    [
        ("NodeLost", "node-2 restarted", "Recovers on 3 of 3 workers: node-2 restarted; "),
        ("NodeLost", "no heartbeat", "Recovers on 3 of 3 workers: worker 1 was lost with its node; "),
        ("Killed", "SIGKILL", "Recovers on 3 of 3 workers: worker 1 was killed from outside; "),
        ("Unknown", "gloo", "Recovers on 3 of 3 workers; "),
        ("Other", "of a later version", "Recovers on 3 of 3 workers: worker 1 ended (Other); "),
    ],
)
def test_a_job_that_recovers_says_from_what(class_: str, message: str, expected: str) -> None:
    failure = {"worker": "digits-worker-1", "exitClass": class_, "message": message, "time": at(200)}
    assert of(in_state("Recovering", lastFailure=failure)).text.startswith(expected)
    earlier = failure | {"time": at(100)}
    assert of(in_state("Recovering", lastFailure=earlier)).text.startswith("Recovers on 3 of 3 workers; ")


def test_a_job_that_trains_with_fewer_workers_has_one_verdict_and_no_advice_to_want_fewer() -> None:
    world = troubled_job()["status"]["rendezvous"] | {"members": "0-1"}
    made = troubled_job(
        phase="Scaling",
        reason="Unschedulable",
        message="4 Pods cannot be scheduled",
        rendezvous=world,
        replicaStatuses={"worker": {"desired": 6, "active": 2}},
        warnings=[warning("WorkersUnscheduled", "Unschedulable")],
        lastFailure=None,
    )
    made["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 1, "replicas": 6}
    found = of(made)
    assert found.text.startswith("Trains on 2 of 6 workers, the others wait for room")
    (only,) = found.findings
    assert only.sentence.text.startswith("The job trains, and waits for room for the rest of its workers")
    assert [each.text for each in only.advice] == [
        "Free or add nodes that fit its Pods: it takes in more workers by itself."
    ]


@pytest.mark.parametrize(("least", "says"), [(None, True), (3, True), (1, False)])
def test_fewer_workers_are_advised_only_where_the_job_may_want_fewer(least: int | None, says: bool) -> None:
    made = job(workers=6, phase="Pending", reason="Unschedulable", message="no room")
    made["spec"]["replicaSpecs"]["worker"] |= {} if least is None else {"minReplicas": least}
    ((advice,),) = [each.advice for each in of(made, []).findings]
    assert ("minReplicas" in advice.text) is says


@pytest.mark.parametrize(
    "message",
    [
        "KeyError: 'RANK'",
        "exited with code 1: last line says: KeyError: 'LOCAL_RANK'",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
    ],
)
def test_a_script_that_no_launcher_started_is_to_be_started_by_one(message: str) -> None:
    last = {"worker": "digits-worker-1", "exitClass": "UserError", "message": message, "time": at(290)}
    found = of(troubled_job(lastFailure=last, failures={"UserError": 1}), troubled_workers()).findings
    ((_, advice),) = [each.advice for each in found if each.cause == "UserError"]
    assert advice.text.startswith("Start the script by torchrun or dlr run")
    last["message"] = "KeyError: 'loss'"
    found = of(troubled_job(lastFailure=last, failures={"UserError": 1}), troubled_workers()).findings
    assert not any("torchrun" in advice.text for each in found for advice in each.advice)


@pytest.mark.parametrize(
    ("class_", "ended_by", "expected"),
    [
        ("UserError", "", "RESTART: dlr does it by itself, until the same error comes too often"),
        ("NodeLost", "", "RESTART: dlr does it by itself, since it was not the program's doing"),
        ("UserError", "SameErrorRepeated", "STOP: the same error came again and again"),
        ("UserError", "RestartLimitExceeded", "STOP: it failed more often than it may"),
        ("HardwareError", "RestartLimitExceeded", "RESTART: the worker failed by a fault of its device"),
        ("HardwareError", "FailurePolicy", "STOP: a rule of failurePolicy says so"),
    ],
)
def test_programs_read_in_one_word_whether_to_start_a_job_again(
    class_: str, ended_by: str, expected: str
) -> None:
    """On every failure: where diagnose, status and page print what to do, and apart for programs."""
    last = {"worker": "digits-worker-1", "exitClass": class_, "message": "why", "time": at(290)}
    made = troubled_job(lastFailure=last, failures={class_: 3})
    if ended_by:
        ended = {"type": "Failed", "status": "True", "reason": ended_by, "lastTransitionTime": at(291)}
        made["status"] |= {"phase": "Failed", "completionTime": at(291), "conditions": [ended]}
    found = case(made)
    top = verdict(found)
    assert top.next_start.startswith(expected)
    assert top.findings[0].advice[0].text.startswith(expected)
    made_json = diagnose.as_json(found, top, sections(found, top))
    assert made_json["next"] == job_page(found)["next"] == top.next_start


@pytest.mark.parametrize(
    ("state", "since", "lasted", "first_step", "loops"),
    [
        ("Training", 290, 2.0, None, True),
        ("Recovering", 290, 2.0, None, True),
        ("Training", 290, None, None, True),
        ("Training", 200, 2.0, None, False),  # it runs for longer than any start before
        ("Training", 290, 9_000.0, None, False),  # it reports no steps, and trained for hours
        ("Training", 290, 2.0, 1, False),
    ],
)
def test_a_job_that_fails_at_each_start_does_not_train(
    state: str, since: float, lasted: float | None, first_step: int | None, *, loops: bool
) -> None:
    message = "the process exited with code 2: train.py: error: unrecognized arguments: --x"
    last = {"worker": "digits-worker-1", "exitClass": "UserError", "message": message, "time": at(289)}
    last |= {} if lasted is None else {"afterSeconds": lasted}
    account = {"state": state, "since": at(since)} | ({} if first_step is None else {"firstStep": first_step})
    budget = {"spent": {"UserError": 2}}
    made = troubled_job(lastFailure=last, goodput=account, failures={"UserError": 2}, failureBudget=budget)
    found = verdict(Case(made, [], [], NOW))
    assert found.text.startswith("Starts again and again, without a step, on 3 of 3 workers") is loops
    assert loops or found.text.startswith("Trains on 3 of 3 workers")


def test_nobody_restarts_a_suspended_job() -> None:
    last = {"worker": "digits-worker-1", "exitClass": "NodeLost", "message": "why", "time": at(290)}
    made = troubled_job(phase="Suspended", lastFailure=last, failures={"NodeLost": 1})
    top = of(made)
    assert top.next_start == ""
    assert [each.cause for each in top.findings] == ["Suspended", "NodeLost"]
    assert not [advice for each in top.findings for advice in each.advice if "RESTART" in advice.text]


def test_a_pod_that_cannot_start_is_named_in_the_command_that_shows_it() -> None:
    late = warning("WorkersNotStarted", "ImagePullBackOff", worker="digits-worker-1", count=2)
    made = job(phase="Pending", reason="ImagePullBackOff", message="no image", warnings=[late])
    ((advice,),) = [each.advice for each in of(made).findings]
    assert "kubectl describe pod digits-worker-1-1 -n default" in advice.text


STATES = st.sampled_from([None, *JobState])
WARNINGS = (
    *("NonFiniteLoss", "CheckpointsFailing", "WorkersGivenUp", "Slow", "AgentsSilent", "HeartbeatLate"),
    *("RanksBehind", "SidecarsFailed", "NoSteps", "WorkersUnscheduled", "WorkersNotStarted"),
)
FAILURES = st.dictionaries(st.sampled_from(["UserError", "OOM", "NodeLost"]), st.integers(1, 9), max_size=3)


@st.composite
def jobs(draw: st.DrawFn) -> JSON:
    state, phase = draw(STATES), draw(st.sampled_from(JobPhase))
    status = {
        "phase": phase,
        "failures": draw(FAILURES),
        "warnings": [warning(each) for each in draw(st.sets(st.sampled_from(WARNINGS), max_size=3))],
        "reason": draw(st.sampled_from(["", "Unschedulable", "ImagePullBackOff"])),
        "message": draw(st.sampled_from(["", "a message"])),
    }
    if phase.finished:
        status["completionTime"] = at(280)
    return in_state(state, **status) if state else troubled_job(goodput=None, **status)


def outputs(made: JSON) -> dict[str, str]:
    """What each output prints of the verdict."""
    whole = case(made)
    screen = Console(file=io.StringIO(), width=400)
    screen.print(render(whole, screen))
    page = diagnose.page(whole, sections(whole, verdict(whole)), width=2_000, spaced=False)
    picture = svg_file(whole.life, verdict(whole).text) if whole.life else ""
    heading = re.findall(r'class="head">(.*?)</text>', picture)
    return {
        "status": screen.file.getvalue().splitlines()[0].strip("● "),  # type: ignore[attr-defined]
        "diagnosis": page[1].strip(" -"),
        "page": job_page(whole)["headline"]["text"],
        "fleet": fleet_page([made], troubled_workers()[:1], NOW)["jobs"][0]["verdict"]["text"],
        "timeline": " ".join(heading),
    }


@settings(max_examples=25, deadline=None)
@given(jobs())
def test_all_outputs_print_one_text_whose_word_has_a_tone(made: JSON) -> None:
    found = of(made)
    assert found.word in TONE_OF
    assert found.text and "None" not in found.text and "{" not in found.text
    assert set(outputs(made).values()) == {found.text}
    if TONE_OF[found.word].name == "good" and not made["status"]["phase"].finished:
        assert not {each["type"] for each in made["status"]["warnings"]} & {"Slow", "CheckpointsFailing"}


@settings(max_examples=40)
@given(FAILURES, st.integers(0, 7))
def test_what_history_forgets_stays_in_the_text(failures: dict[str, int], forgotten: int) -> None:
    whole = troubled_job(failures=failures)
    short = troubled_job(failures=failures, history=whole["status"]["history"][forgotten:])
    more = [
        episode("Recovering", 280, 3, "0-2", "x", failed(1, 280, "OOM", "x", 3)),
        episode("Training", 290, 4, "0-2"),
    ]
    longer = troubled_job(failures=failures, history=[*whole["status"]["history"], *more])
    assert of(whole).text == of(short).text == of(longer).text
    assert of(whole).failures == sum(failures.values())


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(JobState), st.integers(1, 600)), min_size=1, max_size=12))
def test_the_cost_never_falls(stretches: list[tuple[JobState, int]]) -> None:
    """Over a life, read in the middle and at the end of each of its states."""
    seconds: dict[str, float] = {}
    known, now = 0.0, NOW
    for state, length in stretches:
        goodput = {"state": state, "since": now.isoformat(), "seconds": dict(seconds)}
        made = troubled_job(goodput=goodput)
        for share in (0.5, 1.0):
            found = verdict(Case(made, [], (), now + length * share * timedelta(seconds=1)))
            assert found.lost_seconds >= known
            known = found.lost_seconds
        now += timedelta(seconds=length)
        seconds[state.value] = seconds.get(state.value, 0.0) + length


@pytest.mark.parametrize("phase", ["Scaling", "Restarting", "Pending", "Running"])
def test_a_phase_is_as_old_as_the_condition_that_says_it_and_never_as_the_job(phase: str) -> None:
    scaled = {"type": "Scaled", "status": "False", "reason": "x", "lastTransitionTime": at(290)}
    runs = "True" if phase == "Running" else "False"
    running = {"type": "Running", "status": runs, "reason": phase, "lastTransitionTime": at(290)}
    made = job(phase=phase, conditions=[running, scaled])
    assert report.phase_line(made, NOW) == f"{phase} for 10s"
    del made["status"]["conditions"]
    assert report.phase_line(made, NOW) == phase


def test_an_ended_or_suspended_job_has_no_workers_and_no_world_that_forms() -> None:
    counts = {"worker": {"desired": 3, "active": 0, "succeeded": 0}}
    assert report.workers_line(job(phase="Failed", replicaStatuses=counts)) == "none any more"
    world = {"round": 8, "phase": "Forming"}
    line = report.world_line(job(phase="Suspended", rendezvous=world), NOW)
    assert line == "none any more; the last was round 8"


def test_headline_of_jobs_counts_those_that_train_and_no_groups() -> None:
    assert headline_of_jobs([]) == "No jobs"
    assert headline_of_jobs([job(phase="Failed")]) == "No job is active"
    assert headline_of_jobs([troubled_job()]) == "1 of 1 active job trains"
    waits = job("waits", phase="Pending")
    assert headline_of_jobs([waits, grouped(), group(0), group(1)]) == "1 of 2 active jobs trains"


def test_progress_follows_the_workers_when_a_lost_checkpoint_sets_them_back() -> None:
    def at_step(step: int) -> JSON:
        return {"spec": {}, "status": {"agent": {"progress": {"step": step, "secondsPerStep": 2.0}}}}

    back = progress_of(job(), [at_step(20), at_step(21)], furthest=415)
    assert back is not None and back.step == 21
    silent = progress_of(job(), [], furthest=415)
    assert silent is not None and silent.step == 415


def test_steps_since_an_unknown_one_are_said_to_be_such() -> None:
    def counting(**figures: Any) -> JSON:
        rounds = [{"round": 2, "firstStep": 1, "lastStep": 2, "counted": True, **figures}]
        return {"spec": {}, "status": {"agent": {"progress": {"step": 2}, "rounds": rounds}}}

    made = job()
    made["metadata"]["annotations"] = {names.ANNOTATION_TOTAL_STEPS: "500"}
    lines = []
    for workers in (
        [counting(startUnknown=True)],
        [counting()],
        [counting(startUnknown=True), counting(counted=None)],
    ):
        progress = progress_of(made, workers)
        assert progress is not None
        lines.append(progress_line(progress, is_finished=False))
    assert lines == ["step 2 since its last start", "0%, step 2 of 500", "0%, step 2 of 500"]


def test_steps_that_may_have_been_trained_before_are_not_given_as_a_number() -> None:
    latest = RoundProgress(round=2, first_step=1, last_step=110, counted=True, start_unknown=True)
    account = Goodput(
        state=JobState.TRAINING,
        since=datetime(2026, 1, 1, tzinfo=UTC),
        first_step=1,
        last_step=110,
        steps_redone=110,
        ratio=0.5,
        latest=latest,
    )
    assert redone(account) == "an unknown number of steps"
    assert goodput_line(account) == (
        "at least 50.0% of the time since submission; how many of 220 trained steps are repeats is unknown"
    )


def test_the_phase_of_a_job_without_any_world_says_how_it_succeeded() -> None:
    ended = {
        "type": "Succeeded",
        "status": "True",
        "message": "each by itself",
        "lastTransitionTime": at(290),
    }
    made = job(phase="Succeeded", conditions=[ended], completionTime=at(290), rendezvous={"round": 0})
    assert report.phase_line(made, NOW).endswith(" after its submission: each by itself")
    made["status"]["rendezvous"] = {"round": 3}
    assert report.phase_line(made, NOW).endswith(" after its submission")
