"""What is shown of a NodeCheck, and what it comes to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from dlr.commands.node_check import remote
from dlr.commands.node_check.news import news
from dlr.commands.node_check.view import compute, node_rows, notes, reports_on_nodes, summary
from dlr.job.check_outcome import health
from dlr.job.wording import significant
from healthcheck.local import LocalHealth
from tests.cli.scripted import JSON, check_worker, condition, node_check

GEMM = {"gemm_bf16_tflops": 612.4, "gemm_fp32_tflops": 51.0, "host_to_device_gbps": 25.0}
MEMBERS = {"nodes": ["node-0", "node-1", "node-2"], "workers": [0, 1, 2], "incarnations": [1, 1, 1]}


def group(*members: str) -> JSON:
    return {"members": list(members), "masterAddress": "10.0.0.1", "masterPort": 1}


def outcome(*members: str, passed: bool = True, bus: float | None = None, message: str = "") -> JSON:
    figures = {} if bus is None else {"pair_bus_gbps": bus, "pair_algorithm_gbps": 99.0}
    return {"members": list(members), "passed": passed, "message": message, "figures": figures}


def verdict(node: str, is_: str = "Healthy", message: str = "") -> JSON:
    return {"node": node, "verdict": is_, "message": message, "figures": GEMM}


def running(round_: int, **status: Any) -> JSON:
    return node_check(phase="Running", startTime="2026-01-01T00:00:48Z", round=round_, **MEMBERS, **status)


class TestHealth:
    @pytest.mark.parametrize(
        ("status", "is_"),
        [
            ({"nodeResults": [verdict("a")]}, LocalHealth.HEALTHY),
            ({"nodeResults": [verdict("a"), verdict("b", "Faulty")]}, LocalHealth.FAULTY),
            ({"nodeResults": [verdict("a", "Straggler")]}, LocalHealth.FAULTY),
            ({"nodeResults": [verdict("a", "Inconclusive"), verdict("b")]}, LocalHealth.UNKNOWN),
            ({"nodeResults": [verdict("a", "Inconclusive"), verdict("b", "Faulty")]}, LocalHealth.FAULTY),
            (
                {"nodeResults": [verdict("a")], "faultyLinks": [{"a": "a", "b": "b", "symptom": "slow"}]},
                LocalHealth.FAULTY,
            ),
            ({"nodeResults": []}, LocalHealth.UNKNOWN),
            ({}, LocalHealth.UNKNOWN),
        ],
    )
    def test_one_faulty_node_or_link_counts_more_than_what_is_unknown(
        self, status: JSON, is_: LocalHealth
    ) -> None:
        assert health(node_check(phase="Succeeded", **status)) is is_

    def test_a_check_that_was_not_carried_out_says_nothing(self) -> None:
        assert health(node_check(phase="Failed", nodeResults=[verdict("a", "Faulty")])) is LocalHealth.UNKNOWN


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

    def test_rows_come_from_the_check_alone_the_worst_first(self) -> None:
        assert node_rows(self.CHECK) == [
            ("node-1", "Faulty", "bf16 612 TFLOP/s", ""),
            ("node-2", "Inconclusive", "bf16 612 TFLOP/s", "7 GB/s"),
            ("node-0", "Healthy", "bf16 612 TFLOP/s", "7 GB/s"),
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
        assert (notes(self.CHECK), summary(self.CHECK)) == ([], "Faulty: node-1 is faulty")

    @pytest.mark.parametrize("count", [3, 100, 1_000])
    def test_the_report_of_many_nodes_is_the_verdict_first_and_one_screen(self, count: int) -> None:
        names = [f"node-{each}" for each in range(count)]
        results = [verdict(each, "Faulty", f"{each} failed") | {"action": "Reboot"} for each in names[1::7]]
        links = [{"a": a, "b": b, "symptom": "slow"} for a, b in pairwise(names[:9])]
        check = node_check(
            phase="Succeeded",
            nodes=names,
            nodeResults=results,
            faultyNodes=names[1::7],
            faultyLinks=links,
            conditions=[condition("Healthy", "False", "many are faulty")],
        )
        done = dict.fromkeys(names[1::7], "cordoned") | dict.fromkeys(names[50::7], "held back")
        screen = Console(width=100, height=40, force_terminal=True, color_system=None)
        drawn = [
            "".join(part.text for part in line).rstrip()
            for line in screen.render_lines(remote.report(check, done, screen))
        ]
        assert drawn[0] == "Faulty: many are faulty" and len(drawn) < 40
        assert sum("are Faulty: cordoned" in line or "is Faulty: cordoned" in line for line in drawn) == 1
        assert (f"kubectl describe nc {check['metadata']['name']} -n default" in " ".join(drawn)) == (
            count > 3
        )
        table = [line.split()[0] for line in drawn if " Faulty " in line and line.startswith("node-")]
        assert [each for each in table if each in names[1::7]][:3] == names[1::7][:3]


class TestNews:
    def test_a_check_that_no_controller_takes_up_and_what_one_waits_for(self) -> None:
        assert [*news(node_check(), [], 3.0)] == []
        assert [*news(node_check(), [], 12.0)] == ["no controller seems to run in this cluster"]
        waits = condition("Running", "False", "node-1 is being checked by nightly")
        pending = node_check(phase="Pending", conditions=[waits])
        assert [*news(pending, [], 12.0)] == ["Pending: node-1 is being checked by nightly"]

    def test_pods_that_wait_say_why(self) -> None:
        waiting = check_worker(2, phase="Pending", message="0/3 nodes are available")
        said = "node-check-abcde-check-2: 0/3 nodes are available"
        assert [*news(running(0), [check_worker(1), waiting], 0.0)][-1] == said


def test_the_fastest_type_is_shown() -> None:
    assert compute({"gemm_bf16_tflops": 0.01, "gemm_fp32_tflops": 0.15}) == "fp32 0.15 TFLOP/s"
    assert compute({"host_to_device_gbps": 5.0}) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(2250.4, "2250"), (612.4, "612"), (0.03034, "0.0303"), (0.0, "0"), (999.7, "1000")]
)
def test_figures_have_three_digits_and_no_powers_of_ten(value: float, text: str) -> None:
    assert significant(value) == text
