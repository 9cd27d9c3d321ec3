"""What is shown of a NodeCheck, and what it comes to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.commands.node_check.happenings import happenings
from dlr.commands.node_check.view import (
    Look,
    closing_lines,
    compute,
    final_rows,
    head,
    live_rows,
    most_telling,
    reports_on_nodes,
)
from dlr.job.check_outcome import health
from dlr.job.wording import significant
from healthcheck.local import Health
from tests.cli.scripted import check_worker, condition, node_check

JSON = dict[str, Any]
NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
GEMM = {"gemm_bf16_tflops": 612.4, "gemm_fp32_tflops": 51.0, "host_to_device_gbps": 25.0}
MEMBERS = {"nodes": ["node-0", "node-1", "node-2"], "workers": [0, 1, 2], "incarnations": [1, 1, 1]}


def probe(name: str = "gemm", ending: str = "Passed", **more: Any) -> JSON:
    return {"probe": name, "ending": ending} | more


def group(*members: str) -> JSON:
    return {"members": list(members), "masterAddress": "10.0.0.1", "masterPort": 1}


def outcome(*members: str, passed: bool = True, bus: float | None = None, message: str = "") -> JSON:
    figures = {} if bus is None else {"pair_bus_gbps": bus, "pair_algorithm_gbps": 99.0}
    return {"members": list(members), "passed": passed, "message": message, "figures": figures}


def verdict(node: str, is_: str = "Healthy", message: str = "") -> JSON:
    return {"node": node, "verdict": is_, "message": message, "figures": GEMM}


def running(round_: int, *workers: JSON, **status: Any) -> Look:
    check = node_check(phase="Running", startTime="2026-01-01T00:00:48Z", round=round_, **MEMBERS, **status)
    return Look(check, workers)


def states(look: Look) -> list[object]:
    return [row[1] for row in live_rows(look)]


class TestHealth:
    @pytest.mark.parametrize(
        ("status", "is_"),
        [
            ({"nodeResults": [verdict("a")]}, Health.HEALTHY),
            ({"nodeResults": [verdict("a"), verdict("b", "Faulty")]}, Health.FAULTY),
            ({"nodeResults": [verdict("a", "Straggler")]}, Health.FAULTY),
            ({"nodeResults": [verdict("a", "Inconclusive"), verdict("b")]}, Health.UNKNOWN),
            ({"nodeResults": [verdict("a", "Inconclusive"), verdict("b", "Faulty")]}, Health.FAULTY),
            (
                {"nodeResults": [verdict("a")], "faultyLinks": [{"a": "a", "b": "b", "symptom": "slow"}]},
                Health.FAULTY,
            ),
            ({"nodeResults": []}, Health.UNKNOWN),
            ({}, Health.UNKNOWN),
        ],
    )
    def test_one_faulty_node_or_link_counts_more_than_what_is_unknown(
        self, status: JSON, is_: Health
    ) -> None:
        assert health(node_check(phase="Succeeded", **status)) is is_

    @given(st.lists(st.sampled_from(["Healthy", "Faulty", "Straggler", "Inconclusive"])))
    def test_healthy_only_if_every_node_is(self, verdicts: list[str]) -> None:
        results = [verdict(f"n{i}", each) for i, each in enumerate(verdicts)]
        found = health(node_check(phase="Succeeded", nodeResults=results))
        assert (found is Health.HEALTHY) == (set(verdicts) == {"Healthy"})

    def test_a_check_that_was_not_carried_out_says_nothing(self) -> None:
        assert health(node_check(phase="Failed", nodeResults=[verdict("a", "Faulty")])) is Health.UNKNOWN


class TestLiveRows:
    def test_figures_come_from_the_reports_while_it_runs(self) -> None:
        done = check_worker(0, {"local": [probe(figures=GEMM)], "pairs": []})
        (node, state, speed, bus, why), second, _ = live_rows(running(0, done, check_worker(1)))
        assert (node, state, speed, bus, why) == (
            "node-0",
            "local tests done",
            "bf16 612 TFLOP/s",
            "",
            "",
        )
        assert second == ("node-1", "local tests", "", "", "")

    def test_a_round_names_the_partners_and_who_has_answered(self) -> None:
        done = check_worker(
            1, {"local": [probe()], "pairs": [probe("pair", round=1, figures={"pair_bus_gbps": 11.34})]}
        )
        look = running(1, done, check_worker(0), groups=[group("node-0", "node-1")])
        assert states(look) == ["round 1 with node-1", "round 1 done", "done"]
        assert live_rows(look)[1][3] == "11.3 GB/s"
        assert head(look, NOW, 20.0)[1] == ("Phase", "Running for 12s, round 1: 1 of 2 nodes have answered")

    def test_the_best_pair_counts_of_all_rounds(self) -> None:
        rounds = [
            {"number": 1, "groups": [outcome("node-0", "node-1", bus=3.0)]},
            {"number": 2, "groups": [outcome("node-0", "node-2", bus=9.0)]},
        ]
        look = running(3, rounds=rounds, groups=[group("node-0", "node-1")])
        assert [row[3] for row in live_rows(look)] == ["9 GB/s", "3 GB/s", "9 GB/s"]

    def test_reports_of_another_check_or_incarnation_do_not_count(self) -> None:
        local = {"local": [probe(figures=GEMM)]}
        other = check_worker(0, local, uid="of-another-check")
        relaunched = check_worker(1, local)
        relaunched["status"]["agent"]["incarnation"] = 2
        assert states(running(0, other, relaunched)) == ["local tests"] * 3

    def test_failures_withdrawals_and_pods_that_wait_say_why(self) -> None:
        failed = check_worker(0, {"local": [probe(), probe("copies", "Failed", reason="3 bytes changed")]})
        look = running(
            0,
            failed,
            check_worker(2, phase="Pending", message="0/3 nodes are available"),
            withdrawn=[{"node": "node-1", "message": "its Pod was evicted"}],
        )
        assert [(row[1], row[4]) for row in live_rows(look)] == [
            ("local tests done", "copies: 3 bytes changed"),
            ("withdrawn", "its Pod was evicted"),
            ("local tests", "0/3 nodes are available"),
        ]

    def test_a_node_that_passed_lately_is_not_asked_again(self) -> None:
        look = running(0, reused=["node-2"])
        assert states(look)[2] == "passed lately"
        assert head(look, NOW, 0.0)[1][1].endswith("0 of 2 nodes have answered")

    def test_a_job_s_workers_are_found_by_index(self) -> None:
        look = Look(
            node_check(phase="Running", round=0, nodes=["node-7"], workers=[5], incarnations=[3]),
            [check_worker(5, {"local": [probe(figures=GEMM)]}) | {"spec": {"index": 5}}],
        )
        look.workers[0]["status"]["agent"]["incarnation"] = 3
        assert states(look) == ["local tests done"]

    def test_where_not_all_fit_those_with_something_to_say_come_first(self) -> None:
        workers = [
            check_worker(0, {"local": [probe()]}),
            check_worker(1),
            check_worker(2, {"local": [probe(ending="TimedOut", reason="no end after 120 s")]}),
        ]
        rows = live_rows(running(0, *workers))
        assert most_telling(rows, 3) == rows
        assert [row[0] for row in most_telling(rows, 2)] == ["node-2", "node-1"]


class TestHead:
    def test_nobody_takes_it_up(self) -> None:
        look = Look(node_check())
        assert head(look, NOW, 3.0)[1][1] == "no controller has seen it yet"
        assert "no controller seems to run" in head(look, NOW, 12.0)[1][1]

    def test_what_a_check_waits_for(self) -> None:
        waits = condition("Running", "False", "node-1 is being checked by nightly")
        look = Look(node_check(phase="Pending", conditions=[waits]))
        assert head(look, NOW, 0.0) == [
            ("Check", "default/node-check-abcde"),
            ("Phase", "Pending for 1m: node-1 is being checked by nightly"),
        ]

    def test_how_long_it_took(self) -> None:
        check = node_check(
            phase="Succeeded",
            startTime="2026-01-01T00:00:10Z",
            completionTime="2026-01-01T00:00:41Z",
            rounds=[{"number": 1, "groups": []}],
        )
        assert head(Look(check), NOW, 0.0)[1][1] == "Succeeded after 31s, 1 round"


class TestFinal:
    CHECK = node_check(
        phase="Succeeded",
        **MEMBERS,
        nodeResults=[
            verdict("node-0", message="it passed"),
            verdict("node-1", "Faulty", "it failed with node-0 and node-2") | {"action": "LookAtLink"},
            verdict("node-2", "Inconclusive", "it was withdrawn"),
        ],
        faultyNodes=["node-1"],
        rounds=[{"number": 1, "groups": [outcome("node-0", "node-2", bus=7.0)]}],
        conditions=[
            condition("Healthy", "False", "node-1 is faulty"),
            condition("Succeeded", "True", "done"),
        ],
    )

    def test_rows_come_from_the_check_alone(self) -> None:
        assert final_rows(self.CHECK) == [
            ("node-0", "Healthy", "bf16 612 TFLOP/s", "7 GB/s"),
            ("node-1", "Faulty", "bf16 612 TFLOP/s", ""),
            ("node-2", "Inconclusive", "bf16 612 TFLOP/s", "7 GB/s"),
        ]

    def test_each_node_that_is_not_healthy_has_a_verdict_a_reason_and_something_to_do(self) -> None:
        assert reports_on_nodes(self.CHECK, {"node-1": "cordoned"}) == [
            "node-1 is Faulty: cordoned",
            "  Why: it failed with node-0 and node-2",
            "  Do:  look at its network: interface, cable, switch port",
            "node-2 is Inconclusive",
            "  Why: it was withdrawn",
            "  Do:  check it again",
        ]
        assert closing_lines(self.CHECK) == ["Faulty: node-1 is faulty"]

    def test_says_which_accelerators_were_not_tested(self) -> None:
        untested = condition("AcceleratorsTested", "False", "node-0 has amd.com/gpu")
        told = condition("Healthy", "True", "all 2 nodes are healthy")
        results = [verdict("node-0"), verdict("node-1")]
        check = node_check(phase="Succeeded", nodeResults=results, conditions=[told, untested])
        assert closing_lines(check) == ["node-0 has amd.com/gpu", "Healthy: all 2 nodes are healthy"]


class TestHappenings:
    def test_each_thing_is_told_once(self) -> None:
        first = running(
            1,
            check_worker(0, {"local": [probe(figures=GEMM)]}),
            check_worker(1, {"local": [probe("gemm", "Crashed", reason="ended by SIGSEGV")]}),
            groups=[group("node-0", "node-2")],
        )
        second = running(
            2,
            *first.workers,
            groups=[group("node-0", "node-1")],
            rounds=[{"number": 1, "groups": [outcome("node-0", "node-2", bus=8.0)]}],
            withdrawn=[{"node": "node-2", "message": "its Pod was preempted"}],
        )
        before, after = happenings(first, 1.0), happenings(second, 2.0)
        assert before == [
            "Running: local tests of 3 nodes",
            "node-0: local tests done, bf16 612 TFLOP/s",
            "node-1: local tests failed: gemm: ended by SIGSEGV",
            "round 1 begins: node-0, node-2",
        ]
        assert [line for line in after if line not in before] == [
            "node-2 is withdrawn: its Pod was preempted",
            "round 1: 1 of 1 groups passed, the slowest with 8 GB/s",
            "round 2 begins: node-0, node-1",
        ]

    def test_a_group_that_failed_is_told_with_what_was_wrong(self) -> None:
        bad = outcome("a", "b", passed=False, message="b closed the connection")
        check = node_check(phase="Succeeded", rounds=[{"number": 1, "groups": [bad, outcome("c", "d")]}])
        assert happenings(Look(check), 0.0) == [
            "round 1: a, b failed: b closed the connection",
            "round 1: 1 of 2 groups passed",
        ]

    def test_a_large_round_is_not_told_by_name(self) -> None:
        look = running(1, groups=[group(f"n{i}", f"m{i}") for i in range(100)])
        assert happenings(look, 0.0)[-1].endswith("; n7, m7; and 92 more")


def test_the_fastest_type_is_shown() -> None:
    assert compute({"gemm_bf16_tflops": 0.01, "gemm_fp32_tflops": 0.15}) == "fp32 0.15 TFLOP/s"
    assert compute({"host_to_device_gbps": 5.0}) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(2250.4, "2250"), (612.4, "612"), (0.03034, "0.0303"), (0.0, "0"), (999.7, "1000")]
)
def test_figures_have_three_digits_and_no_powers_of_ten(value: float, text: str) -> None:
    assert significant(value) == text
