"""What the dashboard's pages say, as data: bounded, whatever the cluster holds."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds import names
from dlr.dashboard import fleet, ranks
from dlr.dashboard.fleet import fleet_page, strip_of
from dlr.dashboard.job_page import MOST_FAILURES, job_page
from dlr.dashboard.ranks import MOST_CELLS, grid, rows_of
from dlr.dashboard.server import why_refused
from dlr.job.case import Case
from dlr.job.wording import parse_time
from tests.cli.scripted import JSON, event, job, worker
from tests.cli.test_job_groups import group, grouped, of_group, step
from tests.cli.troubled import NOW, RAISED, at, episode, life, troubled_job, troubled_workers
from tests.cli.troubled import troubled_case as case


def lead(step: int = 400, speed: float | None = 0.5) -> JSON:
    return worker(
        0, agent={"incarnation": 1, "progress": {"step": step, "time": at(299), "secondsPerStep": speed}}
    )


@pytest.mark.parametrize(
    ("made", "worker_", "told"),
    [
        (troubled_job(), lead(), ("Running", "Training", 400, 0.5, 300.0)),
        (troubled_job(), worker(0), ("Running", "Training", 210, None, None)),
        (
            troubled_job(phase="Succeeded", completionTime=at(280)),
            lead(),
            ("Succeeded", "Succeeded", 210, None, None),
        ),
    ],
    ids=["by one worker", "by the job's account where that is silent", "ended"],
)
def test_fleet_tells_step_speed_and_time_left(made: JSON, worker_: JSON, told: tuple[object, ...]) -> None:
    (line,) = fleet_page([made], [worker_], NOW)["jobs"]
    found = line["phase"], line["state"], line["step"], line["secondsPerStep"], line["secondsLeft"]
    assert found == told
    assert (line["total"], line["workers"], line["goodput"]) == (1000, "3/3", 0.3)


def test_namesake_of_another_namespace_is_another_job() -> None:
    told = fleet_page([troubled_job(), job("digits", "other")], [lead()], NOW)["jobs"]
    assert {each["namespace"]: each["step"] for each in told} == {"default": 400, "other": None}


def test_jobs_that_run_come_first_and_the_oldest_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "MOST_JOBS", 2)
    made = [job("old"), job("new"), job("done", phase="Failed")]
    made[1]["metadata"]["creationTimestamp"] = made[2]["metadata"]["creationTimestamp"] = at(200)
    page = fleet_page(made, [], NOW)
    assert ([each["name"] for each in page["jobs"]], page["leftOut"]) == (["new", "old"], 1)


def test_strip_has_the_states_of_the_last_day_up_to_now() -> None:
    length = timedelta(hours=24)
    day = length.total_seconds()
    young = strip_of(troubled_job(), NOW, length)
    assert young[0] == ["Pending", day - 300, day - 290]
    assert young[-1] == ["Training", day - 148, day]
    later = strip_of(troubled_job(), NOW + timedelta(hours=30), length)
    assert later == [["Training", 0.0, day]]
    assert (
        strip_of(troubled_job(phase="Failed", completionTime=at(300)), NOW + timedelta(hours=30), length)
        == []
    )
    assert strip_of(job(), NOW, length) == []


def test_strip_is_no_longer_than_the_oldest_job() -> None:
    page = fleet_page([troubled_job()], [], NOW + timedelta(minutes=5))
    assert (page["strip"], page["jobs"][0]["failures"]) == (600, 2)
    assert fleet_page([troubled_job()], [], NOW + timedelta(days=3))["strip"] == 86_400
    assert fleet_page([], [], NOW)["strip"] == 300


def test_job_page_is_json_with_the_verdict_of_diagnose() -> None:
    page = json.loads(json.dumps(job_page(replace(case(), unread=["Nodes could not be read: no"]))))
    assert page["cause"] == "UserError"
    assert page["headline"] == {
        "text": "Trains on 3 of 3 workers; 2 failures cost 42s and 27 steps trained again",
        "state": "Training",
    }
    assert page["findings"][0]["text"].startswith("Rank 1 (digits-worker-1) on node-1 failed")
    assert [(each["label"], each["value"], each["share"]) for each in page["figures"]] == [
        ("Workers", "3 of 3", None),
        ("Progress", "40%", 0.401),
        ("Step time", "0.42 s", None),
        ("Goodput", "68.6%", pytest.approx(0.6855, abs=0.001)),
        ("Lost to failures", "42s", None),
    ]
    assert all(f"<title>worker-{index} node-" in page["life"]["drawing"] for index in range(3))
    assert page["unread"] == ["Nodes could not be read: no"]
    assert [(each["worker"], each["class"], each["seconds"]) for each in page["failures"]] == [
        ("worker-2", "NodeLost", 32.0),
        ("worker-1", "UserError", 12.0),
    ]
    assert (page["figures"][-1]["note"], page["failureCount"]) == ("2 failures", 2)
    assert page["culprit"]["log"] == [
        "loading",
        "Traceback (most recent call last):",
        "ValueError: a <bad> batch",
    ]


def test_events_that_every_pod_has_are_apart_from_the_others_unless_they_warn() -> None:
    pod = "digits-worker-1-1"
    events = [
        event("Pod", pod, "Scheduled", at(1)),
        event("Pod", pod, "Started", at(2)),
        event("ElasticJob", "digits", "WorldBroken", at(60), type="Warning"),
        event("Pod", pod, "Killing", at(61), type="Warning"),
    ]
    page = job_page(replace(case(), events=events))
    assert [each["reason"] for each in page["events"]["shown"]] == ["Killing", "WorldBroken"]
    assert [each["reason"] for each in page["events"]["routine"]] == ["Started", "Scheduled"]


def test_log_that_is_open_is_the_culprits_while_nothing_trains_and_else_that_of_rank_0() -> None:
    assert job_page(case())["logRank"] == 0, "it trains again"
    assert job_page(case(troubled_job(phase="Failed")))["logRank"] == 1
    assert job_page(case(job(), []))["logRank"] is None, "there is no rank yet"


def with_series(workers: list[JSON], index: int, points: int) -> list[JSON]:
    told = [
        {
            "step": 10 * n,
            "time": at(10.0 * n),
            "worldSize": 3,
            "secondsPerStep": 0.5,
            "numbers": {"loss": 1 / n},
        }
        for n in range(1, points + 1)
    ]
    last = told[-1] | {"step": 10 * points + 5, "numbers": {"loss": 0.01, "lr": 0.1}}
    workers[index]["status"]["agent"]["series"] = {"every": 2, "points": told, "latest": last}
    return workers


def test_curves_are_those_of_rank_0_or_of_who_told_any_last() -> None:
    workers = with_series(with_series(troubled_workers(), 1, 2), 0, 3)
    steps = job_page(case(workers=workers))["steps"]
    assert steps["past"] == {
        "at": [10.0, 20.0, 30.0, 30.0],
        "steps": [10, 20, 30, 35],
        "seconds": [0.5] * 4,
        "numbers": {"loss": [1, 0.5, 1 / 3, 0.01], "lr": [None, None, None, 0.1]},
        "usage": [],
    }
    assert steps["slowSince"] is None
    (lone,) = job_page(case(workers=with_series(troubled_workers(), 2, 1)))["steps"]["past"]["at"][:1]
    assert lone == 10.0
    assert job_page(case())["steps"]["past"]["at"] == []


GIB = 2**30


def with_usage(workers: list[JSON]) -> list[JSON]:
    """Rank 0 has a past of it, and the last worker no GPU."""
    for index, each in enumerate(workers):
        usage = {"cpuCores": 2.0 + index, "memoryPeakBytes": 9 * GIB, "memoryBytes": 4 * GIB}
        if index < len(workers) - 1:
            usage |= {"gpuShare": 0.9 - 0.4 * index, "gpuMemoryBytes": (70 + index) * GIB}
        each["status"]["agent"]["usage"] = usage
    series = with_series(workers, 0, 3)[0]["status"]["agent"]["series"]
    for point, cores in zip([*series["points"], series["latest"]], (1.234, 2.0, 3.0, 4.0), strict=True):
        point["usage"] = {"cpuCores": cores, "memoryBytes": 1.5 * GIB}
    series["points"][0]["usage"]["gpuShare"] = 0.5
    return workers


def test_usage_has_curves_of_rank_0_a_line_about_all_pods_and_a_place_in_each_row() -> None:
    trains = case(workers=with_usage(troubled_workers()))
    steps, drawn = job_page(trains)["steps"], grid(trains, [])
    assert steps["past"]["usage"] == [
        {"label": "CPU", "unit": "cores", "values": [1.23, 2.0, 3.0, 4.0]},
        {"label": "Memory", "unit": "GiB", "values": [1.5] * 4},
    ], "one point is no curve"
    assert steps["usage"] == (
        "3 Pods now: 9 cores; 12 GiB of memory; GPUs 70 % busy, 50 % at least; "
        "71 GiB in use on the fullest GPU"
    )
    assert drawn["columns"][-4:] == ("cpu", "memory", "gpu", "gpuMemory")
    assert [row[-4:] for row in drawn["cells"]] == [
        [2.0, 4.0, 90.0, 70.0],
        [3.0, 4.0, 50.0, 71.0],
        [4.0, 4.0, None, None],
    ]
    assert job_page(case())["steps"]["usage"] == ""
    ended = case(troubled_job(phase="Succeeded"), with_usage(troubled_workers()))
    assert job_page(ended)["steps"]["usage"] == ""
    assert {value for row in grid(ended, [])["cells"] for value in row[-4:]} == {None}


def test_planned_changes_and_odd_ranks_are_on_the_page_and_no_failures() -> None:
    history = [
        *troubled_job()["status"]["history"],
        episode("Suspended", 200, 3, "", "spec.suspend is true"),
        episode("Training", 240, 4, "0-2"),
    ]
    workers = troubled_workers()
    workers[2]["status"]["agent"]["progress"]["secondsPerStep"] = 0.84
    page = job_page(case(troubled_job(history=history), workers))
    assert page["changes"] == [
        {"at": 200, "state": "Suspended", "seconds": 40, "text": "spec.suspend is true"}
    ]
    assert len(page["failures"]) == 2
    assert page["odd"] == [
        {
            "what": "Slow",
            "state": "Straggler",
            "text": "rank 2 on node-3, up to 2 times the usual 0.42 s a step",
        }
    ]
    ranks = page["ranks"]
    assert ranks["odd"] == [{"what": "Slow", "state": "Straggler"}]
    assert [row[ranks["columns"].index("odd")] for row in ranks["cells"]] == [None, None, 0]


def test_a_job_that_became_slower_marks_when() -> None:
    workers = with_series(troubled_workers(), 0, 96)
    told = {"since": at(240), "step": 1200, "secondsPerStep": 0.42, "usualSeconds": 0.3}
    workers[0]["status"]["agent"]["slow"] = told
    made = troubled_job(warnings=[{"type": "Slow", "message": "slower", "since": at(250)}], lastFailure=None)
    steps = job_page(case(made, workers))["steps"]
    assert steps["slowSince"] == 240.0
    assert len(json.dumps(steps)) < 6_000


def test_job_that_nobody_has_looked_at_yet_has_a_page() -> None:
    page = job_page(case(job(), []))
    assert (page["cause"], page["life"], page["failures"], page["culprit"]) == ("Unobserved", None, [], None)
    assert page["ranks"]["cells"] == []


def with_stacks(workers: list[JSON], request: str, frames: str) -> list[JSON]:
    for index, each in enumerate(workers):
        stack = {
            "rank": index,
            "step": 9,
            "inCollective": index != 1,
            "frames": frames if index == 1 else "wait",
        }
        report = each["status"].setdefault("agent", {})
        report |= {"state": "Running", "incarnation": each["spec"]["incarnation"]}
        report["askedStacks"] = {"request": request, "time": at(250), "stacks": [stack]}
    return workers


def test_what_dlr_job_stacks_found_last_is_on_the_page_and_bounded() -> None:
    asked = f"{at(240)}-0a1b2c3d"
    made = troubled_job()
    assert job_page(case(made))["stacks"]["asked"] is None
    made["metadata"]["annotations"] = {names.ANNOTATION_STACKS: asked}
    told = job_page(case(made, with_stacks(troubled_workers(), asked, "read\nload")))["stacks"]
    assert (told["asked"], told["processes"], told["leftOut"]) == (parse_time(at(240)).timestamp(), 3, 0)
    assert told["lines"][0].startswith("rank 1 (") and told["lines"][1].strip() == "read"
    assert told["lines"][3].startswith("ranks 0,2") and "waiting for other ranks" in told["lines"][3]
    many = with_stacks(troubled_workers(), asked, "\n".join("x" * 900 for _ in range(900)))
    bounded = job_page(case(made, many))["stacks"]
    assert bounded["leftOut"] > 700 and len(json.dumps(bounded)) < 40_000
    made["metadata"]["annotations"] = {names.ANNOTATION_STACKS: "by hand"}
    by_hand = job_page(case(made, with_stacks(troubled_workers(), "by hand", "read")))["stacks"]
    assert (by_hand["asked"], by_hand["processes"]) == (None, 3)
    assert job_page(case(troubled_job(phase="Succeeded")))["stacks"] is None


def in_trouble(index: int) -> JSON:
    """One worker of thousands, with as much to say as its status may."""
    history = [
        life(
            each,
            f"node-{each}",
            each * 10,
            each * 10 + 5,
            endedAt=at(each * 10 + 9),
            exitClass="OOM",
            reason="x" * 90,
        )
        for each in range(1, 6)
    ]
    progress = {"step": 400 - index % 7, "time": at(299), "secondsPerStep": 0.4 + index % 3}
    report = {"incarnation": 1, "progress": progress, "failure": RAISED | {"message": "y" * 800}}
    return worker(index, nodeName=f"node-{index // 8}", history=history, agent=report, message="z" * 500)


def test_page_of_thousands_of_workers_in_trouble_is_bounded() -> None:
    made = troubled_job()
    made["status"]["rendezvous"]["members"] = "0-4999"
    page = job_page(case(made, [in_trouble(index) for index in range(5_000)]))
    text = json.dumps(page, separators=(",", ":"))
    assert len(page["ranks"]["cells"]) <= MOST_CELLS
    assert len(page["failures"]) <= MOST_FAILURES
    assert page["nodes"]["leftOut"] == 625 - len(page["nodes"]["shown"])
    assert len(text) < 1_500_000
    quiet = job_page(case(made, [worker(index, nodeName=f"node-{index}") for index in range(1_000)]))
    assert len(json.dumps(quiet, separators=(",", ":"))) < 150_000


def test_cell_tells_how_far_behind_and_how_much_slower_a_rank_is() -> None:
    workers = troubled_workers()
    workers[0]["status"]["agent"]["progress"] = {"step": 391, "time": at(299), "secondsPerStep": 0.84}
    first, second, _ = rows_of(case(workers=workers), [])
    assert (first["rank"], first["lag"], first["slowness"], first["class"]) == (0, 10, 2.0, "")
    assert (second["lag"], second["slowness"], second["class"], second["ago"]) == (0, 1.0, "UserError", 240)
    text = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.7]:51633."
    workers[0]["status"]["agent"]["failure"] = RAISED | {"rank": 0, "message": text}
    assert rows_of(case(workers=workers), [])[0]["class"] == "", "it has not failed by itself"


@settings(max_examples=30)
@given(st.integers(0, 60), st.integers(1, 20), st.sets(st.integers(0, 59)))
def test_each_cell_is_the_worst_of_its_workers(count: int, most: int, bad: set[int]) -> None:
    workers = [
        worker(n, phase="Pending" if n in bad else "Running", agent={"incarnation": 1, "state": "Running"})
        for n in range(count)
    ]
    made = job(workers=count, rendezvous={"round": 1, "members": f"0-{count - 1}" if count else ""})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "MOST_CELLS", most)
        drawn = grid(case(made, workers), [])
    assert len(drawn["cells"]) <= most
    assert drawn["workers"] == count
    if count:
        size = drawn["perCell"]
        shown = [drawn["states"][row[drawn["columns"].index("state")]] == "Pending" for row in drawn["cells"]]
        expected = [
            any(n in bad for n in range(first, min(first + size, count))) for first in range(0, count, size)
        ]
        assert shown == expected


def test_fleet_shows_groups_below_their_job_with_the_step_of_the_one_furthest_on() -> None:
    first, second = of_group(0, 0, agent=step(100)), of_group(1, 0, agent=step(130))
    page = fleet_page([group(1), job("other"), grouped(), group(0)], [first, second], NOW)
    told = [(each["name"], each["isGroup"], each["step"], each["groups"]) for each in page["jobs"]]
    assert ("digits", False, 130, "2 of 3 train together, version 7") in told
    at_job = [name for name, *_ in told].index("digits")
    assert told[at_job + 1 : at_job + 3] == [
        ("digits-group-0", True, 100, ""),
        ("digits-group-1", True, 130, ""),
    ]


def test_the_page_of_a_job_with_groups_leads_to_theirs_and_has_no_ranks() -> None:
    workers = [of_group(number, index, agent=step(100 + number)) for number in range(3) for index in range(2)]
    page = job_page(Case(grouped(), workers, [], NOW))
    assert page["groups"]["leftOut"] == 0
    assert [(each["job"], each["TRAINS"], each["STEP"]) for each in page["groups"]["shown"]] == [
        ("digits-group-1", "no", 101),
        ("digits-group-0", "yes", 100),
        ("digits-group-2", "yes", 102),
    ]
    assert page["ranks"]["workers"] == 0
    assert ("Groups", "2 of 3 train together, version 7") in page["facts"]
    assert job_page(case())["groups"] is None


def test_the_page_of_a_job_with_1000_groups_shows_those_that_fail_and_names_how_many_others_there_are() -> (
    None
):
    together = [{"index": each, "round": 1} for each in range(1000) if each != 998]
    groups = [
        {"index": each, "phase": "Running", "round": 1, "version": 7, "restarts": int(each == 997)}
        for each in range(1000)
    ]
    made = grouped(groups=groups, membership={"version": 7, "groups": together})
    found = job_page(Case(made, [], [], NOW))["groups"]
    assert [each["GROUP"] for each in found["shown"][:3]] == [998, 997, 0]
    assert (len(found["shown"]), found["leftOut"]) == (200, 800)


@pytest.mark.parametrize(
    ("host", "origin", "is_answered"),
    [
        ("localhost", None, True),
        ("localhost:9999", "http://localhost:9999", True),
        (None, None, False),
        ("127.0.0.1.evil.example", None, False),
        ("[::1", None, False),
        ("localhost", "null", False),
        ("127.0.0.1", "https://127.0.0.1", False),
    ],
)
def test_only_pages_of_its_own_under_a_loopback_name_are_answered(
    host: str | None, origin: str | None, is_answered: bool
) -> None:
    assert (why_refused(host, origin, "t", "t") is None) == is_answered
