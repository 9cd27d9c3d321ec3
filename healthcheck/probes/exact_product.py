"""Products whose every element is known exactly, to find silent corruption without a tolerance.

Elements are −1, 0 or 1, few enough not 0 that every sum is an integer below 256, which bfloat16 (8 bits of
significand), float16 and float32 hold. So the order of summation does not matter, and one wrong bit is one
too many.
"""

from __future__ import annotations

import torch

SHARE_NOT_ZERO = 1 / 3
"""Sums over k have the standard deviation k^½/3: 30 for k = 8192, with 256 at 8.5 of them."""
SEED = 20_150_603
CHECK_VECTOR_BOUND = 2**20
"""|x|; then |C·x| ≤ n · 2⁸ · 2²⁰ < 2⁵³ for n up to 2²⁵, so that float64 computes it exactly."""


class ExactProduct:
    """A product A·B of n × n matrices on one device, and the means to check it.

    C = A·B is checked by C·x = A·(B·x) for a random vector of integers x, in float64: n² operations, not n³
    (Freivalds, "Probabilistic machines can use less running time", 1977). A wrong C passes with a probability
    of at most 1/2²¹.
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
        """Return the number of rows of `product`, n × n, in which something is wrong."""
        return int((product.double() @ self._x != self._expected).sum())


def _ternary(size: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.rand(size, size, generator=generator, device=generator.device)
    return ((drawn < SHARE_NOT_ZERO / 2).to(dtype)) - ((drawn > 1 - SHARE_NOT_ZERO / 2).to(dtype))
