"""`spec.failurePolicy`: rules of a job's owner for particular failures, by exit code or Pod condition."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Model, cel, rules

MAX_PATTERN = 256
"""Characters of a pattern. What its rules cannot say of its cost, the job's reconciler says in a warning."""


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
    """Container whose exit codes match; by default a training process, or the container to blame."""
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
    """The status that the condition has to have."""


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
    """Conditions of the Pod, one of which has to be there. With other matchers, all must match."""
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
    """A regular expression (RE2), searched in the failure text. All patterns of a job are
    small together. With other matchers, all must match."""


class FailurePolicy(Model):
    """What to do about particular failures."""

    rules: Annotated[
        list[FailureRule], Field(max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """Rules in their order: the first that matches decides."""
