"""What a check finds: a verdict on each node, and the links and racks that are at fault.

A `Finding` is made once, by the diagnosis or of a worker's end, and passed on as it is: to the status of the
NodeCheck, to the Node's annotations and conditions, and to the condition of the job.
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
"""By metric (`healthcheck.measurements.Metric`), which names the unit; compute and network apart."""


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    STRAGGLER = "Straggler"
    INCONCLUSIVE = "Inconclusive"
    """It may be at fault, and nothing proves or disproves it. Only a person acts on this."""


UNHEALTHY = (Verdict.FAULTY, Verdict.STRAGGLER, Verdict.INCONCLUSIVE)
"""The verdicts whose nodes a check keeps, the worst first; its other nodes are healthy."""
WORST_FIRST = (*UNHEALTHY, Verdict.HEALTHY)


class Cause(StrEnum):
    """What a verdict other than Healthy rests on."""

    LOCAL_TEST = "LocalTest"
    NO_ANSWER = "NoAnswer"
    PAIR_TEST = "PairTest"
    CRASHED = "Crashed"
    """A signal ended its own probe again and again, as its agent reports."""
    SLOW_COMPUTE = "SlowCompute"
    """A figure of the node's own: GEMM, copies, the collective inside the node."""
    SLOW_NETWORK = "SlowNetwork"
    WITHDRAWN = "Withdrawn"
    """It could not be tested to the end."""
    INTERMITTENT = "Intermittent"
    """Failures in several checks, by the node's record."""
    NODE_CONDITION = "NodeCondition"
    """A condition of the Node's own."""
    HARDWARE_ERROR = "HardwareError"
    """The last Pod of a worker ended on the node with a hardware error."""


PASSED_BY_LUCK = frozenset({Cause.PAIR_TEST, Cause.INTERMITTENT})
"""Causes of faults that later tests may pass by luck."""


class Finding(Model):
    """The verdict on one node, and what it rests on."""

    node: Name
    verdict: Verdict
    causes: Annotated[tuple[Cause, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """What the verdict rests on; none of a healthy node."""
    message: Text = ""
    """The evidence, in a sentence."""
    action: Action | None = None
    """What to do first. None if it is healthy."""
    figures: Figures = Field(default_factory=dict)
    """What the node measured by itself; what it measured with others is in `rounds`."""
    # The rest is in no status of a NodeCheck, which has it elsewhere: only with the Node.
    time: SkipJsonSchema[AwareDatetime] = NEVER
    """End of the check, or of the worker."""
    source: SkipJsonSchema[str] = ""
    """`namespace/name` of the NodeCheck, or of the ElasticWorker if the cause is HardwareError."""
    uid: SkipJsonSchema[str] = ""
    """First characters of the uid of the NodeCheck."""
    passed: SkipJsonSchema[Count] = 0
    """Tests with others that passed."""
    failed: SkipJsonSchema[Count] = 0
    """Tests with others that failed, whatever was to blame."""
    failed_with: SkipJsonSchema[tuple[str, ...]] = ()
    """Partners in failed tests that nothing else explains."""

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
        """Whether it has a time that can be counted from, as each that is kept with a Node has."""
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
        """Whether the node is faulty though it also passed tests with others: then it passes most checks."""
        by_tests = not self.causes or not PASSED_BY_LUCK.isdisjoint(self.causes)
        return self.verdict is Verdict.FAULTY and by_tests and self.passed > 0


DROPPED = {Cause.LOCAL_TEST: Verdict.FAULTY, Cause.NO_ANSWER: Verdict.INCONCLUSIVE}
"""Verdicts on nodes that drop out at the local tests of an unfinished check."""


def dropped(node: str, cause: Cause, message: str = "", action: Action | None = None) -> Finding:
    """A node that drops out at the local tests; the final verdict comes with the others."""
    text = message[:MAX_TEXT]
    return Finding(node=node, verdict=DROPPED[cause], causes=(cause,), message=text, action=action)


class FaultyLink(Model):
    """Two nodes that are well, and do not work with each other."""

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
    """A rack or switch to look at before its nodes."""

    level: Annotated[str, Field(max_length=317)]
    """The node label."""
    name: Name
    """Its value."""
    nodes: NodeNames
    message: Text = ""
    """The evidence, in a sentence."""

    def __str__(self) -> str:
        return f"{self.level}={self.name}"
