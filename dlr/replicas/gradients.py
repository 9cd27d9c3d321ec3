"""The gradients of a step in flat buckets for the network, separate from the parameters' own gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlr.checkpoint.tensors import is_distributed

BUCKET_BYTES = 25 << 20
"""Size of a bucket, as in DistributedDataParallel; a full one is sent during backward."""


def local(tensor: Tensor) -> Tensor:
    """Return the tensor, or this rank's part of a DTensor, whose parts are averaged one by one."""
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def _real(tensor: Tensor) -> Tensor:
    """View complex numbers as pairs of real ones, which gloo and NCCL can sum."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def parameters_of(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """Return the parameters that optimizers change, in their order."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [parameter for group in groups for parameter in group["params"]]


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are sent together, followed by one number for each: whether it has one."""

    parameters: tuple[nn.Parameter, ...]
    numels: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        """Return a flat tensor of zeros, of the bucket's size."""
        size = sum(self.numels) + len(self.numels)
        return torch.zeros(size, dtype=self.dtype, device=self.device)

    def _split(self, flat: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Return the parts of a flat tensor: the gradients, and the numbers."""
        *grads, present = torch.split(flat, [*self.numels, len(self.numels)])
        return grads, present

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Copy the gradients into a flat tensor; raise TypeError if one is sparse."""
        flat = self.empty()
        grads, present = self._split(flat)
        for place, (part, parameter) in enumerate(zip(grads, self.parameters, strict=True)):
            if parameter.grad is None:
                continue
            if parameter.grad.layout is not torch.strided:
                raise TypeError("dlr.replicas averages dense gradients: make the embedding with sparse=False")
            part.copy_(_real(local(parameter.grad)).reshape(-1))
            present[place] = 1
        return flat

    def presence(self, flat: Tensor) -> Tensor:
        """Return which parameters have a gradient in any group, as booleans on the bucket's device."""
        return self._split(flat)[1] > 0

    @torch.no_grad()
    def take(self, flat: Tensor, has: Sequence[bool], count: int) -> None:
        """Make the gradients the sums in a flat tensor, divided by the number of groups that contributed.

        Args:
            has: `presence`, by parameter; a parameter without a gradient in any group gets none.
        """
        grads, _ = self._split(flat)
        for part, parameter, is_present in zip(grads, self.parameters, has, strict=True):
            if not is_present:
                parameter.grad = None
                continue
            if parameter.grad is None or parameter.grad.is_conj():  # a conjugate's memory has other numbers
                parameter.grad = torch.zeros_like(parameter)
            target = _real(local(parameter.grad))
            torch.div(part.view(target.shape), count, out=target)


def scatter(buckets: Sequence[Bucket], flats: Sequence[Tensor], count: int) -> None:
    """Set the gradients of all buckets to the mean, with one synchronization per device."""
    masks = [
        bucket.presence(flat).to("cpu", non_blocking=True)
        for bucket, flat in zip(buckets, flats, strict=True)
    ]
    for device in {bucket.device for bucket in buckets if bucket.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    for bucket, flat, mask in zip(buckets, flats, masks, strict=True):
        bucket.take(flat, mask.tolist(), count)


def buckets_of(parameters: Iterable[nn.Parameter]) -> list[Bucket]:
    """Divide parameters into buckets, the last first, since backward computes their gradients first.

    Args:
        parameters: parameters of the optimizers, in the same order in all groups.
    """
    buckets: list[Bucket] = []
    open_: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}

    def close(key: tuple[torch.dtype, torch.device]) -> None:
        members = open_.pop(key)
        numels = tuple(_real(local(each.detach())).numel() for each in members)
        buckets.append(Bucket(tuple(members), numels, *key))
        filled[key] = 0

    for parameter in reversed([each for each in parameters if each.requires_grad]):
        data = _real(local(parameter.detach()))
        key = (data.dtype, data.device)
        open_.setdefault(key, []).append(parameter)
        filled[key] = filled.get(key, 0) + data.numel() * data.element_size()
        if filled[key] >= BUCKET_BYTES:
            close(key)
    for key in list(open_):
        close(key)
    return buckets


class GradientWatch:
    """Detects in backward that a bucket has all its gradients, and finds gradients that are not averaged.

    Args:
        buckets: buckets of the parameters.
        ready: called in backward with the number of each complete bucket, in their order, if gradients are
            only changed by autograd.
    """

    def __init__(self, buckets: Sequence[Bucket], ready: Callable[[int], None]) -> None:
        self._ready = ready
        self._missing: list[set[int]] = []
        self._all = [{id(parameter) for parameter in bucket.parameters} for bucket in buckets]
        self._averaged = set[int]().union(*self._all)
        self._sent = 0
        self._is_on = False
        self._is_averaged = False
        self._late = set[int]()
        """Parameters whose gradients have changed since the average."""
        self.is_paused = False
        """Whether gradients are ignored for now, since a later backward adds to them."""
        self._handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(number, id(parameter))
            )
            for number, bucket in enumerate(buckets)
            for parameter in bucket.parameters
            if not local(parameter.detach()).is_pinned()  # FSDP2 would wait for each copy to the CPU
        ]

    def begin(self, *, sends: bool = False) -> None:
        """Watch the gradients of the next step.

        Args:
            sends: whether to call `ready`.
        """
        self._missing = [set(each) for each in self._all]
        self._sent = 0
        self._is_on, self._is_averaged = sends, False
        self._late.clear()

    def end(self) -> None:
        """Stop calling `ready` until `begin`: the gradients are averaged."""
        self._is_on, self._is_averaged = False, True

    def check(self, optimizer: Optimizer) -> None:
        """Check that the gradients that an optimizer is about to apply are averaged.

        Raises:
            RuntimeError: they are not, so the groups would diverge.
        """
        for parameter in parameters_of([optimizer]):
            if parameter.grad is not None and id(parameter) not in self._averaged:
                raise RuntimeError(
                    "a parameter has a gradient that is not averaged over the groups, since it was frozen or "
                    "not in the optimizer when dlr.replicas.join was called: freeze parameters after join"
                )
            if id(parameter) in self._late:
                raise RuntimeError(
                    "a gradient was computed after the average over the groups, which is made of all "
                    "gradients at the first optimizer.step(): do all backwards before, or take a turn of "
                    "replicas.steps() for each optimizer"
                )

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, number: int, parameter: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            if self._is_averaged:
                self._late.add(parameter)
            if not self._is_on or self.is_paused:
                return
            if parameter not in self._missing[number]:
                if number < self._sent:
                    raise RuntimeError(
                        "a gradient has changed after its average over the groups began: put each backward "
                        "of a step but the last into `with replicas.accumulate():`"
                    )
                return
            self._missing[number].discard(parameter)
            while self._sent < len(self._missing) and not self._missing[self._sent]:
                self._sent += 1
                self._ready(self._sent - 1)

        return note
