"""Jobs of a later version, and what workers and tenants write into objects: a row or a sentence, no traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlr.dashboard.fleet import fleet_page
from dlr.job.progress import total_steps
from tests.cli.scripted import JOBS, Dlr, Script, listing, show, worker
from tests.cli.troubled import NOW, RAISED, troubled_job, troubled_workers

LATER = {
    "members": {"rendezvous": {"round": 3, "phase": "Formed", "members": "of-a-later-version"}},
    "counts": {"replicaStatuses": "of-a-later-version"},
    "history": {"history": [{"of": "a later version"}]},
}
SECOND = "\x1b]0;owned\x07"
"""It changes the title of a terminal's window."""


def later(name: str = "digits", **status: Any) -> Any:
    made = troubled_job(**(status or LATER["members"]))
    made["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return made


@pytest.mark.parametrize("tty", [False, True])
def test_list_has_a_row_that_says_what_cannot_be_read(
    server: Script, dlr: Dlr, monkeypatch: pytest.MonkeyPatch, tty: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    listed = listing(later("later"), troubled_job(history=[]), later("mixed", **LATER["counts"]))
    server.answers[f"GET {JOBS}"] = listed
    shown = dlr("job", "list")
    assert (shown.exit_code, shown.err) == (0, "")
    rows = {line.split()[0]: line for line in shown.out.splitlines() if line.strip()}
    assert "Unreadable" in rows["later"] and "dlr 0.1.0 cannot read it (ValueError: " in rows["later"]
    assert "Unreadable" in rows["mixed"]
    assert "Running" in rows["digits"] and "cannot read" not in rows["digits"]


@pytest.mark.parametrize("status", [LATER["counts"], LATER["history"]])
def test_fleet_shows_the_other_jobs(status: Any) -> None:
    page = fleet_page([later("later", **status), troubled_job()], troubled_workers()[:1], NOW)
    assert {line["name"]: line["phase"] for line in page["jobs"]} == {
        "later": "Unreadable",
        "digits": "Running",
    }
    assert {line["name"]: line["step"] for line in page["jobs"]}["digits"] == 400
    assert "cannot read it" in next(line["why"] for line in page["jobs"] if line["name"] == "later")


@pytest.mark.parametrize("words", ["status", "diagnose", "timeline", "logs --failed"])
def test_job_that_cannot_be_read_is_a_sentence(server: Script, dlr: Dlr, words: str) -> None:
    status = LATER["members"] | LATER["history"]
    show(server, later(**status, lastFailure="of-a-later-version"), troubled_workers())
    command, *options = words.split()
    shown = dlr("job", command, "digits", *options)
    assert (shown.exit_code, shown.out) == (1, "")
    assert shown.err.startswith("dlr: ElasticJob 'digits': dlr 0.1.0 cannot read it (")


@pytest.mark.parametrize(
    ("text", "total"),
    [("1000", 1000), (" 7 ", 7), ("0", None), ("-5", None), ("1e9", None), ("9" * 15, int("9" * 15))]
    + [("9" * digits, None) for digits in (16, 400, 5_000)],
)
def test_total_of_an_annotation_is_a_number_that_can_be_reckoned_with(text: str, total: int | None) -> None:
    made = troubled_job()
    made["metadata"]["annotations"] = {"elastic.iml.github.io/total-steps": text}
    assert total_steps(made) == total
    json.dumps(fleet_page([made], troubled_workers()[:1], NOW), allow_nan=False)


def test_terminal_obeys_nothing_of_a_failure(server: Script, dlr: Dlr) -> None:
    made = troubled_job(
        phase="Failed", reason="UserError", message=f"it {SECOND}ended", completionTime=NOW.isoformat()
    )
    made["status"]["lastFailure"]["message"] = f"first{SECOND}\nsecond{SECOND}"
    bad = worker(1, agent={"incarnation": 1, "failure": RAISED | {"signal": SECOND, "message": ""}})
    bad["status"]["agent"]["failure"] |= {"cause": None, "exitCode": None, "logTail": ""}
    show(server, made, [troubled_workers()[0], bad])
    for command in ("status -w", "status", "diagnose", "logs --failed"):
        word, *options = command.split()
        shown = dlr("job", word, "digits", *options)
        assert "\x1b" not in shown.out + shown.err and "\x07" not in shown.out + shown.err, command
    watched = dlr("job", "status", "digits", "-w")
    assert "The job 'digits' failed: first ]0;owned \nsecond ]0;owned \n" in watched.err
