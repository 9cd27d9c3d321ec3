"""Time accounting of a job with replica groups: `status.goodput` and `status.history`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.job_status import MAX_EPISODE_REASON, Episode, Goodput, JobState
from crds.phases import JobPhase
from crds.replica_groups import Membership
from crds.texts import shortened
from reconcilers.failure.incidents import in_one_line
from reconcilers.goodput.goodput import begun, in_state, with_steps_of
from reconcilers.goodput.ledger import in_short, with_episode
from reconcilers.groups.sums import named

STATES = {
    JobPhase.PENDING: JobState.PENDING,
    JobPhase.RUNNING: JobState.TRAINING,
    JobPhase.RESTARTING: JobState.RECOVERING,
    JobPhase.SUSPENDED: JobState.SUSPENDED,
}
"""State to which the job's time is charged, by its phase."""


def goodput_of(
    job: ElasticJob, groups: Iterable[ElasticJob], phase: JobPhase, now: datetime
) -> Goodput | None:
    """Return the account after this look: time by the job's own states, and steps by its groups' accounts."""
    known = job.status.goodput
    if job.status.finished:
        return known
    before = known or begun(job, now)
    state = STATES.get(phase, before.state)  # a job that ends stays in its last state
    is_same = state is before.state and not phase.finished
    account = before if is_same else in_state(before, state, now)
    accounts = [each.status.goodput for each in groups if each.status.goodput is not None]
    updated = with_steps_of(account, job, accounts, now)
    # The ratio changes all the time, and alone is not worth a write.
    is_news = updated.model_copy(update={"ratio": before.ratio}) != before
    return updated if is_news else before


def history_of(
    job: ElasticJob,
    groups: Mapping[int, ElasticJob],
    membership: Membership,
    phase: JobPhase,
    now: datetime,
) -> list[Episode]:
    """Return the history after this look: an episode begins when the job's state or its members change.

    An episode's members are indices of groups, and its round is the first version that has these groups.
    """
    submitted = job.metadata.creation_timestamp or now
    begin = Episode(state=JobState.PENDING, since=submitted, reason="submitted")
    known = tuple(job.status.history) or (begin,)
    if phase.finished:
        return [*known]
    state, members = STATES[phase], in_short([place.index for place in membership.groups])
    last = known[-1]
    if (last.state, last.members) == (state, members):
        return [*known]
    reason = "; ".join(_reasons(job, groups, membership, phase, last.since))
    episode = Episode(
        state=state,
        since=now,
        round=membership.version,
        members=members,
        reason=shortened(reason, MAX_EPISODE_REASON),
    )
    return [*with_episode(known, episode)]


def _reasons(
    job: ElasticJob,
    groups: Mapping[int, ElasticJob],
    membership: Membership,
    phase: JobPhase,
    since: datetime,
) -> Iterator[str]:
    """Yield why an episode begins."""
    if phase is JobPhase.SUSPENDED:
        yield "suspended"
        return
    if phase is JobPhase.PENDING:
        yield "resumed"
        return
    published = job.status.membership or Membership()
    before, after = ({place.index for place in each.groups} for each in (published, membership))
    if joined := sorted(after - before):
        yield f"with {named(joined)}"
    if left := sorted(before - after):
        why = next(filter(None, (_why(groups.get(index), since) for index in left)), "")
        yield f"without {named(left)}" + (f": {why}" if why else "")


def _why(group: ElasticJob | None, since: datetime) -> str:
    """Return why a group does not train any more; empty if its status has no reason."""
    if group is None:
        return "no longer wanted"
    if group.status.phase is JobPhase.SUCCEEDED:
        return "finished"
    failure = group.status.last_failure
    return in_one_line(failure) if failure is not None and failure.time >= since else group.status.reason
