"""The evidence of a diagnosis: sentences by subject. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from controller.wording import counted, some_of
from crds import names
from crds.cordon import read_acted, reason_of
from crds.grouping import group_name, is_grouped
from dlr.job import report
from dlr.job.case import Case, Sentence, sentence
from dlr.job.facts import Fact, facts_of, remarks_of
from dlr.job.failures import by_cause, failures_of
from dlr.job.groups import training
from dlr.job.nodes import NAMED, check_findings, node_states
from dlr.job.report import AT_EASE, state_of
from dlr.job.timeline.life import clock_of
from dlr.job.verdict import JobVerdict
from dlr.job.wording import duration, in_command, loss, parse_time, plain
from dlr.kube.api import JSON

MOST = 5
"""Most entries of one kind, so that a diagnosis stays one page."""


@dataclass(frozen=True)
class EvidenceSection:
    title: str
    sentences: tuple[Sentence, ...]


def sections(case: Case, top: JobVerdict) -> list[EvidenceSection]:
    """Return the non-empty sections: the verdict, why, what to do, and the evidence."""
    found = top.findings
    advice = {each.text: each for finding in reversed(found) for each in reversed(finding.advice)}
    findings_text = " ".join(each.sentence.text for each in found)

    def beside_findings(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
        """Leave out sentences whose text, after a type or a name and perhaps a reason, is in a finding."""
        parts = [(each, each.text.rstrip(".").split(": ")) for each in sentences]
        return tuple(
            each
            for each, of in parts
            if not any(": ".join(of[n:]) in findings_text for n in range(1, len(of[:3])))
        )

    made = [
        EvidenceSection("Verdict", (Sentence(plain(top.text)),)),
        EvidenceSection("Why", tuple(each.sentence for each in found[:1])),
        EvidenceSection("What to do", tuple(reversed(advice.values()))[:MOST]),
        EvidenceSection("Also", tuple(each.sentence for each in found[1 : MOST + 1])),
        EvidenceSection("State", tuple(_state(case))),
        EvidenceSection("Groups", tuple(_groups(case))),
        EvidenceSection("Last failures", tuple(_failures(case))),
        EvidenceSection("Conditions", beside_findings(sentence(str(each)) for each in _remarks(case))),
        EvidenceSection("Waiting", tuple(_of_many(_waiting(case)))),
        EvidenceSection("Budgets", tuple(_budgets(case))),
        EvidenceSection("Ranks", beside_findings(sentence(str(each)) for each in top.odd)),
        EvidenceSection(
            "Nodes", (*beside_findings(sentence(w.text) for w in check_findings(case)), *_nodes(case))
        ),
        EvidenceSection("Time", tuple(_of_facts(case, "Goodput", "Time"))),
        EvidenceSection("Shards", tuple(_of_facts(case, "Shards"))),
        EvidenceSection("Events", tuple(_events(case))),
    ]
    return [section for section in made if section.sentences]


def _remarks(case: Case) -> Iterator[Fact]:
    """Yield the remarks that no other section has; ranks far behind are among the odd ranks."""
    return (each for each in remarks_of(case) if each.label != "RanksBehind" or not case.far_behind)


def _state(case: Case) -> Iterator[Sentence]:
    return _of_facts(case, "Phase", "Workers", "World", "Groups", "Group", "Progress", "Checkpoints")


def _groups(case: Case) -> Iterator[Sentence]:
    """Yield the replica groups that do not train with the others, and why."""
    if not is_grouped(case.job) or report.is_finished(case.job):
        return
    together = set(training(case.job))
    apart = [each for each in case.status.get("groups") or () if each["index"] not in together]
    for each in apart[:MOST]:
        index = each["index"]
        why = f" ({each['message']})" if each.get("message") else ""
        text = (
            f"group {index} does not train with the others: it is {each.get('phase') or 'Unobserved'}{why}; "
            f"why: dlr job diagnose {in_command(case.job['metadata'], group_name(case.name, index))}"
        )
        yield sentence(text)
    if len(apart) > MOST:
        yield sentence(f"and {counted(len(apart) - MOST, 'more group')}")


def _of_facts(case: Case, *labels: str) -> Iterator[Sentence]:
    return (sentence(str(fact)) for fact in facts_of(case) if fact.label in labels)


def _failures(case: Case) -> Iterator[Sentence]:
    if counts := by_cause(failures_of(case.job)):
        yield sentence(f"Since submission: {counts}")
    if case.life is None:
        return
    for failure in reversed(case.life.failures[-MOST:]):
        moment = case.life.submitted + timedelta(seconds=failure.at)
        ago = duration((case.now - moment).total_seconds())
        cost = f" It cost {loss(failure.outage.seconds)}." if failure.outage else ""
        detail = f": {failure.text.rstrip('.')}" if failure.text else ""
        when = f"{clock_of(case.life, failure.at)} UTC, {ago} ago"
        yield sentence(f"{when}: {failure.who}, {failure.what}{detail}.{cost}")
    shown = min(MOST, len(case.life.failures))
    if shown < case.life.failure_count:
        yield sentence(f"These are the last {shown} of {case.life.failure_count}")


def _of_many(found: Iterable[tuple[str, str]]) -> Iterator[Sentence]:
    """Yield one sentence per text, with the first of its subjects.

    Args:
        found: pairs of subject and text.
    """
    alike: dict[str, list[str]] = {}
    for subject, text in found:
        alike.setdefault(text, []).append(subject)
    for text, subjects in [*alike.items()][:MOST]:
        yield sentence(f"{some_of(subjects, NAMED)}: {text}")


def _waiting(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the workers that do not train."""
    for worker in [] if report.is_finished(case.job) else case.workers:
        status = worker.get("status") or {}
        if state_of(worker) not in AT_EASE and status.get("phase"):
            yield (
                worker["metadata"]["name"],
                ", ".join(filter(None, (state_of(worker), status.get("message")))),
            )


def _budgets(case: Case) -> Iterator[Sentence]:
    limit = (case.job["spec"]["replicaSpecs"].get(names.WORKER) or {}).get("restartCount", 3)
    budget = case.status.get("failureBudget") or {}
    if spent := budget.get("spent"):
        yield sentence(f"In place: {_spent(spent, limit)} since step {budget.get('step', 'unknown')}")
    if (budget.get("alike") or 0) > 1:
        error = f"{budget.get('exitClass')}: {budget.get('signature')}"
        yield sentence(f"{budget['alike']} failures in a row were the same: {error}")
    until = parse_time(budget.get("heldUntil"))
    if until is not None and until > case.now and not report.is_finished(case.job):
        yield sentence(f"No world is formed before {budget['heldUntil']}")
    telling = [
        (worker, of_pods["spent"])
        for worker in case.workers
        if (of_pods := (worker.get("status") or {}).get("failureBudget") or {}).get("spent")
    ]
    for worker, spent in telling[:MOST]:
        yield sentence(f"Pods of {worker['metadata']['name']}: {_spent(spent, limit)}")


def _spent(spent: JSON, limit: int) -> str:
    return ", ".join(f"{class_} {count} of {limit}" for class_, count in sorted(spent.items()))


def _nodes(case: Case) -> Iterator[Sentence]:
    yield from _of_many(_troubled_nodes(case))
    yield from _of_many(
        (worker["metadata"]["name"], f"kept off {some_of(kept_off[::-1], MOST)}")
        for field in ("faultyNodes", "reportedNodes", "excludedNodes")
        for worker in case.workers
        if (kept_off := worker["spec"].get(field))
    )


def _troubled_nodes(case: Case) -> Iterator[tuple[str, str]]:
    objects = {node["metadata"]["name"]: node for node in case.nodes}
    for state in node_states(case):
        if state.cordon:
            acted = read_acted(objects[state.name]) if state.cordon == "Cordoned" else None
            by = f" by {acted.kind} {acted.name}, {reason_of(acted)}" if acted else ", not by dlr"
            text = f"{state.cordon}{by}"
            yield state.name, text
        if state.ready is False:
            yield state.name, "not ready"


def _events(case: Case) -> Iterator[Sentence]:
    warnings = [event for event in case.events if event.get("type") == "Warning"]
    for event in reversed(warnings[-MOST:]):
        seen, _, reason, message = report.event_row(event, case.job, case.now)
        yield sentence(f"{seen} ago, {reason}: {message}")
