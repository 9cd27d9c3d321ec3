"""Ranks that differ from the others, with their nodes: lost, silent, hanging, far behind, slow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from controller.wording import counted, some_of
from crds import names
from crds.grouping import is_grouped
from crds.ranges import as_ranges, from_ranges
from dlr.job import report
from dlr.job.case import Case
from dlr.job.report import condition_of, current_report
from dlr.job.wording import significant
from dlr.kube.api import JSON
from reconcilers.observed.worker_state import AGENT_HEARD, HEARTBEAT_ON_TIME

MOST_RUNS = 6
"""Most runs of ranks that a sentence names."""
MOST_NODES = 4
"""Most nodes that a sentence names."""
SLOW_RATIO = 1.25
"""Ratio of a worker's step time to the median above which it is slow."""
FEWEST_SPEEDS = 3
"""Fewest workers whose step times are compared."""
HANGING = "Hanging"
Index = int


@dataclass(frozen=True)
class OddRanks:
    what: str
    """Kind of difference, in a word or two."""
    tone: str
    """A word with its tone."""
    text: str
    """Ranks, nodes, and the size of the difference."""
    indices: frozenset[Index]

    def __str__(self) -> str:
        return f"{self.what}: {self.text}"


def odd_ranks(case: Case) -> list[OddRanks]:
    """Return the kinds of odd ranks, the gravest first; none for a job that has ended or has replica groups.

    Behaviour of most workers is not odd: while all Pods start, none is late.
    """
    if report.is_finished(case.job) or is_grouped(case.job):
        return []
    workers = [each for each in case.workers if each["spec"]["type"] == names.WORKER]
    return [each for rule in RULES for each in rule(case, workers)]


def places(case: Case, workers: Sequence[JSON]) -> str:
    """Return workers with their nodes, such as `ranks 40-47 on node-2`; those without a rank by index."""
    rank_of = report.ranks(case.job)
    indices = [each["spec"]["index"] for each in workers]
    ranked = sorted(rank_of[index] for index in indices if index in rank_of)
    others = sorted(index for index in indices if index not in rank_of)
    who = [*_numbered("rank", ranked), *_numbered("worker", others)]
    nodes = list(dict.fromkeys(filter(None, map(_node_of, workers))))
    where = f" on {some_of(nodes, MOST_NODES)}" if nodes else ""
    return " and ".join(who) + where


def _numbered(noun: str, numbers: Sequence[int]) -> list[str]:
    if not numbers:
        return []
    runs = as_ranges(numbers).split(",")
    shown, rest = ",".join(runs[:MOST_RUNS]), ",".join(runs[MOST_RUNS:])
    more = f" and {len(from_ranges(rest))} more" if rest else ""
    return [f"{noun}{'s' if len(numbers) > 1 else ''} {shown}{more}"]


def _node_of(worker: JSON) -> str:
    status = worker.get("status") or {}
    return str(status.get("nodeName") or (status.get("lastExit") or {}).get("nodeName") or "")


def _odd(
    case: Case, what: str, tone: str, workers: Sequence[JSON], by: str = "", *, of: int | None = None
) -> Iterator[OddRanks]:
    """Yield the workers as one kind, if there are any, and at most half as many as `of`."""
    if workers and (of is None or 2 * len(workers) <= of):
        text = places(case, workers) + (f", {by}" if by else "")
        yield OddRanks(what, tone, text, frozenset(each["spec"]["index"] for each in workers))


def _lost(case: Case, workers: Sequence[JSON]) -> Iterator[OddRanks]:
    """Yield workers whose Pod has ended, or whose new Pod does not run yet."""
    down = [each for each in workers if not _is_up(each)]
    lost = [each for each in down if (end := _last_end(each)) and not end.get("planned")]
    left = [each for each in down if _last_end(each).get("planned")]
    classes = dict.fromkeys(str(_last_end(each)["exitClass"]) for each in lost)
    yield from _odd(case, "Lost", "Failed", lost, some_of(list(classes), MOST_NODES))
    yield from _odd(case, "Moving", "Starting", left, "by a planned change")
    late = [each for each in down if not _last_end(each)]
    yield from _odd(case, "Not up", "Pending", late, of=len(workers))


def _is_up(worker: JSON) -> bool:
    return (worker.get("status") or {}).get("phase") in ("Running", "Succeeded")


def _last_end(worker: JSON) -> JSON:
    """Return the end of the present Pod or of the one before it; {} without any."""
    end: JSON = (worker.get("status") or {}).get("lastExit") or {}
    return end if end.get("incarnation", 0) >= worker["spec"].get("incarnation", 1) - 1 else {}


def _silent(case: Case, workers: Sequence[JSON]) -> Iterator[OddRanks]:
    """Yield workers whose agents miss heartbeats, or do not answer the others of their world."""
    unheard = _unheard_by_peers(case)
    silent = [
        each
        for each in workers
        if _is_up(each)
        and (
            (each["spec"]["index"], each["spec"].get("incarnation")) in unheard
            or any(condition_of(each, type_, "False") for type_ in (AGENT_HEARD, HEARTBEAT_ON_TIME))
        )
    ]
    yield from _odd(case, "Silent", "Warning", silent)


def _unheard_by_peers(case: Case) -> Collection[tuple[Index, int]]:
    found = (each for _, agent in case.reports for each in agent.get("silentPeers") or ())
    return {(each["index"], each["incarnation"]) for each in found}


def _hanging(case: Case, workers: Sequence[JSON]) -> Iterator[OddRanks]:
    """Yield workers with a process that does not wait as others do; without stacks, the furthest behind."""
    if not (case.world.get("hangSince") or case.stall):
        return
    apart = [each for each in workers if any(not stack.get("inCollective") for stack in _stacks(case, each))]
    waits = any(stack.get("inCollective") for each in workers for stack in _stacks(case, each))
    if apart and waits:
        yield from _odd(case, HANGING, "Failed", apart, "the others wait")
        return
    steps = {worker["spec"]["index"]: each["step"] for worker, each in case.telling if "step" in each}
    least = min(steps.values(), default=0)
    behind = [each for each in workers if steps.get(each["spec"]["index"]) == least]
    yield from _odd(case, "Furthest behind", "Warning", behind, f"at step {least}", of=len(steps))


def _stacks(case: Case, worker: JSON) -> Sequence[JSON]:
    """Return the stacks of a worker's processes, by request or from the detection of a hang."""
    agent = current_report(worker)
    failure = agent.get("failure") or {}
    of_round = failure.get("stacks") or () if failure.get("round") == case.world.get("round") else ()
    return [*of_round, *((agent.get("askedStacks") or {}).get("stacks") or ())]


def _behind(case: Case, _: Sequence[JSON]) -> Iterator[OddRanks]:
    yield from _odd(case, "Far behind", "Warning", case.far_behind, _steps_behind(case))


def _steps_behind(case: Case) -> str:
    steps = [each.step for each in case.paces]
    return f"up to {max(steps, default=0) - min(steps, default=0)} steps"


def _slow(case: Case, workers: Sequence[JSON]) -> Iterator[OddRanks]:
    rank_of = report.ranks(case.job)
    found = {each["spec"]["index"]: speed for each in workers if (speed := _speed(each))}
    speeds: Mapping[Index, float] = {index: speed for index, speed in found.items() if index in rank_of}
    if len(speeds) < FEWEST_SPEEDS:
        return
    usual = median(speeds.values())
    slow = [each for each in workers if speeds.get(each["spec"]["index"], 0.0) > SLOW_RATIO * usual]
    most = max(speeds.values()) / usual
    yield from _odd(
        case,
        "Slow",
        "Straggler",
        slow,
        f"up to {significant(most)} times the usual {significant(usual)} s a step",
    )


def _speed(worker: JSON) -> float | None:
    speed: float | None = (current_report(worker).get("progress") or {}).get("secondsPerStep")
    return speed


RULES: tuple[Callable[[Case, Sequence[JSON]], Iterator[OddRanks]], ...] = (
    _lost,
    _silent,
    _hanging,
    _behind,
    _slow,
)
"""Rules, the gravest first."""


def ranks_behind(case: Case) -> str:
    """Describe how many workers are far behind and where; without their reports, by the warning."""
    if not case.far_behind:
        return str((case.warning("RanksBehind") or {}).get("message", ""))
    members, where = len(report.members_of(case.world)) or len(case.workers), places(case, case.far_behind)
    who = f"{case.behind} of {counted(members, 'worker')} {'is' if case.behind == 1 else 'are'}"
    return f"{who} far behind the others: {where}, {_steps_behind(case)}"
