"""What failures may cost before the job fails, and how long the next world waits after one.

A budget begins afresh when training gets further than ever before. The job has one for processes that failed
in place, each worker one for its Pods that ended. Each class has `restartCount` of its own; UserError and
Unknown share one. The same error of the program three times in a row fails the job, unless training made
steps in between from an unknown one: then it may have got further, and only the budget ends it. A failure
that only follows from a peer's spends nothing, but ten in a row are enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from crds.elasticworker import ExitClass
from crds.failure_policy import FailureAction
from crds.job_spec import ElasticPolicy
from crds.job_status import MAX_SIGNATURE, FailureBudget
from crds.texts import shortened
from reconcilers.failure.meaning import meaning_of

_VARYING = re.compile(
    r"""
    \b0x[0-9a-fA-F]+                                        # addresses
  | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
  | \b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{7,}\b                # digests
  | (?<=tmp)[A-Za-z0-9_]{6,}                                # what tempfile and mktemp make up
  | (?<=/tmp/)[^\s/'":]+
  | [-+]?\d+(?:[.:,]\d+)*(?:[eE][-+]?\d+)?                  # numbers, times, IPv4 addresses with ports
    """,
    re.VERBOSE,
)


def signature_of(message: str) -> str:
    """First line of the message, with a # for every number, address, digest and temporary name."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return shortened(_VARYING.sub("#", first), MAX_SIGNATURE)


ALIKE_LIMIT = 3
CONSEQUENCES_LIMIT = 10
MAX_HOLD_SECONDS = 30.0
LASTING_SECONDS = 60.0
"""After a world that lasted so long, the next waits for nothing."""
LASTING_UNTIL_KILLED_SECONDS = 5.0
"""The same, where training was killed from outside: the program is well, and waiting would cure nothing.
After a shorter one the next waits all the same, since kills spend no budget: whatever kills each start would
otherwise make rounds without a pause and without an end."""
FIRST_WORD_SECONDS = 1.0
"""Wait of the world for the first failure, when every reported one only follows from another."""
KILLED = "training was killed from outside"


@dataclass(frozen=True)
class Failed:
    """What a budget has to know of a failure."""

    exit_class: ExitClass
    message: str
    reached: int | None
    """The highest step reported by now."""
    action: FailureAction | None = None
    """The action of the rule that matched."""
    follows: bool = False
    """All that shows is that it follows from a peer's."""
    start_unknown: bool = False
    """Training made steps before it, and the one that it began with is unknown."""


@dataclass(frozen=True)
class Overdrawn:
    """Why the job must fail: the condition's reason, and a sentence."""

    reason: str
    text: str


def after(budget: FailureBudget | None, failed: Failed) -> FailureBudget:
    """The budget with this failure in it; `held_until` is left to `with_hold`."""
    start = _ground(budget or FailureBudget(), failed.reached)
    if failed.follows:
        return start.model_copy(update={"consequences": start.consequences + 1})
    last: dict[str, object] = {
        "exit_class": failed.exit_class.value,
        "ignored": failed.action is FailureAction.IGNORE or None,
        "signature": signature_of(failed.message),
    }
    spent = dict(start.spent)
    if not meaning_of(failed.exit_class).free and not last["ignored"]:
        spent[failed.exit_class.value] = spent.get(failed.exit_class.value, 0) + 1
    is_alike = start.model_copy(update=last) == start and not failed.start_unknown
    last["alike"] = start.alike + 1 if is_alike else 1
    last["start_unknown"] = start.start_unknown or failed.start_unknown or None
    return start.model_copy(update={**last, "spent": spent, "consequences": 0})


def without(budget: FailureBudget, exit_class: str) -> FailureBudget:
    """The budget before its last failure, of this class, whose place another one takes."""
    if budget.consequences:
        return budget.model_copy(update={"consequences": 0})
    spent = {name: count - (name == exit_class) for name, count in budget.spent.items()}
    left = {name: count for name, count in spent.items() if count}
    return budget.model_copy(update={"spent": left, "alike": max(budget.alike - 1, 0)})


def explained(budget: FailureBudget) -> FailureBudget:
    """The budget once the first failure is found: what followed from it counts no more."""
    return budget.model_copy(update={"consequences": 0, "held_until": None})


def with_hold(
    budget: FailureBudget, heartbeat_timeout_seconds: float, now: datetime, lasted_seconds: float = 0.0
) -> FailureBudget:
    """The budget after a failure at `now`, with how long the next world waits.

    Not at all after a world that lasted: waiting is for failures that follow each other quickly, and a script
    that tells no steps has no new ground to show. Kills after such worlds are not added up either.
    """
    lasting_seconds = LASTING_UNTIL_KILLED_SECONDS if _was_free(budget) else LASTING_SECONDS
    lasted = lasted_seconds >= lasting_seconds and not budget.consequences
    if lasted and _was_free(budget):
        budget = budget.model_copy(update={"alike": 1})
    wait = 0.0 if lasted else hold_seconds(budget, heartbeat_timeout_seconds)
    until = now + timedelta(seconds=wait) if wait else None
    return budget.model_copy(update={"held_until": until})


def hold_seconds(budget: FailureBudget, heartbeat_timeout_seconds: float) -> float:
    """0, 1, 2, 4 … 30: the first failure since new ground waits for nothing.

    Where nobody knows who was first, a dead node may be about to be noticed: so the third of these on waits a
    quarter of the time that this takes, and the tenth comes after it.
    """
    following = budget.consequences
    if not following:
        return _doubling((budget.alike if _was_free(budget) else failures(budget)) - 1)
    if following == 1:
        return FIRST_WORD_SECONDS
    return max(_doubling(following), heartbeat_timeout_seconds / 4 if following > 2 else 0.0)


def longest_hold_seconds(policy: ElasticPolicy) -> float:
    """The longest that a world of such a job is held."""
    return max(MAX_HOLD_SECONDS, policy.heartbeat_timeout_seconds / 4)


def why_held(budget: FailureBudget) -> str:
    """Return the budget's part of the world's reason."""
    if budget.consequences:
        return "to learn who failed first"
    if _was_free(budget):
        is_damage = budget.exit_class == ExitClass.DAMAGED_CHECKPOINT
        why = "checkpoints in memory were damaged" if is_damage else KILLED
        soon = f"each time within {LASTING_UNTIL_KILLED_SECONDS:.0f} s"
        return f"because {why} {_times(budget.alike)} in a row, {soon}"
    return f"because training failed {_times(failures(budget))} {without_progress(budget.start_unknown)}"


def without_progress(start_unknown: bool | None) -> str:
    """Say that failures came without progress in between, or that none is known."""
    return "without known progress (StartUnknown)" if start_unknown else "without getting further"


def failures(budget: FailureBudget) -> int:
    """Count failures since new ground; those that spend nothing only while they are the same."""
    return max(sum(budget.spent.values()), budget.alike)


def overdrawn(budget: FailureBudget | None, allowed: int, who: str) -> Overdrawn | None:
    """Why the job must fail, or None."""
    if budget is None:
        return None
    is_repeatable = meaning_of(budget.exit_class).repeatable and not budget.ignored
    if budget.alike >= ALIKE_LIMIT and is_repeatable:
        text = f"{who} failed {_times(budget.alike)} in a row by the same error without getting further"
        return Overdrawn("SameErrorRepeated", text)
    if budget.consequences >= CONSEQUENCES_LIMIT:
        times = _times(budget.consequences)
        text = f"{who} failed {times} in a row because a peer was gone, and none is known to have failed"
        return Overdrawn("SameErrorRepeated", text)
    for purse in _purses(budget):
        if (count := sum(budget.spent[name] for name in purse)) > allowed:
            text = f"{who} failed {_times(count)} by {' and '.join(purse)}"
            ground = without_progress(budget.start_unknown)
            return Overdrawn("RestartLimitExceeded", f"{text} {ground}, with restartCount {allowed}")
    return None


def _was_free(budget: FailureBudget) -> bool:
    """Whether the last failure in place was not the program's doing: a kill from outside, a damaged
    checkpoint."""
    return meaning_of(budget.exit_class).free and not budget.consequences


def _ground(budget: FailureBudget, reached: int | None) -> FailureBudget:
    """Afresh, if training got further than ever before the last failure."""
    if reached is None or (budget.step is not None and reached <= budget.step):
        return budget
    return FailureBudget(step=reached)


def _purses(budget: FailureBudget) -> list[list[str]]:
    """The classes that have spent something, those together that share a count."""
    shared = [name for name in sorted(budget.spent) if meaning_of(name).shares_count]
    return [[name] for name in budget.spent if name not in shared] + [shared] * bool(shared)


def _doubling(number: int) -> float:
    """0 for none, then 1, 2, 4 … s."""
    return 0.0 if number < 1 else min(2.0 ** min(number - 1, 10), MAX_HOLD_SECONDS)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
