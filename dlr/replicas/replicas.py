"""Groups that train together and fail alone: the loop over steps (docs/groups.md).

It resembles torchft (https://github.com/meta-pytorch/torchft), but the members come from the job's
ElasticWorld.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from agent.torch_compat import process_groups
from dlr.checkpoint.state import generators_of_process, set_generators
from dlr.checkpoint.tensors import is_distributed
from dlr.data.groups import Contribution
from dlr.replicas import protocol
from dlr.replicas.agreement import GroupStanding
from dlr.replicas.average import Average
from dlr.replicas.channel import Channel
from dlr.replicas.checkpointers import GroupCheckpointer
from dlr.replicas.gradients import GradientWatch, buckets_of, local, parameters_of
from dlr.replicas.group import OwnGroup
from dlr.replicas.meetings import EXCHANGE_SECONDS, Meetings, seconds_for
from dlr.replicas.patience import GroupPace
from dlr.replicas.protocol import Do, Event, Quorum, ReplicaState
from dlr.replicas.survivor import LivingProcess
from dlr.replicas.training_step import Mortal, TrainingStep

Until = Callable[[], bool]
OnCommit = Callable[[int, Sequence[int]], None]
"""Function that is called after each step with its number, and the indices of the groups that contributed."""


class Replicas:
    """This process's part in the training of all groups. Created by `join`.

    `protocol` decides, and this class carries out. It averages the gradients of every step;
    `dlr.replicas.outer` averages every so many steps.

    Args:
        state: shared objects of the groups: modules, optimizers, schedulers, …, by name.
        start: number of steps that the state has.
        checkpoint: the groups' Checkpointer, which loads if no group trains; None for none.
        sync_every: number of inner steps in a round; None if each step is averaged.
        process: whether and how this process lives on when a peer dies.
    """

    _least_exchange_seconds = EXCHANGE_SECONDS
    """Time limit of a small exchange to which all groups have come."""

    def __init__(
        self,
        state: MutableMapping[str, Any],
        optimizers: Sequence[Optimizer],
        start: int,
        own: OwnGroup,
        channel: Channel,
        checkpoint: GroupCheckpointer | None = None,
        sync_every: int | None = None,
        process: LivingProcess | None = None,
    ) -> None:
        self._state = state
        self._process = process or Mortal()
        self._process.training = self
        self._own = own
        self._checkpoint = checkpoint
        self._pace = GroupPace()
        parameters = parameters_of(optimizers)
        self._buckets = buckets_of(parameters)
        self._exchange_seconds = self._least_exchange_seconds + seconds_for(parameters)
        self._device = next((local(each.detach()).device for each in parameters), torch.device("cpu"))
        if self._device.type == "cuda":
            process_groups.require_captures_without_watchdog()
        self._is_whole = self._own.size == 1 and not any(map(is_distributed, parameters))
        """Whether autograd alone computes the gradients, without a reduction within the group."""
        self._watch = GradientWatch(self._buckets, self._send)
        before_step = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
        self._hooks = [each.register_step_pre_hook(before_step) for each in optimizers]
        self._on_commit: list[OnCommit] = []
        standing = GroupStanding.at_start(start // (sync_every or 1), has_checkpoints=checkpoint is not None)
        self._at = ReplicaState(standing, sync_every, inner_steps=start if sync_every else 0)
        """State of this process in the protocol."""
        self._generators: dict[str, Any] = {}
        """States of the random generators at the beginning of the loop, as in a process that joins."""
        self._next: Do | None = None
        """Next act of the script; None before the first."""
        self._until: Until | None = None
        self._meetings = self._meetings_over(channel)
        self._average = Average(self._buckets)
        self._scalers = [each for each in state.values() if isinstance(each, torch.amp.GradScaler)]
        self._is_scaled = any(each.is_enabled() for each in self._scalers)

    # --- for the script ----------------------------------------------------------------------------------

    @property
    def applied(self) -> int:
        """Number of steps that this group's state has; with `sync_every`, of outer steps."""
        return self._at.applied

    @property
    def contributors(self) -> Contribution:
        """Position of this group among those whose gradients count in this step, and their number.

        The position is None if this group contributes nothing, since it still receives the state. Neither
        changes within a step.
        """
        index, counted = self._quorum().membership.me[0], self._at.contributing
        return Contribution(counted.index(index) if index in counted else None, len(counted))

    @property
    def contributing(self) -> tuple[int, ...]:
        """Indices of the groups whose gradients count in this step, at its beginning."""
        return self._at.contributing

    @property
    def has_state(self) -> bool:
        """Whether the model has the groups' state, so that it may be saved."""
        return self._at.member.trained

    @property
    def writes_checkpoints(self) -> bool:
        """Whether this group writes the last step to storage: the first of its contributors does."""
        return self._is_first_of(self._at.averaged)

    def _is_first_of(self, groups: Sequence[int]) -> bool:
        return bool(groups) and groups[0] == self._quorum().membership.me[0]

    def call_after_commit(self, act: OnCommit) -> None:
        """Call `act` after each committed step."""
        self._on_commit.append(act)

    def load_unless_others_train(self) -> None:
        """Load the newest checkpoint, unless other groups train, whose state this group will receive.

        If those end before this group has met them, `steps` begins with the checkpoint.
        """
        if self._checkpoint is not None:
            membership = self._meetings.channel.look()
            (version, _), (_, others) = self._own.span(membership.version, len(membership.others))
            step = self._checkpoint.join(self, others == 0)
            if others == 0:
                self._at = self._at.after_loading(step, version)
                self._note_loaded(step)

    def steps(self, total: int | None = None, *, until: Until | None = None) -> Iterator[TrainingStep]:
        """Yield the steps to make, from the groups' present one.

        As an int, a step is the number of steps before it: 0, 1, …, as in `batch(step)`. `dlr.report(step)`
        and `checkpoint.step(step)` use `step.number`, which is one more.

        With `with step:` around its work, this process lives on when a peer dies, and the step is made again.
        All communication belongs into such a block, including an evaluation, in one `with step:` or several.

        Args:
            total: number of steps at the end of the training; None: `until` ends it.
            until: called on each rank in each step, after its gradients are averaged. The step is the last
                one of all groups if it returns True on any rank of any group.

        Raises:
            RuntimeError: the loop's body made no step, or there was an earlier loop.
            TypeError: in backward or `optimizer.step()`: a gradient is sparse.
        """
        self._begin_loop(total, until)
        while self._next is not Do.LEAVE:
            quorum = self._quorum()
            sends = len(quorum.membership.groups) > 1 and quorum.counts(self.applied)
            self._watch.begin(sends=sends and self._is_whole)
            yield from self._living_step(self.applied)
            if self._process.next_round():
                continue
            if self._at.is_open:
                raise RuntimeError(
                    f"step {self.applied} ended without optimizer.step(): the other groups wait for this "
                    "one's gradients; call optimizer.step() or replicas.average() in each step"
                )
            self._process.carry_through(lambda: self._advance(protocol.Applied()))
        self._watch.begin()

    def _living_step(self, number: int) -> Iterator[TrainingStep]:
        try:
            yield TrainingStep.of(number, self._process)
        except GeneratorExit:
            self._process.give_up()
            raise

    def _begin_loop(self, total: int | None, until: Until | None) -> None:
        """Meet the other groups. Only one loop is allowed, since groups could be in different ones."""
        if self._next is not None:
            raise RuntimeError(
                "replicas.steps() has been used already: make one loop of all steps, since a group that "
                "returns enters it where the others are; epoch, at = divmod(step, steps_per_epoch)"
            )
        self._until, self._at = until, replace(self._at, total=total)
        self._generators = generators_of_process()
        if self._process.joins:
            self._process.join()
        else:
            self._meetings.news.follow()
            self._advance(protocol.LoopStarted())

    def average(self) -> None:
        """Replace the gradients by their mean over the groups; return when all live groups have it.

        `optimizer.step()` calls it. Call it earlier if the mean is needed sooner: to clip gradients, or with
        a GradScaler before `scaler.step`, so that all groups see the same infinities. From then on the step
        counts as made. The parameters' `.grad` keep shape, dtype and device; if this group does not
        contribute, they are the others' mean.

        Raises:
            TypeError: a gradient is sparse.
        """
        if self._at.is_open:
            self._advance(protocol.Computed())

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Ignore the gradients of the backward passes inside: a later one of the step adds to them."""
        watch = self._watch
        before, watch.is_paused = watch.is_paused, True
        try:
            yield
        finally:
            watch.is_paused = before

    def close(self) -> None:
        """Stop taking part, and remove the hooks from the optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._watch.close()
        self._meetings.disconnect()

    # --- from one round of the group into the next -------------------------------------------------------

    def wake(self) -> None:
        """End all waits for other groups, since the round is over. Thread-safe."""
        self._meetings.news.notify()

    def leave_round(self) -> None:
        """Stop taking part in the round."""
        self._meetings.disconnect()
        self._watch.begin()
        self._at = replace(self._at, is_open=False)  # the script's work until the next round does not count

    def begin_round(self) -> None:
        """Load or receive a state, in a round whose groups are formed, and proceed to its next step."""
        self._meetings = self._meetings_over(self._meetings.channel.renewed(self._process.round))
        self._average = Average(self._buckets)
        for scaler in self._scalers:  # a scaler refuses to unscale twice before an update
            scaler._per_optimizer_states.clear()
        self._at = self._at.in_next_round()
        set_generators(self._generators)
        self.load_unless_others_train()
        self._meetings.news.follow()
        self._advance(protocol.LoopStarted())

    def _meetings_over(self, channel: Channel) -> Meetings:
        process, round_ = self._process, self._process.round
        return Meetings(
            self._own,
            channel,
            self._device,
            self._exchange_seconds,
            lambda: self._pace.patience_seconds if self._at.member.trained else None,
            lambda: process.round != round_ or process.is_round_over,
        )

    # --- in backward and optimizer.step ------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("closure", *args[1:2]) is not None:
            raise RuntimeError(
                "optimizer.step(closure) computes gradients that are not averaged over the groups: call "
                "loss.backward() before optimizer.step()"
            )
        self.average()
        self._watch.check(optimizer)

    def _send(self, number: int) -> None:
        """Send a bucket filled by backward."""
        exchange = self._meetings.exchange
        if not exchange.is_overtaken:
            self._average.send(exchange, number)

    # --- acts of the protocol ----------------------------------------------------------------------------

    def _advance(self, event: Event | None) -> None:
        """Carry out the acts after an event, until the script has to act."""
        while event is not None:
            self._at, (*acts, last) = protocol.after(self._at, event)
            for act in acts:
                self._carry_out(act)
            event = self._answer_to(last)

    def _carry_out(self, act: protocol.Act) -> None:
        """Carry out an act without an answer."""
        match act:
            case Do.TAKE_MEAN:
                self._average.take()
            case Do.DROP_GRADIENTS:
                self._average.drop(scaled=self._is_scaled)
            case Do.BEGIN_HEAL:
                self._meetings.begin_heal(self._quorum().agreement, self._state)
            case Do.END_HEAL:
                self._end_heal()
            case Do.DISCONNECT:
                self._meetings.disconnect()
            case protocol.Commit(step, groups):
                self._commit(step, groups)
            case protocol.ReportPosition(version, applied):
                self._meetings.channel.at(version, applied)

    def _answer_to(self, act: protocol.Act) -> Event | None:
        """Carry out an act, and return its answer; None if the script answers."""
        match act:
            case protocol.Meet(newest):
                return self._meetings.join(newest, self._at)
            case Do.MEET_AGAIN:
                return self._meetings.agree(self._at)
            case Do.LOAD:
                return self._load()
            case Do.HEAL:
                return self._heal()
            case Do.VOTE:
                return self._vote_on_commit()
            case Do.END:
                return self._vote_on_end()
            case Do():
                self._next = act
        return None

    def _load(self) -> Event:
        """Load the newest checkpoint, if it is newer than the state."""
        assert self._checkpoint is not None
        step = self._checkpoint.load_beyond(self._at.steps_of_state)
        self._note_loaded(step)
        return protocol.Loaded(step, self._meetings.version)

    def _note_loaded(self, step: int | None) -> None:
        """React to a loaded checkpoint; None if there was none."""

    def _heal(self) -> Event:
        """Send or receive the state now. All ranks load it afterwards, or none does."""
        ok, quorum = True, self._quorum()
        if quorum.heals:
            self._meetings.begin_heal(quorum.agreement, self._state)
            ok = self._meetings.succeeds(self._meetings.wait_for_heal)
        (all_ok,), _ = self._own.span(ok)
        return protocol.Healed(bool(all_ok))

    def _end_heal(self) -> None:
        self._meetings.end_heal()

    def _vote_on_commit(self) -> Event:
        """Average, and vote on the commit."""
        quorum, exchange, step = self._quorum(), self._meetings.exchange, self.applied
        has_all = ends = False

        def average() -> None:
            nonlocal has_all, ends
            count = len(quorum.contributors(step))
            self._average.finish(exchange, count, contributes=quorum.counts(step))
            self._meetings.wait_for_heal()
            ends = self._until is not None and self._until()
            has_all = True
            ends = exchange.vote(ends=ends)

        self._watch.end()
        ok = self._meetings.succeeds(average)
        (all_ok, all_have, _, _), (_, _, anyone_ends, newest) = self._own.span(
            ok, has_all, ends, self._meetings.news.newest
        )
        return protocol.Voted(bool(all_ok), bool(all_have), bool(anyone_ends), newest)

    def _commit(self, step: int, groups: Sequence[int]) -> None:
        self._average = Average(self._buckets)
        is_shared = self._meetings.exchange.seat.size > 1
        self._pace.note(time.monotonic() if is_shared else None)
        for act in self._on_commit:
            act(step, groups)

    def _vote_on_end(self) -> Event:
        """Vote on the end, since a group that has not applied the last step may need this one's state."""
        exchange, has_state = self._meetings.exchange, False

        def agree_to_end() -> None:
            nonlocal has_state
            self._meetings.wait_for_heal()
            has_state = True
            exchange.vote()

        ok = self._meetings.succeeds(agree_to_end)
        (all_ok, all_have, _), (_, _, newest) = self._own.span(ok, has_state, self._meetings.news.newest)
        return protocol.TrainingEnded(bool(all_ok), bool(all_have), newest)

    def _quorum(self) -> Quorum:
        if self._at.quorum is None:
            raise RuntimeError(
                "the groups meet in `for step in replicas.steps(…)`: use it for the loop over steps"
            )
        return self._at.quorum
