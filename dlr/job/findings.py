"""Findings about a job: what is wrong and why, the gravest first. Pure.

Each rule looks for one kind of trouble, and yields it with advice and its part in the text of the verdict
(`verdict.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from controller.wording import counted, first_line, holders, some_of
from crds.checkpoint_files import SAVER_PROCESS
from crds.elasticworker import ExitClass
from crds.grouping import group_name, is_grouped
from crds.job_status import JobState
from crds.ranges import as_ranges
from dlr.job import report
from dlr.job.advice import (
    CANNOT_START,
    DELETED_NODE_ADVICE,
    FEWER_WORKERS,
    GROWS,
    LAUNCHER_ADVICE,
    SLOW_ADVICE,
    TOO_LARGE_ADVICE,
    TROUBLE_ADVICE,
    UNSCHEDULABLE,
    WAITS,
    WITHOUT_LAUNCHER,
    too_large,
)
from dlr.job.case import Case, Sentence, sentence
from dlr.job.failures import Culprit, are_near, failures_of
from dlr.job.nodes import check_findings
from dlr.job.odd_ranks import ranks_behind
from dlr.job.wording import age, duration, in_command, parse_time
from dlr.kube.api import JSON
from reconcilers.failure.budgets import without_progress
from reconcilers.failure.incidents import switch_words
from reconcilers.failure.meaning import meaning_of, next_start
from reconcilers.findings.reasons import NODES_CHECKED, QUIET
from reconcilers.goodput.goodput import FALSE_START, NOT_YET_TRAINING
from reconcilers.observed.ending import WAS_DELETED

PEOPLE = "{people}"
"""Placeholder for the workers or groups of a job in a headline."""
LATELY = timedelta(hours=1)
MOST_NODES = 5
"""Most nodes that an advice names."""
LOOP = 2
"""Number of failures without progress in between that makes a loop."""


@dataclass(frozen=True)
class JobFinding:
    cause: str
    """The cause in one word, for programs: a reason of a condition, an exit class, or a state."""
    sentence: Sentence
    advice: tuple[Sentence, ...] = ()
    headline: str = ""
    """What the job does because of it: a sentence with PEOPLE for its workers, or a clause in lower case
    without PEOPLE. Empty if the finding changes nothing in the headline."""
    tone: str = "Warning"
    """A word with the headline's tone."""


def findings(case: Case) -> list[JobFinding]:
    """Return all findings, the gravest first."""
    return [each for rule in RULES for each in rule(case)]


def _unobserved(case: Case) -> Iterator[JobFinding]:
    if case.status.get("phase"):
        return
    if why := report.why_line(case.job):
        yield JobFinding(str(case.status.get("reason") or "Unobserved"), sentence(why))
        return
    made = age(case.job["metadata"]["creationTimestamp"], case.now)
    statement = sentence(f"No controller has looked at the job since it was made {made} ago")
    yield JobFinding("Unobserved", statement, (sentence("See whether dlr's controller runs: dlr doctor"),))


def _failed(case: Case) -> Iterator[JobFinding]:
    if report.phase(case.job) != "Failed":
        return
    condition = report.condition_of(case.job, "Failed", "True")
    reason = str(condition.get("reason") or "Failed")
    culprit = case.culprit
    if culprit is not None and reason not in ("PodInvalid", "PodForbidden", "ShardsFailed"):
        text = f"The job failed ({reason}): {failure_words(case, culprit)}"
        yield JobFinding(reason, sentence(text, blamed_lines(culprit)), tuple(_advice(case, culprit)))
        return
    detail = first_line(condition.get("message")) or report.why_line(case.job)
    text = f"The job failed ({reason})" + (f": {detail}" if detail else "")
    yield JobFinding(reason, sentence(text), (sentence(next_start_of(case)),))


def _failed_groups(case: Case) -> Iterator[JobFinding]:
    """Yield the replica groups that have failed for good, while the others go on."""
    if not (failed := _groups_that_failed(case)):
        return
    indices = as_ranges(each["index"] for each in failed)
    last = failed[-1]
    text = f"Failed for good, of the groups: {indices}. Group {last['index']}: {last.get('message')}"
    name = in_command(case.job["metadata"], group_name(case.name, last["index"]))
    advice = f"Correct the cause (dlr job diagnose {name}); kubectl delete ej {name} then has it made again"
    headline = f"and {counted(len(failed), 'group')} failed for good"
    yield JobFinding("GroupFailed", sentence(text), (sentence(advice),), headline, "Failed")


def _groups_that_failed(case: Case) -> list[JSON]:
    """Return the groups that have failed for good while their job goes on."""
    groups = [] if report.is_finished(case.job) else case.status.get("groups") or []
    return [each for each in groups if each.get("phase") == "Failed"]


def _deleted(case: Case) -> Iterator[JobFinding]:
    metadata = case.job["metadata"]
    if not metadata.get("deletionTimestamp"):
        return
    if held := holders(metadata.get("finalizers")):
        statement = f"The job is deleted, and stays without Pods until its finalizers {some_of(held, 3)} go"
        advice = "Let their owners remove them, or remove them with kubectl edit"
        yield JobFinding("Deleted", sentence(statement), (sentence(advice),))
    else:
        yield JobFinding("Deleted", sentence("The job is being deleted"))


def _suspended(case: Case) -> Iterator[JobFinding]:
    if report.phase(case.job) == "Suspended" and not case.job["metadata"].get("deletionTimestamp"):
        since = age(report.phase_since(case.job), case.now)
        admission = case.job["status"].get("admission") or {}
        if admission.get("workers") == 0 and not case.job["spec"].get("suspend"):
            words = first_line(admission.get("message"))
            waits = sentence(f"The job has waited for the queue {admission['queue']} for {since}: {words}")
            queue = f"-n {case.job['metadata']['namespace']} {admission.get('workload') or ''}".rstrip()
            look = sentence(f"See what Kueue says: kubectl describe workloads.kueue.x-k8s.io {queue}")
            yield JobFinding("Queued", waits, (look,))
            return
        statement = sentence(f"The job has been suspended for {since}, by spec.suspend")
        advice = sentence(f"Let it go on: dlr job resume {case.in_command}")
        yield JobFinding("Suspended", statement, (advice,))


def _loss(case: Case) -> Iterator[JobFinding]:
    if warning := case.warning("NonFiniteLoss"):
        advice = sentence(
            "Look at what came before that step: a learning rate, a batch, an overflow in half precision; to "
            "begin again from an older checkpoint is up to you"
        )
        statement = sentence(warning["message"])
        does = f"Trains, with a loss that is NaN or infinite, on {PEOPLE}"
        yield JobFinding("NonFiniteLoss", statement, (advice,), _if_training(case, does), "Failed")


def _nodes(case: Case) -> Iterator[JobFinding]:
    """Yield findings about nodes; none for a job that has ended, whose failure matters more."""
    if report.is_finished(case.job):
        return
    checked = False
    for found in check_findings(case):
        checked = True
        check = in_command(case.job["metadata"], found.check)
        advice = sentence(f"See the evidence: kubectl describe nc {check}; docs/cordon.md")
        yield JobFinding(found.reason, sentence(found.text), (advice,))
    condition = report.condition_of(case.job, NODES_CHECKED, "False")
    if condition and not checked and not case.trains and condition.get("reason") not in QUIET:
        text = f"A node check says {condition['reason']}: {condition.get('message')}"
        yield JobFinding(str(condition["reason"]), sentence(text))


def _loop(case: Case) -> Iterator[JobFinding]:
    """Yield that failures follow each other without progress in between, or with unknown progress."""
    if report.is_finished(case.job) or case.culprit is None:
        return
    class_ = case.culprit.failure["exitClass"]
    spent = _without_new_ground(case, class_)
    if spent < LOOP:
        return
    total = failures_of(case.job).get(class_, 0)
    in_all = f" ({total} failures by {class_} in all)" if total > spent else ""
    statement = sentence(
        f"Training fails again and again, {spent} times {_ground_words(case)}{in_all}: the last time "
        f"{failure_words(case, case.culprit)}",
        blamed_lines(case.culprit),
    )
    does = f"Starts again and again, without a step, on {PEOPLE}" if _never_began(case, case.culprit) else ""
    yield JobFinding(class_, statement, tuple(_advice(case, case.culprit)), does, "Failed")


def _never_began(case: Case, culprit: Culprit) -> bool:
    """Whether a job without a step failed soon after its last start, and may do so again after this one.

    A script that reports no steps counts as training while it runs.
    """
    account, lasted = case.account, culprit.failure.get("afterSeconds") or 0.0
    if account is None or account.first_step is not None or lasted > FALSE_START.total_seconds():
        return False
    is_young = account.state is JobState.TRAINING and case.now - account.since <= FALSE_START
    return is_young or account.state in NOT_YET_TRAINING


def _ground_words(case: Case) -> str:
    """Return words for failures without progress in between, or with unknown progress."""
    of_workers = ((worker.get("status") or {}).get("failureBudget") or {} for worker in case.workers)
    budgets = [case.status.get("failureBudget") or {}, *of_workers]
    return without_progress(any(budget.get("startUnknown") for budget in budgets))


def _without_new_ground(case: Case, class_: str) -> int:
    """Count failures of this class since the last progress of the job, or of the worker."""
    of_job = case.status.get("failureBudget") or {}
    in_place = (
        of_job.get("alike", 0) if meaning_of(class_).free else (of_job.get("spent") or {}).get(class_, 0)
    )
    counts = [(of_job, in_place)]
    for worker in case.workers:
        if worker["metadata"]["name"] == case.status["lastFailure"]["worker"]:
            budget = (worker.get("status") or {}).get("failureBudget") or {}
            counts.append((budget, (budget.get("spent") or {}).get(class_, 0)))
    reached = case.account.last_step if case.account else None
    return sum(
        count
        for budget, count in counts
        if reached is None or budget.get("step") is None or reached <= budget["step"]
    )


def _hangs(case: Case) -> Iterator[JobFinding]:
    world = case.status.get("rendezvous") or {}
    if since := world.get("hangSince"):
        text = (
            f"The ranks of round {world.get('round')} hang; their stacks were requested "
            f"{age(since, case.now)} ago"
        )
        yield JobFinding("Hang", sentence(text), (), f"Hangs on {PEOPLE}", "Failed")


def _waits(case: Case) -> Iterator[JobFinding]:
    """Yield why a job that should train does not, or trains with fewer workers."""
    if report.is_finished(case.job) or not case.status.get("phase") or report.phase(case.job) == "Suspended":
        return
    yield from _awaits_heartbeats(case)
    if case.trains:
        yield from _lacks_workers(case)
        return
    reason, message = case.status.get("reason") or "", case.status.get("message") or ""
    waits = f"for {age(since, case.now)}" if (since := report.phase_since(case.job)) else "by now"
    if reason:
        what, advice = WAITS.get(reason, CANNOT_START)
        detail = f": {message}" if message else ""
        statement = sentence(f"The job {what} ({reason}, {waits}){detail}")
        yield JobFinding(reason, statement, (_advice_for_a_wait(case, reason, advice),))
    elif check := case.status.get("activeCheck"):
        yield JobFinding("Checking", sentence(f"The job waits for the node check {check}"))
    elif message:
        world = case.status.get("rendezvous") or {}
        yield JobFinding(
            str(world.get("phase") or "Forming"), sentence(f"There is no world {waits}: {message}")
        )


def _advice_for_a_wait(case: Case, reason: str, advice: str) -> Sentence:
    if reason != UNSCHEDULABLE:
        return sentence(_said(advice, case, pod=_first_late_pod(case)))
    if why := too_large(case.job, case.all_nodes):
        return sentence(TOO_LARGE_ADVICE.format(why=why))
    if case.trains:
        return sentence(f"{advice}: {GROWS}")
    least = report.least_workers(case.job)
    return sentence(advice + (FEWER_WORKERS.format(least=least) if least > 1 else ""))


def _lacks_workers(case: Case) -> Iterator[JobFinding]:
    """Yield why some of the workers do not run while the others train."""
    for type_, clause in LACKS.items():
        if warning := case.warning(type_):
            reason = str(warning.get("reason") or type_)
            what, advice = WAITS.get(reason, CANNOT_START)
            text = f"The job trains, and {what} for the rest of its workers: {warning['message']}"
            if what.startswith("waits"):
                text = f"The job trains, and waits for room for the rest of its workers: {warning['message']}"
            elif what.startswith("has"):
                text = f"The job trains, and {what}: {warning['message']}"
            yield JobFinding(reason, sentence(text), (_advice_for_a_wait(case, reason, advice),), clause)


LACKS = {
    "PodsNotAccepted": "the others cannot get their Pods",
    "WorkersNotStarted": "the others cannot start",
    "WorkersUnscheduled": "the others wait for room",
}
"""Warnings about workers that do not run, each with a clause of the headline."""


def _first_late_pod(case: Case) -> str:
    """Return the Pod that the warning about Pods names; POD without one."""
    warning = case.warning("WorkersNotStarted") or {}
    wanted = (warning.get("data") or {}).get("worker")
    pods = {each["metadata"]["name"]: (each.get("status") or {}).get("podName") for each in case.workers}
    return pods.get(wanted) or "POD"


def _awaits_heartbeats(case: Case) -> Iterator[JobFinding]:
    """Yield that the job may wait for a worker that is silent, but not lost yet."""
    warning = case.warning("HeartbeatLate") or {}
    since, data = parse_time(warning.get("since")), warning.get("data") or {}
    trains = case.account is not None and case.account.state == JobState.TRAINING
    if since is None or trains or not data.get("worker"):
        return
    worker, node = str(data["worker"]), data.get("node")
    seconds = max(0.0, (case.now - since).total_seconds())
    others = (data.get("count") or 1) - 1
    who = f"worker {worker.rpartition('-')[2]}" + (f" on {node}" if node else "")
    who += f" and {counted(others, 'more worker')}" if others else ""
    does = f"Waits for {who}: silent for {seconds:.0f} s, lost at {data.get('limitSeconds', 0):.0f} s"
    advice = "Training needs no action: a lost worker gets another Pod"
    advice += f"; if the node should be up: kubectl describe node {node}" if node else ""
    statement = sentence(f"The job may wait for {who}: {warning['message']}")
    yield JobFinding("HeartbeatLate", statement, (sentence(advice),), does)


def _slow(case: Case) -> Iterator[JobFinding]:
    warning = case.warning("Slow")
    if warning and not report.is_finished(case.job):
        statement = sentence(f"The job is slower than it was: {warning.get('message')}")
        advice = (sentence(_said(SLOW_ADVICE, case)),)
        does = f"Trains more slowly than before on {PEOPLE}"
        yield JobFinding("Slow", statement, advice, _if_training(case, does))


def _stalls(case: Case) -> Iterator[JobFinding]:
    """Yield that a formed world has made no step for much longer than a step takes."""
    stall = case.stall
    if stall is None:
        return
    furthest = max(progress.get("step", 0) for _, progress in case.telling)
    behind = f"the furthest behind is {stall.worker['metadata']['name']}, after step {stall.step}"
    where = behind if stall.step != furthest else f"all are at step {furthest}"
    text = f"No rank has made a step for {duration(stall.seconds)}; {where}"
    advice = sentence(
        f"See where all ranks are: dlr job stacks {case.in_command}; hangTimeoutSeconds requests it, too"
    )
    yield JobFinding("Stalled", sentence(text), (advice,), f"Makes no step on {PEOPLE}", "Failed")


def _exchange(case: Case) -> Iterator[JobFinding]:
    """Yield that the exchange of replica groups breaks again and again."""
    warning = case.warning("ExchangeBroken")
    if warning is not None and (warning.get("data") or {}).get("count", 0) > 1:
        does = f"Connects again and again, without a step, on {PEOPLE}"
        statement = sentence(f"The groups cannot exchange gradients: {warning['message']}")
        yield JobFinding("ExchangeBroken", statement, (), _if_training(case, does), "Failed")


def _behind(case: Case) -> Iterator[JobFinding]:
    """Yield that some workers are far behind the others."""
    if not case.behind or not case.trains:
        return
    advice = sentence(f"See where they are: dlr job stacks {case.in_command}")
    clause = "with workers far behind" if is_grouped(case.job) else f"{case.behind:,} of them far behind"
    yield JobFinding("RanksBehind", sentence(ranks_behind(case)), (advice,), _if_training(case, clause))


def _if_training(case: Case, headline: str) -> str:
    """Return the headline if the job trains, otherwise nothing."""
    trains = case.account is None or case.account.state == JobState.TRAINING
    return headline if trains and not report.is_finished(case.job) else ""


def _troubles(case: Case) -> Iterator[JobFinding]:
    """Yield other trouble, with the controller's messages."""
    for type_, (what, clause) in TROUBLES.items():
        if warning := case.warning(type_):
            cause = str(warning.get("reason") or type_)
            about = SAVER_PROCESS if SAVER_PROCESS in warning["message"] else cause
            advice = [sentence(_said(TROUBLE_ADVICE[about], case))] if about in TROUBLE_ADVICE else []
            statement = sentence(f"{what}: {warning['message']}")
            shown = _if_training(case, clause)
            if type_ == "CheckpointsFailing" and report.phase(case.job) == "Succeeded":
                shown = "and its checkpoints failed"
            if type_ == "AgentsUnheard" and not report.is_finished(case.job):
                shown = clause  # the job waits for these agents
            yield JobFinding(cause, statement, tuple(advice), shown)
    if condition := report.condition_of(case.job, "Reconciled", "False"):
        text = f"The controller cannot reconcile the job: {condition.get('message')}"
        clause = _if_training(case, "and its controller cannot reconcile it")
        yield JobFinding(str(condition.get("reason")), sentence(text), (), clause)


TROUBLES = {
    "CheckpointsFailing": ("Checkpoints are not saved as they should be", "and its checkpoints fail"),
    "AgentsSilent": ("Agents are silent", "some of which are silent"),
    "AgentsUnheard": ("Pods run without an agent", "and some Pods run without an agent"),
    "WorkersGivenUp": ("Workers are given up", "and some are given up"),
    "SidecarsFailed": ("A sidecar has failed", "and a sidecar has failed"),
    "GroupsNotMade": ("Some groups are missing", "and some groups are missing"),
    "GroupsLate": ("Groups are late", "and late ones are left out"),
    "ProcessLingers": (
        "A script has ended, and its process has not",
        "of which one has ended and does not exit",
    ),
    "NoSteps": ("It is unknown whether training makes progress", "and reports no step"),
}
"""Warnings that are findings, each with a description and a clause of the headline."""


def _lately(case: Case) -> Iterator[JobFinding]:
    """Yield the last failure and present trouble; present trouble comes first if the job trains again."""
    found = (_troubles, _last_failure) if case.trains else (_last_failure, _troubles)
    yield from (each for rule in found for each in rule(case))


def _last_failure(case: Case) -> Iterator[JobFinding]:
    """Yield the last failure, if the job has survived it or is recovering from it."""
    culprit = case.culprit
    if report.is_finished(case.job) or culprit is None or case.now - culprit.time > LATELY:
        return
    if culprit.failure["exitClass"] == ExitClass.UNKNOWN and case.warning("HeartbeatLate"):
        return  # it follows from the loss that _awaits_heartbeats yields
    if _without_new_ground(case, culprit.failure["exitClass"]) >= LOOP:
        return  # _loop yields it
    failed = tuple(f"{group_name(case.name, each['index'])}-" for each in _groups_that_failed(case))
    if culprit.worker.startswith(failed):
        return  # _failed_groups yields it
    who = failure_words(case, culprit)
    statement = sentence(who[0].upper() + who[1:], blamed_lines(culprit))
    yield JobFinding(str(culprit.failure["exitClass"]), statement, tuple(_advice(case, culprit)))


def failure_words(case: Case, culprit: Culprit) -> str:
    """Describe the culprit, its end and its time."""
    failure = culprit.failure
    has_rank = failure.get("rank") is not None
    rank = f"rank {failure['rank']} ({culprit.worker})" if has_rank else f"worker {culprit.worker}"
    node = f" on {culprit.node}" if culprit.node else ""
    what = meaning_of(failure["exitClass"]).verb
    when = [f"{age(failure['time'], case.now)} ago"]
    when += [f"{each} {failure[each]}" for each in ("round", "step") if failure.get(each) is not None]
    detail = first_line(failure.get("message"))
    return f"{switch_words(failure.get('domain'))}{rank}{node} {what}, {', '.join(when)}" + (
        f": {detail}" if detail else ""
    )


def blamed_lines(culprit: Culprit) -> tuple[str, ...]:
    """Return the lines of the message after the first, as far as the status keeps them."""
    return tuple(str(culprit.failure.get("message") or "").strip().splitlines()[1:])


def next_start_of(case: Case) -> str:
    """Return STOP or RESTART and the reason, from the culprit and the end of the job.

    Empty without both, and for a job that succeeded or is suspended.
    """
    if report.phase(case.job) in ("Succeeded", "Suspended"):
        return ""
    ended_by = str(report.condition_of(case.job, "Failed", "True").get("reason") or "")
    if case.culprit is None and not ended_by:
        return ""
    return next_start("" if case.culprit is None else str(case.culprit.failure["exitClass"]), ended_by)


def _advice(case: Case, culprit: Culprit) -> Iterator[Sentence]:
    if start := next_start_of(case):
        yield sentence(start)
    if WITHOUT_LAUNCHER.search(culprit.failure.get("message") or ""):
        yield sentence(LAUNCHER_ADVICE)
    elif _lost_its_node(culprit):
        yield sentence(DELETED_NODE_ADVICE)
    elif advice := meaning_of(culprit.failure["exitClass"]).advice:
        nodes = _failed_nodes(case, culprit) or ["NODE"]
        yield sentence(_said(advice, case, node=" ".join(nodes), nodes=",".join(nodes)))


def _lost_its_node(culprit: Culprit) -> bool:
    """Whether the worker's Node was deleted, so that it cannot be inspected."""
    is_lost = culprit.failure["exitClass"] == ExitClass.NODE_LOST
    return is_lost and first_line(culprit.failure.get("message")).endswith(WAS_DELETED)


def _said(advice: str, case: Case, **more: str) -> str:
    return advice.format(name=case.in_command, namespace=case.job["metadata"]["namespace"], **more)


def _failed_nodes(case: Case, culprit: Culprit) -> list[str]:
    """Return the culprit's node, then those on which Pods ended by the same class at about the same time."""
    nodes = [culprit.node] if culprit.node else []
    for worker in case.workers:
        ended = (worker.get("status") or {}).get("lastExit") or {}
        is_alike = ended.get("exitClass") == culprit.failure["exitClass"] and are_near(ended, culprit.failure)
        if is_alike and ended.get("nodeName"):
            nodes.append(ended["nodeName"])
    return list(dict.fromkeys(nodes))[:MOST_NODES]


RULES: tuple[Callable[[Case], Iterator[JobFinding]], ...] = (
    _unobserved,
    _failed,
    _deleted,
    _suspended,
    _failed_groups,
    _loss,
    _nodes,
    _loop,
    _hangs,
    _stalls,
    _exchange,
    _waits,
    _behind,
    _slow,
    _lately,
)
"""Rules, the gravest first."""
