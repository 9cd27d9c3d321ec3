"""Matrix products in bfloat16, float16 and float32: speed, steadiness and correctness.

A product of n × n matrices takes 2·n³ floating-point operations: a multiplication and an addition for each
of n terms of n² sums (2·M·N·K, NVIDIA's "Matrix Multiplication Background User's Guide"); TFLOP/s are 10¹²
per second. float32 is real float32: torch uses no TF32 by default.

Speed is measured on normal random numbers, since zeros and small integers draw less power and so run
faster than training. In between, products with exact elements run on the hot device.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from crds.agent_report import ProbeEnding
from healthcheck.probes import child, devices
from healthcheck.probes.report import ProbeReport, WrongResult
from healthcheck.probes.timing import slowest_median, time_repeats

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NOTABLE_LAG = 0.05
"""Share below the median of its node at which a device is mentioned in a note."""

SHARE_NOT_ZERO = 1 / 3
"""Share of elements other than 0. Sums over k have the standard deviation k^½/3: 30 for k = 8192, so that 256
is 8.5 of them."""
SEED = 20_150_603
CHECK_VECTOR_BOUND = 2**20
"""Bound of |x|; then |C·x| ≤ n · 2⁸ · 2²⁰ < 2⁵³ for n up to 2²⁵, so that float64 is exact."""


@dataclass(frozen=True)
class GemmPlan:
    """Amount of work on one kind of device."""

    smallest: int
    largest: int
    """Largest size n of the matrices: enough for full speed, and the same on all devices of a kind."""
    longest_seconds: float
    """Longest time of a product: slow types on slow devices get smaller matrices."""
    budget_seconds: float
    """Measured time for each type, in seconds."""


PLANS = {"cpu": GemmPlan(256, 1024, 0.05, 0.2), "cuda": GemmPlan(1024, 8192, 0.1, 0.6)}
BATCHES = 4
"""Number of batches, with an exact product before, between and after them."""
LEAST_REPEATS, MOST_REPEATS = 8, 400
MEMORY_SHARE = 0.5
"""Maximum share of a GPU's free memory."""


class ExactProduct:
    """Product A·B of n × n matrices on one device, which detects silent corruption without a tolerance.

    Elements are −1, 0 or 1, with so few not 0 that every sum is an integer below 256, which bfloat16,
    float16 and float32 represent exactly. So the order of summation does not matter. C = A·B is verified
    by C·x = A·(B·x) for a random vector of integers x, in float64: n² operations, not n³ (Freivalds,
    1977). A wrong C passes with a probability of at most 1/2²¹.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(SEED)
        self.left = _ternary(size, dtype, generator)
        self.right = _ternary(size, dtype, generator)
        bound = CHECK_VECTOR_BOUND
        x = torch.randint(-bound, bound, (size,), generator=generator, device=device, dtype=torch.float64)
        self._x = x
        self._expected = self.left.double() @ (self.right.double() @ x)

    def wrong_rows(self, product: torch.Tensor) -> int:
        """Return the number of wrong rows of `product`, n × n."""
        return int((product.double() @ self._x != self._expected).sum())


def _ternary(size: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.rand(size, size, generator=generator, device=generator.device)
    return ((drawn < SHARE_NOT_ZERO / 2).to(dtype)) - ((drawn > 1 - SHARE_NOT_ZERO / 2).to(dtype))


class Products:
    """Matrices of one type and size on every device."""

    def __init__(self, on: Sequence[torch.device], name: str, size: int) -> None:
        self._devices = on
        self._name = name
        dtype = DTYPES[name]
        self._random = {d: [torch.randn(size, size, device=d, dtype=dtype) for _ in range(2)] for d in on}
        self._exact = {d: ExactProduct(size, dtype, d) for d in on}
        self._out = {d: torch.empty(size, size, device=d, dtype=dtype) for d in on}

    def time(self, repeats: int) -> dict[torch.device, list[float]]:
        """Return the seconds of each product, by device."""
        return time_repeats(self._devices, self._multiply, repeats)

    def estimate(self) -> float:
        """Return the seconds of an undisturbed product: the best of three, on the slowest device."""
        self.time(1)  # loads the kernels
        return max(min(seconds) for seconds in self.time(3).values())

    def check(self) -> None:
        """Raise WrongResult if an exact product is wrong."""
        for device in self._devices:
            exact, out = self._exact[device], self._out[device]
            torch.matmul(exact.left, exact.right, out=out)
            wrong = exact.wrong_rows(out)
            if wrong:
                raise WrongResult(
                    f"{device} computes wrongly: {wrong} of {len(out)} rows of a {self._name} product"
                )

    def _multiply(self, device: torch.device) -> None:
        left, right = self._random[device]
        torch.matmul(left, right, out=self._out[device])


def measure(arguments: argparse.Namespace) -> ProbeReport:
    _exact_sums()
    on = devices.prepare(arguments.device)
    figures: dict[str, float] = {}
    notes: list[str] = []
    for name in DTYPES:
        size = _size(on, name)
        seconds = _time(on, name, size)
        operations = 2 * size**3
        metric = f"gemm_{name}_tflops"
        figures[metric] = operations / slowest_median(seconds) / 1e12
        figures[f"gemm_{name}_spread"] = max(map(_spread, seconds.values()))
        figures[f"gemm_{name}_size"] = size
        notes += _laggards(name, {device: operations / median(s) / 1e12 for device, s in seconds.items()})
    return ProbeReport(ProbeEnding.PASSED, figures=figures, notes=tuple(notes))


def _exact_sums() -> None:
    """Keep partial sums in float32, as the exact products need."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def _size(on: Sequence[torch.device], name: str) -> int:
    """Return the size: n doubles, which takes eight times as long, until the next is too slow or too
    large."""
    plan = PLANS[on[0].type]
    size = plan.smallest
    while size < plan.largest and _fits(on, name, 2 * size):
        products = Products(on, name, size)
        if 8 * products.estimate() > plan.longest_seconds:
            break
        size *= 2
    return size


def _fits(on: Sequence[torch.device], name: str, size: int) -> bool:
    """Return whether five matrices of the type, and two of float64 for the check, fit into memory."""
    if on[0].type == "cpu":
        return True
    wanted = size**2 * (5 * DTYPES[name].itemsize + 2 * torch.float64.itemsize)
    return all(wanted <= MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] for device in on)


def _time(on: Sequence[torch.device], name: str, size: int) -> Mapping[torch.device, list[float]]:
    plan = PLANS[on[0].type]
    products = Products(on, name, size)
    repeats = min(max(round(plan.budget_seconds / products.estimate()), LEAST_REPEATS), MOST_REPEATS)
    seconds: dict[torch.device, list[float]] = {device: [] for device in on}
    products.check()
    for _ in range(BATCHES):
        for device, values in products.time(repeats // BATCHES).items():
            seconds[device] += values
        products.check()
    return seconds


def _spread(seconds: Sequence[float]) -> float:
    """Return the range of the middle half of the repeats, as a share of their median."""
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(ordered)


def _laggards(name: str, tflops: Mapping[torch.device, float]) -> list[str]:
    typical = median(tflops.values())
    return [
        f"{device} does {value:.4g} TFLOP/s in {name}, the median device of this node {typical:.4g}"
        for device, value in tflops.items()
        if value < (1 - NOTABLE_LAG) * typical
    ]


if __name__ == "__main__":
    parser = child.argument_parser(__doc__)
    child.add_device_option(parser)
    child.serve(parser, measure)
