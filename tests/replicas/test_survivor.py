"""What a process does in the loop when a round is over, with a line, groups and a checkpointer of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import _random

import dlr.replicas
from agent.facts.place import Place
from agent.survival.client import HandedRound, RoundOverError
from agent.survival.messages import Enters, FromProcess, Left, Lost, Unable
from agent.torch_compat import background_saves, living_modules, reconfigure
from crds.names import ENV_JOINS, ENV_SPARE, ENV_WORLD_SOCKET
from crds.progress_record import ENV_PROGRESS_FILE, ENV_ROUND
from dlr.replicas import survivor as survivor_module
from dlr.replicas.survivor import Survivor, survivor_of_process
from dlr.replicas.training_step import Mortal, TrainingStep

PEER_DIED = RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:5")


class World:
    """The other side: agent, groups and checkpointer of one process, in the order in which it uses them."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.sent: list[FromProcess] = []
        self.over = 0
        """The newest round that the agent has ended."""
        self.round = 1
        self.stays = self.lives_on = False
        self.has_late_group = False
        self.dies_in: list[int] = []
        """Rounds that end while the groups are formed."""
        self.bound: str | None = None
        """What of the groups fits one size of the world alone."""
        self.place = 1, 4
        """Rank and size of the world of this process in the next round."""

    # the line

    def enter(self, bound_to: Place | None) -> None:
        self.sent.append(Enters(bound_to))

    def send(self, message: FromProcess) -> None:
        self.sent.append(message)

    def is_over(self, round_: int) -> bool:
        return self.over >= round_

    def next_round(self) -> HandedRound:
        self.round += 1
        rank, size = map(str, self.place)
        return HandedRound(self.round, {ENV_ROUND: str(self.round), "RANK": rank, "WORLD_SIZE": size}, {})

    # the groups

    def are_supported(self, *_: object) -> bool:
        return True

    def adopt(self) -> None:
        return

    def refuse_later_ones(self) -> None:
        if self.has_late_group:
            raise reconfigure.UnsupportedGroupError("a late group")

    def bound_to_size(self) -> str | None:
        return self.bound

    def resize(self, *_: object) -> None:
        self.done.append(f"resize to {self.place[1]}")

    def form(self, round_: int, _: object, place: Place, *__: object) -> None:
        if round_ > 1:
            assert place == self.place
        self.done.append(f"form {round_}")
        if round_ in self.dies_in:
            self.over = round_
            raise RuntimeError("a rank did not come")

    def break_off(self) -> None:
        self.done.append("break off")

    # the checkpointer

    def rest(self) -> None:
        self.done.append("rest")

    def begin_again(self) -> None:
        self.stays = False

    # the training

    def wake(self) -> None:
        self.done.append("wake")

    def leave_round(self) -> None:
        self.done.append("leave")

    def begin_round(self) -> None:
        self.done.append("begin")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.delenv(ENV_JOINS, raising=False)
    monkeypatch.delenv(ENV_SPARE, raising=False)
    monkeypatch.setenv(ENV_ROUND, "1")
    monkeypatch.setattr(survivor_module.progress, "begin_again", lambda: None)
    monkeypatch.setattr(survivor_module, "offer_stacks", lambda _: None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    world = World()
    monkeypatch.setattr(survivor_module.living_modules, "resize", world.resize)
    # What other tests of this process have left does not count.
    monkeypatch.setattr(survivor_module.living_modules, "bound_to_size", lambda *_: None)
    yield world


def survivor(world: World, *optimizers: torch.optim.Optimizer, resizable: bool = False) -> Survivor:
    all_: Any = world
    environ = {ENV_ROUND: "1", "RANK": "1", "WORLD_SIZE": "4"}
    connect = lambda _: torch.distributed.HashStore()  # noqa: E731
    made = Survivor(all_, all_, all_, [], optimizers, environ, connect, resizable=resizable)
    made.training = world
    return made


def begun(world: World, *, resizable: bool = False) -> Survivor:
    made = survivor(world, resizable=resizable)
    with TrainingStep.of(0, made):
        pass
    is_bound = not resizable or world.bound is not None
    assert world.sent == [Enters(Place(1, 4) if is_bound else None)] and world.lives_on
    world.done.clear()
    world.sent.clear()
    return made


def test_a_step_that_a_peers_death_has_ended_is_left_there_and_made_again_when_the_loop_goes_on(
    world: World,
) -> None:
    made = begun(world)
    with TrainingStep.of(8, made):
        raise PEER_DIED
    assert world.done == ["break off", "leave", "rest"]
    assert world.sent == [Lost(1, f"RuntimeError: {PEER_DIED}")]
    assert made.next_round()
    assert world.done[3:] == ["form 2", "begin"] and world.sent[1:] == []
    assert not made.next_round()


def test_in_a_world_of_another_size_modules_are_made_to_fit_before_the_state_is_loaded(world: World) -> None:
    made = begun(world, resizable=True)
    for world.place, fits in (((2, 3), ["resize to 3"]), ((2, 3), []), ((1, 4), ["resize to 4"])):
        world.done.clear()
        with TrainingStep.of(8, made):
            raise PEER_DIED
        made.next_round()
        assert world.done[3:] == [f"form {world.round}", *fits, "begin"]
    world.place, world.dies_in = (0, 3), [world.round + 1]
    with TrainingStep.of(8, made):
        raise PEER_DIED
    made.next_round()
    assert world.done[-3:] == [f"form {world.round}", "resize to 3", "begin"], "they did not fit in between"


def test_each_round_begins_with_the_random_tracker_that_a_newcomer_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first random operation on DTensors is a collective: for all of them, or for none."""
    monkeypatch.setattr(_random, "_rng_tracker", None)
    made = begun(world)
    with TrainingStep.of(8, made):
        _random._rng_tracker = object()  # type: ignore[assignment]
        raise PEER_DIED
    made.next_round()
    assert _random._rng_tracker is None


def test_a_group_of_some_ranks_binds_a_process_to_its_place_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.bound = "the process group '3' has not all ranks"
    begun(world, resizable=True)
    assert caplog.messages == [f"where the world's size changes, all processes start again: {world.bound}"]


def test_what_follows_a_step_in_the_loop_finds_no_groups_and_what_it_raises_in_another_with_is_nobodys_fault(
    world: World,
) -> None:
    """A newcomer does not make the rest of that step, an evaluation, say."""
    made, step = begun(world), None
    step = TrainingStep.of(8, made)
    with step:
        raise PEER_DIED
    with step:
        raise ValueError("an evaluation without its peers")
    assert world.done == ["break off", "leave", "rest"] and len(world.sent) == 1


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_step_that_ends_well_in_a_round_that_is_over_or_before_a_planned_change_is_left_too(
    world: World, is_planned: bool
) -> None:
    made = begun(world)
    world.over = int(not is_planned)
    with TrainingStep.of(8, made):
        world.stays = is_planned
    assert world.sent == [Left(1)] and world.done == ["break off", "leave", "rest"]
    assert made.next_round()


def test_a_plan_that_a_step_sees_after_its_with_is_followed_at_the_next(world: World) -> None:
    made = begun(world)
    with TrainingStep.of(8, made):
        pass
    world.stays = True
    assert made.next_round() and world.sent == [Left(1)]


def raises(error: BaseException, place: str, cause: Exception | None = None) -> None:
    """Raise an error from a file of torch's, or of the script's."""
    code = compile("raise error from cause", str(Path(torch.__file__).parent / place), "exec")
    exec(code, {"error": error, "cause": cause})


FSDP, FUNCTIONAL = "distributed/fsdp/_fully_shard/_fsdp_param.py", "nn/functional.py"
BACKWARD, SCRIPT = "autograd/graph.py", "/work/train.py"


@pytest.mark.parametrize(
    ("is_over", "error", "place", "cause"),
    [
        (False, ValueError("the script's own"), SCRIPT, None),
        (False, RuntimeError("CUDA error"), SCRIPT, None),
        (False, SystemExit(3), SCRIPT, None),
        (False, RuntimeError("setStorage: out of bounds"), FSDP, None),
        (False, RuntimeError("setStorage: out of bounds"), BACKWARD, None),
        (True, RuntimeError("the loss is none"), SCRIPT, None),
        (True, ValueError("Expected input batch_size (3) to match target batch_size (4)."), FUNCTIONAL, None),
        (True, KeyError("an item"), SCRIPT, OSError("the disk")),
        (True, SystemExit(0), SCRIPT, None),
        (True, KeyboardInterrupt(), SCRIPT, None),
    ],
)
def test_an_error_of_the_scripts_own_ends_it_whether_the_round_is_over_or_not(
    world: World, is_over: bool, error: BaseException, place: str, cause: Exception | None
) -> None:
    """In a round that is not over only a peer's death counts."""
    made = begun(world)
    world.over = int(is_over)
    with pytest.raises(type(error)), TrainingStep.of(8, made):
        raises(error, place, cause)
    assert not world.done and not world.sent


@pytest.mark.parametrize(
    ("error", "place", "cause"),
    [
        (PEER_DIED, BACKWARD, None),
        (torch.distributed.DistBackendError("NCCL"), SCRIPT, None),
        (RuntimeError("setStorage: out of bounds"), BACKWARD, None),
        (AssertionError("not unsharded"), FSDP, None),
        (AttributeError("no result"), "nn/parallel/distributed.py", None),
        (ValueError("no metrics"), SCRIPT, PEER_DIED),
    ],
)
def test_what_a_step_raises_that_was_broken_off_half_way_is_none_of_the_scripts(
    world: World, error: Exception, place: str, cause: Exception | None
) -> None:
    made = begun(world)
    world.over = 1
    with TrainingStep.of(8, made):
        raises(error, place, cause)
    assert world.sent == [Left(1)]


def test_errors_that_follow_from_each_other_in_a_circle_come_to_an_end(world: World) -> None:
    made, one, other = begun(world), ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    world.over = 1
    with pytest.raises(ValueError, match="one"), TrainingStep.of(8, made):
        raise one


def test_a_round_that_ends_while_its_groups_are_formed_is_left_as_any_other(world: World) -> None:
    made = begun(world)
    world.dies_in = [2, 3]
    with TrainingStep.of(8, made):
        raise PEER_DIED
    assert made.next_round()
    assert world.sent[1:] == [Left(2), Left(3)]


def test_a_loop_that_ends_in_a_step_that_was_to_be_made_again_says_so(world: World) -> None:
    made = begun(world)
    made.give_up()
    assert not world.sent and not world.lives_on
    made = survivor(world)
    with TrainingStep.of(0, made):
        pass
    with TrainingStep.of(1, made):
        raise PEER_DIED
    made.give_up()
    assert isinstance(world.sent[-1], Unable) and not world.lives_on
    world.over = 1
    assert not made.next_round()


@pytest.mark.parametrize("in_step", [False, True])
def test_a_group_that_was_made_in_the_loop_makes_an_ordinary_process(world: World, in_step: bool) -> None:
    made = begun(world)
    world.has_late_group = not in_step
    with pytest.raises(RuntimeError, match="closed by peer"), TrainingStep.of(8, made):
        world.has_late_group = True
        raise PEER_DIED
    assert world.sent == [Unable("a late group")] and not world.lives_on
    assert not made.next_round()


@pytest.mark.parametrize("dies_in_step", [True, False])
def test_a_save_under_way_that_communicates_makes_an_ordinary_process_when_its_round_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, dies_in_step: bool
) -> None:
    """Else its collectives would go on among those of the next round."""
    made = begun(world)
    monkeypatch.setattr(background_saves, "save_under_way", lambda: "a save")
    with TrainingStep.of(7, made):
        pass
    assert not world.sent, "it is no reason as long as nobody dies"
    if dies_in_step:
        with pytest.raises(RuntimeError, match="closed by peer"), TrainingStep.of(8, made):
            raise PEER_DIED
    world.over = 1
    assert not made.next_round()
    assert world.sent == [Unable("a save: a failure starts all processes again")] and not world.lives_on
    assert world.done == []


def test_a_scaler_that_was_about_to_step_begins_the_step_again() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    training = dlr.replicas.join(model, optimizer, state={"scaler": scaler})
    checkpoint: Any = SimpleNamespace(join=lambda *_: 0)
    training._checkpoint, broken = checkpoint, [True]

    class Lives(Mortal):
        def ends(self, error: BaseException | None) -> bool:
            return error is not None

        def next_round(self) -> bool:
            if is_over := bool(broken and broken.pop()):
                training.begin_round()
            return is_over

    training._process = Lives()
    made = []
    for step in training.steps(2):
        with step:
            made.append(int(step))
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            training.average()
            scaler.unscale_(optimizer)
            if broken:
                raise PEER_DIED
            scaler.step(optimizer)
            scaler.update()
    assert made == [0, 0, 1]


def test_a_peer_that_dies_between_two_steps_costs_a_round_and_no_error(world: World) -> None:
    made = begun(world)

    def die() -> None:
        raise PEER_DIED

    made.carry_through(die)
    assert world.done == ["break off", "leave", "rest", "form 2", "begin"]
    with pytest.raises(RuntimeError):
        survivor(world).carry_through(die)


def test_a_wait_for_other_groups_ends_with_the_round(world: World) -> None:
    made = begun(world)
    world.over = 1
    made.break_off()
    with TrainingStep.of(8, made):
        raise RoundOverError
    assert world.done == ["wake", "break off", "break off", "leave", "rest"] and world.sent == [Left(1)]


@pytest.mark.parametrize("reduce_dtype", [None, torch.float64])
def test_what_fsdp_has_added_up_without_synchronization_is_gone_from_a_step_that_is_made_again(
    reduce_dtype: torch.dtype | None, process_group: None
) -> None:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("this torch has no reset_iter_state")
    net, mesh = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for block in (*net, net):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    model: Any = net

    def gradients() -> list[torch.Tensor]:
        net(torch.ones(2, 4)).sum().backward()
        found: list[Any] = [parameter.grad for parameter in net.parameters()]
        net.zero_grad(set_to_none=True)
        return [each.full_tensor().clone() for each in found if each is not None]

    expected = gradients()
    model.set_requires_gradient_sync(False)
    gradients()
    living_modules.reset_modules([net])
    model.set_requires_gradient_sync(True)
    assert all(torch.equal(*pair) for pair in zip(gradients(), expected, strict=True))


def test_ddp_reduces_gradients_by_its_own_hooks_after_a_step_that_was_broken_off(process_group: None) -> None:
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    calls: list[object] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
        calls.append(state)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    net.register_comm_hook("mine", hook)
    living_modules.reset_modules([net])
    net(torch.ones(1, 2)).sum().backward()
    assert calls == ["mine"]


def test_with_step_says_once_why_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.delenv(ENV_WORLD_SOCKET, raising=False)
    monkeypatch.setenv(ENV_PROGRESS_FILE, "/nowhere")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        process = survivor_of_process(SimpleNamespace(lives_on=False), [], [], resizable=False)
        for step in range(2):
            with TrainingStep.of(step, process):
                pass
    why = "processes live on from torch 2.14 on, and this is torch 2.13.0+cpu"
    assert caplog.messages == [f"with step: all processes start again where one dies: {why}"]


@pytest.mark.parametrize("saved", [True, False])
def test_what_the_checkpoint_lacks_of_the_state_is_named(
    saved: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would differ between processes that live on and newcomers, where no other group has it."""
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    monkeypatch.delenv(ENV_WORLD_SOCKET, raising=False)
    monkeypatch.setenv(ENV_PROGRESS_FILE, "/nowhere")
    monkeypatch.setenv("RANK", "0")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    state = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    of_checkpoint = {"model": model, "optimizer": optimizer, **(state if saved else {})}
    checkpoint: Any = SimpleNamespace(state=of_checkpoint, join=lambda *_: None)
    training = dlr.replicas.join(model, optimizer, state=state, checkpoint=checkpoint)
    for step in training.steps(1):
        with step:
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    why = "name scheduler in the Checkpointer's state too, where a step is undone"
    assert caplog.messages == (
        [] if saved else [f"with step: all processes start again where one dies: {why}"]
    )
