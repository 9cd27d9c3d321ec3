"""A job with a status under construction; the observed one is an `ElasticJob`, which nothing changes."""

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
