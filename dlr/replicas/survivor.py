"""A training process that lives through the death of its peers: `with step` in the loop over steps.

    for step in training.steps(10_000):
        with step:                             # made again, if a peer dies in it
            loss = criterion(model(batch(step)))
            loss.backward()
            optimizer.step()

The agent says when a round is over, and hands the next one over (`agent.survival`). In between this process
leaves what it waits in; then it forms its groups again with who has the dead one's place, loads the
checkpoint that the agents have agreed upon, and makes that step again. docs/elasticity.md has the whole.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.optim import Optimizer

from agent.survival.client import HandedRound, RoundLine
from agent.survival.messages import Formed, Left, Lost
from agent.torch_compat import reconfigure
from crds.failure_texts import PeerDeathTexts
from crds.names import ENV_JOINS, ENV_SPARE, ENV_WORLD_SOCKET
from crds.progress_record import ENV_ROUND
from crds.stack_offer import offer_stacks
from dlr import progress

logger = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.001
LONGEST_LOOK_SECONDS = 0.25
LOOK_SHARE = 0.1
"""Time between two looks whether all ranks have come, as a share of the time waited."""


class LivingCheckpointer(Protocol):
    """A `dlr.checkpoint.Checkpointer`, as far as a process needs it that lives on."""

    def rest(self) -> None:
        """Wait until nothing is written into the agent's memory any more."""

    def load_again(self) -> int | None:
        """Load what the next start begins with; return its step, or None."""


class LivingGroups(Protocol):
    """This process's groups: `agent.torch_compat.reconfigure.ReformableGroups`."""

    def adopt(self) -> None:
        """Make the script's groups such as can be formed again; raise UnsupportedGroupError where not."""

    def form(self, round_: int, store: Store, await_all: reconfigure.AwaitAll) -> None:
        """Connect them for a round; raise RuntimeError where a rank does not come."""

    def break_off(self) -> None:
        """Wake whatever waits in a collective of theirs."""


class RoundOverError(Exception):
    """The round is over before its groups are formed."""


class Step(int):
    """Number of a step, from 0 on, and the context in which the step is made again where a peer dies."""

    _survivor: Survivor | None = None

    @classmethod
    def of(cls, number: int, survivor: Survivor | None) -> Step:
        """Return a step of a process that lives on, or of one that does not."""
        step = cls(number)
        step._survivor = survivor
        return step

    def __enter__(self) -> Step:
        if self._survivor is not None:
            self._survivor.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._survivor is not None and self._survivor.leaves(error)


class Survivor:
    """The part of a process in the rounds through which it lives.

    Args:
        line: the line to the agent.
        groups: of this process, which `line` breaks off when a round is over.
        checkpoint: of the training.
        modules: of the training, whose forward or backward pass may be broken off.
        optimizers: whose gradients are dropped then.
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
    ) -> None:
        self._line = line
        self._groups = groups
        self._connect = connect
        """Connects to the store of the round that the environment names."""
        self._checkpoint = checkpoint
        self._modules = modules
        self._optimizers = optimizers
        self._round = int(environ[ENV_ROUND])
        self._local_rank = int(environ["LOCAL_RANK"])
        self.joins = ENV_JOINS in environ
        """Whether this process takes the place of one whose peers live."""
        self._is_spare = ENV_SPARE in environ
        self._has_entered = False
        self._is_able = True
        self._loaded: int | None = None
        """The step that was loaded since the loop was asked last; None if none was."""

    # --- in the loop --------------------------------------------------------------------------------------

    def join(self) -> int:
        """Take part in a round whose other processes live; return the step to go on from."""
        reconfigure.make_connected()
        self._groups.adopt()
        self._line.enter(self._local_rank, self._round)
        self._has_entered = True
        self._checkpoint.rest()  # what it began with is of another start, if this process is a spare
        if self._is_spare:
            self._take(self._line.next_round())
        self._go_on()
        return self.take_loaded() or 0

    def take_loaded(self) -> int | None:
        """Return the step from which training goes on, once; None where it goes on as it does."""
        loaded, self._loaded = self._loaded, None
        return loaded

    def enter(self) -> None:
        """Begin a step. With the first, this process becomes able to live on."""
        if self._has_entered:
            return
        self._has_entered = True
        try:
            self._groups.adopt()
        except reconfigure.UnsupportedGroupError as error:
            logger.warning("%s", error)
            self._is_able = False
            return
        self._groups.form(self._round, self._connect(os.environ), self._await_all)
        self._line.enter(self._local_rank, self._round)

    def leaves(self, error: BaseException | None) -> bool:
        """Tell whether a step that has ended, maybe by an error, is made again, and prepare for that."""
        if not self._is_able or not is_made_again(error, is_over=self._line.is_over(self._round)):
            return False
        self._break_off(error)
        self._take(self._line.next_round())
        self._go_on()
        return True

    # --- from one round into the next ---------------------------------------------------------------------

    def _break_off(self, error: BaseException | None) -> None:
        """Leave the round: nothing here waits for its peers, or writes for the agent."""
        self._groups.break_off()
        if self._line.is_over(self._round):
            logger.info("round %d is over: this process lives on", self._round)
        else:
            logger.info("a peer is lost in round %d (%s): this process lives on", self._round, error)
        reconfigure.reset_modules(self._modules)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._checkpoint.rest()
        self._say_left(error)

    def _say_left(self, error: BaseException | None) -> None:
        if self._line.is_over(self._round):
            self._line.send(Left(self._round))
        else:
            self._line.send(Lost(self._round, f"{type(error).__name__}: {error}"))

    def _go_on(self) -> None:
        """Form the groups of the round, and load; take the next round where this one ends meanwhile."""
        while True:
            try:
                self._groups.form(self._round, self._connect(os.environ), self._await_all)
                self._loaded = self._checkpoint.load_again() or 0
                break
            except Exception as error:
                if not is_made_again(error, is_over=self._line.is_over(self._round)):
                    raise
                self._groups.break_off()
                self._checkpoint.rest()
                self._say_left(error)
                self._take(self._line.next_round())
        self._line.send(Formed(self._round, self._loaded))

    def _take(self, handed: HandedRound) -> None:
        """Be a process of that round: its variables, its log, its progress."""
        take_variables(handed.variables)
        for number, descriptor in handed.outputs.items():
            os.dup2(descriptor, number)
            os.close(descriptor)
        self._round = handed.round
        progress.begin_again()
        offer_stacks(os.environ)

    def _await_all(self, store: Store, key: str, count: int) -> None:
        """Wait until so many have added to a key.

        Raises:
            RoundOverError: the round is over.
        """
        waited = 0.0
        while store.add(key, 0) < count:
            if self._line.is_over(self._round):
                raise RoundOverError
            seconds = min(max(FIRST_LOOK_SECONDS, LOOK_SHARE * waited), LONGEST_LOOK_SECONDS)
            self._line.rest(seconds)
            waited += seconds


_peer_deaths = PeerDeathTexts(re.compile)


def is_made_again(error: BaseException | None, *, is_over: bool) -> bool:
    """Tell whether a step is made again in the next round.

    Args:
        error: by which it has ended; None where it has ended well.
        is_over: its round is over.
    """
    if error is None or is_over:
        return is_over and (error is None or isinstance(error, Exception))
    return isinstance(error, RuntimeError) and _peer_deaths.explain(f"{type(error).__name__}: {error}")


def take_variables(variables: Mapping[str, str]) -> None:
    """Make these the variables of the round in this process's environment, as where it was forked for it."""
    for name in (ENV_JOINS, ENV_SPARE):
        os.environ.pop(name, None)
    os.environ.update(variables)


def survivor_of_process(
    checkpoint: LivingCheckpointer, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
) -> Survivor | None:
    """Return what lets this process live on when a peer dies; None where its agent or torch cannot."""
    path = os.environ.get(ENV_WORLD_SOCKET)
    if not path or not dist.is_initialized() or not reconfigure.is_supported(torch.__version__):
        return None
    groups = reconfigure.ReformableGroups()
    return Survivor(RoundLine(path, groups.break_off), groups, checkpoint, modules, optimizers)
