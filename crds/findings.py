"""Results of a check: a verdict on each node, and faulty links and racks.

A `Finding` is made once, by the diagnosis or from the end of a worker, and copied unchanged to the status
of the NodeCheck, the Node's annotations and conditions, and the condition of the job.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.json_schema import SkipJsonSchema

from crds.actions import Action
from crds.model import Count, Model, Name
from crds.wire import is_in_this_age

MAX_TEXT = 1_024
MAX_EVIDENCE = 300
"""Characters of the evidence on a link or domain."""

NEVER = datetime.min.replace(tzinfo=UTC)

ATOMIC = {"x-kubernetes-list-type": "atomic"}

Text = Annotated[str, Field(max_length=MAX_TEXT)]

NodeNames = Annotated[list[Name], Field(max_length=10_000, json_schema_extra=ATOMIC)]

Figures = Annotated[dict[str, float], Field(max_length=32)]
"""Measurements by metric (`healthcheck.measurements.Metric`), whose name includes the unit."""


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    STRAGGLER = "Straggler"
    INCONCLUSIVE = "Inconclusive"
    """It may be faulty, but nothing proves or disproves it. Only a person acts on this."""


UNHEALTHY = (Verdict.FAULTY, Verdict.STRAGGLER, Verdict.INCONCLUSIVE)
"""Verdicts whose nodes a check lists, the worst first; its other nodes are healthy."""
WORST_FIRST = (*UNHEALTHY, Verdict.HEALTHY)


class Cause(StrEnum):
    """Basis of a verdict other than Healthy."""

    LOCAL_TEST = "LocalTest"
    NO_ANSWER = "NoAnswer"
    PAIR_TEST = "PairTest"
    CRASHED = "Crashed"
    """A signal ended the node's own probe repeatedly, as its agent reports."""
    SLOW_COMPUTE = "SlowCompute"
    """A measurement within the node: GEMM, copies, the collective inside the node."""
    SLOW_NETWORK = "SlowNetwork"
    WITHDRAWN = "Withdrawn"
    """The test could not be completed."""
    INTERMITTENT = "Intermittent"
    """The node failed in several checks, by its record."""
    NODE_CONDITION = "NodeCondition"
    """A condition of the Node itself."""
    HARDWARE_ERROR = "HardwareError"
    """The last Pod of a worker on the node ended with a hardware error."""


PASSED_BY_LUCK = frozenset({Cause.PAIR_TEST, Cause.INTERMITTENT})
"""Causes of faults that may not show in later tests, by luck."""


class Finding(Model):
    """Verdict on one node, and its basis."""

    node: Name
    verdict: Verdict
    causes: Annotated[tuple[Cause, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """Basis of the verdict; empty for a healthy node."""
    message: Text = ""
    """The evidence, in a sentence."""
    action: Action | None = None
    """First remedy to try; None for a healthy node."""
    figures: Figures = Field(default_factory=dict)
    """Measurements within the node; those with partners are in `rounds`."""
    # The fields below are stored only with the Node; a NodeCheck's status has them elsewhere.
    time: SkipJsonSchema[AwareDatetime] = NEVER
    """End of the check, or of the worker."""
    source: SkipJsonSchema[str] = ""
    """`namespace/name` of the NodeCheck, or of the ElasticWorker if the cause is HardwareError."""
    uid: SkipJsonSchema[str] = ""
    """First characters of the uid of the NodeCheck."""
    passed: SkipJsonSchema[Count] = 0
    """Number of passed tests with partners."""
    failed: SkipJsonSchema[Count] = 0
    """Number of failed tests with partners, whatever the cause."""
    failed_with: SkipJsonSchema[tuple[str, ...]] = ()
    """Partners in failed tests that have no other explanation."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = {field: value for field, value in dump(self).items() if value}
        if self.time == NEVER:
            fields.pop("time", None)
        return fields

    @property
    def healthy(self) -> bool:
        return self.verdict is Verdict.HEALTHY

    @property
    def is_dated(self) -> bool:
        """Whether it has a plausible time, as every finding stored with a Node must."""
        return is_in_this_age(self.time)

    @property
    def kind(self) -> str:
        """Kind of the source."""
        return "ElasticWorker" if Cause.HARDWARE_ERROR in self.causes else "NodeCheck"

    @property
    def namespace(self) -> str:
        """Namespace of the source."""
        return self.source.partition("/")[0]

    @property
    def name(self) -> str:
        """Name of the source."""
        return self.source.partition("/")[2]

    @property
    def comes_and_goes(self) -> bool:
        """Whether the node is faulty although it also passed tests with partners, so that it would pass most
        checks."""
        by_tests = not self.causes or not PASSED_BY_LUCK.isdisjoint(self.causes)
        return self.verdict is Verdict.FAULTY and by_tests and self.passed > 0


DROPPED = {Cause.LOCAL_TEST: Verdict.FAULTY, Cause.NO_ANSWER: Verdict.INCONCLUSIVE}
"""Verdicts on nodes that drop out in the local tests of an unfinished check."""


def dropped(node: str, cause: Cause, message: str = "", action: Action | None = None) -> Finding:
    """Return the finding on a node that drops out in the local tests; the final verdict comes later."""
    text = message[:MAX_TEXT]
    return Finding(node=node, verdict=DROPPED[cause], causes=(cause,), message=text, action=action)


class FaultyLink(Model):
    """Two healthy nodes that do not work with each other."""

    a: Name
    b: Name
    symptom: Annotated[str, Field(max_length=32)]
    """`failed` or `slow`."""
    message: Text = ""
    """The evidence, in a sentence."""
    action: Action | None = None

    def __str__(self) -> str:
        return f"{self.a}–{self.b}"

    @property
    def link(self) -> frozenset[str]:
        return frozenset((self.a, self.b))


class FaultyDomain(Model):
    """Rack or switch to examine before its nodes."""

    level: Annotated[str, Field(max_length=317)]
    """Node label."""
    name: Name
    """Value of the label."""
    nodes: NodeNames
    message: Text = ""
    """The evidence, in a sentence."""

    def __str__(self) -> str:
        return f"{self.level}={self.name}"
