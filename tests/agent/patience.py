"""`python -m tests.agent.patience CONSTANTS MODULE ARGUMENTS...`: a module with other time limits than the product's.

On a busy machine a process may not run for ten seconds. Nothing of dlr is imported here.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SECONDS = 300.0
PATIENT: dict[str, Any] = dict.fromkeys(
    (
        *("agent.connection.handshake.CONNECT_SECONDS", "agent.connection.admission.HANDSHAKE_SECONDS"),
        *("agent.connection.store.SILENCE_SECONDS", "agent.link.FLUSH_SECONDS"),
        *("agent.monitor.accelerators.NVML_SECONDS", "agent.monitor.stacks.PATIENCE_SECONDS"),
        "agent.node_check.__main__.FLUSH_SECONDS",
        *("agent.node_check.duties.JOIN_LIMIT_SECONDS", "agent.node_check.duties.PAIR_LIMIT_SECONDS"),
        *("agent.slots.wire.TIMEOUT_SECONDS", "agent.slots.wire.CHECK_SECONDS"),
        *("agent.slots.server.TIMEOUT_SECONDS", "agent.warm.warm_parent.ANSWER_SECONDS"),
        *("agent.supervision.course.JUDGEMENT_SECONDS", "agent.supervision.vote.DECISION_SECONDS"),
        "agent.supervision.vote.HOLD_SECONDS",
    ),
    SECONDS,
) | {
    "healthcheck.probes.suite.TIMEOUT_SECONDS": dict.fromkeys(
        ("device_state", "gemm", "copies", "intra_node"), SECONDS
    )
}
"""Of an agent, by their dotted names: limits of what takes moments. Where one is a test's subject, that sets it."""


def wait_for(condition: Callable[[], Any], what: str | Callable[[], str] = "it") -> Any:
    """Wait until a condition holds, and return what it found."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {SECONDS} s for {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
    return found


class Patience:
    """A finder of modules, which sets constants of theirs as soon as they are loaded."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._constants: dict[str, dict[str, Any]] = {}
        for name, value in constants.items():
            module, _, constant = name.rpartition(".")
            self._constants.setdefault(module, {})[constant] = value

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._constants else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_set(module: ModuleType) -> None:
            load(module)
            assert vars(module).keys() >= self._constants[name].keys()
            vars(module).update(self._constants[name])

        spec.loader.exec_module = load_and_set  # type: ignore[method-assign]
        return spec

    def install(self) -> None:
        """Take effect, in modules that are not imported yet."""
        sys.meta_path.insert(0, self)


if __name__ == "__main__":
    _, constants, module, *arguments = sys.argv
    Patience(json.loads(constants)).install()
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
