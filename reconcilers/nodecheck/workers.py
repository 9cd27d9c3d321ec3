"""Makes the workers of a check of nodes, and asks again for those that are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists, ApiError, NotFound
from controller.store import Memory
from controller.wording import shortened
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.nodecheck.nodes import MAX_MESSAGE
from reconcilers.nodecheck.scope import new_check_worker
from reconcilers.runtime.acts import in_parallel
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from reconcilers.runtime.refused import is_refusal, retry_seconds


@dataclass(frozen=True)
class Refused:
    """The API server, a quota or a policy refuses workers of a check."""

    message: str
    retry_at: float
    """Time of the next try, on the monotonic clock. Looks before it create nothing: each agent causes one."""


class CheckWorkers:
    def __init__(self, client: Client, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._refused: Memory[Refused] = cache.store(NODECHECKS).memory()

    async def make(self, check: NodeCheck, missing: Sequence[tuple[int, str]]) -> Refused | None:
        """Make the missing workers; or say why they are not made.

        Args:
            missing: the nodes without a worker, each with its place in the check.
        """
        uid, known = check.metadata.uid, self._refused.get(check.metadata.uid)
        if missing and known is not None and self._monotonic() < known.retry_at:
            return known
        try:
            await in_parallel(self._make_one(check, index, node) for index, node in missing)
        except ApiError as error:
            if not is_refusal(error):
                raise
            message = shortened(f"waits: its workers are refused: {error}", MAX_MESSAGE)
            return self._refused.put(uid, Refused(message, self._monotonic() + retry_seconds(len(missing))))
        return None

    async def delete(self, workers: Iterable[ElasticWorker]) -> None:
        """Delete workers of a check, and with them their Pods."""
        await in_parallel(self._delete_one(worker) for worker in workers)

    async def _delete_one(self, worker: ElasticWorker) -> None:
        metadata = worker.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(ELASTICWORKERS, metadata.name, metadata.namespace, uid=metadata.uid)

    async def _make_one(self, check: NodeCheck, index: int, node: str) -> None:
        with contextlib.suppress(AlreadyExists):  # made before; the cache has yet to show it
            await self._client.create(ELASTICWORKERS, new_check_worker(check, index, node))
