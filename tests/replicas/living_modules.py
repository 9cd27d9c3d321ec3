"""Modules in a world of another size, in processes that live; and what binds them to one size.

`test_living_modules` runs these tests with a torch that can form groups again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import _random
from torch.nn.parallel import DistributedDataParallel

from agent.facts.place import Place
from agent.torch_compat import background_saves, living_modules, pipelines, unconnected
from agent.torch_compat.reconfigure import ReformableGroups
from tests.forks import forks

WIDTH = 5


def sharded(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
    net[0].weight.requires_grad_(False)
    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)), **options}
    for block in (*net, net):
        fully_shard(block, **options)
    return net


def gradients(net: nn.Module) -> list[Tensor]:
    """The gradients of all ranks' samples, whole."""
    net(torch.full((1, WIDTH), 1.0 + dist.get_rank())).sum().backward()
    found: list[Any] = [each.grad for each in net.parameters() if each.requires_grad]
    net.zero_grad(set_to_none=True)
    return [each.full_tensor() for each in found]


# --- from one size to another -----------------------------------------------------------------------------


def await_all(store: Store, key: str, count: int) -> None:
    while store.add(key, 0) < count:
        pass


def goes_on_smaller_and_larger(rank: int, port: int) -> bool:
    """Whether parameters and meshes stay the same objects from two ranks to one and back, and fit."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    net, groups = sharded(), ReformableGroups()
    groups.adopt()
    before, mesh, optimizer = (
        list(net.parameters()),
        next(net.parameters()).device_mesh,
        torch.optim.SGD(net.parameters()),
    )
    for round_, places in enumerate(({0: 0, 1: 1}, {1: 0}, {0: 1, 1: 0}), start=1):
        if rank not in places:
            continue
        place = Place(places[rank], len(places))
        groups.form(round_, store, place, await_all)
        living_modules.resize([net], [optimizer])
        with torch.no_grad():
            for each in net.parameters():
                each.fill_(1.0)
        rows = [len(each) for each in torch.arange(WIDTH).chunk(place.world_size)]
        assert next(net.parameters()).to_local().shape == (rows[place.rank], WIDTH)
        assert (mesh.size(), mesh.get_local_rank()) == (place.world_size, place.rank)
        assert all(one is other for one, other in zip(net.parameters(), before, strict=True))
        assert [each.requires_grad for each in before] == [False, True, True, True]
        mean = sum(1.0 + each for each in range(place.world_size)) / place.world_size
        assert torch.equal(gradients(net)[-2], torch.full((3, WIDTH), WIDTH * mean + 1.0))
        groups.break_off()
        living_modules.reset_modules([net])
    return True


def test_fsdp_goes_on_smaller_and_larger_with_the_same_parameters() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(2, forks) as pool:
        found = [pool.submit(goes_on_smaller_and_larger, rank, store.port) for rank in (0, 1)]
        assert all(each.result(timeout=120) for each in found)


# --- what binds to one size -------------------------------------------------------------------------------


@pytest.fixture
def world_of_one(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def replicated() -> nn.Module:
    return sharded(mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "shards")))


def by_columns() -> nn.Module:
    from torch.distributed.tensor import Shard

    return sharded(shard_placement_fn=lambda each: Shard(each.ndim - 1))


def with_averages() -> nn.Module:
    net = sharded()
    net.register_buffer("average", next(net.parameters()).detach().clone())
    return net


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (replicated, "no mesh of all ranks in one dimension"),
        (by_columns, "otherwise than by its first dimension"),
        (with_averages, "a DTensor of shape [5, 5] is no parameter that fully_shard has sharded"),
        (sharded, None),
        (lambda: sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), None),
        (lambda: nn.Linear(2, 2), None),
    ],
    ids=["hsdp", "columns", "average", "fsdp", "offload", "plain"],
)
def test_what_is_made_for_one_size_is_named(
    world_of_one: None, build: Callable[[], nn.Module], reason: str | None
) -> None:
    net = build()
    found = living_modules.bound_to_size([net], [torch.optim.SGD(net.parameters())])
    assert found is None if reason is None else found is not None and reason in found


def test_a_sharded_model_or_average_that_is_not_in_the_checkpoint_is_named(world_of_one: None) -> None:
    net = sharded()
    optimizer = torch.optim.AdamW(net.parameters())
    gradients(net)
    net(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    assert living_modules.bound_to_size([net], [optimizer]) is None, (
        "what a step leaves behind is loaded anew"
    )
    teacher = sharded()
    found = living_modules.bound_to_size([net], [optimizer])
    assert found is not None and found.startswith("a DTensor of shape ")
    assert living_modules.bound_to_size([net, teacher], [optimizer]) is None
    averages = {name: each.detach().clone() for name, each in net.named_parameters()}
    found = living_modules.bound_to_size([net, teacher], [optimizer])
    assert averages and found is not None and found.startswith("a DTensor of shape ")


def test_meshes_that_cannot_be_found_bind_to_the_size(world_of_one: None) -> None:
    net = sharded()
    gc.freeze()
    try:
        found = living_modules.bound_to_size([net], [])
    finally:
        gc.unfreeze()
    assert found == "its meshes are hidden by gc.freeze()"


def test_a_torch_without_the_private_names_binds_to_the_size(
    world_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = sharded()
    monkeypatch.delattr("torch.distributed.tensor._redistribute.clear_redistribute_planner_cache")
    found = living_modules.bound_to_size([net], [])
    assert found is not None and "is not known to go into another size" in found


def test_ddp_keeps_a_hook_of_torchs_own_through_a_step_that_is_made_again(world_of_one: None) -> None:
    net = DistributedDataParallel(nn.Linear(2, 2))
    net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[no-untyped-call]
    for _ in range(2):
        living_modules.reset_modules([net])
        logged: Any = net.logger
        assert logged._get_ddp_logging_data().strs_map["comm_hook"].endswith("FP16_COMPRESS")
        net(torch.full((1, 2), 1.0 + 2**-12)).sum().backward()
        assert net.module.weight.grad is not None
        assert torch.equal(net.module.weight.grad, torch.ones(2, 2)), "as halves have it"
        net.zero_grad(set_to_none=True)


def test_ddp_shares_its_buffers_in_a_step_that_was_aborted_in_an_early_micro_batch(
    world_of_one: None,
) -> None:
    """As a newcomer does in the first forward pass; the others would be alone with another collective."""
    net = DistributedDataParallel(nn.BatchNorm1d(2))
    assert net.will_sync_module_buffers()  # type: ignore[no-untyped-call]
    with net.no_sync():  # type: ignore[no-untyped-call]
        net(torch.ones(2, 2))
    assert not net.will_sync_module_buffers()  # type: ignore[no-untyped-call]
    living_modules.reset_modules([net])
    assert net.will_sync_module_buffers()  # type: ignore[no-untyped-call]


def test_ddp_with_a_static_graph_reduces_late_in_a_step_that_is_made_again_as_in_its_first(
    world_of_one: None,
) -> None:
    net = DistributedDataParallel(nn.Linear(2, 2), static_graph=True)
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        assert net._static_graph_delay_allreduce_enqueued
        living_modules.reset_modules([net])
        assert not net._static_graph_delay_allreduce_enqueued


class Gone(dist.Work):
    """A collective whose peer has died."""

    def wait(self, timeout: Any = None) -> bool:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize("has_run", [True, False])
def test_a_gather_that_was_begun_ahead_may_fail(world_of_one: None, has_run: bool) -> None:
    net: Any = sharded()
    before = gradients(sharded())
    if has_run:
        gradients(net)
    for group in living_modules._parameter_groups([net]):
        group.unshard(async_op=True)
        group._all_gather_result = group._all_gather_result._replace(all_gather_work=Gone())
    living_modules.reset_modules([net])
    assert all(map(torch.equal, gradients(net), before))


class Slow(FileSystemWriter):
    """Writes once it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = Event()

    def write_data(self, *arguments: Any) -> Any:
        self.may_write.wait()
        return super().write_data(*arguments)


def test_a_save_of_torchs_own_is_under_way_until_it_is_done(world_of_one: None, tmp_path: Path) -> None:
    assert background_saves.save_under_way() is None
    writer = Slow(tmp_path / "save")
    saved: Any = dcp.async_save({"weight": torch.ones(2)}, storage_writer=writer)
    assert background_saves.save_under_way() == "dcp.async_save was under way"
    threads = [each for each in enumerate_threads() if each.name.startswith(background_saves._THREAD)]
    writer.may_write.set()
    saved.result()
    for each in threads:
        each.join()
    assert threads and background_saves.save_under_way() is None


def test_a_process_of_torchs_own_that_saves_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.checkpoint._async_process_executor._CHECKPOINT_PROCESS", object())
    assert "a process of its own" in (background_saves.save_under_way() or "")


class Broken(nn.Module):
    """Fails in the third micro-batch of the step in which it is to, as if a peer had died."""

    fails, calls = False, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.fails and self.calls == 3:
            raise RuntimeError("a peer is gone")
        return x


@pytest.mark.parametrize("stages", [1, 2])
def test_a_pipeline_begins_like_a_new_one_after_a_step_that_was_aborted(
    world_of_one: None, monkeypatch: pytest.MonkeyPatch, stages: int
) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)) for _ in range(stages)]
    broken = blocks[-1].append(Broken())[-1]
    made = [PipelineStage(block, n, stages, torch.device("cpu")) for n, block in enumerate(blocks)]
    schedule: Any = Schedule1F1B(made[0], 4, loss_fn=nn.MSELoss()) if stages == 1 else None
    schedule = schedule or ScheduleInterleaved1F1B(made, 4, loss_fn=nn.MSELoss())
    votes = []
    vote = PipelineStage._warmup_forward_vote
    monkeypatch.setattr(
        PipelineStage, "_warmup_forward_vote", lambda *of, **more: votes.append(0) or vote(*of, **more)
    )
    x = torch.arange(4.0 * WIDTH).reshape(4, WIDTH)

    def step() -> list[Any]:
        torch.manual_seed(1)
        losses: list[Tensor] = []
        broken.calls = 0
        schedule.step(x, target=x, losses=losses)
        found = [each.grad for block in blocks for each in block.parameters()]
        for block in blocks:
            block.zero_grad(set_to_none=True)
        return [*losses, *found]

    first = step()
    assert len(votes) == stages
    for _ in range(2):
        broken.fails = True
        with pytest.raises(RuntimeError, match="failed to run forward"):
            step()
        living_modules.reset_modules(blocks)
        pipelines.reset_schedules()
        for block in blocks:
            block.zero_grad(set_to_none=True)
    broken.fails = False
    votes.clear()
    again = step()
    assert len(votes) == stages, "as a newcomer does it"
    assert len(again) == len(first) and all(map(torch.equal, again, first))
    step()
    assert len(votes) == stages, "once"


def test_random_numbers_for_dtensors_need_nobody_else_as_long_as_groups_are_unconnected(
    world_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(tracker: Any, device: torch.device) -> None:
        tracker._device, tracker._device_handle = torch.device("cuda"), torch.cuda

    def synchronize(_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(_random._RNGStateTracker, "__init__", begin)
    monkeypatch.setattr(_random.OffsetBasedRNGTracker, "_get_device_state", synchronize)
    mesh = init_device_mesh("cpu", (1,))
    unconnected.make_unconnected()
    _random.OffsetBasedRNGTracker(mesh)
    unconnected.make_connected()
    with pytest.raises(ConnectionError):
        _random.OffsetBasedRNGTracker(mesh)
