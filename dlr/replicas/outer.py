"""DiLoCo (https://arxiv.org/abs/2311.08105): groups that average every so many steps.

A *round* is the inner steps from one average to the next. Each group makes them alone, with its own
optimizer. Then their change, the global parameters minus the group's own, is averaged like the gradients of a
step, an outer optimizer steps the global parameters by it, and all groups continue from those.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dlr.replicas.channel import Channel
from dlr.replicas.checkpointers import GroupCheckpointer
from dlr.replicas.gradients import local, parameters_of
from dlr.replicas.group import OwnGroup
from dlr.replicas.protocol import Computed, Do
from dlr.replicas.replicas import OnCommit, Replicas, Until
from dlr.replicas.survivor import LivingProcess
from dlr.replicas.training_step import TrainingStep

MakeOptimizer = Callable[[list[Tensor]], Optimizer]

OUTER_EXCHANGE_SECONDS = 3_600.0
"""Time limit of an exchange to which all groups have come: the network between them may be slow."""
INNER_STEP = "inner_step"
"""Name of the number of inner steps in the groups' common state."""


class GlobalParameters:
    """Copy of the parameters that all groups share, with the outer optimizer.

    Args:
        parameters: the model's parameters, which the inner optimizers change.
        make_optimizer: creates the outer optimizer for them.

    Raises:
        TypeError: `make_optimizer` returns something else.
        ValueError: the outer optimizer lacks some parameters.
    """

    def __init__(self, parameters: Sequence[Tensor], make_optimizer: MakeOptimizer) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self.optimizer = make_optimizer(list(self._parameters))
        if not isinstance(self.optimizer, Optimizer):
            found = type(self.optimizer).__name__
            raise TypeError(f"dlr.replicas.join: outer has to return a torch optimizer, and returned {found}")
        stepped = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        if any(id(each) not in stepped for each in self._parameters):
            raise ValueError(
                "the outer optimizer lacks parameters that the inner one changes: make it of the list that "
                "`outer` is called with"
            )
        self._copies = [local(each.detach()).clone() for each in self._parameters]
        self._begun_with = deepcopy(self.optimizer.state_dict())

    def forget(self) -> None:
        """Reset the outer optimizer to its initial state, as in a process that joins."""
        self.optimizer.load_state_dict(deepcopy(self._begun_with))

    @torch.no_grad()
    def restore(self) -> None:
        """Set the gradients to the global parameters minus the model's, and the model to the global ones."""
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            own = local(parameter.detach())
            parameter.grad = torch.empty_like(parameter)
            torch.sub(copy, own, out=local(parameter.grad))
            own.copy_(copy)

    def step(self) -> None:
        """Step the global parameters by the averaged gradients."""
        self.optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        self.copy()

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the model's parameters to the global ones."""
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            copy.copy_(local(parameter.detach()))


class OuterReplicas(Replicas):
    """This process's part in training by rounds. Created by `join` with `sync_every`.

    Versions, commits and `applied` refer to outer steps; `steps` counts inner ones. At every meeting the
    groups' models have the global parameters, which a group behind receives.

    Args:
        sync_every: number of inner steps in a round.
        make_optimizer: creates the outer optimizer for the model's parameters.
        start: number of inner steps that the state has.
        checkpoint, process: as in `Replicas`.
    """

    _least_exchange_seconds = OUTER_EXCHANGE_SECONDS

    def __init__(
        self,
        state: MutableMapping[str, Any],
        optimizers: Sequence[Optimizer],
        start: int,
        own: OwnGroup,
        channel: Channel,
        sync_every: int,
        make_optimizer: MakeOptimizer,
        checkpoint: GroupCheckpointer | None = None,
        process: LivingProcess | None = None,
    ) -> None:
        self._global = GlobalParameters(parameters_of(optimizers), make_optimizer)
        shared = {**state, "outer": self._global.optimizer, INNER_STEP: start}
        super().__init__(shared, optimizers, start, own, channel, checkpoint, sync_every, process)
        self._sync_every = sync_every
        self._after_step: list[OnCommit] = []

    # --- for the script ----------------------------------------------------------------------------------

    @property
    def writes_checkpoints(self) -> bool:
        """Whether this group writes to storage in this round: the first of those that began it does."""
        return self._is_first_of(self._at.contributing)

    def call_after_commit(self, act: OnCommit) -> None:
        """Call `act` after each inner step, with the groups that train in this round."""
        self._after_step.append(act)

    def steps(self, total: int | None = None, *, until: Until | None = None) -> Iterator[TrainingStep]:
        """Yield the inner steps to make, from the groups' present one.

        The outer step is made after every `sync_every` inner steps, and after the last one.

        Args:
            total: number of inner steps after which training ends.
            until: called on each rank in each outer step. The step is the last one of all groups if it
                returns True on any rank of any group.
        """
        self._global.copy()
        self._begin_loop(total, until)
        while self._next is not Do.LEAVE:
            self._watch.begin()
            if (yield from self._inner_steps(total)):
                self._process.carry_through(self._make_outer_step)
        self._watch.begin()

    def _make_outer_step(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.wait()  # the outer step changes parameters before any optimizer's step
        self._global.restore()
        self._advance(Computed(self._state[INNER_STEP]))

    def _inner_steps(self, total: int | None) -> Generator[TrainingStep, None, bool]:
        """Yield the steps to the end of a round; return whether the round was completed."""
        while True:
            step: int = self._state[INNER_STEP]
            yield from self._living_step(step)
            if self._process.next_round():
                return False
            self._state[INNER_STEP] = step + 1
            for act in self._after_step:
                act(step, self._at.contributing)
            if (step + 1) % self._sync_every == 0 or step + 1 == total:
                return True

    def average(self) -> None:
        """Leave the gradients unchanged: those of inner steps are the group's own."""

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._watch.check(optimizer)

    def begin_round(self) -> None:
        """Begin a round as in `Replicas`; without a checkpoint, the inner steps begin with the first."""
        self._state[INNER_STEP] = 0
        self._global.forget()
        super().begin_round()

    # --- acts of the protocol ----------------------------------------------------------------------------

    def _note_loaded(self, step: int | None) -> None:
        if step is not None:
            self._state[INNER_STEP] = step
            self._global.copy()

    def _end_heal(self) -> None:
        super()._end_heal()
        if self._quorum().is_behind:
            self._global.copy()

    def _commit(self, step: int, groups: Sequence[int]) -> None:
        self._global.step()
        super()._commit(step, groups)
