"""The headline: how a job is in one sentence, which nothing below it contradicts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.job_status import JobState
from crds.phases import JobPhase
from dlr.job import report
from dlr.job.case import Case
from dlr.job.groups import headline_of_jobs
from dlr.job.headline import Headline, headline
from dlr.job.tones import TONE_OF, TONES
from tests.cli.scripted import job
from tests.cli.test_job_groups import group, grouped
from tests.cli.troubled import NOW, at, troubled_events, troubled_job, troubled_workers

JSON = dict[str, Any]


def of(made: JSON, workers: list[JSON] | None = None) -> Headline:
    case = Case(made, troubled_workers() if workers is None else workers, troubled_events(), NOW)
    return headline(case)


def in_state(state: str, **status: Any) -> JSON:
    return troubled_job(goodput=troubled_job()["status"]["goodput"] | {"state": state}, **status)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            troubled_job(),
            Headline("Trains on 3 of 3 workers; 2 failures cost 44s and 27 steps trained again", "Training"),
        ),
        (
            troubled_job(replicaStatuses={"worker": {"active": 30, "desired": 30}}),  # new ones start
            Headline("Trains on 3 of 30 workers; 2 failures cost 44s and 27 steps trained again", "Training"),
        ),
        (
            in_state("Recovering"),
            Headline(
                "Recovers on 3 of 3 workers; 2 failures cost 44s and 27 steps trained again", "Recovering"
            ),
        ),
        (
            in_state("Pending", phase="Pending", reason="Unschedulable", history=[]),
            Headline("Waits for room, with 3 of 3 workers", "Pending"),
        ),
        (
            troubled_job(phase="Failed", completionTime=at(240)),
            Headline("Failed after 4m; 2 failures cost 44s and 17 steps trained again", "Failed"),
        ),
        (
            troubled_job(phase="Succeeded", completionTime=at(280), history=[]),
            Headline("Succeeded after 4m40s", "Succeeded"),
        ),
        (grouped(), Headline("Runs on 2 of 3 groups", "Running")),
        (job(), Headline("Not seen by a controller yet, with 2 workers", "Unobserved")),
    ],
)
def test_headline_says_what_a_job_does_on_how_many_and_what_failures_cost(
    made: JSON, expected: Headline
) -> None:
    assert of(made) == expected


def test_a_job_that_is_deleted_and_still_there_says_so_and_what_holds_it() -> None:
    deleted = troubled_job(phase="Succeeded", completionTime=at(280), history=[])
    deleted["metadata"] |= {"deletionTimestamp": at(0), "finalizers": ["kueue.x-k8s.io/managed", "b/c"]}
    since = report.deletion_line(deleted, NOW)
    assert re.fullmatch(r"deleted \w+ ago, held by its finalizers kueue\.x-k8s\.io/managed, b/c", since)
    assert of(deleted).text == f"Succeeded after 4m40s; {since}"
    assert report.list_row(deleted, NOW)[-1] == since
    del deleted["metadata"]["finalizers"]
    assert "held" not in report.deletion_line(deleted, NOW)


def test_a_job_that_hangs_or_makes_no_step_does_not_train() -> None:
    workers = troubled_workers()
    for each in workers:
        each["status"]["agent"]["progress"]["time"] = at(160)
    assert of(troubled_job(), workers).text.startswith("Makes no step on 3 of 3 workers")
    world = troubled_job()["status"]["rendezvous"] | {"hangSince": at(290)}
    assert of(troubled_job(rendezvous=world)).text.startswith("Hangs on 3 of 3 workers")


@given(st.sampled_from(JobPhase), st.none() | st.sampled_from(JobState))
def test_every_phase_and_state_has_a_headline_with_a_tone(phase: JobPhase, state: JobState | None) -> None:
    made = in_state(state, phase=phase) if state else troubled_job(phase=phase, goodput=None)
    found = of(made)
    assert found.word in TONE_OF
    assert found.text and "None" not in found.text


def test_headline_of_jobs_counts_those_that_train_and_no_groups() -> None:
    assert headline_of_jobs([]) == "No jobs"
    assert headline_of_jobs([job(phase="Failed")]) == "No job is active"
    assert headline_of_jobs([troubled_job()]) == "1 of 1 active job trains"
    waits = job("waits", phase="Pending")
    assert headline_of_jobs([waits, grouped(), group(0), group(1)]) == "1 of 2 active jobs trains"


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("shade", "ground"), [(0, "#ffffff"), (1, "#16181b")])
def test_text_of_every_tone_can_be_read_on_its_ground(shade: int, ground: str) -> None:
    for tone in TONES:
        dark, light = sorted([_luminance(tone.ink[shade]), _luminance(ground)])
        assert (light + 0.05) / (dark + 0.05) >= 4.5, tone.name
