"""Amounts of CPU and memory as somebody writes them in an option: `500m`, `2`, `1.5Gi`.

These are quantities without signs and exponents, which nobody means who writes one here.
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re

from dlr.kube.errors import UsageError

_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?(m|[kMGTPE]|[KMGTPE]i)?")


def is_amount(text: str) -> bool:
    return _AMOUNT.fullmatch(text) is not None


def times(text: str, count: int) -> str:
    """So many times an amount, with the same unit.

    Raises:
        UsageError: the text is no amount.
    """
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no amount; it is written such as 500m, 2, 1.5 or 2Gi.")
    decimals = found[2] or ""
    number = str(int(found[1] + decimals) * count).rjust(len(decimals) + 1, "0")
    whole, rest = number[: len(number) - len(decimals)], number[len(number) - len(decimals) :].rstrip("0")
    return whole + (f".{rest}" if rest else "") + (found[3] or "")
