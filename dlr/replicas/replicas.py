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
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from agent.replicas.client import Membership
from dlr.checkpoint.tensors import is_distributed
from dlr.replicas.agreement import Agreement, Member, Standing, agree
from dlr.replicas.average import Average
from dlr.replicas.channel import Channel
from dlr.replicas.exchange import Exchange, Seat
from dlr.replicas.gradients import Watch, buckets_of, local, parameters_of
from dlr.replicas.group import OwnGroup
from dlr.replicas.healing import Healing
from dlr.replicas.news import News
from dlr.replicas.patience import Pace, Patience

EXCHANGE_SECONDS = 60.0
"""Time limit of an exchange of gradients, or of a state, to which all groups have come, beside what its bytes
take."""
SLOWEST_BYTES_PER_SECOND = 16 << 20
"""Bytes of parameters that an exchange takes a second for. Their state has up to eight times as many, so that
is a network of one gigabit a second."""

Until = Callable[[], bool]
OnCommit = Callable[[int, Sequence[int]], None]
"""Is called after each step with its number, and with the indices of the groups whose gradients are in it."""


def seconds_for(parameters: Iterable[Tensor]) -> float:
    """Return how long the state of parameters may be on its way, by its size."""
    return sum(local(each.detach()).nbytes for each in parameters) / SLOWEST_BYTES_PER_SECOND


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
        start: number of steps that the state has.
        checkpoint: that the groups begin with where none of them trains; None for none.
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
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._state = state
        self._own = own
        self._channel = channel
        self._checkpoint = checkpoint
        self._news = News(channel, own)
        self._pace = Pace()
        parameters = parameters_of(optimizers)
        self._buckets = buckets_of(parameters)
        self._exchange_seconds = self._least_exchange_seconds + seconds_for(parameters)
        self._device = next((local(each.detach()).device for each in parameters), torch.device("cpu"))
        self._is_whole = self._own.size == 1 and not any(map(is_distributed, parameters))
        """Whether autograd leaves gradients as they are to be averaged: nobody in the group adds to them."""
        self._watch = Watch(self._buckets, self._send)
        self._hooks = [each.register_step_pre_hook(self._before_step) for each in optimizers]
        self._on_commit: list[OnCommit] = []
        self._standing = Standing.at_start(start, has_checkpoints=checkpoint is not None)
        self._total: int | None = None
        self._until: Until | None = None
        self._is_over = False
        """Whether some group's `until` has ended training."""
        self._version: Version | None = None
        """The newest that this process is in."""
        self._healing: Healing | None = None
        """The state that goes from or to this process in it."""
        self._average = Average(self._buckets)
        scalers = [each for each in state.values() if isinstance(each, torch.amp.GradScaler)]
        self._is_scaled = any(each.is_enabled() for each in scalers)
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
            nobody_trains, (earlier,) = self._own.all(not membership.others, -membership.version)
            step = self._checkpoint.join(self, nobody_trains)
            if nobody_trains:
                self._go_on_from(step, -earlier)

    def steps(self, total: int | None = None, *, until: Until | None = None) -> Iterator[int]:
        """Count the steps that are to be made, from the one that the groups are at.

        Args:
            total: number of steps after which training ends.
            until: is called on each rank in each step, once its gradients are averaged. The step is the last
                one of all groups if it returns True on any rank of any group.

        Raises:
            RuntimeError: the loop's body made no step, or there was a loop before.
        """
        self._total, self._until = total, until
        self._check_first()
        self._news.follow()
        self._settle(1)
        self._hand_over()
        while True:
            while not self._is_over and (total is None or self.applied < total):
                self._open()
                yield self.applied
                if self._is_open:
                    raise RuntimeError(
                        f"step {self.applied} ended without optimizer.step(): the other groups wait for this "
                        "one's gradients; call optimizer.step() or replicas.average() in each step"
                    )
                self._hand_over()
            if self._end_together():
                self._watch.begin()
                return
            self._hand_over()

    def _check_first(self) -> None:
        """Check that no loop was before: one that returns could not tell which one the others are in."""
        if self._version is not None:
            raise RuntimeError(
                "replicas.steps() has been used already: make one loop of all steps, since a group that "
                "returns enters it where the others are; epoch, at = divmod(step, steps_per_epoch)"
            )

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
        before, watch.is_paused = watch.is_paused, True
        try:
            yield
        finally:
            watch.is_paused = before

    def close(self) -> None:
        """Take part no more: the optimizers are the script's own again."""
        for hook in self._hooks:
            hook.remove()
        self._watch.close()
        if self._version is not None:
            self._version.exchange.close()

    # --- one step ----------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("closure", *args[1:2]) is not None:
            raise RuntimeError(
                "optimizer.step(closure) computes gradients that are not averaged over the groups: call "
                "loss.backward() before optimizer.step()"
            )
        self.average()
        self._watch.check(optimizer)

    def _open(self) -> None:
        self._is_open = True
        version = self._current()
        self._contributing = self._following or version.membership.indices(version.counted(self.applied))
        sends = version.exchange.seat.size > 1 and version.place in version.counted(self.applied)
        self._watch.begin(sends=sends and self._is_whole)

    def _send(self, number: int) -> None:
        """Send a bucket that backward has filled."""
        exchange = self._current().exchange
        if not exchange.is_overtaken:
            self._average.send(exchange, number)

    def _try(self) -> None:
        """Average and agree; the step is then committed, or this group is in a newer version."""
        version = self._current()
        number = version.membership.version
        ok, has_all, ends = self._attempt(version)
        everyone, (newest, anyone_ends) = self._own.all(ok, self._news.newest, ends)
        if everyone:
            self._is_over = bool(anyone_ends)
            self._conclude(version)
            return
        if not self._member.trained:  # whose gradients are not in it; what it goes on with is no step's
            self._average.drop(scaled=self._is_scaled)
            self._is_open, self._following, self._missed = False, (), max(newest, number + 1)
            return
        all_have, _ = self._own.all(has_all)
        self._count(replace(self._member, complete_in=number if all_have else 0))
        self._settle(max(newest, number + 1))

    def _attempt(self, version: Version) -> tuple[bool, bool, bool]:
        """Average once.

        Returns:
            Whether all groups agree, whether this rank has told them that all gradients are here, and whether
            training ends with this step.
        """
        exchange, counted = version.exchange, version.counted(self.applied)
        has_all = ends = False

        def average() -> None:
            nonlocal has_all, ends
            self._average.finish(exchange, len(counted), contributes=version.place in counted)
            if self._healing is not None and self.applied == self._healing.step:
                self._healing.wait()
            has_all = True
            ends = exchange.vote(ends=self._until is not None and self._until())

        self._watch.end()
        self._averaged = version.membership.indices(counted)
        self._following = version.membership.indices(version.counted(self.applied + 1))
        return self._news.succeeds(exchange, average), has_all, ends

    def _conclude(self, version: Version) -> None:
        """The step is committed: make the gradients the mean, in the state that they are of."""
        healing = self._healing
        if healing is not None and self.applied == healing.step:
            healing.load()
            self._healing = healing = None
        if healing is not None and version.is_behind():
            self._average.drop(scaled=self._is_scaled)  # the state that they are of is not here
            self._count(replace(self._member, applied=self.applied + 1))
        else:
            self._average.take()
            self._count(Member(True, self.applied + 1, version.membership.version))
        self._note_commit()

    def _note_commit(self) -> None:
        self._is_open = False
        self._average = Average(self._buckets)
        self._pace.note(time.monotonic())
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
            membership = self._news.await_membership(newest, has_met=self._version is not None)
            newest = membership.version + 1
            version = self._meet(membership)
            if version is None:
                continue
            self._version, self._healing = version, None
            self._is_over = version.agreement.is_over
            self._roll(version)
            if not version.agreement.behind or not self._is_at_once(version.agreement):
                break
            healing = self._heal_at_once(version)
            if self._own.all(healing is not None)[0]:
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
        exchange = Exchange(
            Seat(number, self._own.rank, membership.place, len(membership.groups)),
            lambda: self._channel.open_store(number),
            self._device,
            lambda: self._news.newest > number,
            self._news.changed,
            Patience(
                lambda: self._pace.patience_seconds if self._member.trained else None,
                self._exchange_seconds,
                lambda places: self._channel.late(number, membership.indices(places)),
                lambda: self._channel.broken(number),
            ),
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
        met: list[Member] = []
        mine = self._as_member(membership.version)
        if self._news.succeeds(exchange, lambda: met.extend(exchange.meet(mine))):
            version = Version(membership, exchange, self._agree(met))
        agreed = version.agreement.to_numbers() if version is not None else [-1] * 5
        all_met, _ = self._own.all(version is not None)
        return version if self._own.is_alike(agreed) and all_met else None

    def _as_member(self, version: int) -> Member:
        """This group as it comes to the meeting of a version."""
        member = self._standing.member(version)
        return replace(member, is_last=self._is_over and member.trained)

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
        is_over = agreement.is_over or (self._total is not None and agreement.step >= self._total)
        return agreement.is_first or is_over

    def _heal_at_once(self, version: Version) -> Healing | None:
        """Give or take the state; None if it does not arrive. All ranks load it afterwards, or none does."""
        healing = self._healing_in(version)
        if version.place != version.agreement.leader and not version.is_behind():
            return healing
        healing.begin()
        return healing if self._news.succeeds(version.exchange, healing.wait) else None

    def _healing_in(self, version: Version) -> Healing:
        return Healing(version.agreement, version.exchange, self._state, self._device, self._news.changed)

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
                self._average.drop(scaled=self._is_scaled)
                self._is_open, self._following = False, ()
        elif version.is_behind():
            self._average.drop(scaled=self._is_scaled)
        self._standing = self._standing.after_meeting(
            agreement, version.place, at_once=self._is_at_once(agreement)
        )
        has_part = version.is_behind() or (agreement.behind and version.place == agreement.leader)
        if has_part and not self._is_at_once(agreement):
            self._healing = self._healing_in(version)

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
        version, healing = self._current(), self._healing

        def agree_to_end() -> None:
            if healing is not None:
                healing.wait()
            version.exchange.vote()

        ok = self._news.succeeds(version.exchange, agree_to_end)
        everyone, (newest,) = self._own.all(ok, self._news.newest)
        if not everyone:
            self._settle(max(newest, version.membership.version + 1))
        elif healing is not None:
            healing.load()
        return everyone

    def _current(self) -> Version:
        if self._version is None:
            raise RuntimeError(
                "the groups meet in `for step in replicas.steps(…)`: use it for the loop over steps"
            )
        return self._version
