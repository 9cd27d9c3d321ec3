"""What NVSentinel and NVRx read of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from crds import names
from crds.actions import Action
from crds.cordon import write_acted
from crds.findings import Finding
from healthcheck.nvsentinel.messages import HealthCheckResponse, HealthEvents, ProcessingStrategy
from healthcheck.nvsentinel.verdict import answer_of, event_of, verdict_on
from tests.reconcilers.build import NOW


def node(status: str | None, action: Action = Action.REBOOT) -> dict[str, Any]:
    """A Node with the condition, and the finding that its cordon follows from."""
    finding = Finding(node="n1", verdict="Faulty", time=NOW, source="dlr-system/nightly", action=action)
    condition = {
        "type": names.CONDITION_UNHEALTHY,
        "status": status,
        "reason": "CheckFailed" if status == "True" else "CheckPassed",
        "message": "NodeCheck dlr-system/nightly found this node faulty",
        "lastTransitionTime": NOW.isoformat(),
    }
    annotations = {names.ANNOTATION_CORDON: write_acted(finding)}
    conditions = [] if status is None else [condition]
    return {"metadata": {"name": "n1", "annotations": annotations}, "status": {"conditions": conditions}}


def on_the_wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protobuf message, by the encoding alone."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            assert key & 7 == 2
            length = number()
            yield key >> 3, data[place : place + length]
            place += length


def sent(raw: dict[str, Any], strategy: ProcessingStrategy) -> dict[int, Any]:
    """The one event of a message, by field number."""
    verdict = verdict_on(raw)
    assert verdict is not None
    message = dict(on_the_wire(HealthEvents(**event_of(verdict, strategy)).SerializeToString()))
    assert message[1] == 1
    return dict(on_the_wire(message[2]))


def test_a_verdict_is_a_fatal_event_by_the_numbers_of_health_event_proto() -> None:
    """NVSentinel's data-models/protobufs/health_event.proto: these numbers are all that a receiver sees."""
    event = sent(node("True"), ProcessingStrategy.EXECUTE_REMEDIATION)
    assert dict(on_the_wire(event.pop(10))) == {1: b"NODE", 2: b"n1"}
    assert dict(on_the_wire(event.pop(12))) == {1: int(NOW.timestamp())}
    assert event == {
        1: 1,
        2: b"dlr",
        3: b"Node",
        4: b"ElasticNodeCheck",
        5: 1,
        7: b"NodeCheck dlr-system/nightly found this node faulty",
        8: 15,
        9: b"CheckFailed",
        13: b"n1",
        16: 1,
    }


def test_a_pass_clears_it() -> None:
    event = sent(node("False"), ProcessingStrategy.STORE_ONLY)
    assert event[6] == 1 and event[16] == 2
    assert not event.keys() & {5, 8, 9}, "neither fatal, nor an action, nor an error code"


@pytest.mark.parametrize(
    ("action", "number"),
    [(Action.RESET_GPU, 2), (Action.REBOOT, 15), (Action.REPLACE, 25), (Action.LOOK_AT_LINK, 5)],
)
def test_each_action_has_its_number(action: Action, number: int) -> None:
    assert sent(node("True", action), ProcessingStrategy.STORE_ONLY)[8] == number


def test_a_node_without_a_verdict_is_no_event_and_well() -> None:
    assert verdict_on(node(None)) is None
    assert answer_of(None)["success"] is True


@pytest.mark.parametrize(("status", "failed"), [("True", 1), ("False", 0)])
def test_nvrx_reads_success_and_fail_count(status: str, failed: int) -> None:
    """As its NodeHealthCheck does: both, and an output that is JSON."""
    answer = HealthCheckResponse(**answer_of(verdict_on(node(status))))
    fields = dict(on_the_wire(answer.SerializeToString()))
    assert bool(fields.get(1)) is not bool(failed)
    assert json.loads(fields[3])["fail_count"] == failed
    assert len(json.loads(fields[3])["failed_checks"]) == failed
