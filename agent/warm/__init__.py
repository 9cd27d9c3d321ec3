"""Warm start: training processes are forked from a parent that has imported torch (docs/from-torchrun.md)."""

from __future__ import annotations

from dataclasses import dataclass

PADDING = "." * 2048
"""The last argument of a command that processes are forked from, and the value of `PADDING_VARIABLE`.
Training processes write over both, so that `ps` shows what they run (proc(5), arg_start)."""
PADDING_VARIABLE = "DLR_ARGV_PADDING"


@dataclass(frozen=True)
class Preloads:
    """Modules that are imported beside torch's before training processes are forked."""

    sdk: tuple[str, ...] = ()
    """The modules of the SDK that training scripts import; those that are not there are left out."""
    users: tuple[str, ...] = ()
    """The modules that `--preload` names."""
