"""`dlr job diagnose`: the first sentence names the cause."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from dlr.commands.job.diagnose import one_screen, page
from dlr.dashboard.job_page import job_page
from dlr.job import report
from dlr.job.case import Case
from dlr.job.evidence import sections
from dlr.job.failures import find_culprit, heading, job_failure_line
from dlr.job.findings import JobFinding
from dlr.job.verdict import verdict
from tests.cli.scripted import JSON, Dlr, Script, job, node_check, refusal, show, worker
from tests.cli.troubled import NOW, at, troubled_case, troubled_events, troubled_job, troubled_workers

NODE = {"metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


case = partial(troubled_case, nodes=[NODE])


def warning(kind: str, message: str, reason: str | None = None) -> JSON:
    found = {"type": kind, "message": message, "since": at(200)}
    return found | ({"reason": reason} if reason else {})


def gravest(of: Case) -> JobFinding:
    return verdict(of).findings[0]


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("the saver process was ended by SIGABRT, see the log of this rank", "See in the log why"),
        ("[Errno 28] No space left on device", "Look at the storage"),
    ],
)
def test_who_shall_look_at_the_storage_has_an_error_of_the_storage(why: str, advice: str) -> None:
    message = f"digits-worker-0, first: step 20 is not saved to /data: {why}; the next save tries again"
    made = case(troubled_job(warnings=[warning("CheckpointsFailing", message, "StorageFails")]))
    (failing,) = (each for each in verdict(made).findings if each.cause == "StorageFails")
    (told,) = failing.advice
    assert told.text.startswith(advice) and ("dlr job logs digits" in told.text) == ("SIGABRT" in why)


HUNG = "no step for 10 s (the limit is 10 s): rank 2, after step 270, is at work/loader.py:31 in read: file.read()"
OUT_OF_MEMORY = "the container was killed by the kernel's OOM killer"


def a_hang_in_a_loader() -> Case:
    failure = {"worker": "digits-worker-2", "rank": 2, "exitClass": "Hang", "step": 270, "message": HUNG}
    return case(troubled_job(lastFailure=failure | {"round": 3, "time": at(290)}))


def test_a_job_that_the_controller_cannot_read_says_so() -> None:
    why = (
        "dlr cannot read this ElasticJob, and leaves it alone: it is nested too deeply; correct or delete it"
    )
    unread = job(reason="Unreadable", message=why)
    assert gravest(case(unread, [])).sentence.text == f"Unreadable: {why}."
    assert report.list_row(unread, NOW)[-1] == f"Unreadable: {why}"


def a_slow_node() -> Case:
    found = {"node": "node-1", "verdict": "Straggler", "message": "fp32 2.1 times slower than the median"}
    check = node_check(
        phase="Succeeded",
        nodes=["node-0", "node-1"],
        stragglers=["node-1"],
        nodeResults=[found],
        completionTime=at(20),
    )
    return case(checks=[check])


def an_oom_loop() -> Case:
    failure = {"worker": "digits-worker-1", "rank": 1, "exitClass": "OOM", "exitCode": 137}
    workers = troubled_workers()
    workers[1]["status"] |= {"restarts": {"OOM": 3}, "failureBudget": {"step": 500, "spent": {"OOM": 3}}}
    told = {"message": OUT_OF_MEMORY, "time": at(290), "round": 3}
    return case(troubled_job(phase="Restarting", lastFailure=failure | told), workers)


def a_bad_link() -> Case:
    links = [{"a": "node-0", "b": "node-1", "symptom": "failed", "message": "3 of 3 tests of the two failed"}]
    check = node_check(
        phase="Succeeded", nodes=["node-0", "node-1"], faultyLinks=links, completionTime=at(290)
    )
    return case(checks=[check])


def a_job_that_waits_for_room() -> Case:
    message = "2 of 3 Pods have no node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    return case(job(phase="Pending", reason="Unschedulable", message=message), [])


def a_nan() -> Case:
    message = (
        "NaN or infinite loss at step 301 of round 3, the first, in digits-worker-1 rank 1; training goes on"
    )
    return case(troubled_job(warnings=[warning("NonFiniteLoss", message)]))


def a_job_that_succeeded_without_its_last_checkpoints() -> Case:
    message = "digits-worker-0, first: step 20 is not saved to /data: [Errno 28] No space left on device"
    failing = warning("CheckpointsFailing", message, "StorageFails")
    return case(job(phase="Succeeded", completionTime=at(290), warnings=[failing]))


def test_an_ended_job_has_its_end_as_the_verdict_and_its_warnings_below_with_what_to_do() -> None:
    found = verdict(a_job_that_succeeded_without_its_last_checkpoints())
    (failing,) = found.findings
    assert (found.cause, failing.cause) == ("Succeeded", "StorageFails")
    assert found.text.startswith("Succeeded after 4m50s")
    (advice,) = failing.advice
    assert advice.text.startswith("Look at the storage: full, read-only")


def a_job_that_became_slower() -> Case:
    message = "a step takes 0.42 s since step 1200 (2026-01-01T00:04:00Z), 1.4 times the 0.3 s of before"
    moved = "digits-worker-2 is on node-3 since then, before on node-2"
    return case(troubled_job(warnings=[warning("Slow", f"{message}; {moved}")]))


def a_job_without_steps_since_a_failure() -> Case:
    return case(troubled_job(warnings=[warning("NoSteps", "no step was reported or counted for 90 minutes")]))


@pytest.mark.parametrize(
    ("staged", "cause", "said"),
    [
        (a_hang_in_a_loader, "Hang", ("rank 2", "hung", "work/loader.py:31 in read")),
        (a_slow_node, "Stragglers", ("node-1 slow", "2.1 times slower")),
        (an_oom_loop, "OOM", ("again and again, 3 times", "rank 1", "ran out of memory")),
        (a_bad_link, "FaultyLinks", ("bad links between node-0 and node-1", "failed")),
        (a_job_that_waits_for_room, "Unschedulable", ("waits for room", "Insufficient nvidia.com/gpu")),
        (
            a_job_without_steps_since_a_failure,
            "NoSteps",
            ("unknown whether training makes progress", "90 minutes"),
        ),
        (a_nan, "NonFiniteLoss", ("loss", "NaN", "rank 1", "step 301")),
        (a_job_that_became_slower, "Slow", ("slower than it was", "1.4 times", "on node-3 since then")),
    ],
)
def test_the_first_reason_names_the_cause(
    staged: Callable[[], Case], cause: str, said: tuple[str, ...]
) -> None:
    found = gravest(staged())
    assert found.cause == verdict(staged()).cause == cause
    for words in said:
        assert words in found.sentence.text
    assert job_page(staged())["findings"][0]["text"] == found.sentence.text, "so does the page's"


def test_nobody_is_sent_to_look_at_a_node_that_was_deleted() -> None:
    lost = {"worker": "digits-worker-2", "exitClass": "NodeLost", "time": at(290)}
    for message, is_gone in (("its node node-2 was deleted", True), ("node-2 restarted", False)):
        of = troubled_job(lastFailure=lost | {"message": message}, failureBudget={"alike": 3})
        told = " ".join(each.text for each in gravest(case(of)).advice)
        assert ("kubectl describe node" in told, "what deletes" in told) == (not is_gone, is_gone)


def test_an_exit_code_is_said_once() -> None:
    killed = {"worker": "digits-worker-1", "exitClass": "Killed", "exitCode": 137, "time": at(290)}
    lines = (
        ({"message": "exit code 137 (SIGKILL)"}, "10s ago: exit code 137 (SIGKILL)"),
        ({"message": "SIGKILL"}, "exit code 137, 10s ago: SIGKILL"),
        ({}, "exit code 137, 10s ago"),
    )
    for message, line in lines:
        assert job_failure_line(killed | message, NOW) == f"digits-worker-1, Killed, {line}"
    made = troubled_job(lastFailure=killed | {"message": "exit code 137 (SIGKILL)"})
    culprit = find_culprit(made, troubled_workers())
    assert culprit is not None
    assert [text for label, text in heading(culprit, NOW) if label in ("Class", "Error")] == [
        "Killed",
        "exit code 137 (SIGKILL)",
    ]


def test_failure_that_was_survived_is_the_reason_and_the_state_says_how_the_job_is() -> None:
    (survived,) = verdict(case()).findings
    assert survived.sentence.text == (
        "Rank 1 (digits-worker-1) on node-1 failed by an error of its own, 4m ago, round 1, step 118: "
        "ValueError: a <bad> batch."
    )
    state = next(each for each in sections(case(), verdict(case())) if each.title == "State")
    assert state.sentences[0].text == "Running for 2m30s; Training for 2m28s."


@pytest.mark.parametrize("count", [3, 100, 1_000])
def test_a_check_that_finds_many_nodes_is_a_verdict_and_one_screen(count: int) -> None:
    """What is alike is one sentence, what a finding says comes once, and a terminal is full at most."""
    names = [f"node-{each}" for each in range(count)]
    bad = names[1::33]
    results = [{"node": each, "verdict": "Faulty", "message": f"it failed with {each}-peer"} for each in bad]
    check = node_check(
        phase="Succeeded", completionTime=at(200), nodes=names, faultyNodes=bad, nodeResults=results
    )
    workers = [worker(each, nodeName=name) for each, name in enumerate(names)]
    for each in workers:
        each["spec"]["excludedNodes"] = bad
    not_ready = {"conditions": [{"type": "Ready", "status": "False"}]}
    nodes = [{"metadata": {"name": each}, "status": not_ready} for each in bad]
    of = case(troubled_job(), workers, checks=[check], nodes=nodes)
    made = sections(of, verdict(of))
    whole = page(of, made)
    text = " ".join(" ".join(whole).split())
    assert whole[0] == "Verdict" and "faulty, 1m40s ago: node-1: it failed with node-1-peer" in text
    assert text.count("node-1-peer") == 1
    assert len(made[0].sentences) == 1 and len(whole) < 70
    screen = one_screen(page(of, made, spaced=False), 30, of.in_command)
    assert len(screen) <= 29 and screen[0] == "Verdict"
    assert any("dlr job diagnose digits -n default | less" in line for line in screen)


def test_who_may_not_read_nodes_is_told_and_gets_the_rest(server: Script, dlr: Dlr) -> None:
    show(server, troubled_job(), troubled_workers(), *troubled_events())
    for node in ("node-0", "node-1", "node-3"):
        server.answers[f"GET /api/v1/nodes/{node}"] = refusal(403, "Forbidden", "nodes is forbidden: no")
    done = dlr("job", "diagnose", "digits")
    assert done.exit_code == 0
    assert done.out.startswith("Verdict\n") and "\nElasticJob default/digits at " in done.out
    assert "Nodes could not be read: nodes is forbidden: no" in done.out


def test_json_has_the_cause_for_programs(server: Script, dlr: Dlr) -> None:
    show(server, troubled_job(), troubled_workers(), *troubled_events())
    for number in (0, 1, 3):
        gone = refusal(404, "NotFound", "no node", name=f"node-{number}")
        server.answers[f"GET /api/v1/nodes/node-{number}"] = gone
    told = dlr("job", "diagnose", "digits", "-o", "json").json
    assert told["notRead"] == []
    assert told["sections"][0]["title"] == "Verdict"
    assert told["cause"] == "Stalled", "it is long ago"
    assert told["findings"][0]["text"].startswith("No rank has made a step for ")
    assert told["verdict"].startswith("Makes no step on 3 of 3 workers; 2 failures cost 42s")
    assert (told["failures"], told["lostSeconds"]) == (2, 42.0)
