"""Terms of a command of `dlr exec`: its variables, and when it is started again. Pure.

| the command | is started again |
|---|---|
| of a job without parameter servers | never |
| the same with `--each-round` | with each round of the world, as `dlr run` does; JAX needs that |
| of the chief of parameter servers | with each version of the cluster |
| of other roles | if it is to be another task of the cluster |
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from agent.facts.world import AgentWorld, Member, WorldView
from crds.names import CHIEF
from crds.phases import RendezvousPhase


@dataclass(frozen=True)
class Terms:
    key: Hashable
    """A command that was started with another one is to be started anew."""
    round: int = 0
    """To be reported as the round, or as the version of the cluster, that was acted upon."""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandSlot:
    """The slot whose command it is."""

    type: str
    member: Member
    in_cluster: bool = False
    """Whether the job has parameter servers."""
    each_round: bool = False

    @property
    def follows(self) -> bool:
        """Whether its command may be started anew, and may fail by what became of others."""
        return self.each_round or (self.in_cluster and self.type == CHIEF)


def terms_of(view: WorldView, slot: CommandSlot) -> Terms | None:
    """None as long as the command is not to run."""
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
    """One process a Pod, with what torch and JAX call its place.

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
    """Whether a command that has failed may have failed by what is known to have become of others."""
    if slot.in_cluster and view.cluster is not None and view.cluster.lost:
        return True
    return terms_of(view, slot) != started
