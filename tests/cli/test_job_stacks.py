"""`dlr job stacks`: asks by the job's annotation, waits for those who train, and says who is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crds import names
from tests.cli.scripted import GROUP_PATH, JSON, Dlr, Script, job, listing, worker

JOB = f"{GROUP_PATH}/default/elasticjobs/digits"
WORKERS = f"GET {GROUP_PATH}/default/elasticworkers"


def agent(state: str, *stacks: JSON, request: str = "") -> JSON:
    report: JSON = {"state": state, "incarnation": 1}
    if request:
        report["askedStacks"] = {"request": request, "time": "2026-01-01T00:00:00Z", "stacks": list(stacks)}
    return report


def script(server: Script, answer: Callable[[str], list[JSON]]) -> None:
    """`answer` returns the workers, given what has asked."""

    def asked() -> str:
        patches = [each for each in server.requests if each.method == "PATCH"]
        return str(patches[-1].body["metadata"]["annotations"][names.ANNOTATION_STACKS])

    server.answers[f"GET {JOB}"] = server.answers[f"PATCH {JOB}"] = job(phase="Running")
    server.answers[WORKERS] = lambda _: listing(*answer(asked()))


def test_shows_the_odd_one_first_with_its_pod_and_node(server: Script, dlr: Dlr) -> None:
    def answer(request: str) -> list[JSON]:
        waits = {"rank": 0, "step": 9, "inCollective": True, "frames": "all_reduce\nmain"}
        reads = {"rank": 1, "step": 9, "frames": "read\n\x1b[2Jmain"}
        return [
            worker(0, agent=agent("Running", waits, request=request)),
            worker(1, agent=agent("Running", reads, request=request)),
        ]

    script(server, answer)
    done = dlr("job", "stacks", "digits")
    assert done.exit_code == 0
    assert done.out.splitlines() == [
        "2 processes at 2 places, the innermost frame first:",
        "rank 1 (digits-worker-1-1 on node-1), step 9:",
        "    read",
        "     [2Jmain",
        "rank 0, step 9, waiting for other ranks:",
        "    all_reduce",
        "    main",
    ]
    assert done.err == ""


def test_waits_until_all_that_train_have_answered_this_request(server: Script, dlr: Dlr) -> None:
    looks: list[str] = []

    def answer(request: str) -> list[JSON]:
        looks.append(request)
        told = request if len(looks) > 2 else "an older one"
        return [worker(0, agent=agent("Running", {"rank": 0, "frames": "main"}, request=told))]

    script(server, answer)
    assert dlr("job", "stacks", "digits", "--timeout", "300").exit_code == 0
    assert len(looks) == 3 and len(looks[0]) <= 64


def test_says_who_does_not_answer_and_who_has_no_processes(server: Script, dlr: Dlr) -> None:
    def answer(request: str) -> list[JSON]:
        return [
            worker(0, agent=agent("Running", {"rank": 0, "frames": "main"}, request=request)),
            worker(1, agent=agent("Running")),
            worker(2, agent=agent("Ready")),
        ]

    script(server, answer)
    done = dlr("job", "stacks", "digits", "--timeout", "1")
    assert done.exit_code == 0
    assert done.err.splitlines() == [
        "No answer within 1 s: digits-worker-1",
        "Without processes: digits-worker-2 (Ready)",
    ]


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ([], "The job 'digits' has no workers now."),
        ([worker(0, agent=agent("Ready"))], "No process of 'digits' runs just now: digits-worker-0 (Ready)."),
        (
            [worker(0, agent=agent("Running"))],
            "No agent has answered within 1 s, of 1 worker of 'digits' that train: they are older than this dlr, "
            "or cannot reach the API server.",
        ),
    ],
)
def test_without_an_answer_it_says_why_and_fails(
    server: Script, dlr: Dlr, workers: list[JSON], sentence: str
) -> None:
    script(server, lambda _: workers)
    done = dlr("job", "stacks", "digits", "--timeout", "1")
    assert done.exit_code == 1
    assert done.err == f"dlr: {sentence}\n"


def test_one_rank_alone_and_one_that_is_not_there(server: Script, dlr: Dlr) -> None:
    def answer(request: str) -> list[JSON]:
        both = [{"rank": rank, "frames": f"frame of {rank}"} for rank in (0, 1)]
        return [worker(0, agent=agent("Running", *both, request=request))]

    script(server, answer)
    only = dlr("job", "stacks", "digits", "--rank", "1", "-o", "json")
    assert [stack["rank"] for stack in only.json] == [1]
    assert only.json[0]["where"] == "digits-worker-0-1 on node-0"
    missing = dlr("job", "stacks", "digits", "--rank", "5")
    assert missing.exit_code == 1
    assert missing.err == "dlr: No process of 'digits' has rank 5: 2 have answered.\n"
