"""Groups that train together and fail alone: `join`, and the loop over steps.

    dist.init_process_group()                              # this group's ranks
    replicas = dlr.replicas.join(model, optimizer)
    for step in replicas.steps(10_000):
        loss = criterion(model(batch(step)))
        loss.backward()                                    # averaged over the groups while it runs
        optimizer.step()                                   # applied by all groups, or by none

docs/groups.md tells what happens at a failure. As torchft has it (https://github.com/meta-pytorch/torchft),
but who takes part comes from the job's ElasticWorld.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from agent.replicas.client import Membership
from dlr import progress
from dlr.checkpoint.tensors import is_distributed
from dlr.replicas.agreement import Agreement, Member, Standing, agree
from dlr.replicas.average import Average
from dlr.replicas.channel import Channel
from dlr.replicas.exchange import TIMEOUT_SECONDS, BrokenError, Exchange, OvertakenError, Seat
from dlr.replicas.gradients import Watch, buckets_of, local, parameters_of
from dlr.replicas.group import OwnGroup
from dlr.replicas.healing import Healing

logger = logging.getLogger(__name__)

QUIET_SECONDS = 10.0
"""Time of a wait for other groups after which the agent is told that no step is to be expected."""
BUSY_SECONDS = 3_600.0
"""Time for which it is told so at once."""

BROKEN_SECONDS = 2.0
"""Time in which a newer version is expected when an exchange breaks."""

OnCommit = Callable[[int, Sequence[int]], None]
"""Is called after each step with its number, and with the indices of the groups whose gradients are in it."""


class Checkpoint(Protocol):
    """A `dlr.checkpoint.Checkpointer`, as far as groups need it."""

    def load_beyond(self, step: int) -> int | None:
        """Bring back the newest checkpoint if it is of a later step; return its step, or None."""

    def join(self, groups: Replicas, loads: bool) -> int | None:
        """Save as one of these groups from now on; load the newest checkpoint if asked.

        Returns:
            the step that was loaded, or None.
        """


@dataclass(frozen=True)
class Version:
    """What this process does in one version."""

    membership: Membership
    exchange: Exchange
    agreement: Agreement

    def counted(self, step: int) -> tuple[int, ...]:
        """The places of the groups whose gradients count in a step."""
        return self.agreement.contributors(step, self.exchange.seat.size)

    @property
    def place(self) -> int:
        """The place of this process's group."""
        return self.exchange.seat.place

    def is_behind(self) -> bool:
        """Whether this group began the version behind the leader."""
        return self.place in self.agreement.behind


class Replicas:
    """This process's part in the training of all groups. Made by `join`.

    Every step's gradients are averaged. `dlr.replicas.outer` has what is averaged every so many steps.

    Args:
        state: what the groups have in common: modules, optimizers, schedulers, …, by name.
        optimizers: those of the state.
        start: number of steps that the state has.
        own: the ranks of this group.
        channel: the way to the agent.
        checkpoint: that the groups begin with where none of them trains; None for none.
    """

    _patience_seconds = TIMEOUT_SECONDS
    """Time limit of a wait for other groups that live."""

    def __init__(
        self,
        state: MutableMapping[str, Any],
        optimizers: Sequence[Optimizer],
        start: int,
        own: OwnGroup,
        channel: Channel,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._state = state
        self._own = own
        self._channel = channel
        self._checkpoint = checkpoint
        self._changed = threading.Condition()
        parameters = parameters_of(optimizers)
        self._buckets = buckets_of(parameters)
        self._device = next((local(each.detach()).device for each in parameters), torch.device("cpu"))
        self._watch = Watch(self._buckets, self._send) if self._are_whole(parameters) else None
        self._hooks = [each.register_step_pre_hook(self._before_step) for each in optimizers]
        self._on_commit: list[OnCommit] = []
        self._standing = Standing.at_start(start, has_checkpoints=checkpoint is not None)
        self._total: int | None = None
        self._version: Version | None = None
        """The newest that this process is in."""
        self._healing: Healing | None = None
        """The state that goes from or to this process in it."""
        self._average = Average(self._buckets)
        self._averaged: tuple[int, ...] = ()
        """Indices of the groups whose gradients it has."""
        self._contributing: tuple[int, ...] = ()
        """Indices of the groups that contribute to this step, as it began."""
        self._following: tuple[int, ...] = ()
        """Those of the step after it, as the version says in which it is committed: the same for a group that
        begins it there and for one that rolls, in a later version."""
        self._is_open = False
        """Whether the script is in a step, whose gradients are not averaged yet."""
        self._missed = 0
        """Number of the version that comes after a step in which this group had no part; 0 for none."""

    def _are_whole(self, parameters: Sequence[Tensor]) -> bool:
        """Whether autograd leaves gradients as they are to be averaged: nobody in the group adds to them."""
        return self._own.size == 1 and not any(map(is_distributed, parameters))

    # --- for the script ----------------------------------------------------------------------------------

    @property
    def applied(self) -> int:
        """Number of steps that this group's state has."""
        return self._member.applied

    @property
    def _member(self) -> Member:
        return self._standing.counted

    def _count(self, member: Member) -> None:
        self._standing = replace(self._standing, counted=member)

    @property
    def contributors(self) -> tuple[int | None, int]:
        """The place of this group among those whose gradients count in this step, and their number.

        The place is None where this group contributes nothing, since it still takes over the state. Neither
        changes within a step.
        """
        index, counted = self._current().membership.me[0], self._contributing
        return (counted.index(index) if index in counted else None), len(counted)

    @property
    def contributing(self) -> tuple[int, ...]:
        """Indices of the groups whose gradients count in this step, as all of them began it."""
        return self._contributing

    @property
    def has_state(self) -> bool:
        """Whether the model has the state that the groups train, so that it may be saved."""
        return self._member.trained

    @property
    def writes_checkpoints(self) -> bool:
        """Whether this group writes to storage after the last step: one of those that made it does."""
        return self._is_first_of(self._averaged)

    def _is_first_of(self, groups: Sequence[int]) -> bool:
        return bool(groups) and groups[0] == self._current().membership.me[0]

    def call_after_commit(self, act: OnCommit) -> None:
        """Have something called after each step that is committed."""
        self._on_commit.append(act)

    def load_unless_others_train(self) -> None:
        """Begin with the newest checkpoint, if no other group has a newer state to take over.

        Where the others end before this group has met them, `steps` begins with the checkpoint.
        """
        if self._checkpoint is not None:
            membership = self._channel.look()
            nobody_trains, earlier = self._own.all(not membership.others, -membership.version)
            step = self._checkpoint.join(self, nobody_trains)
            if nobody_trains:
                self._go_on_from(step, -earlier)

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Count the steps that are to be made, from the one that the groups are at.

        Args:
            total: number of steps after which training ends.

        Raises:
            RuntimeError: the loop's body made no step.
        """
        self._total = total
        if self._version is None:
            self._channel.follow(self._notify, self._own.rank, self._own.size)
            self._settle(1)
            self._hand_over()
        while True:
            while total is None or self.applied < total:
                self._open()
                yield self.applied
                if self._is_open:
                    raise RuntimeError(
                        f"step {self.applied} ended without optimizer.step(): the other groups wait for this "
                        "one's gradients; call optimizer.step() or replicas.average() in each step"
                    )
                self._hand_over()
            if self._end_together():
                return
            self._hand_over()

    def average(self) -> None:
        """Make the gradients their mean over the groups; return when all groups that live have it.

        `optimizer.step()` does it. Call it before that where the mean is needed sooner: to clip gradients, or
        with a GradScaler before `scaler.step`, so that all groups see the same infinities. From then on the
        step counts as made.
        """
        while self._is_open:
            self._try()

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Leave the gradients of the backwards within alone: a later one of the step adds to them."""
        watch = self._watch
        if watch is None:  # nothing is sent before the step
            yield
            return
        before, watch.is_paused = watch.is_paused, True
        try:
            yield
        finally:
            watch.is_paused = before

    def close(self) -> None:
        """Take part no more: the optimizers are the script's own again."""
        for hook in self._hooks:
            hook.remove()
        if self._watch is not None:
            self._watch.close()
        if self._version is not None:
            self._version.exchange.close()

    # --- one step ----------------------------------------------------------------------------------------

    def _before_step(self, *_: Any) -> None:
        self.average()

    def _open(self) -> None:
        """Begin a step."""
        self._is_open = True
        version = self._current()
        self._contributing = self._following or version.membership.indices(version.counted(self.applied))
        sends = version.exchange.seat.size > 1 and version.place in version.counted(self.applied)
        if self._watch is not None and sends:
            self._watch.begin()

    def _send(self, number: int) -> None:
        """Send a bucket that backward has filled."""
        exchange = self._current().exchange
        if not exchange.is_overtaken:
            self._average.send(exchange, number)

    def _try(self) -> None:
        """Average and agree; the step is then committed, or this group is in a newer version."""
        version = self._current()
        number = version.membership.version
        ok, has_all = self._attempt(version)
        everyone, newest = self._own.all(ok, self._newest())
        if everyone:
            self._conclude(version)
            return
        if not self._member.trained:  # whose gradients are not in it; what it goes on with is no step's
            self._average.drop()
            self._is_open, self._following, self._missed = False, (), max(newest, number + 1)
            return
        all_have, _ = self._own.all(has_all, 0)
        self._count(replace(self._member, complete_in=number if all_have else 0))
        self._settle(max(newest, number + 1))

    def _attempt(self, version: Version) -> tuple[bool, bool]:
        """Average once.

        Returns:
            Whether all groups agree, and whether this rank has told them that all gradients are here.
        """
        exchange, counted, has_all = version.exchange, version.counted(self.applied), False
        if self._watch is not None:
            self._watch.end()
        self._averaged = version.membership.indices(counted)
        self._following = version.membership.indices(version.counted(self.applied + 1))
        try:
            if exchange.is_overtaken:
                raise OvertakenError
            self._average.finish(exchange, len(counted), contributes=version.place in counted)
            if self._healing is not None and self.applied == self._healing.step:
                self._healing.wait(TIMEOUT_SECONDS)
            has_all = True
            exchange.vote()
        except OvertakenError:
            return False, has_all
        except BrokenError as error:
            self._tell_broken(version.exchange, error)
            return False, has_all
        return True, True

    def _conclude(self, version: Version) -> None:
        """The step is committed: make the gradients the mean, in the state that they are of."""
        healing = self._healing
        if healing is not None and self.applied == healing.step:
            healing.load()
            self._healing = healing = None
        if healing is not None and version.is_behind():
            self._average.drop()  # the state that they are of is not here
            self._count(replace(self._member, applied=self.applied + 1))
        else:
            self._average.take()
            self._count(Member(True, self.applied + 1, version.membership.version))
        self._note_commit()

    def _note_commit(self) -> None:
        self._is_open = False
        self._average = Average(self._buckets)
        self._channel.at(self._current().membership.version, self.applied)
        for act in self._on_commit:
            act(self.applied - 1, self._averaged)

    # --- versions ----------------------------------------------------------------------------------------

    def _settle(self, newest: int) -> None:
        """Meet the other groups in the newest version, and take from that what this group does next.

        Args:
            newest: number of a version that is to be waited for.
        """
        while True:
            membership = self._await_membership(newest)
            newest = membership.version + 1
            version = self._meet(membership)
            if version is None:
                continue
            self._version = version
            self._healing = None
            self._roll(version)
            if not version.agreement.behind or not self._is_at_once(version.agreement):
                break
            healing = self._heal_at_once(version)
            if self._own.all(healing is not None, 0)[0]:
                assert healing is not None
                healing.load()
                break
        self._begin(version)
        self._channel.at(version.membership.version, self.applied)

    def _meet(self, membership: Membership) -> Version | None:
        """Connect to the others of a version and agree with them; None where that fails at any rank."""
        if self._version is not None:
            self._version.exchange.close()
        assert membership.place is not None
        number = membership.version
        seat = Seat(number, self._own.rank, membership.place, len(membership.groups))
        exchange = Exchange(
            seat,
            lambda: self._channel.open_store(number),
            self._device,
            lambda: self._newest() > number,
            self._changed,
            self._patience_seconds,
        )
        exchange.start()
        version = self._come_to(membership, exchange)
        if version is not None and version.agreement.loads_first:
            if not self._standing.member(number).has_loaded:
                self._load(number)
            version = self._come_to(membership, exchange)
        if version is None:
            exchange.close()
        return version

    def _come_to(self, membership: Membership, exchange: Exchange) -> Version | None:
        """Agree with the other groups; None where that fails at any rank of this one."""
        version: Version | None = None
        try:
            mine = self._as_member(membership.version)
            version = Version(membership, exchange, self._agree(exchange.meet(mine)))
        except OvertakenError:
            pass
        except BrokenError as error:
            self._tell_broken(exchange, error)
        agreed = version.agreement.to_numbers() if version is not None else [-1] * 5
        met, _ = self._own.all(version is not None, 0)
        return version if self._own.is_alike(agreed) and met else None

    def _as_member(self, version: int) -> Member:
        """This group as it comes to the meeting of a version."""
        return self._standing.member(version)

    def _load(self, version: int) -> None:
        """Begin with the newest checkpoint, if it is newer than the state."""
        assert self._checkpoint is not None
        self._go_on_from(self._checkpoint.load_beyond(self._steps_of_state()), version)

    def _steps_of_state(self) -> int:
        """Number of the script's steps that the state has."""
        return self._standing.own.applied

    def _go_on_from(self, step: int | None, version: int) -> None:
        """Count on from the checkpoint of that step that was loaded, or from the own state without one.

        Args:
            version: the newest when the checkpoint was looked for.
        """
        self._standing = self._standing.after_loading(step, version)

    def _agree(self, members: Sequence[Member]) -> Agreement:
        return agree(members)

    def _is_at_once(self, agreement: Agreement) -> bool:
        """Whether those behind take over the state before anything else, since nobody is in a step."""
        return agreement.is_first or (self._total is not None and agreement.step >= self._total)

    def _heal_at_once(self, version: Version) -> Healing | None:
        """Give or take the state; None if it does not arrive. All ranks load it afterwards, or none does."""
        healing = Healing(version.agreement, version.exchange, self._state, self._device, self._changed)
        if version.place != version.agreement.leader and not version.is_behind():
            return healing
        healing.begin()
        try:
            healing.wait(self._patience_seconds)
        except OvertakenError:
            return None
        except BrokenError as error:
            self._tell_broken(version.exchange, error)
            return None
        return healing

    def _roll(self, version: Version) -> None:
        """Apply the step that another group has applied, and whose gradients are all here."""
        if version.place in version.agreement.rolls:
            self._average.take()
            self._count(Member(True, self.applied + 1, version.agreement.applied_in))
            self._note_commit()

    def _begin(self, version: Version) -> None:
        """Do what a meeting has come to."""
        agreement = version.agreement
        if self._is_at_once(agreement):
            if version.is_behind() and self._is_open:  # the step that it was in has been made without it
                self._average.drop()
                self._is_open, self._following = False, ()
        elif version.is_behind():
            self._average.drop()
        self._standing = self._standing.after_meeting(
            agreement, version.place, at_once=self._is_at_once(agreement)
        )
        has_part = version.is_behind() or (agreement.behind and version.place == agreement.leader)
        if has_part and not self._is_at_once(agreement):
            self._healing = Healing(agreement, version.exchange, self._state, self._device, self._changed)

    def _hand_over(self) -> None:
        """Between two steps: begin to send or to receive the state, if it is time.

        A group that is behind takes part until then in what the others make, so that none waits for it.
        """
        while True:
            if self._missed:
                newest, self._missed = self._missed, 0
                self._settle(newest)
            if self._healing is None or self.applied > self._healing.step:
                return
            if self.applied == self._healing.step:
                self._healing.begin()
                return
            if not self._current().is_behind():
                return
            self._is_open = True
            self._try()
            self._is_open = False

    def _end_together(self) -> bool:
        """Leave when all groups have applied the last step: until then one may need this one's state.

        Returns:
            Whether they have; if not, this group is in a newer version.
        """
        version, ok = self._current(), True
        try:
            if version.exchange.is_overtaken:
                raise OvertakenError
            if self._healing is not None:
                self._healing.wait(TIMEOUT_SECONDS)
            version.exchange.vote()
        except OvertakenError:
            ok = False
        except BrokenError as error:
            self._tell_broken(version.exchange, error)
            ok = False
        everyone, newest = self._own.all(ok, self._newest())
        if not everyone:
            self._settle(max(newest, version.membership.version + 1))
        elif self._healing is not None:
            self._healing.load()
            self._healing = None
        return everyone

    # --- news --------------------------------------------------------------------------------------------

    def _current(self) -> Version:
        if self._version is None:
            raise RuntimeError(
                "the groups meet in `for step in replicas.steps(…)`: use it for the loop over steps"
            )
        return self._version

    def _newest(self) -> int:
        """The number of the newest version, whether this group takes part in it or not."""
        membership = self._channel.membership
        return 0 if membership is None else membership.version

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _await_membership(self, newest: int) -> Membership:
        """Wait for a version of at least that number in which this group takes part, alike on all ranks."""
        while True:
            found = self._await_own(newest)
            alike = self._own.is_alike([found.version])
            _, newest = self._own.all(True, found.version)
            if alike:
                return found

    def _await_own(self, newest: int) -> Membership:
        def found() -> Membership | None:
            there = self._channel.membership
            is_it = there is not None and there.version >= newest and there.place is not None
            return there if is_it else None

        with self._changed:
            membership = self._changed.wait_for(found, QUIET_SECONDS)
        while membership is None:
            logger.info("waiting for a version of the groups, %d or later, with this one in it", newest)
            with progress.busy(BUSY_SECONDS), self._changed:
                membership = self._changed.wait_for(found, BUSY_SECONDS / 2)
        return membership

    def _tell_broken(self, exchange: Exchange, error: BrokenError) -> None:
        """Ask for another version; not at once, since a death breaks connections before it is known."""
        with self._changed:
            self._changed.wait_for(lambda: exchange.is_overtaken, BROKEN_SECONDS)
        if not exchange.is_overtaken:
            logger.warning(
                "the groups' exchange is broken, and another version of it is waited for: %s", error
            )
            self._channel.broken(exchange.seat.version)
