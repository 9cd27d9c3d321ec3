"""What is wrong with a job, and why, the gravest first. Pure.

Each rule looks for one thing that can be wrong, and yields it with its evidence and what to do. The first
finding is the verdict; the others stand below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from controller.wording import first_line
from dlr.job import report
from dlr.job.advice import (
    AFTER,
    CANNOT_START,
    DONE_BY,
    SLOW_ADVICE,
    TOO_LARGE_ADVICE,
    TROUBLE_ADVICE,
    UNSCHEDULABLE,
    WAITS,
    too_large,
)
from dlr.job.case import Case, Field, Sentence, of_worker, sentence
from dlr.job.failures import SAME_MOMENT, Culprit, ended_pods, worker_failures
from dlr.job.goodput import goodput_line
from dlr.job.nodes import words_of_checks
from dlr.job.progress import progress_line
from dlr.job.wording import age, duration, in_command
from reconcilers.conditions.job_finding import NODES_CHECKED, QUIET
from reconcilers.observed.exit_class import FREE

LATELY = timedelta(hours=1)
MOST_NODES = 5
"""Nodes that an advice names."""
LOOP = 2
"""The number of failures without progress in between that makes a loop."""


@dataclass(frozen=True)
class Finding:
    cause: str
    """The cause in one word, for programs: a reason of a condition, an exit class, or a state."""
    sentence: Sentence
    advice: tuple[Sentence, ...] = ()


def findings(case: Case) -> list[Finding]:
    """Return the verdict, and what else is wrong; how the job is, if it succeeded or nothing is wrong."""
    found = [each for rule in RULES for each in rule(case)]
    if report.phase(case.job) == "Succeeded":
        return [_how_it_is(case), *found]
    return found or [_how_it_is(case)]


def _unobserved(case: Case) -> Iterator[Finding]:
    if not case.status.get("phase") and (why := report.why_line(case.job)):
        fields = case.of_job(*(f"status.{each}" for each in ("reason", "message") if case.status.get(each)))
        yield Finding(str(case.status.get("reason") or "Unobserved"), sentence(why, fields))
    elif not case.status.get("phase"):
        since = case.of_job("metadata.creationTimestamp")
        made = age(case.job["metadata"]["creationTimestamp"], case.now)
        statement = sentence(f"No controller has looked at the job since it was made {made} ago", since)
        yield Finding(
            "Unobserved", statement, (sentence("See whether dlr's controller runs: dlr doctor", since),)
        )


def _failed(case: Case) -> Iterator[Finding]:
    if report.phase(case.job) != "Failed":
        return
    condition = case.condition("Failed", "True") or {}
    reason = str(condition.get("reason") or "Failed")
    fields = case.of_condition("Failed") if condition else case.of_job("status.phase")
    if case.culprit is not None and condition.get("reason") not in (
        "PodInvalid",
        "PodForbidden",
        "ShardsFailed",
    ):
        who, where = failure_words(case, case.culprit)
        statement = sentence(
            f"The job failed ({reason}): {who}", (*where, *fields), blamed_lines(case.culprit)
        )
        yield Finding(reason, statement, tuple(_advice(case, case.culprit)))
        return
    detail = first_line(condition.get("message")) or report.why_line(case.job)
    yield Finding(reason, sentence(f"The job failed ({reason})" + (f": {detail}" if detail else ""), fields))


def _suspended(case: Case) -> Iterator[Finding]:
    if report.phase(case.job) == "Suspended":
        since = age(report.phase_since(case.job), case.now)
        statement = sentence(
            f"The job has been suspended for {since}, by spec.suspend", case.of_job("status.phase")
        )
        advice = sentence(f"Let it go on: dlr job resume {case.in_command}", case.of_job("status.phase"))
        yield Finding("Suspended", statement, (advice,))


def _loss(case: Case) -> Iterator[Finding]:
    if warning := case.warning("NonFiniteLoss"):
        fields = case.of_warning("NonFiniteLoss")
        advice = sentence(
            "Look at what came before that step: a learning rate, a batch, an overflow in half precision; to "
            "begin again from an older checkpoint is up to you",
            fields,
        )
        statement = sentence(f"The loss is no number any more: {warning['message']}", fields)
        yield Finding("NonFiniteLoss", statement, (advice,))


def _nodes(case: Case) -> Iterator[Finding]:
    """Yield findings about nodes. In a job that has ended, the failure says more."""
    if report.is_finished(case.job):
        return
    checked = False
    for word in words_of_checks(case):
        checked = True
        check = in_command(case.job["metadata"], word.check)
        advice = sentence(f"See the evidence: kubectl describe nc {check}; docs/cordon.md", word.fields)
        yield Finding(word.reason, sentence(word.text, word.fields), (advice,))
    condition = case.condition(NODES_CHECKED, "False") or {}
    if condition and not checked and not case.trains and condition.get("reason") not in QUIET:
        fields = case.of_condition(NODES_CHECKED)
        text = f"A node check says {condition['reason']}: {condition.get('message')}"
        yield Finding(str(condition["reason"]), sentence(text, fields))


def _loop(case: Case) -> Iterator[Finding]:
    """Yield failures that follow each other without progress in between."""
    if report.is_finished(case.job) or case.culprit is None:
        return
    class_ = case.culprit.failure["exitClass"]
    spent, fields = _without_new_ground(case, class_)
    if spent < LOOP:
        return
    who, where = failure_words(case, case.culprit)
    ended = ended_pods(case.job, case.workers).get(class_, 0)
    pods = f" ({ended} Pods ended by {class_} in all)" if ended > 1 else ""
    statement = sentence(
        f"Training fails again and again, {spent} times without getting further{pods}: the last time {who}",
        (*where, *fields),
        blamed_lines(case.culprit),
    )
    yield Finding(class_, statement, tuple(_advice(case, case.culprit)))


def _without_new_ground(case: Case, class_: str) -> tuple[int, list[Field]]:
    """Count failures of this class since the job, or the worker, last got further."""
    budgets = [(case.status.get("failureBudget") or {}, case.of_job("status.failureBudget"))]
    budgets += [
        ((worker.get("status") or {}).get("failureBudget") or {}, of_worker(worker, "status.failureBudget"))
        for worker in case.workers
        if worker["metadata"]["name"] == case.status["lastFailure"]["worker"]
    ]
    total = 0
    fields: list[Field] = []
    reached = case.account.last_step if case.account else None
    for budget, field in budgets:
        has_new_ground = reached is not None and budget.get("step") is not None and reached > budget["step"]
        count = (budget.get("spent") or {}).get(class_, 0)
        if class_ in FREE and budget is budgets[0][0]:
            count = budget.get("alike", 0)
        if count and not has_new_ground:
            total += count
            fields += field
    return total, fields


def _hangs(case: Case) -> Iterator[Finding]:
    world = case.status.get("rendezvous") or {}
    if since := world.get("hangSince"):
        fields = case.of_job("status.rendezvous.hangSince")
        text = (
            f"The ranks of round {world.get('round')} hang; their stacks were requested "
            f"{age(since, case.now)} ago"
        )
        yield Finding("Hang", sentence(text, fields))


def _waits(case: Case) -> Iterator[Finding]:
    """Yield why a job that should train does not."""
    if report.is_finished(case.job) or not case.status.get("phase") or case.trains:
        return
    if report.phase(case.job) == "Suspended":
        return
    reason, message = case.status.get("reason") or "", case.status.get("message") or ""
    waits = f"for {age(report.phase_since(case.job), case.now)}"
    if reason:
        what, advice = WAITS.get(reason, CANNOT_START)
        fields = case.of_job("status.reason", *(["status.message"] if message else []))
        detail = f": {message}" if message else ""
        statement = sentence(f"The job {what} ({reason}, {waits}){detail}", fields)
        too_big = too_large(case.job, case.all_nodes) if reason == UNSCHEDULABLE else None
        if too_big is not None:
            why, node = too_big
            where = (
                *case.of_job("spec.replicaSpecs.worker.template"),
                Field("Node", node, "status.allocatable"),
            )
            yield Finding(reason, statement, (sentence(TOO_LARGE_ADVICE.format(why=why), where),))
            return
        yield Finding(reason, statement, (sentence(_said(advice, case), fields),))
    elif check := case.status.get("activeCheck"):
        statement = sentence(f"The job waits for the node check {check}", case.of_job("status.activeCheck"))
        yield Finding("Checking", statement)
    elif message:
        world = case.status.get("rendezvous") or {}
        fields = case.of_job("status.message")
        yield Finding(
            str(world.get("phase") or "Forming"), sentence(f"There is no world {waits}: {message}", fields)
        )


def _slow(case: Case) -> Iterator[Finding]:
    warning = case.warning("Slow")
    if warning and case.trains:
        fields = case.of_warning("Slow")
        statement = sentence(f"The job is slower than it was: {warning.get('message')}", fields)
        yield Finding("Slow", statement, (sentence(_said(SLOW_ADVICE, case), fields),))


def _stalls(case: Case) -> Iterator[Finding]:
    """Yield that there was no step for much longer than a step takes, in a formed world."""
    stall = case.stall
    if stall is None:
        return
    fields = of_worker(stall.worker, "status.agent.progress")
    behind = f"{stall.worker['metadata']['name']}, after step {stall.step}"
    text = f"No rank has made a step for {duration(stall.seconds)}; the furthest behind is {behind}"
    advice = sentence(
        f"Look where all ranks are: dlr job stacks {case.in_command}; hangTimeoutSeconds asks them too",
        fields,
    )
    yield Finding("Stalled", sentence(text, fields), (advice,))


def _troubles(case: Case) -> Iterator[Finding]:
    """Yield what else does not work, in the words of the controller."""
    for type_, what in TROUBLES.items():
        if warning := case.warning(type_):
            cause, fields = str(warning.get("reason") or type_), case.of_warning(type_)
            advice = [sentence(_said(TROUBLE_ADVICE[cause], case), fields)] if cause in TROUBLE_ADVICE else []
            yield Finding(cause, sentence(f"{what}: {warning['message']}", fields), tuple(advice))
    if condition := case.condition("Reconciled", "False"):
        text = f"The controller does not cope with the job: {condition.get('message')}"
        yield Finding(str(condition.get("reason")), sentence(text, case.of_condition("Reconciled")))


TROUBLES = {
    "CheckpointsFailing": "Checkpoints do not get where they are to be",
    "WorkersGivenUp": "Workers are given up",
    "ProcessLingers": "A script is over, and its process is not",
    "NoSteps": "It is unknown whether training gets on",
}
"""Warnings that are findings, with what is wrong."""


def _lately(case: Case) -> Iterator[Finding]:
    """Yield a failure that the job has survived, or is recovering from."""
    culprit = case.culprit
    if report.is_finished(case.job) or culprit is None or case.now - culprit.time > LATELY:
        return
    if _without_new_ground(case, culprit.failure["exitClass"])[0] >= LOOP:
        return  # _loop has it
    who, where = failure_words(case, culprit)
    statement = sentence(who[0].upper() + who[1:], where, blamed_lines(culprit))
    yield Finding(str(culprit.failure["exitClass"]), statement, tuple(_advice(case, culprit)))


def _how_it_is(case: Case) -> Finding:
    if report.phase(case.job) == "Succeeded":
        text = f"The job succeeded {age(case.status.get('completionTime'), case.now) or 'some time'} ago"
        fields = [*case.of_job("status.phase")]
    else:
        text = f"The job is {report.phase(case.job)}"
        fields = [*case.of_job("status.phase")]
        if case.account:
            seconds = (case.now - case.account.since).total_seconds()
            state = case.account.state.value
            text += (
                f" for {duration(seconds)}"
                if state == report.phase(case.job)
                else f", {state} for {duration(seconds)}"
            )
            fields += case.of_job("status.goodput.state")
    if case.progress:
        text += f": {progress_line(case.progress, is_finished=report.is_finished(case.job))}"
        fields += case.of_progress()
    if case.account and (line := goodput_line(case.account)):
        text += f"; goodput {line}"
        fields += case.of_job("status.goodput")
    return Finding(report.phase(case.job), sentence(text, fields))


def failure_words(case: Case, culprit: Culprit) -> tuple[str, list[Field]]:
    """Describe the culprit, its end and its time; and return the fields that have them."""
    failure = culprit.failure
    has_rank = failure.get("rank") is not None
    rank = f"rank {failure['rank']} ({culprit.worker})" if has_rank else f"worker {culprit.worker}"
    node = f" on {culprit.node}" if culprit.node else ""
    what = DONE_BY.get(failure["exitClass"], f"ended ({failure['exitClass']})")
    when = [f"{age(failure['time'], case.now)} ago"]
    when += [f"{each} {failure[each]}" for each in ("round", "step") if failure.get(each) is not None]
    detail = first_line(failure.get("message"))
    text = f"{rank}{node} {what}, {', '.join(when)}" + (f": {detail}" if detail else "")
    return text, [*case.of_job("status.lastFailure"), *_node_field(case, culprit)]


def _node_field(case: Case, culprit: Culprit) -> tuple[Field, ...]:
    """Return the field that has the culprit's node."""
    worker = next((each for each in case.workers if each["metadata"]["name"] == culprit.worker), None)
    if worker is None or not culprit.node:
        return ()
    status = worker["status"]
    if (status.get("lastExit") or {}).get("nodeName") == culprit.node:
        return of_worker(worker, "status.lastExit.nodeName")
    if any(life.get("nodeName") == culprit.node for life in status.get("history") or ()):
        return of_worker(worker, "status.history")
    return of_worker(worker, "status.nodeName")


def blamed_lines(culprit: Culprit) -> tuple[str, ...]:
    """Return the lines of the message after its first one, as far as status keeps it."""
    return tuple(str(culprit.failure.get("message") or "").strip().splitlines()[1:])


def _advice(case: Case, culprit: Culprit) -> Iterator[Sentence]:
    fields = case.of_job("status.lastFailure.exitClass")
    if advice := AFTER.get(culprit.failure["exitClass"]):
        nodes = _failed_nodes(case, culprit) or ["NODE"]
        text = _said(advice, case, node=" ".join(nodes), nodes=",".join(nodes))
        yield sentence(text, fields)


def _said(advice: str, case: Case, **nodes: str) -> str:
    return advice.format(name=case.in_command, namespace=case.job["metadata"]["namespace"], **nodes)


def _failed_nodes(case: Case, culprit: Culprit) -> list[str]:
    """The culprit's node first, then those of workers that failed by the same class at that moment."""
    nodes = [culprit.node] if culprit.node else []
    for worker in case.workers:
        status = worker.get("status") or {}
        ended = status.get("lastExit") or {}
        alike = [
            failure
            for failure in worker_failures(worker)
            if failure.what == culprit.failure["exitClass"]
            and abs(failure.time - culprit.time) <= SAME_MOMENT
        ]
        if alike and (node := ended.get("nodeName") or status.get("nodeName")):
            nodes.append(node)
    return list(dict.fromkeys(nodes))[:MOST_NODES]


RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _unobserved,
    _failed,
    _suspended,
    _loss,
    _nodes,
    _loop,
    _hangs,
    _waits,
    _slow,
    _stalls,
    _lately,
    _troubles,
)
"""The gravest first."""
