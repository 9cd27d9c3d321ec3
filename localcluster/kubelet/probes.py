"""Startup, liveness and readiness probes: when they run, and what their answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from localcluster.kubelet.execution import Inside, Outcome, act
from localcluster.resource import JSON


@dataclass
class Streak:
    """A probe's judgement changes only after enough answers alike: pure."""

    success_threshold: int
    failure_threshold: int
    passing: bool
    _alike: int = 0
    _last: bool | None = None

    def add(self, ok: bool) -> bool:
        """Count one answer. True when the judgement is now settled by it (again)."""
        self._alike = self._alike + 1 if ok == self._last else 1
        self._last = ok
        if self._alike < (self.success_threshold if ok else self.failure_threshold):
            return False
        self.passing = ok
        return True


Report = Callable[[str, str], None]
"""(kind of probe, output) of a failure."""


async def _judgements(kind: str, probe: JSON, inside: Inside, report: Report) -> AsyncIterator[bool]:
    """Each judgement a probe comes to."""
    streak = Streak(probe.get("successThreshold") or 1, probe.get("failureThreshold") or 3, passing=False)
    period_seconds = probe.get("periodSeconds") or 10
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    while True:
        outcome: Outcome = await act(probe, inside, probe.get("timeoutSeconds") or 1)
        if not outcome.ok:
            report(kind, outcome.output)
        if streak.add(outcome.ok):
            yield streak.passing
        await asyncio.sleep(period_seconds)


async def watch_health(
    container: JSON,
    inside: Inside,
    *,
    on_started: Callable[[], None],
    on_ready: Callable[[bool], None],
    report: Report,
) -> str:
    """Run a container's probes for as long as it runs. Returns, with the reason, when it must be killed."""
    if probe := container.get("startupProbe"):
        async for passing in _judgements("Startup", probe, inside, report):
            if not passing:
                return f"Container {container['name']} failed startup probe"
            break
    on_started()
    readiness = asyncio.create_task(_follow_readiness(container, inside, on_ready, report))
    try:
        if probe := container.get("livenessProbe"):
            async for passing in _judgements("Liveness", probe, inside, report):
                if not passing:
                    return f"Container {container['name']} failed liveness probe"
        await readiness
        return ""
    finally:
        readiness.cancel()


async def _follow_readiness(
    container: JSON, inside: Inside, on_ready: Callable[[bool], None], report: Report
) -> None:
    probe = container.get("readinessProbe")
    if not probe:
        on_ready(True)
        return
    async for passing in _judgements("Readiness", probe, inside, report):
        on_ready(passing)
