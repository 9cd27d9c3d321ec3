"""The evidence of a diagnosis, by subject: sentences that each name the fields they rest on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.wording import counted, some_of
from crds import names
from crds.grouping import group_name, is_grouped
from dlr.job import report
from dlr.job.case import Case, Field, Sentence, of_worker, sentence
from dlr.job.facts import facts_of, remarks_of
from dlr.job.failures import SAME_MOMENT, by_cause, failures_of
from dlr.job.groups import training
from dlr.job.nodes import NAMED, cordon_field, node_states, words_of_checks
from dlr.job.report import state_of
from dlr.job.timeline.blame import Failure
from dlr.job.timeline.life import Lane, clock_of
from dlr.job.timeline.outages import outages_by_failure, own_failures
from dlr.job.verdict import Verdict
from dlr.job.wording import duration, in_command, loss, parse_time, plain
from dlr.job.workers import AT_EASE
from dlr.kube.api import JSON
from reconcilers.cordon.policy import read_acted, reason_of

MOST = 5
"""Entries of one kind, so that a diagnosis stays one page."""
FEWEST_TO_COMPARE = 2


@dataclass(frozen=True)
class Section:
    title: str
    sentences: tuple[Sentence, ...]


def sections(case: Case, top: Verdict) -> list[Section]:
    """Return the sections that have anything to show: the verdict, why, what to do, and the evidence."""
    found = top.findings
    advice = {each.text: each for finding in reversed(found) for each in reversed(finding.advice)}
    findings_text = " ".join(each.sentence.text for each in found)

    def beside_findings(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
        """Leave out what a finding says, after a type or a name, and perhaps a reason."""
        parts = [(each, each.text.rstrip(".").split(": ")) for each in sentences]
        return tuple(
            each
            for each, of in parts
            if not any(": ".join(of[n:]) in findings_text for n in range(1, len(of[:3])))
        )

    made = [
        Section("Verdict", (Sentence(plain(top.text), top.fields),)),
        Section("Why", tuple(each.sentence for each in found[:1])),
        Section("What to do", tuple(reversed(advice.values()))[:MOST]),
        Section("Also", tuple(each.sentence for each in found[1 : MOST + 1])),
        Section("State", tuple(_state(case))),
        Section("Groups", tuple(_groups(case))),
        Section("Last failures", tuple(_failures(case))),
        Section("Conditions", beside_findings(sentence(str(each), each.fields) for each in remarks_of(case))),
        Section("Waiting", tuple(_of_many(_waiting(case)))),
        Section("Budgets", tuple(_budgets(case))),
        Section(
            "Nodes",
            (*beside_findings(sentence(w.text, w.fields) for w in words_of_checks(case)), *_nodes(case)),
        ),
        Section("Time", tuple(_time(case))),
        Section("Shards", tuple(_of_facts(case, "Shards"))),
        Section("Events", tuple(_events(case))),
    ]
    return [section for section in made if section.sentences]


def _state(case: Case) -> Iterator[Sentence]:
    yield from _of_facts(case, "Phase", "Workers", "World", "Groups", "Group", "Progress")
    yield from _steps(case)
    yield from _of_facts(case, "Checkpoints")


def _groups(case: Case) -> Iterator[Sentence]:
    """Yield the replica groups that do not train with the others, with why."""
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
        yield sentence(text, case.of_job(f"status.groups[{index}]"))
    if len(apart) > MOST:
        yield sentence(f"and {counted(len(apart) - MOST, 'more group')}", case.of_job("status.groups"))


def _of_facts(case: Case, *labels: str) -> Iterator[Sentence]:
    for fact in facts_of(case):
        if fact.label in labels and fact.fields:
            yield sentence(str(fact), fact.fields)


def _steps(case: Case) -> Iterator[Sentence]:
    """Yield how far the worker furthest behind is from the furthest."""
    steps = [(progress["step"], worker) for worker, progress in case.telling]
    if len(steps) < FEWEST_TO_COMPARE:
        return
    (least, behind), (most, _) = min(steps, key=_step), max(steps, key=_step)
    who = "All workers" if least == most else behind["metadata"]["name"]
    furthest = "" if least == most else f", the furthest behind; the furthest is at {most}"
    verb = "are" if least == most else "is"
    yield sentence(f"{who} {verb} at step {least}{furthest}", of_worker(behind, "status.agent.progress.step"))


def _step(pair: tuple[int, JSON]) -> int:
    return pair[0]


def _failures(case: Case) -> Iterator[Sentence]:
    if counts := by_cause(failures_of(case.job)):
        yield sentence(f"Since submission: {counts}", case.of_job("status.failures"))
    if case.life is None:
        return
    outages = outages_by_failure(case.life)
    together = _at_one_moment(own_failures(case.life))
    for alike in reversed(together[-MOST:]):
        failure, lane = alike[0]
        moment = case.life.submitted + timedelta(seconds=failure.at)
        ago = duration((case.now - moment).total_seconds())
        when = f"{clock_of(case.life, failure.at)} UTC, {ago} ago"
        cost = ""
        if outage := next((outages[each] for each in alike if each in outages), None):
            cost = f" It cost {loss(outage.seconds)}."
        detail = f": {failure.text.rstrip('.')}" if failure.text else ""
        who = some_of([lane.title for _, lane in alike], NAMED)
        yield sentence(f"{when}: {who}, {failure.what}{detail}.{cost}", _fields_of_failure(case, lane.worker))
    shown = sum(map(len, together[-MOST:]))
    if shown < case.life.failures:
        text = f"These are the last {shown} of {case.life.failures}"
        yield sentence(text, case.of_job("status.failures"))


def _at_one_moment(failures: Sequence[tuple[Failure, Lane]]) -> list[list[tuple[Failure, Lane]]]:
    """Return neighbours that say the same of workers at one moment together."""
    found: list[list[tuple[Failure, Lane]]] = []
    for failure, lane in failures:
        last = found[-1][-1][0] if found else None
        is_near = last is not None and failure.at - last.at <= SAME_MOMENT.total_seconds()
        if last is not None and is_near and (last.what, last.text) == (failure.what, failure.text):
            found[-1].append((failure, lane))
        else:
            found.append([(failure, lane)])
    return found


def _of_many(found: Iterable[tuple[str, str, Field]]) -> Iterator[Sentence]:
    """Yield a sentence for each text, which names the first of all (subject, text, field) that have it."""
    alike: dict[str, list[tuple[str, Field]]] = {}
    for subject, text, field in found:
        alike.setdefault(text, []).append((subject, field))
    for text, subjects in [*alike.items()][:MOST]:
        who = some_of([subject for subject, _ in subjects], NAMED)
        yield sentence(f"{who}: {text}", [field for _, field in subjects[:NAMED]])


def _fields_of_failure(case: Case, name: str) -> list[Field]:
    """Return the fields of all accounts of a failure that a timeline draws on."""
    fields = [*case.of_job("status.history")]
    if (case.status.get("lastFailure") or {}).get("worker") == name:
        fields += case.of_job("status.lastFailure")
    worker = next((each for each in case.workers if each["metadata"]["name"] == name), None)
    if worker is not None:
        status = worker.get("status") or {}
        paths = {
            "status.agent.failure": (status.get("agent") or {}).get("failure"),
            "status.lastExit": status.get("lastExit"),
        }
        fields += [field for path, there in paths.items() if there for field in of_worker(worker, path)]
    return fields


def _waiting(case: Case) -> Iterator[tuple[str, str, Field]]:
    """Yield the workers that do not train."""
    for worker in [] if report.is_finished(case.job) else case.workers:
        status = worker.get("status") or {}
        if state_of(worker) not in AT_EASE and status.get("phase"):
            path = "status.message" if status.get("message") else "status.phase"
            text = ", ".join(filter(None, (state_of(worker), status.get("message"))))
            yield worker["metadata"]["name"], text, *of_worker(worker, path)


def _budgets(case: Case) -> Iterator[Sentence]:
    limit = (case.job["spec"]["replicaSpecs"].get(names.WORKER) or {}).get("restartCount", 3)
    budget = case.status.get("failureBudget") or {}
    if spent := budget.get("spent"):
        fields = case.of_job("status.failureBudget.spent")
        yield sentence(f"In place: {_spent(spent, limit)} since step {budget.get('step', 'unknown')}", fields)
    if (budget.get("alike") or 0) > 1:
        fields = case.of_job("status.failureBudget.alike")
        yield sentence(
            f"{budget['alike']} failures in a row were the same: "
            f"{budget.get('exitClass')}: {budget.get('signature')}",
            fields,
        )
    until = parse_time(budget.get("heldUntil"))
    if until is not None and until > case.now and not report.is_finished(case.job):
        text = f"No world is formed before {budget['heldUntil']}"
        yield sentence(text, case.of_job("status.failureBudget.heldUntil"))
    telling = [
        (worker, of_pods["spent"])
        for worker in case.workers
        if (of_pods := (worker.get("status") or {}).get("failureBudget") or {}).get("spent")
    ]
    for worker, spent in telling[:MOST]:
        fields = of_worker(worker, "status.failureBudget.spent")
        yield sentence(f"Pods of {worker['metadata']['name']}: {_spent(spent, limit)}", fields)


def _spent(spent: JSON, limit: int) -> str:
    return ", ".join(f"{class_} {count} of {limit}" for class_, count in sorted(spent.items()))


def _nodes(case: Case) -> Iterator[Sentence]:
    yield from _of_many(_troubled_nodes(case))
    yield from _of_many(
        (worker["metadata"]["name"], f"kept off {some_of(kept_off[::-1], MOST)}", *of_worker(worker, path))
        for path in ("spec.faultyNodes", "spec.excludedNodes")
        for worker in case.workers
        if (kept_off := worker["spec"].get(path.partition(".")[2]))
    )


def _troubled_nodes(case: Case) -> Iterator[tuple[str, str, Field]]:
    objects = {node["metadata"]["name"]: node for node in case.nodes}
    for state in node_states(case):
        if state.cordon:
            acted = read_acted(objects[state.name]) if state.cordon == "Cordoned" else None
            by = f" by {acted.kind} {acted.name}, {reason_of(acted)}" if acted else ", not by dlr"
            text = f"{state.cordon}{by}"
            yield state.name, text, cordon_field(objects[state.name])
        if state.ready is False:
            yield state.name, "not ready", Field("Node", state.name, "status.conditions[Ready]")


def _time(case: Case) -> Iterator[Sentence]:
    yield from _of_facts(case, "Goodput", "Time")


def _events(case: Case) -> Iterator[Sentence]:
    warnings = [event for event in case.events if event.get("type") == "Warning"]
    for event in reversed(warnings[-MOST:]):
        seen, _, reason, message = report.event_row(event, case.job, case.now)
        field = Field("Event", event["metadata"]["name"], "message")
        yield sentence(f"{seen} ago, {reason}: {message}", (field,))
