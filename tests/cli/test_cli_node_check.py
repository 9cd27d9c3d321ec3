"""`dlr node-check` against a scripted API server: what is asked for, what is shown, and the exit codes."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from dlr.commands.node_check import news
from tests.cli.scripted import (
    EVENTS,
    GROUP_PATH,
    JSON,
    WORKERS,
    Answer,
    Clock,
    Dlr,
    Script,
    check_worker,
    condition,
    job,
    listing,
    node_check,
    refusal,
)

CHECKS = f"{GROUP_PATH}/default/nodechecks"
CHECK = f"{CHECKS}/node-check-abcde"
NODE = "/api/v1/nodes/node-1"
GONE = refusal(404, "NotFound", 'nodechecks "node-check-abcde" not found', name="node-check-abcde")
GEMM = {"gemm_bf16_tflops": 612.0}
MEMBERS = {"nodes": ["node-0", "node-1"], "workers": [0, 1], "incarnations": [1, 1]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "NO_CONTROLLER_AFTER_SECONDS", 300.0)


def finished(*verdicts: str, message: str = "2 of 2 nodes are healthy", **status: Any) -> JSON:
    results = [
        {
            "node": f"node-{i}",
            "verdict": verdict,
            "causes": [] if verdict == "Healthy" else ["LocalTest"],
            "message": "" if verdict == "Healthy" else "its local tests failed: gemm: ended by SIGSEGV",
            "figures": GEMM,
        }
        for i, verdict in enumerate(verdicts)
    ]
    groups = [{"members": ["node-0", "node-1"], "passed": True, "figures": {"pair_bus_gbps": 11.0}}]
    return node_check(
        phase="Succeeded",
        startTime="2026-01-01T00:00:05Z",
        completionTime="2026-01-01T00:00:36Z",
        nodeResults=results,
        rounds=[{"number": 1, "groups": groups}],
        conditions=[condition("Healthy", "True", message)],
        **MEMBERS | status,
    )


def acted_on(tainted: bool = True) -> JSON:
    """A node that the check found faulty, cordoned or put back into service by hand."""
    finding = {
        "node": "node-1",
        "verdict": "Faulty",
        "time": "2026-01-01T00:00:36Z",
        "source": "default/node-check-abcde",
    }
    annotations = {"elastic.iml.github.io/cordon": json.dumps(finding)}
    taint = {"key": "elastic.iml.github.io/unhealthy", "value": "CheckFailed", "effect": "NoSchedule"}
    metadata = {"name": "node-1", "annotations": annotations}
    return {"metadata": metadata, "spec": {"taints": [taint] if tainted else []}}


def suspected(reason: str) -> JSON:
    condition = {"type": "ElasticSuspected", "status": "True", "reason": reason}
    return {"metadata": {"name": "node-1"}, "status": {"conditions": [condition]}}


def failed(message: str) -> JSON:
    return node_check(phase="Failed", conditions=[condition("Failed", "True", message)])


def script(server: Script, *looks: JSON | Answer) -> None:
    server.answers |= {
        f"POST {CHECKS}": Answer(201, node_check()),
        f"GET {CHECK}": list(looks),
        f"GET {WORKERS}": listing(check_worker(0), check_worker(1)),
        f"GET {GROUP_PATH}/default/elasticjobs/digits": job(),
    }


def posted(server: Script) -> JSON:
    return next(request.body for request in server.requests if request.method == "POST")


class TestWhatIsAsked:
    @pytest.mark.parametrize(
        ("words", "spec"),
        [
            (["--nodes", "node-1,node-2, node-1"], {"nodes": ["node-1", "node-2"]}),
            (["--nodes", "node-1", "--nodes", "node-2"], {"nodes": ["node-1", "node-2"]}),
            (["--all"], {"nodeSelector": {}}),
            (["--selector", "pool=a100,zone==b"], {"nodeSelector": {"pool": "a100", "zone": "b"}}),
            (["-l", "node-role.kubernetes.io/gpu="], {"nodeSelector": {"node-role.kubernetes.io/gpu": ""}}),
            (["--job", "digits"], {"jobName": "digits"}),
            (["--all", "--gpu"], {"nodeSelector": {}, "accelerator": "nvidia.com/gpu"}),
            (["--all", "--straggler-ratio", "3"], {"nodeSelector": {}, "stragglerRatio": 3.0}),
            (["--all", "--ttl", "604800"], {"nodeSelector": {}, "ttlSecondsAfterFinished": 604_800}),
            (
                ["--all", "--no-cordon", "--timeout", "60", "--topology", "rack", "--topology", "zone"],
                {"nodeSelector": {}, "cordon": False, "timeoutSeconds": 60, "topologyKeys": ["rack", "zone"]},
            ),
        ],
    )
    def test_becomes_the_spec(self, server: Script, dlr: Dlr, words: list[str], spec: JSON) -> None:
        script(server, finished("Healthy"))
        assert dlr("node-check", *words, "--no-wait").exit_code == 0
        assert posted(server)["spec"] == spec

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "exactly one of --nodes, --selector, --all, --job and --local"),
            (["--selector", ""], "takes label=value"),
            (["--selector", "pool in (a, b)"], "takes label=value"),
            (["--selector", "pool=a,pool=b"], "takes label=value"),
            (["--local", "--no-wait"], "--local takes --gpu alone"),
        ],
    )
    def test_what_makes_no_sense_is_one_sentence(
        self, server: Script, dlr: Dlr, words: list[str], says: str
    ) -> None:
        done = dlr("node-check", *words)
        assert (done.exit_code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert says in done.err
        assert not server.requests


class TestRefusals:
    def test_have_the_paths_of_the_fields(self, server: Script, dlr: Dlr) -> None:
        causes = [
            {"field": "spec.timeoutSeconds", "message": "Invalid value: 1: too small"},
            {"field": "spec.topologyKeys[0]", "message": 'Invalid value: "%"'},
            {"field": "<nil>", "message": 'Invalid value: "null": some validation rules were not checked'},
        ]
        server.answers[f"POST {CHECKS}"] = refusal(422, "Invalid", "is invalid: …", causes=causes)
        done = dlr("node-check", "--all", "--topology", "%", "--timeout", "1")
        assert done.exit_code == 2
        assert done.err == (
            "dlr: spec.timeoutSeconds: Invalid value: 1: too small\n"
            '     spec.topologyKeys[0]: Invalid value: "%"\n'
        )


class TestNoWait:
    def test_says_the_name_and_how_to_look(self, server: Script, dlr: Dlr) -> None:
        script(server, finished("Healthy"))
        done = dlr("node-check", "--all", "--no-wait")
        assert done.exit_code == 0
        assert "nodecheck default/node-check-abcde created" in done.out
        assert "kubectl get nc node-check-abcde -n default" in done.out
        assert dlr("node-check", "--all", "--no-wait", "-o", "json").json == {
            "name": "node-check-abcde",
            "namespace": "default",
        }


class TestWait:
    def test_tells_each_thing_as_it_happens_and_the_verdicts_at_the_end(
        self, server: Script, dlr: Dlr
    ) -> None:
        waits = condition("Running", "False", "node-1 is being checked by nightly")
        at_work = node_check(phase="Running", round=0, **MEMBERS)
        in_round = node_check(phase="Running", round=1, groups=[{}], **MEMBERS)
        script(
            server,
            node_check(),
            *[node_check(phase="Pending", conditions=[waits])] * 3,
            *[at_work] * 3,
            *[in_round] * 3,
            finished("Healthy", "Healthy"),
        )
        done = dlr("node-check", "--all")
        assert done.exit_code == 0
        lines = done.out.splitlines()
        assert [line[10:] for line in lines[:4]] == [
            "Pending: node-1 is being checked by nightly",
            "Running: local tests of 2 nodes",
            "round 1 begins: 1 group",
            "round 1: 1 of 1 groups passed, the slowest with 11 GB/s",
        ]
        assert lines[4:] == [
            "Healthy: 2 of 2 nodes are healthy",
            "default/node-check-abcde: Succeeded after 31s, 1 round",
            "",
            "NODE    VERDICT  COMPUTE           NETWORK",
            "node-0  Healthy  bf16 612 TFLOP/s  11 GB/s",
            "node-1  Healthy  bf16 612 TFLOP/s  11 GB/s",
        ]

    def test_faulty_nodes_links_and_racks_are_shown(self, server: Script, dlr: Dlr) -> None:
        link = {"a": "node-2", "b": "node-3", "symptom": "failed", "message": "each passed with others"}
        rack = {"level": "rack", "name": "r7", "nodes": ["node-0", "node-1"], "message": "2 of its 3 nodes"}
        check = finished(
            "Healthy", "Faulty", faultyNodes=["node-1"], faultyLinks=[link], faultyDomains=[rack]
        )
        script(server, check)
        server.answers |= {f"GET {NODE}": acted_on(), f"GET {EVENTS}": listing()}
        done = dlr("node-check", "--all")
        assert done.exit_code == 1
        rows = [" ".join(line.split()) for line in done.out.splitlines()]
        assert "node-1 Faulty bf16 612 TFLOP/s 11 GB/s" in rows
        at = rows.index("node-1 is Faulty: cordoned")
        assert rows[at + 1] == "Why: its local tests failed: gemm: ended by SIGSEGV"
        assert rows[at + 2].startswith("Do: ")
        assert "node-2 and node-3 failed each passed with others" in rows
        assert "rack=r7 node-0, node-1 2 of its 3 nodes" in rows

    @pytest.mark.parametrize(
        ("node", "events", "says"),
        [
            (acted_on(), [], "cordoned"),
            (acted_on(tainted=False), [], "not cordoned: its taint was removed by hand"),
            (suspected("CordonHeld"), [], "not cordoned: as many nodes are as --cordon-limit allows"),
            (suspected("CordonReported"), [], "not cordoned: the controller runs with --cordon=report"),
            (None, ["CordonNotAllowed"], "not cordoned: namespace default lacks the label"),
            (None, [], "no cordon is recorded yet"),
        ],
    )
    def test_what_was_in_fact_done_about_a_node_is_said(
        self,
        server: Script,
        dlr: Dlr,
        monkeypatch: pytest.MonkeyPatch,
        node: JSON | None,
        events: list[str],
        says: str,
    ) -> None:
        script(server, finished("Healthy", "Faulty", faultyNodes=["node-1"]))
        told = [{"reason": reason, "involvedObject": {"uid": "uid-check"}} for reason in events]
        bare: JSON = {"metadata": {"name": "node-1"}}
        server.answers |= {f"GET {NODE}": bare if node is None else node, f"GET {EVENTS}": listing(*told)}
        out = dlr("node-check", "--all").out
        assert f"node-1 is Faulty: {says}" in out

    def test_json_is_one_object_at_the_end(self, server: Script, dlr: Dlr) -> None:
        script(server, node_check(phase="Running", round=0, **MEMBERS), finished("Healthy", "Faulty"))
        done = dlr("node-check", "--all", "-o", "json")
        assert done.exit_code == 1
        shown = done.json
        assert (shown["name"], shown["namespace"], shown["phase"], shown["verdict"]) == (
            "node-check-abcde",
            "default",
            "Succeeded",
            "Faulty",
        )
        assert shown["nodes"][1] == {
            "node": "node-1",
            "verdict": "Faulty",
            "causes": ["LocalTest"],
            "message": "its local tests failed: gemm: ended by SIGSEGV",
            "action": "",
            "done": "",
            "figures": GEMM,
        }
        assert shown["rounds"][0]["groups"][0]["figures"] == {"pair_bus_gbps": 11.0}
        assert shown["links"] == shown["domains"] == []

    def test_inconclusive_and_failed_checks_could_not_tell(self, server: Script, dlr: Dlr) -> None:
        script(server, finished("Healthy", "Inconclusive"))
        assert dlr("node-check", "--all").exit_code == 2
        script(server, failed("no node has the labels pool=a"))
        done = dlr("node-check", "--selector", "pool=a")
        assert done.exit_code == 2
        assert done.err == (
            "dlr: The check 'node-check-abcde' could not be carried out: no node has the labels pool=a\n"
        )
        as_json = dlr("node-check", "--selector", "pool=a", "-o", "json")
        assert (as_json.exit_code, as_json.json["phase"], as_json.json["verdict"]) == (2, "Failed", "Unknown")
        assert as_json.json["message"] == "no node has the labels pool=a"

    @pytest.mark.parametrize("then", [GONE, node_check(uid="of-a-namesake", phase="Running")])
    def test_a_check_that_somebody_deletes(self, server: Script, dlr: Dlr, then: JSON | Answer) -> None:
        script(server, node_check(phase="Pending"), then)
        done = dlr("node-check", "--all")
        assert done.exit_code == 2
        assert "The check 'node-check-abcde' was deleted before it had finished." in done.err

    def test_ctrl_c_leaves_it_running_and_says_how_to_see_it(
        self, server: Script, dlr: Dlr, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(_: float) -> None:
            raise KeyboardInterrupt

        script(server, node_check(phase="Pending"))
        monkeypatch.setattr(clock, "sleep", interrupted)
        done = dlr("node-check", "--all")
        assert done.exit_code == 130
        assert "kubectl get nc node-check-abcde -n default" in done.err
        assert "kubectl delete nc node-check-abcde -n default" in done.err
        assert not any(request.method == "DELETE" for request in server.requests)


class TestHistory:
    RECORD: ClassVar[list[JSON]] = [
        {
            "source": "ops/nightly-1",
            "uid": "1",
            "time": "2026-01-01T00:00:00Z",
            "verdict": "Healthy",
            "passed": 2,
        },
        {
            "source": "ops/nightly-2",
            "uid": "2",
            "time": "2026-01-02T00:00:00Z",
            "verdict": "Faulty",
            "passed": 1,
            "failed": 2,
            "failedWith": ["node-3", "node-4"],
        },
    ]

    def node(self, record: list[JSON]) -> JSON:
        annotations = {"elastic.iml.github.io/record": json.dumps(record)}
        return {"metadata": {"name": "node-1", "annotations": annotations}}

    def test_a_node_that_does_not_exist_is_named(self, server: Script, dlr: Dlr) -> None:
        server.answers[f"GET {NODE}"] = refusal(404, "NotFound", 'nodes "node-1" not found', name="node-1")
        done = dlr("node-check", "history", "node-1")
        assert done.exit_code == 1 and "There is no node 'node-1': see `kubectl get nodes`." in done.err

    def test_shows_the_last_checks_the_newest_first(self, server: Script, dlr: Dlr) -> None:
        server.answers[f"GET {NODE}"] = self.node(self.RECORD)
        shown = dlr("node-check", "history", "node-1")
        rows = [" ".join(line.split()[1:]) for line in shown.out.splitlines()]
        assert shown.exit_code == 0
        assert rows[1:3] == ["ops/nightly-2 Faulty 1 2 node-3, node-4", "ops/nightly-1 Healthy 2 0 -"]
        assert dlr("node-check", "history", "node-1", "-o", "json").json[0]["source"] == "ops/nightly-2"
