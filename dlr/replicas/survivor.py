"""A training process that lives through the death of its peers: `with step` in the loop over steps.

    for step in training.steps(10_000):
        with step:                             # made again, if a peer dies in it
            loss = criterion(model(batch(step)))
            loss.backward()
            optimizer.step()

The agent ends a round, and hands over the next one (`agent.survival`). In between this process leaves its
waits; then it forms its groups again with the replacement of the dead process, loads the checkpoint that the
agents have agreed upon, or receives the state of other replica groups, and continues from there.
docs/elasticity.md describes the whole.

It leaves in `with step`, and continues when the loop requests its next step. In between the script can use no
group, and saves nothing, since a newcomer does not run that code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.optim import Optimizer

from agent.facts.place import Place
from agent.survival.client import HandedRound, RoundLine, RoundOverError
from agent.survival.messages import Left, Lost, Unable
from agent.torch_compat import background_saves, living_modules, pipelines, reconfigure, unconnected
from agent.torch_compat.versions import why_none_lives_on
from crds.names import ENV_JOINS, ENV_SPARE, ENV_WORLD_SOCKET
from crds.progress_record import ENV_PROGRESS_FILE, ENV_ROUND
from crds.stack_offer import offer_stacks
from dlr import progress
from dlr.replicas.broken_steps import is_made_again, text_of
from dlr.replicas.checkpointers import LivingCheckpointer
from dlr.replicas.first_steps import prepare_steps
from dlr.replicas.training_step import LivingTraining, Mortal

logger = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.001
LONGEST_LOOK_SECONDS = 0.25
LOOK_SHARE = 0.1
"""Pause between two looks for all ranks, as a share of the time waited."""


class LivingGroups(Protocol):
    """This process's groups: `agent.torch_compat.reconfigure.ReformableGroups`."""

    def are_supported(self, round_: int, store: Store) -> bool:
        """Agree with the other processes of a round whether the groups of all can be formed again."""

    def adopt(self) -> None:
        """Make the script's groups able to be formed again; raise UnsupportedGroupError if impossible."""

    def refuse_later_ones(self) -> None:
        """Raise UnsupportedGroupError if a group was created since."""

    def bound_to_size(self) -> str | None:
        """Return the reason why the groups fit only one size of the world; None if they fit any."""

    def form(self, round_: int, store: Store, place: Place, await_all: reconfigure.AwaitAll) -> None:
        """Connect the groups for a round in that place; raise RuntimeError if a rank does not come."""

    def break_off(self) -> None:
        """Abort the groups' collectives."""


class Survivor:
    """The part of a process in the rounds through which it lives.

    Args:
        line: the line to the agent.
        groups: of this process, which `line` breaks off when a round is over.
        checkpoint: of the training.
        modules: of the training, whose forward or backward pass may be broken off.
        optimizers: whose gradients are dropped then.
        resizable: whether the script asks for its rank and the size of the world in each step, so that this
            process goes on in a world of another size.
    """

    def __init__(
        self,
        line: RoundLine,
        groups: LivingGroups,
        checkpoint: LivingCheckpointer,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        environ: Mapping[str, str] = os.environ,
        connect: Callable[[Mapping[str, str]], Store] = reconfigure.round_store,
        *,
        resizable: bool = False,
    ) -> None:
        self._line = line
        self._groups = groups
        self._connect = connect
        """Connects to the store of the round that the environment names."""
        self._checkpoint = checkpoint
        self._modules = modules
        self._optimizers = optimizers
        self._random_tracker = living_modules.random_tracker()
        """That of all processes at this place in the script."""
        self.round = int(environ[ENV_ROUND])
        self._place = Place.in_round(environ)
        """The place that the modules are made for."""
        self._is_resizable = resizable
        self.training: LivingTraining
        """What this process does in its rounds."""
        self.joins = ENV_JOINS in environ
        """Whether this process takes the place of one whose peers live."""
        self._is_spare = ENV_SPARE in environ
        self._has_entered = False
        self._is_able = True
        self._has_left = False
        """Whether this process has left its round, and has yet to take the next one."""

    # --- in the loop --------------------------------------------------------------------------------------

    @property
    def is_round_over(self) -> bool:
        """Whether the agent has ended the round."""
        return self._line.is_over(self.round)

    def break_off(self) -> None:
        """Wake whatever waits for others, since the round is over; for the thread of the line."""
        self.training.wake()
        self._groups.break_off()

    def join(self) -> None:
        """Enter a round whose other processes live on."""
        unconnected.make_connected()
        self._groups.adopt()
        bound_to = self._bound_place()
        if self._is_spare:
            prepare_steps(self._optimizers)
        self._line.enter(bound_to)
        self._has_entered = self._checkpoint.lives_on = True
        self._checkpoint.rest()  # what it began with is of another start, if this process is a spare
        if self._is_spare:
            self._take(self._line.next_round())
        self._come_into_round()

    def enter(self) -> None:
        """Begin a step. With the first, this process becomes able to live on."""
        if self._has_entered:
            self._check_groups()
            return
        self._has_entered = True
        store = self._connect(os.environ)
        if not self._groups.are_supported(self.round, store):
            self._is_able = False
            return
        self._groups.adopt()
        self._groups.form(self.round, store, self._place, self._await_all)
        self._line.enter(self._bound_place())
        self._checkpoint.lives_on = True

    def ends(self, error: BaseException | None) -> bool:
        """End a step, successfully or by an error; leave the round if it is over.

        Returns:
            whether the step is made again, since the error is not the script's.
        """
        if not (error is None or isinstance(error, Exception)):
            return False
        self._check_groups()
        if not self._is_able:
            return False
        if not self._has_left:
            if not (is_made_again(error, is_over=self._is_over) and self._can_leave()):
                return False
            self._leave(error)
        return True

    def next_round(self) -> bool:
        """Enter the next round if this one is over; return whether it was.

        The loop calls it after each step of the script.
        """
        if not self._is_able or not (self._has_left or self._is_over):
            return False
        if not self._has_left:
            if not self._can_leave():
                return False
            self._leave(None)
        self._take(self._line.next_round())
        self._come_into_round()
        return True

    def carry_through(self, act: Callable[[], None]) -> None:
        """Run the loop's work between two steps; if a peer dies in it, enter the next round."""
        try:
            act()
        except Exception as error:
            if not (self._has_entered and self.ends(error)):
                raise
        self.next_round()

    def give_up(self) -> None:
        """Become an ordinary process, since the script has ended its loop."""
        if self._has_left:
            self._end_living("its script has ended the loop in a step that was to be made again")
        self._is_able = self._checkpoint.lives_on = False

    def _bound_place(self) -> Place | None:
        """Return the only place in which this process can continue; None if it can in any."""
        if self._is_resizable:
            reason = self._groups.bound_to_size()
            reason = reason or living_modules.bound_to_size(self._modules, self._optimizers)
            if reason is None:
                return None
            logger.warning("where the world's size changes, all processes start again: %s", reason)
        return self._place

    def _check_groups(self) -> None:
        """Become an ordinary process, if the script has created a group that no newcomer has."""
        if self._is_able:
            try:
                self._groups.refuse_later_ones()
            except reconfigure.UnsupportedGroupError as error:
                self._end_living(str(error))

    def _can_leave(self) -> bool:
        """Whether nothing in the background goes on in this round; if not, become an ordinary process."""
        if reason := background_saves.save_under_way():
            self._end_living(f"{reason}: a failure starts all processes again")
        return self._is_able

    def _end_living(self, reason: str) -> None:
        logger.warning("%s", reason)
        self._line.send(Unable(reason))
        self._is_able = self._checkpoint.lives_on = False

    # --- from one round into the next ---------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """Whether the agent has ended the round, or it has ended by plan."""
        return self.is_round_over or self._checkpoint.stays

    def _leave(self, error: Exception | None) -> None:
        """Leave the round: end waits for its peers, and copies for the agent."""
        self._groups.break_off()
        self.training.leave_round()
        if self._is_over:
            logger.info("round %d is over: this process lives on", self.round)
        else:
            logger.info("a peer is lost in round %d (%s): this process lives on", self.round, error)
        living_modules.reset_modules(self._modules)
        pipelines.reset_schedules()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._checkpoint.rest()
        for stream in (sys.stdout, sys.stderr):  # this process may not come to the next round
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        self._has_left = True
        if error is None or self._is_over:
            self._line.send(Left(self.round))
        else:
            self._line.send(Lost(self.round, text_of(error)))

    def _come_into_round(self) -> None:
        """Form the groups of the round, and begin it; take the next one where it ends meanwhile."""
        while True:
            try:
                place = Place.in_round(os.environ)
                self._groups.form(self.round, self._connect(os.environ), place, self._await_all)
                living_modules.set_random_tracker(self._random_tracker)
                if place != self._place:
                    logger.info("rank %d of %d is now rank %d of %d", *self._place, *place)
                    living_modules.resize(self._modules, self._optimizers)
                    self._place = place
                self._checkpoint.begin_again()
                self.training.begin_round()
                return
            except Exception as error:  # nothing in here is of the script's making but what it loads
                if not (self._is_over or is_made_again(error, is_over=False)):
                    raise
                self._leave(error)
                self._take(self._line.next_round())

    def _take(self, handed: HandedRound) -> None:
        """Become a process of that round, with its variables, log and progress record."""
        take_variables(handed.variables)
        for number, descriptor in handed.outputs.items():
            os.dup2(descriptor, number)
            os.close(descriptor)
        self.round, self._has_left = handed.round, False
        progress.begin_again()
        offer_stacks(os.environ)

    def _await_all(self, store: Store, key: str, count: int) -> None:
        """Wait until `count` processes have added to a key.

        Raises:
            RoundOverError: the round is over.
        """
        waited = 0.0
        while store.add(key, 0) < count:
            if self._line.is_over(self.round):
                raise RoundOverError
            seconds = min(max(FIRST_LOOK_SECONDS, LOOK_SHARE * waited), LONGEST_LOOK_SECONDS)
            self._line.rest(seconds)
            waited += seconds


LivingProcess = Survivor | Mortal


def take_variables(variables: Mapping[str, str]) -> None:
    """Set a round's variables in this process's environment, as if it had been forked for that round."""
    for name in (ENV_JOINS, ENV_SPARE):
        os.environ.pop(name, None)
    os.environ.update(variables)


def survivor_of_process(
    checkpoint: LivingCheckpointer,
    modules: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    why_not: str = "",
    *,
    resizable: bool,
) -> LivingProcess:
    """Return what lets this process live on when a peer dies, where its agent and its torch can.

    Args:
        why_not: the reason why the script cannot; empty where it can.
    """
    path, why_not = os.environ.get(ENV_WORLD_SOCKET), why_none_lives_on(torch.__version__) or why_not
    if not path or not dist.is_initialized() or why_not:
        is_first_of_job = ENV_PROGRESS_FILE in os.environ and os.environ.get("RANK") == "0"
        return Mortal(why_not if is_first_of_job else "")
    line, groups = RoundLine(path, lambda: survivor.break_off()), reconfigure.ReformableGroups()
    survivor = Survivor(line, groups, checkpoint, modules, optimizers, resizable=resizable)
    return survivor
