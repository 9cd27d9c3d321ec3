"""A fleet that is slow as a whole, measured by what its nodes kept of earlier checks."""

from __future__ import annotations

from typing import Any

from crds import names
from crds.findings import Verdict
from crds.nodecheck import NodeCheck
from healthcheck.fleet import Node
from healthcheck.measurements import CheckHistory, LocalResult, Metric
from healthcheck.settings import Settings
from healthcheck.stragglers import own_figures, references_of
from reconcilers.findings.reference import (
    references_left_by,
    references_on,
    speeds_of,
    write_reference,
)
from tests.reconcilers.build import NOW

H100, B200 = "nvidia H100", "nvidia B200"
FLEET = [Node(f"n{i}", H100 if i < 6 else B200) for i in range(12)]
GEMM = Metric.GEMM_BF16_TFLOPS


def measured(h100: float, b200: float) -> CheckHistory:
    speeds = {H100: h100, B200: b200}
    return CheckHistory(
        {node.name: LocalResult(measured={GEMM: speeds[node.hardware_class]}) for node in FLEET}
    )


def checked(
    history: CheckHistory, nodes: dict[str, dict[str, Any]], faulty: str = ""
) -> dict[str, dict[str, Any]]:
    """The raw Nodes after a check that found those figures; a node keeps what it has."""
    settings = Settings(references=references_on(FLEET, nodes))
    speeds = speeds_of(references_of(history, FLEET, settings), FLEET)
    metadata = {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": "1"}
    status = {
        "nodes": [n.name for n in FLEET],
        "completionTime": NOW,
        "classSpeeds": [speed.to_wire() for speed in speeds],
    }
    check = NodeCheck.model_validate(
        {"metadata": metadata, "spec": {"nodes": status["nodes"]}, "status": status}
    )
    verdicts = dict.fromkeys(status["nodes"], Verdict.HEALTHY) | {faulty: Verdict.FAULTY}
    left = references_left_by(check, verdicts)
    return {
        name: {"metadata": {"annotations": {names.ANNOTATION_REFERENCE: write_reference(reference)}}}
        for name, reference in left.items()
    } | nodes


def test_class_that_is_slower_than_it_was_is_seen_and_the_other_is_not() -> None:
    nodes = checked(measured(650, 1500), {}, faulty="n0")
    assert set(nodes) == {node.name for node in FLEET} - {"n0"}
    references = references_on(FLEET, nodes)
    assert references == {(H100, GEMM): 650, (B200, GEMM): 1500}
    found = own_figures(measured(450, 1490), FLEET, Settings(references=references)).classes
    assert [(f.hardware_class, len(f.nodes)) for f in found] == [(H100, 6)]
    assert "together are at 69% of their earlier speed" in found[0].evidence


def test_what_a_node_kept_of_other_hardware_or_nobody_can_read_says_nothing() -> None:
    nodes = checked(measured(650, 1500), {})
    assert not references_on([Node("n0", B200)], nodes)
    garbled = {"n0": {"metadata": {"annotations": {names.ANNOTATION_REFERENCE: "{"}}}}
    assert not references_on(FLEET, garbled)
