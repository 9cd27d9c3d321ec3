"""Jobs with replica groups, as the commands show and change them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from crds import names
from dlr.job.case import Case
from dlr.job.facts import facts_of
from dlr.job.goodput import redone
from tests.cli.scripted import (
    JOBS,
    JSON,
    PODS,
    WORKERS,
    Dlr,
    Script,
    job,
    listing,
    pod,
    refusal,
    show,
    worker,
)


def grouped(name: str = "digits", **status: Any) -> JSON:
    """A job of three groups of two workers, of which the second restarts."""
    told: JSON = {
        "phase": "Running",
        "replicaStatuses": {"worker": {"desired": 6, "active": 5}},
        "membership": {"version": 7, "groups": [{"index": 0, "round": 1}, {"index": 2, "round": 1}]},
        "groups": [
            {"index": 0, "phase": "Running", "round": 1, "version": 7},
            {
                "index": 1,
                "phase": "Restarting",
                "round": 4,
                "version": 6,
                "restarts": 3,
                "message": "Waits: x",
            },
            {"index": 2, "phase": "Running", "round": 1, "version": 7},
        ],
    }
    made = job(name, workers=6, **{**told, **status})
    made["spec"]["elasticPolicy"] = {"replicaGroups": {"workers": 2, "min": 1}}
    return made


def group(index: int, of: str = "digits", uid: str = "uid-digits", **status: Any) -> JSON:
    told = {"phase": "Running", "replicaGroup": {"round": 1, "ready": True, "version": 7}}
    made = job(f"{of}-group-{index}", workers=2, **{**told, **status})
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "name": of,
        "uid": uid,
        "controller": True,
    }
    made["metadata"]["ownerReferences"] = [owner]
    made["metadata"]["labels"] = {names.LABEL_GROUPED_JOB: of, names.LABEL_GROUP_INDEX: str(index)}
    return made


def of_group(number: int, index: int, **status: Any) -> JSON:
    made = worker(index, job_name=f"digits-group-{number}", **status)
    made["metadata"]["labels"] = {names.LABEL_GROUPED_JOB: "digits", names.LABEL_GROUP_INDEX: str(number)}
    return made


def step(value: int) -> JSON:
    return {"incarnation": 1, "state": "Running", "progress": {"step": value, "time": "2026-01-01T00:00:00Z"}}


def script(server: Script, **status: Any) -> None:
    stranger = group(5, uid="uid-of-another")
    workers = [of_group(number, index, agent=step(100 + number)) for number in (2, 0, 1) for index in (1, 0)]
    theirs = worker(0, job_name="digits-group-5")
    show(server, grouped(**status), [*workers, theirs])
    server.answers[f"GET {JOBS}"] = listing(group(2), stranger, group(0), group(1))
    for number in range(3):
        server.answers[f"GET {JOBS}/digits-group-{number}"] = group(number)
        for index in range(2):
            name = f"digits-group-{number}-worker-{index}-1"
            server.answers[f"GET {PODS}/{name}"] = pod(name)
            server.answers[f"GET {PODS}/{name}/log"] = f"2026-01-01T00:00:01Z line of {number}.{index}\n"


def test_status_has_a_line_for_each_group_in_place_of_a_world(server: Script, dlr: Dlr) -> None:
    script(server)
    lines = [" ".join(line.split()) for line in dlr("job", "status", "digits").out.splitlines()]
    assert "Groups 2 of 3 train together, version 7" in lines
    assert not any(line.startswith("World") for line in lines)
    head = lines.index("GROUP PHASE TRAINS ROUND STEP RESTARTS LAST FAILURE WHY")
    assert lines[head + 1 : head + 4] == [
        "0 Running yes 1 100 0 - -",
        "1 Restarting no 4 101 3 - Waits: x",
        "2 Running yes 1 102 0 - -",
    ]
    assert "one group and its workers: dlr job status digits-group-0 -n default" in lines


def test_a_list_shows_groups_below_their_job_and_strangers_alone(server: Script, dlr: Dlr) -> None:
    stranger = group(5, uid="uid-of-another")
    server.answers[f"GET {JOBS}"] = listing(
        job("alone"), grouped(), group(10), stranger, group(2), job("later")
    )
    lines = dlr("job", "list").out.splitlines()[1:]
    assert [line.partition("  ")[0] for line in lines] == [
        "alone", "digits", "└ digits-group-2", "└ digits-group-10", "digits-group-5", "later",
    ]  # fmt: skip
    assert lines[1].split()[2:6] == ["5/6", "-", "2/3", "groups"]


def test_logs_are_of_all_groups_or_of_one(server: Script, dlr: Dlr) -> None:
    script(server)
    lines = dlr("job", "logs", "digits").out.splitlines()
    assert lines == [
        f"[digits-group-{number}-worker-{index}] line of {number}.{index}"
        for number in range(3)
        for index in range(2)
    ]
    server.answers[f"GET {WORKERS}"] = listing(of_group(1, 0), of_group(1, 1))
    one = dlr("job", "logs", "digits", "--group", "1", "--rank", "1")
    assert one.out == "line of 1.1\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("logs", "digits", "--rank", "0"),
            "name one, such as: dlr job logs digits-group-0 -n default --rank 0.",
        ),
        (
            ("stacks", "digits", "--rank", "3"),
            "name one, such as: dlr job stacks digits-group-0 -n default --rank 3.",
        ),
        (
            ("logs", "digits", "--group", "5"),
            "ElasticJob 'digits' has no replica group 5; its groups are 0-2.",
        ),
        (
            ("scale", "digits-group-1", "--replicas", "3"),
            "use the whole job: dlr job scale digits -n default.",
        ),
        (("suspend", "digits-group-1"), "use the whole job: dlr job suspend digits -n default."),
        (("delete", "digits-group-1"), "use the whole job: dlr job delete digits -n default."),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_command_that_has(
    server: Script, dlr: Dlr, words: tuple[str, ...], sentence: str
) -> None:
    script(server)
    done = dlr("job", *words)
    assert done.exit_code == 2 and sentence in done.err
    assert all(request.method == "GET" for request in server.requests)


def test_stacks_come_group_by_group_with_ranks_of_their_own(server: Script, dlr: Dlr) -> None:
    script(server)
    asked: list[str] = []

    def answered(number: int) -> JSON:
        stack = {"rank": 0, "step": 9, "inCollective": False, "frames": f"in step_{number}"}
        report = step(9) | {"askedStacks": {"request": asked[-1], "stacks": [stack]}}
        return of_group(number, 0, agent=report)

    def ask(request: Any) -> JSON:
        asked.append(request.body["metadata"]["annotations"][names.ANNOTATION_STACKS])
        return group(0)

    def workers(request: Any) -> JSON:
        _, _, name = request.query["labelSelector"].partition("=")
        return listing(answered(int(name[-1])))

    server.answers |= {f"PATCH {JOBS}/digits-group-{number}": ask for number in range(3)}
    server.answers[f"GET {WORKERS}"] = workers
    out = dlr("job", "stacks", "digits").out
    assert len(asked) == 3 and len(set(asked)) == 1
    heads = [line for line in out.splitlines() if line.startswith("digits")]
    assert heads == [f"digits-group-{number}:" for number in range(3)]
    assert [f"in step_{number}" in out for number in range(3)] == [True] * 3
    found = dlr("job", "stacks", "digits", "-o", "json").json
    assert [(each["job"], each["rank"]) for each in found] == [(name[:-1], 0) for name in heads]


def test_a_diagnosis_names_the_groups_that_do_not_train(server: Script, dlr: Dlr) -> None:
    script(server)
    out = " ".join(dlr("job", "diagnose", "digits").out.split())
    assert "Groups: 2 of 3 train together, version 7." in out
    why = "group 1 does not train with the others: it is Restarting (Waits: x); why: dlr job diagnose digits-group-1 -n default."
    assert why in out


def test_a_group_that_failed_for_good_is_the_finding_and_not_its_last_restart(
    server: Script, dlr: Dlr
) -> None:
    error = {
        "worker": "digits-group-1-worker-0",
        "exitClass": "UserError",
        "message": "ValueError: bad batch",
        "time": "2999-01-01T00:00:00Z",
    }
    groups = grouped()["status"]["groups"]
    groups[1] |= {"phase": "Failed", "message": "RestartLimitExceeded: 2 times"}
    script(server, groups=groups, lastFailure=error)
    found = dlr("job", "diagnose", "digits", "-o", "json").json
    assert found["verdict"].startswith("Runs on 2 of 3 groups, and 1 group failed for good")
    assert found["cause"] == "GroupFailed"
    why = "Failed for good, of the groups: 1. Group 1: RestartLimitExceeded: 2 times."
    assert found["findings"][0]["text"] == why
    out = " ".join(dlr("job", "diagnose", "digits").out.split())
    assert "kubectl delete ej digits-group-1 -n default then has it made again" in out
    assert "RESTART" not in out


def test_delete_waits_for_the_groups_and_their_pods(server: Script, dlr: Dlr) -> None:
    gone = refusal(404, "NotFound", 'elasticjobs "digits" not found', name="digits", kind="elasticjobs")
    server.answers |= {
        f"GET {JOBS}/digits": [grouped(), gone],
        f"DELETE {JOBS}/digits": grouped(),
        f"GET {PODS}": [listing(pod("digits-group-0-worker-0-1")), listing(), listing()],
        f"GET {JOBS}": [listing(group(0)), listing(group(0)), listing()],
    }
    done = dlr("job", "delete", "digits")
    assert done.exit_code == 0 and "digits deleted" in done.out
    assert "pod/digits-group-0-worker-0-1, elasticjob/digits-group-0" in done.err
    selector = next(each.query["labelSelector"] for each in server.requests if each.path == PODS)
    assert selector == f"{names.LABEL_GROUPED_JOB}=digits"


REPORTED = {
    "podUid": "",
    "address": "10.0.0.1",
    "storePort": 0,
    "localWorldSize": 1,
    "observedRound": 1,
    "since": "2026-01-01T00:00:00Z",
}


def trained(step: int, **latest: Any) -> JSON:
    """An account as it was written after this step of a second each."""
    figures = {"round": 1, "firstStep": 1, "lastStep": step, "steppingSeconds": step - 1.0, **latest}
    return {
        "state": "Training",
        "since": "2026-01-01T00:00:00Z",
        "firstStep": 1,
        "lastStep": step,
        "stepsTimed": step - 1,
        "steppingSeconds": step - 1.0,
        "round": 1,
        "latest": figures,
        "ratio": 0.005,
    }


def test_goodput_of_groups_is_of_what_they_have_reported_by_now_as_the_time_beside_it_is() -> None:
    """The controller writes the account of the whole seldom; its time by state is up to now at each reading."""
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    groups = [group(index, goodput=trained(2)) for index in range(3)]
    figures = {"round": 1, "firstStep": 1, "lastStep": 41, "steppingSeconds": 40.0}
    told = step(41) | REPORTED | {"rounds": [figures]}
    workers = [of_group(number, 0, agent=told) for number in range(3)]
    case = Case(grouped(goodput=trained(2)), workers, (), now, groups=groups)
    facts = {fact.label: fact.text for fact in facts_of(case)}
    assert facts["Time"] == "Training 1m (100%)"
    assert facts["Goodput"] == "66.7% of the time since submission"
    assert facts["Progress"].startswith("step 41") and facts["Progress"].endswith(
        ", in the furthest group that runs"
    )


def test_repeats_of_groups_whose_starts_are_unknown_are_no_number() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    account = trained(9, counted=True, startUnknown=True) | {"stepsRedone": 9}
    groups = [group(0, goodput=account)]
    case = Case(grouped(goodput=trained(9)), [], (), now, groups=groups)
    assert redone(case.account) == "an unknown number of steps"
