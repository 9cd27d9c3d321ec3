"""Events of a job that its conditions do not show: about its phase, its world, its scale. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from controller.wording import counted
from crds import names
from crds.elasticworker import ExitClass
from crds.job_status import ElasticJobStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous, Resume
from reconcilers.conditions.life import why_stopped
from reconcilers.failure.incidents import Incident, in_one_line
from reconcilers.failure.policy import Assessment
from reconcilers.look import DesiredJob
from reconcilers.observed.slots import Migration, named
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from reconcilers.scale.request import Origin, overridden
from reconcilers.world.rendezvous import Decision

TOO_LATE = (
    "the job had {phase} before this edit, which therefore has no effect, unless it was of cleanPodPolicy or "
    "ttlSecondsAfterFinished. To train again, delete the job and create it again"
)


def of_phase(look: DesiredJob, status: ElasticJobStatus) -> Iterator[Event]:
    """Yield an Event for a job that is suspended, resumed or ends, and for an edit that comes too late."""
    before, phase = look.seen.job.status, status.phase
    if before.phase is not None and before.phase.finished:
        # The status of the end has the generation at that time: a later one is an edit that came too late.
        observed = before.observed_generation
        if observed is not None and observed < look.seen.job.metadata.generation:
            message = TOO_LATE.format(phase=before.phase.value.lower())
            yield Event("Warning", "EditWithoutEffect", message)
    elif phase is not None and phase.finished:
        (end,) = (c for c in status.conditions if c.type == phase.value)
        yield Event("Normal" if phase is JobPhase.SUCCEEDED else "Warning", end.reason, end.message)
    elif phase is JobPhase.SUSPENDED:
        if before.phase not in (phase, None):  # a job that begins suspended has no Pods
            message = f"{why_stopped(look.seen.job)}: its Pods are being deleted"
            yield Event("Normal", "Suspended", message)
    elif before.phase is JobPhase.SUSPENDED and look.published.round:  # else it begins, and does not go on
        yield Event("Normal", "Resumed", "the job is resumed: its Pods are being created")


def of_world(
    published: Rendezvous, decision: Decision, failures: Assessment, workers: Workers, *, was_counted: bool
) -> Iterator[Event]:
    """Yield Events for a world that broke, changed or formed.

    Args:
        was_counted: a failure of the published round was blamed before, so its break had an Event.
    """
    new, incident = decision.rendezvous, failures.incident
    yield from of_culprit(incident)
    if (late := failures.count.late) is not None:
        follows = f"; what {late.instead_of} reported follows from that" if late.instead_of else ""
        yield Event("Warning", "WorldBroken", f"round {late.round}: {late.line}{follows}")
    if decision.failed and incident is not None and incident.exit_class is ExitClass.DAMAGED_CHECKPOINT:
        yield Event("Warning", "CheckpointDamaged", in_one_line(incident.failure))
    was_asked = published.hang_since is not None and not was_counted
    if new.hang_since is None and (decision.failed or was_asked):
        why = incident_line(incident) or new.why
        yield Event("Warning", "WorldBroken", f"round {published.round}: {why}")
    elif decision.breaks and not decision.failed:
        yield Event("Normal", "WorldChanged", f"round {published.round}: {new.why}")
    if new.phase is RendezvousPhase.FORMED and new.round != published.round:
        yield Event(
            "Normal",
            "WorldFormed",
            f"round {new.round}: {counted(len(new.members), 'worker')}, "
            f"{counted(new.world_size, 'process', 'processes')}, "
            f"rank 0 is worker {new.members[0]} at {names.with_port(new.master_address, new.master_port)}"
            f"{_stepped_in(workers, new.members)}",
        )


def _stepped_in(workers: Workers, members: Collection[int]) -> str:
    """Return a clause with the members that stood by until now."""
    stood_by = {w.spec.index for w in workers.exceptional if w.status.standby}.intersection(members)
    return f"; stood by before: {named(stood_by)}" if stood_by else ""


def incident_line(incident: Incident | None) -> str:
    """Return the culprit in one line, with its exit class and the action of a rule."""
    if incident is None:
        return ""
    follows = ", follows from another's end" if incident.follows else ""
    by_rule = f", {incident.action} by failurePolicy" if incident.action else ""
    return f"{in_one_line(incident.failure)} ({incident.exit_class}{follows}{by_rule})"


def of_culprit(incident: Incident | None) -> Iterator[Event]:
    if incident is not None and incident.instead_of is not None:
        blamed = incident.instead_of
        message = f"round {blamed.round}: {incident_line(incident)} was first, and not {blamed.worker}"
        yield Event("Warning", "WorldBroken", message)


def of_scale(look: DesiredJob) -> Iterator[Event]:
    """Yield Events for a count or plan that has just become desired state; none for a count with extra
    workers, which come and go."""
    request, scaling, before = look.request, look.job.status.scaling, look.count_changed_from
    if scaling is not None and before is not None and (request is None or request.base is None):
        message = f"from {before} to {counted(scaling.replicas, 'worker')}, by {scaling.by}"
        yield Event("Normal", "ScaleRequested", message)
    if request is not None and request.origin is Origin.PLAN:
        why = overridden(look.job, request.id)
        asked = request.in_words() + (f" ({why})" if why else "")
        yield Event("Normal", "ScalePlanTaken", f"{request.by}: {asked}")


def of_moves(done: Sequence[Migration]) -> Iterator[Event]:
    for move in done:
        message = f"{move.type} {move.target} has taken the place of {move.source}"
        yield Event("Normal", "WorkerMoved", message)


def of_resume(before: Rendezvous, world: Rendezvous, lived_on: int = 0) -> Iterator[Event]:
    """Yield an Event when a resume is first reported.

    Args:
        lived_on: training processes that lived on into the round.
    """
    if world.resume is not None and (before.round, before.resume) != (world.round, world.resume):
        lives = f"; {lived_on} of {counted(world.world_size, 'process', 'processes')} lived on"
        message = f"round {world.round} goes on {resumed_in_words(world.resume)}{lives if lived_on else ''}"
        yield Event("Normal", "TrainingResumed", message)


def resumed_in_words(resume: Resume) -> str:
    """Return words such as `from memory, step 120`."""
    step = "" if resume.step is None else f", step {resume.step}"
    return f"{resume.tier.origin}{step}"
