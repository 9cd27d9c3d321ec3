"""Failure budgets: how many failures end the job, and how long the next world waits after one.

A budget starts over when training gets further than ever before. The job has a budget for processes that
failed in place, and each worker has one for its Pods that ended. `restartCount` applies to each class alone;
only UserError and Unknown share a count. The same error of the program three times in a row fails the job,
unless training made steps in between that began with an unknown one: then it may have got further, and only
`restartCount` ends it. A failure that only follows from a peer's costs nothing, but ten in a row end the job.
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
"""Life of a world after which the next one does not wait."""
LASTING_UNTIL_KILLED_SECONDS = 5.0
"""The same if training was killed from outside: the program is well, and a wait would not help. After a
shorter life the next world waits all the same: kills cost nothing, so if something killed every start, there
would be endless rounds without a pause."""
FIRST_WORD_SECONDS = 1.0
"""Wait for the report of the first failure, when every reported one only follows from another."""
KILLED = "training was killed from outside"


@dataclass(frozen=True)
class Failed:
    """Properties of a failure that count for a budget."""

    exit_class: ExitClass
    message: str
    reached: int | None
    """The highest step reported so far."""
    action: FailureAction | None = None
    """The action of the rule that matched."""
    follows: bool = False
    """Whether it is only a consequence of a peer's failure."""
    start_unknown: bool = False
    """Whether training made steps before it and began with an unknown one."""


@dataclass(frozen=True)
class Overdrawn:
    """Reason and sentence of the condition of a job that must fail."""

    reason: str
    text: str


def after(budget: FailureBudget | None, failed: Failed) -> FailureBudget:
    """Return the budget after this failure; `with_hold` sets `held_until`."""
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
    """Return the budget without its last failure, of this class, which another one replaces."""
    if budget.consequences:
        return budget.model_copy(update={"consequences": 0})
    spent = {name: count - (name == exit_class) for name, count in budget.spent.items()}
    left = {name: count for name, count in spent.items() if count}
    return budget.model_copy(update={"spent": left, "alike": max(budget.alike - 1, 0)})


def explained(budget: FailureBudget) -> FailureBudget:
    """Return the budget once the first failure is found: its consequences no longer count."""
    return budget.model_copy(update={"consequences": 0, "held_until": None})


def with_hold(
    budget: FailureBudget, heartbeat_timeout_seconds: float, now: datetime, lasted_seconds: float = 0.0
) -> FailureBudget:
    """Return the budget after a failure at `now`, with the wait of the next world.

    After a world that lasted, there is none: waits are for failures in quick succession, and a script that
    reports no steps cannot show progress. Kills after such worlds are not added up either.
    """
    lasting_seconds = LASTING_UNTIL_KILLED_SECONDS if _was_free(budget) else LASTING_SECONDS
    lasted = lasted_seconds >= lasting_seconds and not budget.consequences
    if lasted and _was_free(budget):
        budget = budget.model_copy(update={"alike": 1})
    wait = 0.0 if lasted else hold_seconds(budget, heartbeat_timeout_seconds)
    until = now + timedelta(seconds=wait) if wait else None
    return budget.model_copy(update={"held_until": until})


def hold_seconds(budget: FailureBudget, heartbeat_timeout_seconds: float) -> float:
    """Return the wait: 0, 1, 2, 4 … 30 s; none for the first failure since the last progress.

    If the first failure is unknown, a dead node may not have been noticed yet. So from the third such failure
    on, the wait is at least a quarter of the heartbeat time-out, and the tenth comes after all of it.
    """
    following = budget.consequences
    if not following:
        return _doubling((budget.alike if _was_free(budget) else failures(budget)) - 1)
    if following == 1:
        return FIRST_WORD_SECONDS
    return max(_doubling(following), heartbeat_timeout_seconds / 4 if following > 2 else 0.0)


def longest_hold_seconds(policy: ElasticPolicy) -> float:
    """Return the longest wait of a world of such a job."""
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
    """Return the words for failures without progress in between, or without any that is reported."""
    return "without known progress (StartUnknown)" if start_unknown else "without getting further"


def failures(budget: FailureBudget) -> int:
    """Count failures since the last progress; free ones only while they are the same."""
    return max(sum(budget.spent.values()), budget.alike)


def overdrawn(budget: FailureBudget | None, allowed: int, who: str) -> Overdrawn | None:
    """Return why the job must fail; None if it need not."""
    if budget is None:
        return None
    is_repeatable = meaning_of(budget.exit_class).repeatable and not budget.ignored
    if budget.alike >= ALIKE_LIMIT and is_repeatable:
        text = f"{who} failed {_times(budget.alike)} in a row by the same error without getting further"
        return Overdrawn("SameErrorRepeated", text)
    if budget.consequences >= CONSEQUENCES_LIMIT:
        times = _times(budget.consequences)
        text = f"{who} failed {times} in a row because a peer was gone, and no first failure was reported"
        return Overdrawn("SameErrorRepeated", text)
    for purse in _purses(budget):
        if (count := sum(budget.spent[name] for name in purse)) > allowed:
            text = f"{who} failed {_times(count)} by {' and '.join(purse)}"
            ground = without_progress(budget.start_unknown)
            return Overdrawn("RestartLimitExceeded", f"{text} {ground}, with restartCount {allowed}")
    return None


def _was_free(budget: FailureBudget) -> bool:
    """Whether the last failure in place was not the program's: a kill from outside, a damaged checkpoint."""
    return meaning_of(budget.exit_class).free and not budget.consequences


def _ground(budget: FailureBudget, reached: int | None) -> FailureBudget:
    """Return an empty budget if training got further than ever before, else the present one."""
    if reached is None or (budget.step is not None and reached <= budget.step):
        return budget
    return FailureBudget(step=reached)


def _purses(budget: FailureBudget) -> list[list[str]]:
    """Return the classes with failures that count, grouped where they share a count."""
    shared = [name for name in sorted(budget.spent) if meaning_of(name).shares_count]
    return [[name] for name in budget.spent if name not in shared] + [shared] * bool(shared)


def _doubling(number: int) -> float:
    """Return 0 for none, then 1, 2, 4 … s."""
    return 0.0 if number < 1 else min(2.0 ** min(number - 1, 10), MAX_HOLD_SECONDS)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
