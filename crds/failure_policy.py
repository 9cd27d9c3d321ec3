"""`spec.failurePolicy`: rules for particular failures, by exit code, Pod condition or message."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Model, cel, rules

MAX_PATTERN = 256
"""Characters of a pattern. The job's reconciler warns of costs that the CRD's rules cannot check."""


class FailureAction(StrEnum):
    RESTART = "Restart"
    REPLACE = "Replace"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"


class ExitCodeOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"


class OnExitCodes(Model):
    """Matches a container's exit code."""

    container_name: Annotated[str, Field(max_length=63)] | None = None
    """Container whose exit code is compared; by default, the training process or container that failed."""
    operator: ExitCodeOperator
    """Comparison: with In the exit code is one of `values`, with NotIn it is none of them."""
    values: Annotated[
        list[Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]],
        Field(min_length=1, max_length=255, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]
    """Exit codes; signal 9 is -9 or 137."""


class OnPodCondition(Model):
    """Matches a condition of the Pod."""

    type: Annotated[str, Field(max_length=316)]
    """The condition's type, such as DisruptionTarget."""
    status: Annotated[str, Field(max_length=16)] = "True"
    """Status that the condition must have."""


class FailureRule(Model):
    """One rule, as in a Job's podFailurePolicy: the first rule that matches decides."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.onExitCodes) || has(self.onMessagePattern) || "
                "(has(self.onPodConditions) && size(self.onPodConditions) > 0)",
                "a rule needs onExitCodes, onPodConditions or onMessagePattern",
            )
        )
    )

    action: FailureAction
    """Restart: in place if the Pod lives, else a new Pod. Replace: a new Pod, preferably on another node.
    FailJob: the job fails at once. Ignore: as Restart, and the failure is not counted."""
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: Annotated[
        list[OnPodCondition], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """Conditions of the Pod, one of which must be present. All matchers of a rule must match."""
    on_message_pattern: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_PATTERN,
                json_schema_extra=rules(
                    cel("''.matches(self) in [true, false]", "must be a regular expression (RE2)"),
                    cel(
                        r"!self.matches('(^|[^\\\\])(\\\\\\\\)*\\\\[pP]')",
                        r"may have no class of Unicode characters (\p): write the characters, as [a-zé]",
                    ),
                    cel(
                        r"!self.matches('\\{([0-9]*,)?[0-9]{3}')",
                        "may repeat by counts below 100: use * or + instead",
                    ),
                ),
            ),
        ]
        | None
    ) = None
    """Regular expression (RE2), searched in the failure's text. All patterns of a job together must be small.
    All matchers of a rule must match."""


class FailurePolicy(Model):
    """What to do about particular failures."""

    rules: Annotated[
        list[FailureRule], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """Rules in their order: the first that matches decides."""
