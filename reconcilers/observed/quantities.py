"""Kubernetes' resource quantities, exactly: `500m`, `1.5Gi`, `1e3`, 2.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from controller.wording import shortened

BINARY = {suffix: 2 ** (10 * power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
DECIMAL = {suffix: 10 ** (3 * power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
SMALL = {suffix: Fraction(1, 10 ** (3 * power)) for power, suffix in enumerate(("m", "u", "n"), 1)}
_SCALES = {"": Fraction(1)} | {
    suffix: Fraction(scale) for suffix, scale in (*BINARY.items(), *DECIMAL.items(), *SMALL.items())
}
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]?))"
)
MAX_CHARACTERS = 64
"""Of a quantity: arithmetic with numbers of a thousand digits is slow."""


def parse(quantity: str | int) -> Fraction:
    """The number of units.

    Raises:
        ValueError: it is not a quantity; the message says so.
    """
    text = str(quantity)
    found = _parsed(text) if len(text) <= MAX_CHARACTERS else None
    if found is None:
        raise ValueError(f"{shortened(text, MAX_CHARACTERS)!r} is not a quantity such as 500m, 2 or 1.5Gi")
    return found


@lru_cache(maxsize=1_000)
def _parsed(text: str) -> Fraction | None:
    if (found := _QUANTITY.fullmatch(text)) is None:
        return None
    number, exponent, suffix = found.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SCALES[suffix]
    return Fraction(number) * scale


def is_quantity(amount: object) -> bool:
    try:
        parse(str(amount))
    except ValueError:
        return False
    return True


def whole(quantity: str | int) -> int:
    """Returns the quantity in whole units, rounded up, as Kubernetes rounds.

    Raises:
        ValueError: it is not a quantity.
    """
    return math.ceil(parse(quantity))


def format_bytes(count: int) -> str:
    """The shortest way to write exactly that many: `24Gi`, `3G`, `1500`."""
    scales = {**BINARY, **DECIMAL}
    exact = [f"{count // scale}{suffix}" for suffix, scale in scales.items() if count % scale == 0]
    return min([str(count), *exact], key=len)
