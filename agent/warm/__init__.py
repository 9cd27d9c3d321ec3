"""Warm start: training processes are forked from a parent that has imported torch (docs/from-torchrun.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preloads:
    """Modules that are imported beside torch's before training processes are forked."""

    sdk: tuple[str, ...] = ()
    """The modules of the SDK that training scripts import; those that are not there are left out."""
    users: tuple[str, ...] = ()
    """The modules that `--preload` names."""
