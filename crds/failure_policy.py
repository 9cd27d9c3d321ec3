"""`spec.failurePolicy`: rules of a job's owner for particular failures, by exit code or Pod condition."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Model, cel, rules


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
    operator: ExitCodeOperator
    values: Annotated[
        list[Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]],
        Field(min_length=1, max_length=255, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]


class OnPodCondition(Model):
    """Matches a condition of the Pod."""

    type: Annotated[str, Field(max_length=316)]
    status: Annotated[str, Field(max_length=16)] = "True"


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
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: Annotated[
        list[OnPodCondition], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    on_message_pattern: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=1_024,
                json_schema_extra=rules(
                    cel("''.matches(self) in [true, false]", "must be a regular expression (RE2)")
                ),
            ),
        ]
        | None
    ) = None
    """A regular expression (RE2), searched in the failure text. With other matchers, all must match."""


class FailurePolicy(Model):
    """What to do about particular failures."""

    rules: Annotated[
        list[FailureRule], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
