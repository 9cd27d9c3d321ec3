"""`dlr job` against a scripted API server: what is sent, what is shown, what is said when it goes wrong."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlr.job import deletion, logs
from dlr.job.report import world_line
from dlr.kube import following
from dlr.kube.api import Api
from dlr.kube.connection import connect
from tests.cli.scripted import (
    EVENTS,
    GROUP_PATH,
    JOBS,
    JSON,
    PODS,
    WORKERS,
    Answer,
    Dlr,
    Request,
    Script,
    event,
    job,
    listing,
    pod,
    refusal,
    show,
    worker,
)

WORLD = {
    "round": 3,
    "phase": "Formed",
    "members": "1-2",
    "worldSize": 2,
    "masterAddress": "127.0.0.7",
    "masterPort": 4242,
    "reason": "worker 0 vanished",
}
NO_JOB = refusal(404, "NotFound", 'elasticjobs "digits" not found', name="digits", kind="elasticjobs")


def script_job(server: Script, **status_fields: Any) -> None:
    running = {"phase": "Running", "rendezvous": WORLD} | status_fields
    show(server, job(**running), [worker(2), worker(1), worker(0, podName=None, phase="Pending")])
    server.answers |= {
        f"GET {PODS}/digits-worker-1-1": pod("digits-worker-1-1"),
        f"GET {PODS}/digits-worker-2-1": pod("digits-worker-2-1"),
        f"GET {PODS}/digits-worker-1-1/log": "2026-01-01T00:00:01.5Z one\n2026-01-01T00:00:02Z two\n",
        f"GET {PODS}/digits-worker-2-1/log": "2026-01-01T00:00:01Z other\n",
    }


def job_file(tmp_path: Path, **metadata: str) -> str:
    path = tmp_path / "job.yaml"
    body = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits"} | metadata,
        "spec": {"replicaSpecs": {"worker": {"replicas": -1}}},
    }
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return str(path)


class TestSubmit:
    def test_creates_with_strict_validation_and_says_what_next(
        self, server: Script, dlr: Dlr, tmp_path: Path
    ) -> None:
        server.answers[f"POST {JOBS}"] = Answer(201, job(), {"Warning": '299 - "mind the \\"gap\\""'})
        done = dlr("job", "submit", "-f", job_file(tmp_path))
        assert done.exit_code == 0
        assert "elasticjob default/digits created" in done.out
        assert 'warning: mind the "gap"' in done.err
        assert server.requests[-1].query == {"fieldValidation": "Strict", "fieldManager": "dlr"}
        assert server.requests[-1].body["metadata"] == {"name": "digits"}

    def test_the_file_s_namespace_counts_unless_the_option_contradicts(
        self, server: Script, dlr: Dlr, tmp_path: Path
    ) -> None:
        server.answers[f"POST {GROUP_PATH}/team-a/elasticjobs"] = job(namespace="team-a")
        file = job_file(tmp_path, namespace="team-a")
        assert "elasticjob team-a/digits created" in dlr("job", "submit", "-f", file).out
        contradicted = dlr("job", "submit", "-f", file, "-n", "team-b")
        assert contradicted.exit_code == 2
        assert "job.yaml:5: the job says namespace 'team-a' and --namespace says 'team-b'" in contradicted.err

    def test_every_refused_field_has_its_path_and_line(
        self, server: Script, dlr: Dlr, tmp_path: Path
    ) -> None:
        causes = [
            {"field": "spec.replicaSpecs.worker.replicas", "message": "Invalid value: -1: too small"},
            {"field": "spec.replicaSpecs.worker.template", "message": "Required value"},
            {
                "field": "<nil>",
                "message": 'Invalid value: "null": some validation rules were not checked because the object '
                "was invalid; correct the existing errors to complete validation",
            },
        ]
        server.answers[f"POST {JOBS}"] = refusal(
            422, "Invalid", "is invalid: …", name="digits", causes=causes
        )
        done = dlr("job", "submit", "-f", job_file(tmp_path))
        assert "some validation rules" not in done.err, "it is no fault of the job's"
        assert done.exit_code == 1
        assert "job.yaml:8: spec.replicaSpecs.worker.replicas: Invalid value: -1: too small" in done.err
        assert "job.yaml:7: spec.replicaSpecs.worker.template: Required value" in done.err

    def test_a_field_of_dlrovers_own_is_refused_with_the_command_that_carries_it_over(
        self, server: Script, dlr: Dlr, tmp_path: Path
    ) -> None:
        strict = 'strict decoding error: unknown field "spec.brainService"'
        server.answers[f"POST {JOBS}"] = refusal(400, "BadRequest", strict)
        done = dlr("job", "submit", "-f", job_file(tmp_path))
        assert "spec.brainService: unknown field" in done.err and "dlr convert -f FILE" in done.err
        strict = 'strict decoding error: unknown field "spec.typo"'
        server.answers[f"POST {JOBS}"] = refusal(400, "BadRequest", strict)
        assert "dlr convert" not in dlr("job", "submit", "-f", job_file(tmp_path)).err

    def test_cluster_without_the_crds(self, server: Script, dlr: Dlr, tmp_path: Path) -> None:
        done = dlr("job", "submit", "-f", job_file(tmp_path))
        assert done.exit_code == 1
        assert "knows no elasticjobs. Install dlr there: dlr install" in done.err


class TestList:
    def test_one_line_a_job(self, server: Script, dlr: Dlr) -> None:
        counts = {"worker": {"desired": 3, "active": 2, "failed": 1}}
        server.answers[f"GET {JOBS}"] = listing(
            job(phase="Restarting", replicaStatuses=counts, rendezvous=WORLD), job("new")
        )
        head, first, second = dlr("job", "list").out.splitlines()
        assert head.split() == ["NAME", "PHASE", "WORKERS", "ROUND", "WORLD", "AGE", "WHY"]
        assert first.split()[:-2] == ["digits", "Restarting", "2/3,", "1", "failed", "3", "2", "formed"]
        assert second.split()[:-2] == ["new", "Unobserved", "2", "-", "-"]

    def test_pages_are_followed(self, server: Script, dlr: Dlr) -> None:
        first = listing(job("a")) | {"metadata": {"continue": "more"}}
        server.answers["GET /apis/elastic.iml.github.io/v1alpha1/elasticjobs"] = [first, listing(job("b"))]
        done = dlr("job", "list", "-A", "-o", "json")
        assert [found["metadata"]["name"] for found in done.json] == ["a", "b"]
        assert server.requests[-1].query["continue"] == "more"

    def test_an_object_that_is_nested_too_deeply_hides_no_other(self, server: Script, dlr: Dlr) -> None:
        deep = '{"a":' * 9_000 + "1" + "}" * 9_000
        page = json.dumps(listing(job("before"), job("evil") | {"x": "HERE"}, job("after")))
        server.answers[f"GET {JOBS}"] = page.replace('"HERE"', deep)
        rows = dlr("job", "list").out.splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["before", "after"]
        server.answers[f"GET {JOBS}/evil"] = json.dumps(job("evil") | {"x": "HERE"}).replace('"HERE"', deep)
        done = dlr("job", "status", "evil")
        assert done.exit_code == 1
        assert "nested too deeply to be read. Correct or delete it with kubectl." in done.err

    def test_empty_is_said_and_a_missing_namespace_is_an_error(self, server: Script, dlr: Dlr) -> None:
        server.answers |= {f"GET {JOBS}": listing(), "GET /api/v1/namespaces/default": {"kind": "Namespace"}}
        done = dlr("job", "list")
        assert (done.exit_code, done.out) == (0, "")
        assert "no ElasticJobs in namespace 'default'" in done.err
        server.answers[f"GET {GROUP_PATH}/oops/elasticjobs"] = listing()
        server.answers["GET /api/v1/namespaces/oops"] = refusal(404, "NotFound", "no", name="oops")
        wrong = dlr("job", "list", "-n", "oops")
        assert (wrong.exit_code, wrong.out) == (1, "")
        assert "There is no namespace 'oops'" in wrong.err


class TestStatus:
    def test_shows_world_conditions_workers_and_events_off_a_terminal(self, server: Script, dlr: Dlr) -> None:
        script_job(
            server,
            conditions=[{"type": "Running", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}],
        )
        report = {"incarnation": 1, "state": "Running", "progress": {"step": 70}}
        server.answers[f"GET {WORKERS}"] = listing(
            worker(2, agent=report, restarts={"UserError": 2, "Preempted": 1}, restartCount=3),
            worker(1, agent=report | {"incarnation": 0}),
        )
        server.answers[f"GET {EVENTS}"] = listing(
            event("Pod", "digits-worker-1-1", "Scheduled", "2026-01-01T00:00:05Z", "to node-1"),
            event("Pod", "stranger-1", "Scheduled", "2026-01-01T00:00:05Z"),
        )
        out = dlr("job", "status", "digits").out
        assert "round 3 Formed, 2 workers, 2 processes, master 127.0.0.7:4242 (worker 0 vanished)" in out
        rows = [line.split() for line in out.splitlines()]
        assert ["0", "digits-worker-1-1", "node-1", "Starting", "-", "-", "0", "-"] in rows
        restarted = "digits-worker-2-1  node-2  Running   70    -       3 (UserError 2, Preempted 1)  -"
        assert f"1     {restarted}" in out
        assert "Scheduled  digits-worker-1-1: to node-1" in out
        assert "stranger" not in out

    @pytest.mark.parametrize("options", [[], ["--watch", "-o", "json"]])
    def test_who_may_not_read_events_sees_the_rest(
        self, server: Script, dlr: Dlr, options: list[str]
    ) -> None:
        script_job(server, phase="Succeeded")
        server.answers[f"GET {EVENTS}"] = refusal(403, "Forbidden", "events is forbidden")
        done = dlr("job", "status", "digits", *options)
        assert done.exit_code == 0
        assert "Succeeded" in done.out
        assert done.err == "dlr: warning: Events could not be read: events is forbidden\n"

    def test_text_from_the_cluster_is_never_obeyed(self, server: Script, dlr: Dlr) -> None:
        script_job(server, phase="[red]Pending[/red]")
        server.answers[f"GET {WORKERS}"] = listing(worker(1, message="a\x1b]0;owned\x07\nb [/bold]"))
        out = dlr("job", "status", "digits").out
        assert "\x1b" not in out
        assert "[red]Pending[/red]" in out
        assert "a ]0;owned  b [/bold]" in out

    @pytest.mark.parametrize("on_dumb_terminal", [False, True])
    def test_watch_prints_a_line_a_change_and_ends_with_the_job(
        self, server: Script, dlr: Dlr, monkeypatch: pytest.MonkeyPatch, on_dumb_terminal: bool
    ) -> None:
        if on_dumb_terminal:
            monkeypatch.setenv("TERM", "dumb")
            monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        script_job(server)
        server.answers[f"GET {JOBS}/digits"] = [
            *[job(phase="Running", rendezvous=WORLD)] * 3,
            job(phase="Succeeded", rendezvous=WORLD),
        ]
        done = dlr("job", "status", "digits", "--watch")
        assert done.exit_code == 0
        assert [line.split()[1] for line in done.out.splitlines()] == ["Running,", "Succeeded,"]

    def test_list_that_expires_between_two_pages_is_read_as_a_whole(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        whole = server.answers[f"GET {WORKERS}"]

        def pages(request: Request) -> Any:
            if "continue" in request.query:
                return refusal(410, "Expired", "The provided continue parameter is too old")
            if "limit" not in request.query:
                return whole
            return whole | {"items": whole["items"][:1], "metadata": {"continue": "token"}}

        server.answers[f"GET {WORKERS}"] = pages
        shown = dlr("job", "status", "digits", "-o", "json").json
        assert [each["spec"]["index"] for each in shown["workers"]] == [0, 1, 2]

    def test_watch_of_a_job_that_is_deleted_ends_with_one_sentence(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        server.answers[f"GET {JOBS}/digits"] = [job(phase="Running", rendezvous=WORLD), NO_JOB]
        done = dlr("job", "status", "digits", "--watch")
        assert done.exit_code == 1
        assert [line.split()[1] for line in done.out.splitlines()] == ["Running,"]
        assert done.err.startswith("dlr: There is no ElasticJob 'digits' in namespace 'default'")
        assert len(done.err.splitlines()) == 1

    def test_watch_of_a_job_that_fails_says_why_and_exits_2(self, server: Script, dlr: Dlr) -> None:
        failure = {
            "worker": "digits-worker-0",
            "exitClass": "UserError",
            "message": "ValueError: no",
            "time": "2026-01-01T00:00:09Z",
        }
        script_job(server, phase="Failed", lastFailure=failure)
        done = dlr("job", "status", "digits", "--watch", "-o", "json")
        assert done.exit_code == 2
        assert done.json["job"]["status"]["phase"] == "Failed"
        assert "The job 'digits' failed: ValueError: no" in done.err


def follow() -> list[str]:
    """The lines of worker 1, up to the end of the job."""
    sent: list[str] = []
    lines = logs.LogLines("", sent.append)
    follower = logs.Follower(Api(connect(None, None, None)), job(), "digits-worker-1", None, lines)
    while follower.look() is not None:
        pass
    return sent


def with_node(index: int, phase: str) -> JSON:
    made = pod(f"digits-worker-{index}-1", phase)
    made["spec"]["nodeName"] = f"node-{index}"
    return made


class TestLogs:
    def test_a_terminal_obeys_colours_in_them_alone(
        self, server: Script, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_job(server)
        said = "\x1b[1;31mred\x1b[0m\t9%\r10% \x1b]0;owned\x07\x1b[2J\x9b2J\x08é"
        server.answers[f"GET {PODS}/digits-worker-1-1/log"] = f"2026-01-01T00:00:01Z {said}\n"
        assert dlr("job", "logs", "digits", "--rank", "0").out == f"{said}\n"
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        shown = dlr("job", "logs", "digits", "--rank", "0").out
        assert shown == "\x1b[1;31mred\x1b[0m\t9%\r10%  ]0;owned  [2J 2J é\n"

    def test_of_one_rank_are_bare_lines_of_the_container_that_trains_behind_a_webhooks_sidecar(
        self, server: Script, dlr: Dlr
    ) -> None:
        script_job(server)
        injected = pod("digits-worker-1-1", "Running", "proxy", "trainer", "main")
        injected["spec"]["containers"][1]["env"] = [{"name": "DLR_JOB_KEY"}]
        server.answers[f"GET {PODS}/digits-worker-1-1"] = injected
        assert dlr("job", "logs", "digits", "--rank", "0", "--tail", "5").out == "one\ntwo\n"
        assert server.requests[-1].query == {"container": "trainer", "timestamps": "true", "tailLines": "5"}

    def test_of_all_carry_the_worker_and_name_those_without_a_pod(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        done = dlr("job", "logs", "digits")
        assert done.out == "[digits-worker-1] one\n[digits-worker-1] two\n[digits-worker-2] other\n"
        assert done.exit_code == 1
        assert "digits-worker-0 has no Pod (yet)." in done.err

    @pytest.mark.real
    def test_followed_end_with_their_reader_though_a_worker_is_silent(self, server: Script) -> None:
        script_job(server)
        ended = threading.Event()

        def silent(_request: Request) -> JSON:
            ended.wait(300)
            return NO_JOB

        server.answers[f"GET {WORKERS}/digits-worker-1"] = worker(1)
        server.answers[f"GET {WORKERS}/digits-worker-2"] = silent
        followed = logs.followed(connect(None, None, None), job(), [worker(1), worker(2)], None)
        try:
            assert next(followed) == "[digits-worker-1] one"
            followed.close()
        finally:
            ended.set()

    def test_of_all_are_shown_though_one_node_does_not_answer_now(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        server.answers[f"GET {PODS}/digits-worker-1-1/log"] = refusal(503, "ServiceUnavailable", "no agent")
        done = dlr("job", "logs", "digits")
        assert done.out == "[digits-worker-2] other\n"
        assert "digits-worker-1: The API server at " in done.err

    def test_of_a_pod_without_a_node_say_what_it_waits_for(
        self, server: Script, dlr: Dlr, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script_job(server)
        waits = pod("digits-worker-1-1", "Pending")
        waits["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available."}
        ]
        server.answers |= {f"GET {PODS}/digits-worker-1-1": waits, f"GET {PODS}/digits-worker-1-1/log": ""}
        done = dlr("job", "logs", "digits", "--rank", "0")
        said = "digits-worker-1-1 has no node yet: 0/2 nodes are available."
        assert (done.exit_code, done.out, done.err) == (1, "", f"dlr: {said}\n")
        server.answers |= {
            f"GET {JOBS}/digits": [*[job(phase="Pending", rendezvous=WORLD)] * 4, job(phase="Failed")],
            f"GET {WORKERS}/digits-worker-1": worker(1),
            f"GET {PODS}/digits-worker-1-1": [waits, waits, waits, pod("digits-worker-1-1", "Failed")],
        }
        assert follow() == []
        assert capsys.readouterr().err == f"dlr: waiting: {said}\n", "it is told once"

    def test_of_a_pod_that_does_not_start_say_why_as_far_as_a_status_knows(
        self, server: Script, dlr: Dlr, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script_job(server)
        missing = 'FailedMount: configmap "code" not found'
        late = {"type": "WorkersNotStarted", "message": f"1 Pod cannot start: {missing}"}
        waits = job(phase="Pending", rendezvous=WORLD, warnings=[late])
        starting = worker(1, phase="Pending", message=missing), worker(2, phase="Pending")
        refused = refusal(400, "BadRequest", "container main is waiting to start: PodInitializing")
        server.answers |= {f"GET {JOBS}/digits": waits, f"GET {WORKERS}": listing(*starting)}
        for index in (1, 2):
            server.answers |= {
                f"GET {PODS}/digits-worker-{index}-1": with_node(index, "Pending"),
                f"GET {PODS}/digits-worker-{index}-1/log": refused,
            }
        said = f"digits-worker-1-1 has not started: {missing}."
        assert dlr("job", "logs", "digits").err.splitlines() == [
            f"dlr: {said}",
            f"     digits-worker-2-1 has not started: 1 Pod cannot start: {missing}.",
        ]
        server.answers |= {
            f"GET {JOBS}/digits": [*[waits] * 4, job(phase="Failed")],
            f"GET {WORKERS}/digits-worker-1": starting[0],
            f"GET {PODS}/digits-worker-1-1/log": [refused, refused, refused, ""],
            f"GET {PODS}/digits-worker-1-1": [
                *[with_node(1, "Pending")] * 3,
                with_node(1, "Failed"),
            ],
        }
        assert follow() == []
        assert capsys.readouterr().err == f"dlr: waiting: {said}\n"

    @pytest.mark.real
    def test_followed_wait_for_all_workers_of_a_job_just_made(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        new = job()
        new["spec"]["replicaSpecs"]["worker"]["replicas"] = 2
        ended = [pod(f"digits-worker-{index}-1", "Succeeded") for index in (1, 2)]
        pods = {f"GET {PODS}/{each['metadata']['name']}": each for each in ended}
        server.answers |= pods | {
            f"GET {JOBS}/digits": [*[new] * 3, job(phase="Succeeded")],
            f"GET {WORKERS}": [listing(), listing(worker(1)), listing(worker(1), worker(2))],
            f"GET {WORKERS}/digits-worker-1": worker(1),
            f"GET {WORKERS}/digits-worker-2": worker(2),
        }
        followed = dlr("job", "logs", "digits", "-f")
        assert (followed.exit_code, followed.err) == (0, "")
        assert "[digits-worker-1] one" in followed.out and "[digits-worker-2] other" in followed.out

    def test_a_line_that_names_its_rank_twice_does_so_once(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        lines = ("[rank1]: [rank1]: Traceback", "[rank1]: [rank0]: told by another", "[rank1]: a step")
        log = "".join(f"2026-01-01T00:00:0{second}Z {line}\n" for second, line in enumerate(lines))
        server.answers[f"GET {PODS}/digits-worker-1-1/log"] = log
        done = dlr("job", "logs", "digits", "--rank", "0")
        assert done.out.splitlines() == ["[rank1]: Traceback", *lines[1:]]

    def test_of_a_rank_that_is_not_there(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        assert "has no rank 5; its ranks are 0 to 1" in dlr("job", "logs", "digits", "--rank", "5").err

    def test_followed_go_on_with_the_next_pod_and_show_each_line_once(self, server: Script) -> None:
        log, later = f"GET {PODS}/digits-worker-1-1/log", f"{PODS}/digits-worker-1-2"
        script_job(server)
        server.answers |= {
            f"GET {JOBS}/digits": [*[job(phase="Running", rendezvous=WORLD)] * 4, job(phase="Succeeded")],
            f"GET {WORKERS}/digits-worker-1": [*[worker(1)] * 2, worker(1, incarnation=2)],
            f"GET {PODS}/digits-worker-1-1": [
                *[pod("digits-worker-1-1")] * 3,
                pod("digits-worker-1-1", "Failed"),
            ],
            # The stream breaks off after its first line, and starts anew with that line.
            log: ["2026-01-01T00:00:01.5Z one\n", "2026-01-01T00:00:01.5Z one\n2026-01-01T00:00:02Z two\n"],
            f"GET {later}": pod("digits-worker-1-2", "Succeeded", "side", "trainer"),
            f"GET {later}/log": "2026-01-01T00:00:03Z three\n",
        }
        assert follow() == ["one", "two", "three"]
        resumed = [request.query for request in server.requests if f"GET {request.path}" == log][1]
        assert resumed["sinceTime"] == "2026-01-01T00:00:01Z"


class TestEvents:
    def test_of_the_job_its_workers_and_pods_in_order_of_time(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        server.answers[f"GET {EVENTS}"] = listing(
            event("Pod", "digits-worker-0-12", "Killing", "2026-01-01T00:00:09Z", count=3),
            event(
                "ElasticJob", "digits", "Formed", "2026-01-01T00:00:08Z", eventTime="2026-01-01T00:00:08.5Z"
            ),
            event("ElasticWorker", "digits-worker-0", "Relaunched", "2026-01-01T00:00:07Z"),
            event("ElasticJob", "digits", "OfANamesakeBefore", "2025-12-31T00:00:00Z"),
            event("Pod", "digits-2-worker-0-1", "OfAnother", "2026-01-01T00:00:09Z"),
            event("Node", "digits", "OfANode", "2026-01-01T00:00:09Z"),
        )
        lines = [line for line in dlr("job", "status", "digits").out.splitlines() if "Normal" in line]
        assert [line.split("Normal")[1].split()[0] for line in lines] == [
            "Relaunched",
            "Formed",
            "Killing",
        ]
        assert "(x3)" in lines[2]


class TestDelete:
    def test_stays_until_job_and_pods_are_gone(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        server.answers |= {
            f"DELETE {JOBS}/digits": {"kind": "Status", "status": "Success"},
            f"GET {JOBS}/digits": [job(), job(), NO_JOB],
            f"GET {PODS}": [listing(pod("digits-worker-0-1")), listing()],
        }
        done = dlr("job", "delete", "digits")
        assert (done.exit_code, done.out) == (0, "elasticjob default/digits deleted\n")
        assert done.err == (
            "elasticjob default/digits is being deleted; waiting for pod/digits-worker-0-1, elasticjob/digits\n"
        )
        selectors = {
            request.query.get("labelSelector") for request in server.requests if request.path == PODS
        }
        assert selectors == {"elastic.iml.github.io/job-name=digits"}

    def test_a_missing_job_keeps_no_other_from_being_deleted(self, server: Script, dlr: Dlr) -> None:
        script_job(server)
        server.answers |= {
            f"DELETE {JOBS}/digits": {"kind": "Status", "status": "Success"},
            f"GET {JOBS}/digits": [job(), NO_JOB],
            f"GET {JOBS}/none": NO_JOB,
            f"GET {PODS}": listing(),
        }
        done = dlr("job", "delete", "none", "digits")
        assert (done.exit_code, done.out) == (1, "elasticjob default/digits deleted\n")
        assert "There is no ElasticJob 'none' in namespace 'default'" in done.err

    def test_ctrl_c_says_that_the_deletion_goes_on(
        self, server: Script, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_job(server)
        server.answers |= {f"DELETE {JOBS}/digits": {}, f"GET {PODS}": listing(pod("digits-worker-0-1"))}

        def interrupt(_seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(following.time, "sleep", interrupt)
        done = dlr("job", "delete", "digits")
        assert done.exit_code == 130
        assert done.err.endswith("dlr: The cluster goes on deleting default/digits without you.\n")

    @pytest.mark.parametrize(
        ("ready", "waited", "said"),
        [
            ("True", 5, ""),
            ("True", 39, ""),
            ("True", 41, "pod/digits-worker-0-1 should have ended by now"),
            ("Unknown", 5, "its node node-1 is not ready"),
            (None, 39, ""),
            (None, 41, "pod/digits-worker-0-1 should have ended by now"),
        ],
    )
    def test_knows_who_takes_too_long(self, ready: str | None, waited: float, said: str) -> None:
        left = placed_pod()
        left["metadata"]["deletionGracePeriodSeconds"] = 30
        told = deletion.why_left(left, node(ready) if ready else None, waited)
        assert said in told if said else not told

    def test_names_the_finalizers_that_hold_a_pod_that_has_ended(self) -> None:
        left = placed_pod() | {"status": {"phase": "Failed"}}
        left["metadata"] |= {"finalizers": ["example.com/copy-logs"], "deletionGracePeriodSeconds": 0}
        told = deletion.why_left(left, node("Unknown"), 5)
        assert "example.com/copy-logs" in told and "--force" not in told
        assert not deletion.why_left(left, node("True"), 0), "garbage collection has yet to come to it"
        running = left | {"status": {"phase": "Running"}}
        assert "finalizer" not in deletion.why_left(running, node("True"), 99), "it runs"


def placed_pod() -> dict[str, Any]:
    left = pod("digits-worker-0-1")
    return left | {"spec": left["spec"] | {"nodeName": "node-1"}}


def node(ready: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


class TestScale:
    def test_asks_through_the_scale_subresource_for_a_count_that_is_not_wanted_already(
        self, server: Script, dlr: Dlr
    ) -> None:
        server.answers |= {f"GET {JOBS}/digits": job(), f"PATCH {JOBS}/digits/scale": {"kind": "Scale"}}
        done = dlr("job", "scale", "digits", "--replicas", "4")
        assert (done.exit_code, done.out) == (0, "elasticjob default/digits scaled from 2 to 4 workers\n")
        assert server.requests[-1].body == {"spec": {"replicas": 4}}
        done = dlr("job", "scale", "digits", "--replicas", "2")
        assert (done.exit_code, done.out) == (0, "elasticjob default/digits wants 2 workers already\n")

    def test_refusal_names_the_field(self, server: Script, dlr: Dlr) -> None:
        reason = "replicas must not be less than minReplicas"
        causes = [{"field": "spec.replicaSpecs[worker]", "message": reason}]
        server.answers |= {
            f"GET {JOBS}/digits": job(),
            f"PATCH {JOBS}/digits/scale": refusal(422, "Invalid", "is invalid", name="digits", causes=causes),
        }
        done = dlr("job", "scale", "digits", "--replicas", "1")
        assert done.exit_code == 1
        said = f"dlr: The job 'digits' cannot have 1 worker: spec.replicaSpecs[worker]: {reason}.\n"
        assert done.err == said


class TestSuspension:
    def test_suspends_and_resumes(self, server: Script, dlr: Dlr) -> None:
        suspended = job(phase="Suspended")
        suspended["spec"]["suspend"] = True
        server.answers |= {f"GET {JOBS}/digits": [job(), suspended], f"PATCH {JOBS}/digits": job()}
        done = dlr("job", "suspend", "digits")
        assert done.out == "elasticjob default/digits suspended: its Pods are being deleted\n"
        assert server.requests[-1].body == {"spec": {"suspend": True}}
        again = dlr("job", "suspend", "digits")
        assert again.out == "elasticjob default/digits is suspended already\n"
        done = dlr("job", "resume", "digits")
        assert done.out == "elasticjob default/digits resumed: its Pods are being made\n"
        assert server.requests[-1].body == {"spec": {"suspend": False}}
        server.answers[f"GET {JOBS}/digits"] = job(phase="Running")
        done = dlr("job", "resume", "digits")
        assert (done.exit_code, done.out) == (0, "elasticjob default/digits is not suspended\n")


class TestFailures:
    def test_credentials_that_are_not_accepted(self, server: Script, dlr: Dlr) -> None:
        server.answers[f"GET {JOBS}"] = refusal(401, "Unauthorized", "Unauthorized")
        assert "does not accept the credentials of $KUBECONFIG" in dlr("job", "list").err

    def test_server_that_speaks_no_kubernetes(self, server: Script, dlr: Dlr) -> None:
        for body in ("<html>hello</html>", [], {"error": "log in first"}):
            server.answers |= {f"GET {JOBS}": Answer(200, body), f"GET {JOBS}/digits": Answer(200, body)}
            for words in (["list"], ["status", "digits"], ["suspend", "digits"]):
                done = dlr("job", *words)
                assert done.exit_code == 1
                assert done.err.startswith(f"dlr: The server at {server.url}, which $KUBECONFIG ")
                assert "something that is not a Kubernetes object" in done.err


def test_a_job_with_parameter_servers_shows_its_cluster_in_the_place_of_a_world() -> None:
    cluster = {"version": 3, "tasks": {"chief": "0", "ps": "2,1", "worker": "0-1"}, "lost": "2"}
    said = world_line({"status": {"phase": "Restarting", "cluster": cluster}}, datetime.now(UTC))
    assert said == "none; version 3 of the cluster: chief 0, ps 2,1, worker 0-1; not running: ps 2"


def test_no_page_is_served_about_a_job_that_does_not_exist(server: Script, dlr: Dlr) -> None:
    script_job(server)
    server.answers[f"GET {JOBS}/digits"] = NO_JOB
    done = dlr("dashboard", "digits")
    assert (done.exit_code, done.out) == (1, "")
    assert done.err.startswith("dlr: There is no ElasticJob 'digits' in namespace 'default'")
