"""Jobs of queues that are not served: the controller runs without `--kueue`, and ran with it before.

Such a job keeps its limit, so that a flag lost by mistake does not start all waiting jobs at once, and it
reports why it waits. A job without its label has left its queue, and has no limit.
"""

from __future__ import annotations

from controller.reconciler import Request, Result
from controller.resources import Object
from crds.phases import JobPhase
from reconcilers.kueue.workload import FINALIZER, QUEUE_LABEL, queue_of
from reconcilers.observed.ownership import spares_its_own
from reconcilers.runtime.acts import write_status
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.managed_by import is_managed_here
from reconcilers.runtime.tools import WithTools

_MESSAGE = (
    "the queue is not served: the controller runs without --kueue. Start it with --kueue, or remove the "
    f"label {QUEUE_LABEL} from the job"
)


class UnservedQueueReconciler(WithTools):
    """Reports in a job with a grant that its queue is not served."""

    async def reconcile(self, request: Request) -> Result:
        """Look at the job of this name, and update its `admission`.

        Raises:
            Conflict: the job has changed since it was read.
        """
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or spares_its_own(raw) or not is_managed_here(raw):
            return Result()
        admission = granted_to(raw)
        if admission is None:
            return Result()
        if not queue_of(raw):
            await write_status(self._client, ELASTICJOBS, raw, {"admission": None})
            name = admission.get("workload")
            kept = f"; its Workload {name} keeps its quota until you delete it and its finalizer {FINALIZER}"
            text = f"no limit: the job has left its queue{kept if name else ''}"
            self._recorder.event(raw, "Normal", "Granted", text)
        elif admission.get("reason") != "QueueNotServed":
            changed = {"reason": "QueueNotServed", "message": _MESSAGE, "fixed": True}
            await write_status(self._client, ELASTICJOBS, raw, {"admission": changed})
            self._recorder.event(raw, "Warning", "QueueNotServed", _MESSAGE)
        return Result()


def granted_to(job: Object) -> Object | None:
    """The grant of an unfinished job; None if it is in no queue, or has ended."""
    status = job.get("status") or {}
    is_over = status.get("phase") in (JobPhase.SUCCEEDED, JobPhase.FAILED)
    return None if is_over else status.get("admission")
