"""docs/events.md names every reason of an Event, every condition and every warning of the code, and no other."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

from crds import names
from crds.job_status import MAX_WARNINGS
from crds.scaleplan import ScalePlanPhase
from reconcilers.groups import warnings as groups_warnings
from reconcilers.nodecheck.condition import KIND
from reconcilers.nodecheck.scope import FailedReason
from reconcilers.observed.conditions import FAILURE_TARGET
from reconcilers.observed.worker_state import REFUSALS
from reconcilers.roles.conditions import TABLE
from reconcilers.runtime.reconciled import RECONCILED
from reconcilers.shards.messages import SHARDS_DONE

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("reconcilers", "controller") for p in sorted((ROOT / folder).rglob("*.py"))]
PAGE = (ROOT / "docs" / "events.md").read_text()

COMPUTED = {
    ("companions.py", "f'{kind}Refused'"): {
        "PodGroupRefused",
        "PodDisruptionBudgetRefused",
        "NetworkPolicyRefused",
        "ServiceRefused",
    },
    ("acts.py", "WRITE_REFUSED"): {"WriteRefused"},
    ("acts.py", "event.reason"): set(),  # passes on what plans say
    ("events.py", "end.reason"): {"TrainingSucceeded", "DeadlineExceeded", "ShardsFailed", "<Overdrawn>"},
    ("plan.py", "warning.type"): set(groups_warnings.WARNINGS),
    ("plan.py", "status.reason"): {"TrainingSucceeded", "GroupsFailed", "DeadlineExceeded"},
    ("messages.py", "SHARDS_DONE"): {"ShardsDone"},
    ("reconciled.py", "REASON"): {"Unreadable"},
    ("growth.py", "GIVEN_BACK"): {"ExtraWorkersGivenBack"},
    ("condition.py", "new.reason"): {
        *("AllHealthy", "FaultyNodes", "FaultyLinks", "Stragglers", "Inconclusive", "CheckFailed"),
        *("Checking", "CheckRefused", "CheckGone", "CheckInterrupted"),
    },
    ("table.py", "now.reason if each.by_reason and now.reason else now.type"): {
        *(kind.type for kind in TABLE.warnings if kind.event and not kind.by_reason),
        *REFUSALS,
        *("Unschedulable", "GangUnavailable", "PodGroupTaken", "WaitingForPodGroup", "PodGroupIncomplete"),
        *(
            "WaitingForDeletion",
            "EarlierPodStuck",
            "NamesTaken",
            "ImagePullBackOff",
            "CreateContainerConfigError",
            "FailedMount",
        ),
    },
    ("table.py", "reason"): {kind.over[0] for kind in TABLE.warnings if kind.over},
    ("workers.py", "memory.reason"): {"MemoryRaised", "MemoryNotRaised"},
    ("profile.py", "reason"): {"ProfileTaken", "NoProfile"},
    ("life.py", "NO_REPLICAS"): {"NoReplicas"},
    ("reconciler.py", "refusal.reason"): {reason.value for reason in FailedReason},
    ("reconciler.py", "statement.event_reason"): {
        *("Cordoned", "CordonHeld", "CordonReported", "CordonLifted", "CordonOverruled", "VerdictGone"),
        *("Suspected", "SuspicionLifted"),
    },
    ("verdicts.py", "reason"): {
        *(phase.value for phase in ScalePlanPhase if phase is not ScalePlanPhase.REFUSED),
        "<ScaleRefusal>",
    },
}
"""By module and expression, what it may come to; `<Name>`: the first argument of all calls of that name."""

CONDITIONS_OF = {
    "type_": {
        *("Succeeded", "Failed", "Healthy", "Running"),
        *("NodesTested", "NodesAlike", "AcceleratorsTested"),
    }
}


@cache
def calls() -> list[tuple[Path, str, ast.Call]]:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                function = node.func
                name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
                found.append((path, name, node))
    return found


def literals(node: ast.expr) -> set[str] | None:
    if isinstance(node, ast.IfExp):
        one, other = literals(node.body), literals(node.orelse)
        return None if one is None or other is None else one | other
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def first_arguments(wanted: str) -> set[str]:
    """Of scale plans' refusals, and of what overdraws a budget."""
    found = (literals(call.args[0]) for _, name, call in calls() if name == wanted and call.args)
    return set[str]().union(*(each for each in found if each))


def told() -> set[str]:
    reasons: set[str] = set()
    for path, name, call in calls():
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if name not in ("event", "Event") or starred or len(call.args) < 3:
            continue
        expression = call.args[1 if len(call.args) == 3 else 2]
        found = literals(expression)
        if found is None:
            key = (path.name, ast.unparse(expression))
            assert key in COMPUTED, f"say in COMPUTED what {key} may come to"
            found = COMPUTED[key]
        for each in found:
            reasons |= first_arguments(each.strip("<>")) if each.startswith("<") else {each}
    return reasons


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([A-Za-z]+)`", cell)}


def test_every_reason_of_an_event_is_documented_and_no_other() -> None:
    assert quoted([row[1] for row in rows("Events")]) == told()


def test_every_condition_is_documented() -> None:
    types = {names.CONDITION_UNHEALTHY, names.CONDITION_SUSPECTED, RECONCILED}
    types |= {kind.type for kind in (*TABLE.conditions, KIND)} | {FAILURE_TARGET, SHARDS_DONE}
    for path, name, call in calls():
        if name in ("with_condition", "_shown"):
            said = ast.unparse(call.args[1])
            module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            types |= CONDITIONS_OF.get(said) or {getattr(module, said)}
    assert quoted([row[1] for row in rows("Conditions")]) == types


def test_every_warning_is_documented() -> None:
    assert quoted([row[0] for row in rows("Warnings")]) == {
        *(kind.type for kind in TABLE.warnings),
        *groups_warnings.WARNINGS,
    }


def test_a_job_has_eleven_types_of_conditions_at_most_and_no_more_warnings_than_its_status_holds() -> None:
    assert (
        len({kind.type for kind in (*TABLE.conditions, KIND)} | {RECONCILED, FAILURE_TARGET, SHARDS_DONE})
        <= 11
    )
    assert len({kind.type for kind in TABLE.warnings}) == len(TABLE.warnings) <= MAX_WARNINGS


def test_reasons_of_conditions_that_are_said_in_the_code_are_documented() -> None:
    places = {"with_condition": 3, "_shown": 2, "ConditionState": 1}
    found = (literals(call.args[places[name]]) for _, name, call in calls() if name in places)
    reasons = set[str]().union(*(each for each in found if each))
    assert reasons <= quoted([row[2] for row in rows("Conditions")])
