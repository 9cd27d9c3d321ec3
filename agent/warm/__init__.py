"""Warm start: training processes are forked from a parent that has imported torch (docs/from-torchrun.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preloads:
    """Modules to import beside torch's before training processes are forked."""

    sdk: tuple[str, ...] = ()
    """Modules of the SDK that training scripts import; missing ones are ignored."""
    users: tuple[str, ...] = ()
    """Modules of `--preload`."""
