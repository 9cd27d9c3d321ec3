"""A job as it is wanted: its spec, with a status under construction.

What is observed is an `ElasticJob`, which nothing changes. What a look decides goes into a `DesiredJob`, and
only the status of one is written.
"""

from __future__ import annotations

from typing import Any, Self

from crds.elasticjob import ElasticJob


class DesiredJob(ElasticJob):
    @classmethod
    def of(cls, job: ElasticJob) -> Self:
        return cls.model_construct(metadata=job.metadata, spec=job.spec, status=job.status)

    def having(self, **update: Any) -> Self:
        """The job with these fields of its status."""
        return self.model_copy(update={"status": self.status.model_copy(update=update)})
