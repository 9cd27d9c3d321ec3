"""What an object says of a controller that cannot cope with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pydantic import ValidationError

from controller.client import AsyncClient
from controller.errors import Conflict, InvalidStatus, Unavailable
from controller.reconciler import ReconcileTimeout, Request, TerminalError
from controller.resources import Resource
from reconcilers.observed.builder import owner_reference
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.reconciled import RECONCILED, ReconciledCondition, sentence
from tests.reconcilers import build
from tests.reconcilers.caches import shaped_cache, tools_of

DIGITS = Request("default", "digits")
REFUSED = InvalidStatus(422, "Invalid", "status.retired: Too many: 10001: must have at most 10000 items")


class Server:
    """Takes patches of status into the cache, as a watch would; or refuses them."""

    def __init__(self) -> None:
        self.cache = shaped_cache(cast(AsyncClient, self))
        self.patches: list[dict[str, Any]] = []
        self.events: list[tuple[str, str, str]] = []
        self.refusal: Exception | None = None
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def put(self, resource: Resource, wire: dict[str, Any]) -> None:
        self.cache.store(resource).apply({"apiVersion": resource.api_version, "kind": resource.kind, **wire})

    def reporter(self, controller: str, resource: Resource = ELASTICJOBS) -> ReconciledCondition:
        clock = Clock(now=lambda: self.now)
        return ReconciledCondition(tools_of(self.cache, self, self, clock=clock), controller, resource)

    async def patch(
        self, resource: Resource, name: str, body: dict[str, Any], namespace: str, *, subresource: str
    ) -> None:
        assert subresource == "status"
        if self.refusal is not None:
            raise self.refusal
        self.patches.append(body)
        known = self.cache.store(resource).get(namespace, name)
        assert known is not None
        metadata = known["metadata"] | {"resourceVersion": str(int(body["metadata"]["resourceVersion"]) + 1)}
        status = known.get("status", {}) | body["status"]
        self.cache.store(resource).apply(known | {"metadata": metadata, "status": status})

    def event(self, obj: dict[str, Any], type_: str, reason: str, message: str) -> None:
        assert (type_, reason) == ("Warning", "ReconcileFailed")
        self.events.append((obj["kind"], obj["metadata"]["name"], message))

    def condition(self, resource: Resource = ELASTICJOBS, name: str = "digits") -> dict[str, Any]:
        raw = self.cache.store(resource).get("default", name) or {}
        return next((c for c in raw["status"]["conditions"] if c["type"] == RECONCILED), {})


@pytest.fixture
def stage() -> Server:
    made = Server()
    running = {"type": "Running", "status": "True", "reason": "Running", "lastTransitionTime": build.NOW}
    made.put(ELASTICJOBS, build.job(status={"conditions": [running]}).to_wire())
    made.put(ELASTICWORKERS, build.worker().to_wire())
    return made


async def test_an_unforeseen_error_is_a_condition_and_an_event_until_a_look_ends_well(stage: Server) -> None:
    reporter = stage.reporter("elasticjob")
    await reporter.succeeded(DIGITS)
    assert not stage.patches, "nothing is written of what is well"
    await reporter.failed(DIGITS, KeyError("spec"))
    said = stage.condition()
    assert (said["status"], said["reason"]) == ("False", "KeyError")
    assert said["message"] == (
        "elasticjob: unexpected KeyError: 'spec'; the controller tries again, and its log says more"
    )
    assert stage.events == [("ElasticJob", "digits", said["message"])]
    assert stage.patches[0]["metadata"] == {"resourceVersion": "1"}
    assert len(stage.patches[0]["status"]["conditions"]) == 2, "the others stay"
    await reporter.succeeded(DIGITS)
    assert (stage.condition()["status"], stage.condition()["reason"]) == ("True", "Recovered")
    await reporter.succeeded(DIGITS)
    assert len(stage.patches) == 2


async def test_the_same_kind_of_error_is_written_once_however_its_words_change(stage: Server) -> None:
    reporter = stage.reporter("elasticjob")
    for address in range(100):
        await reporter.failed(DIGITS, KeyError(f"at {address}"))
    assert len(stage.patches) == 1 and len(stage.events) == 100
    stage.now = stage.now.replace(hour=1)
    await reporter.failed(DIGITS, ValueError("another"))
    assert stage.condition()["reason"] == "ValueError"
    assert stage.condition()["lastTransitionTime"] == "2026-01-01T00:00:00Z", "it was False before"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (REFUSED, "refuses the status that was computed: status.retired: Too many"),
        (
            TerminalError("there is no such kind"),
            "jobs: there is no such kind; the controller tries again when the object changes",
        ),
        (
            ReconcileTimeout("did not end within 120 s"),
            "the controller's look at it did not end within 120 s; it tries again",
        ),
        (RuntimeError("many\n  lines" + "x" * 100_000), "unexpected RuntimeError: many lines"),
    ],
)
async def test_the_message_is_one_bounded_sentence(stage: Server, error: Exception, expected: str) -> None:
    await stage.reporter("jobs").failed(DIGITS, error)
    message = stage.condition()["message"]
    assert expected in message and "\n" not in message and len(message) < 600


async def test_a_worker_says_so_itself_and_its_owner_has_the_event(stage: Server) -> None:
    wire = build.worker().to_wire()
    owner = owner_reference("ElasticJob", "digits", "uid-digits")
    wire["metadata"] |= {"resourceVersion": "2", "ownerReferences": [owner]}
    stage.put(ELASTICWORKERS, wire)
    name = wire["metadata"]["name"]
    await stage.reporter("elasticworker", ELASTICWORKERS).failed(Request("default", name), KeyError("spec"))
    assert stage.condition(ELASTICWORKERS, name)["status"] == "False"
    ((kind, told, message),) = stage.events
    assert (kind, told) == ("ElasticJob", "digits") and message.startswith(
        f"{name}: elasticworker: unexpected"
    )


async def test_of_two_controllers_each_withdraws_its_own_word(stage: Server) -> None:
    job, companion = stage.reporter("elasticjob"), stage.reporter("jobcompanion")
    await companion.failed(DIGITS, KeyError("spec"))
    await job.succeeded(DIGITS)
    assert stage.condition()["status"] == "False"
    await companion.succeeded(DIGITS)
    assert stage.condition()["status"] == "True"


async def test_what_has_gone_is_not_told_of(stage: Server) -> None:
    reporter = stage.reporter("elasticjob")
    await reporter.failed(Request("default", "gone"), KeyError("spec"))
    await reporter.succeeded(Request("default", "gone"))
    assert not stage.patches and not stage.events


@pytest.mark.parametrize("refusal", [REFUSED, Conflict(409, "Conflict", ""), Unavailable("down")])
async def test_the_event_is_told_though_the_condition_is_refused(stage: Server, refusal: Exception) -> None:
    stage.refusal = refusal
    with pytest.raises(type(refusal)):  # which the loop logs: tests/controller/test_loop.py
        await stage.reporter("elasticjob").failed(DIGITS, KeyError("spec"))
    assert len(stage.events) == 1


def test_an_object_that_cannot_be_read_says_which_field_is_wrong() -> None:
    with pytest.raises(ValidationError) as wrong:
        build.job(status={"startTime": "2026-01-01T00:00:00+99:99"})
    found = sentence(wrong.value)
    assert found.startswith("status.startTime: ") and found.endswith("goes on once that is corrected")
