"""The environment of a training process beside torch's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import torch
from torch.distributed.elastic.multiprocessing import LogsDest

from agent.checkpoints.holder import CheckpointHolder
from agent.membership import WorldMembership
from agent.monitor import flight_recorder
from agent.monitor.progress import ProgressFiles
from agent.monitor.stacks import StackFiles
from agent.monitor.stepping import ProcessStart
from agent.replicas.desk import ReplicasDesk
from agent.survival.kept import KeptProcesses
from agent.torch_compat.elastic import MAX_RESTARTS, RESTART_COUNT, UNLIMITED_RESTARTS
from crds.names import ENV_REPLICAS_SOCKET
from crds.progress_record import ENV_ROUND
from crds.shard_set import ENV_SHARDS_SOCKET
from crds.trace import ENV_ENDPOINT, ENV_TRACEPARENT, traceparent


@dataclass(frozen=True)
class ProcessEnvironment:
    """Files and sockets that an agent shares with its training processes by their environment."""

    progress: ProgressFiles
    stacks: StackFiles
    memory: CheckpointHolder | None
    desk: str
    """Socket from which the processes pull shards; "" if each process pulls its own share, by rank."""
    replicas: ReplicasDesk | None = None
    """Desk that they follow the replica groups through; None in a job without groups."""

    def complete(
        self,
        envs: dict[int, dict[str, str]],
        logs: LogsDest,
        membership: WorldMembership,
        kept: KeptProcesses,
    ) -> None:
        """Add the variables of a round's processes to those of torch.

        Raises:
            OSError: a file cannot be written.
        """
        view, round_ = membership.view, membership.round
        ranks = [int(envs[local_rank]["RANK"]) for local_rank in range(len(envs))]
        start = ProcessStart(
            round_, int(envs[0]["WORLD_SIZE"]), leads=0 in ranks, of_new_job=not view.has_trained
        )
        ours = self.of_start(start, ranks, logs, view.failures_per_hour(datetime.now(timezone.utc)))
        shared = kept.variables() | trace_variables(os.environ, view.job_uid, round_)
        for local_rank, env in envs.items():
            env.update({**restart_counts(env, round_), **ours[local_rank], **shared})

    def of_start(
        self, start: ProcessStart, ranks: Sequence[int], logs: LogsDest, failures_per_hour: float | None
    ) -> list[dict[str, str]]:
        """Make the files of a start, and return the variables that name them, by local rank.

        Args:
            ranks: global ranks of the processes, by local rank.
            failures_per_hour: failure rate of the job; None if it is unknown.

        Raises:
            OSError: a file cannot be written.
        """
        folder = self.progress.directory
        progress = self.progress.renew(len(ranks), start)
        stacks = self.stacks.renew(start.round, logs.error_files)
        checkpoints: list[dict[str, str]] = [{} for _ in ranks]
        if self.memory is not None:
            checkpoints = self.memory.write_files(folder, ranks, failures_per_hour)
        shards = {ENV_SHARDS_SOCKET: self.desk, ENV_ROUND: str(start.round)} if self.desk else {}
        replicas = {}
        if self.replicas is not None:
            self.replicas.begin(start.round, len(ranks))
            replicas = {ENV_REPLICAS_SOCKET: self.replicas.path, ENV_ROUND: str(start.round)}
        shared = shards | replicas
        return [
            {**progress[rank], **stacks[rank], **self._recorder(rank), **shared, **checkpoints[rank]}
            for rank in range(len(ranks))
        ]

    def _recorder(self, local_rank: int) -> dict[str, str]:
        """Return the variables by which a process records its last collectives for this agent."""
        records = self.stacks.folder_of(local_rank, self.progress.directory)
        socket = self.progress.recorder_of(local_rank)
        return flight_recorder.variables(socket, os.environ, torch.__version__, records)


def trace_variables(environ: Mapping[str, str], job_uid: str, round_: int) -> dict[str, str]:
    """Return the variable that makes the script's spans children of its round, if the Pod has a collector.

    A trace that the Pod's environment names takes precedence.
    """
    if not environ.get(ENV_ENDPOINT) or ENV_TRACEPARENT in environ or not job_uid:
        return {}
    return {ENV_TRACEPARENT: traceparent(job_uid, round_)}


def restart_counts(env: Mapping[str, str], round_: int) -> dict[str, str]:
    """Return torch's two counts of restarts, with the number of earlier rounds as the count.

    torch counts the failures of one agent; the number of rounds is equal on all ranks. The difference between
    the two variables is unchanged.

    Args:
        env: environment of a process, as torch sets it.
    """
    count = max(round_ - 1, 0)
    counts = {RESTART_COUNT: str(count)}
    if MAX_RESTARTS in env:
        allowed = int(env[MAX_RESTARTS]) + count - int(env.get(RESTART_COUNT, "0"))
        counts[MAX_RESTARTS] = str(min(allowed, UNLIMITED_RESTARTS))
    return counts
