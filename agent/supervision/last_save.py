"""Saves an ending agent's checkpoints in memory to storage, if need be, and reports those that are lost."""

from __future__ import annotations

import logging

from agent.checkpoints import last_save
from agent.checkpoints.holder import CheckpointHolder
from agent.membership import RoundStanding, WorldMembership
from agent.monitor.progress import ProgressFiles
from crds.agent_report import AgentState
from crds.phases import JobPhase

logger = logging.getLogger(__name__)

LEAST_SECONDS = 1.0
"""Least time left for an attempt."""


def is_due(phase: str, state: AgentState, standing: RoundStanding, *, is_whole: bool) -> bool:
    """Whether the ending agent has to save its checkpoints in memory, since it may have the only copy.

    Agents that go on have copies, or resume from storage. After a failure the only copy may be here, and it
    is not clear which other agents end.

    Args:
        phase: phase of the job.
        state: state of this agent.
        is_whole: it has a checkpoint of all ranks.
    """
    if state is AgentState.SUCCEEDED or phase == JobPhase.SUCCEEDED:
        return False
    if phase in (JobPhase.SUSPENDED, JobPhase.FAILED):
        return True
    newest = standing.newest
    if newest is not None and (standing.others_train or newest.has_replaced(standing.member)):
        return False
    return is_whole or standing.peers_are_dead


def save_last(
    memory: CheckpointHolder,
    files: ProgressFiles,
    membership: WorldMembership,
    state: AgentState,
    seconds: float,
) -> None:
    """Save to storage what only memory has, if it is due, and report a checkpoint that is lost.

    Args:
        files: progress files of the processes, all of which have ended.
        seconds: time left.
    """
    _, view = membership.look()
    if not is_due(view.phase, state, membership.standing, is_whole=True):
        return
    save = memory.last_save(files.read().checkpoint_step, seconds)
    if save is None or not is_due(view.phase, state, membership.standing, is_whole=last_save.is_whole(save)):
        return
    why = last_save.carry_out(save) if seconds >= LEAST_SECONDS else "no time is left to write it"
    if why:
        step = last_save.newest_step(save)
        sentence = f"step {step} in memory is lost, as its Pod ends and storage does not have it: {why}"
        logger.warning("%s", sentence)
        files.note_lost(sentence)
