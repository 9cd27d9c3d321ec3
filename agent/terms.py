"""Terms of a command of `dlr exec`: its variables, and when it is restarted. Pure.

| the command | is restarted |
|---|---|
| of a job without parameter servers | never |
| the same with `--each-round` | with each round of the world, as by `dlr run`; JAX needs that |
| of the chief of parameter servers | with each version of the cluster |
| of other roles | if it becomes another task of the cluster |
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from agent.facts.world import AgentWorld, Member, WorldView
from crds.names import CHIEF
from crds.phases import RendezvousPhase


@dataclass(frozen=True)
class Terms:
    """Terms of one start of a command."""

    key: Hashable
    """Key that restarts the command when it changes."""
    round: int = 0
    """Round, or version of the cluster, to report as observed."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandSlot:
    """Slot of the command."""

    type: str
    member: Member
    in_cluster: bool = False
    """Whether the job has parameter servers."""
    each_round: bool = False

    @property
    def follows(self) -> bool:
        """Whether its command may be restarted, and may fail as a consequence of others."""
        return self.each_round or (self.in_cluster and self.type == CHIEF)


def terms_of(view: WorldView, slot: CommandSlot) -> Terms | None:
    """Return the terms for now; None while the command must not run."""
    if slot.in_cluster:
        place = view.cluster.place(slot.type, slot.member.index) if view.cluster is not None else None
        if view.cluster is None or place is None:
            return None
        version = view.cluster.version
        variables = view.cluster.variables(slot.type, slot.member.index)
        return Terms((place, version if slot.follows else None), version, variables)
    if not slot.each_round:
        return Terms(key=None)
    world = view.world
    if world is None or world.phase is not RendezvousPhase.FORMED or slot.member not in world.members:
        return None
    return Terms(world.round, world.round, round_variables(world, slot.member))


def round_variables(world: AgentWorld, me: Member) -> dict[str, str]:
    """Return torch's and JAX's variables for the place of a Pod's only process.

    https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
    """
    rank, size = str(world.members.index(me)), str(len(world.members))
    address = f"[{world.master_address}]" if ":" in world.master_address else world.master_address
    return {
        "DLR_ROUND": str(world.round),
        "RANK": rank,
        "WORLD_SIZE": size,
        "MASTER_ADDR": world.master_address,
        "MASTER_PORT": str(world.master_port),
        "JAX_COORDINATOR_ADDRESS": f"{address}:{world.master_port}",
        "JAX_NUM_PROCESSES": size,
        "JAX_PROCESS_ID": rank,
    }


def may_follow(view: WorldView, started: Terms, slot: CommandSlot) -> bool:
    """Return whether a command may have failed as a consequence of others, by the newest view."""
    if slot.in_cluster and view.cluster is not None and view.cluster.lost:
        return True
    return terms_of(view, slot) != started
