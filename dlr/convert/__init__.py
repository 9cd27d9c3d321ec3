"""Converts manifests of other operators to ElasticJobs, for `dlr convert`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crds.names import API_VERSION
from dlr.convert.batch import convert_job, convert_jobset
from dlr.convert.dlrover import convert_elasticjob
from dlr.convert.pytorchjob import convert_pytorchjob
from dlr.convert.reading import JSON, NotConvertible, Reader, Remark, refuse_misshapen
from dlr.convert.trainjob import RUNTIMES, convert_trainjob

__all__ = ["Converted", "NotConvertible", "convert"]

_ALONE: dict[tuple[str, str], Callable[[Reader], JSON]] = {
    ("kubeflow.org", "PyTorchJob"): convert_pytorchjob,
    ("jobset.x-k8s.io", "JobSet"): convert_jobset,
    ("batch", "Job"): convert_job,
    (API_VERSION.partition("/")[0], "ElasticJob"): convert_elasticjob,
}
_TRAINER = "trainer.kubeflow.org"
ANOTHER_KIND = (
    "this kind is not converted: see docs/from-others.md for Horovod, docs/roles.md for TensorFlow and JAX."
)
CONVERTIBLE = ("TrainJob", *(kind for _, kind in _ALONE))


@dataclass(frozen=True)
class Converted:
    """Converted objects of some files."""

    documents: Sequence[tuple[JSON, Sequence[Remark]]]
    """Each ElasticJob with its remarks, and unchanged objects of other kinds, without remarks."""
    refused: Sequence[str] = ()
    """Manifests that cannot be converted, with the reasons."""

    @property
    def jobs(self) -> Sequence[tuple[JSON, Sequence[Remark]]]:
        return [(job, remarks) for job, remarks in self.documents if job.get("kind") == "ElasticJob"]

    @property
    def losses(self) -> Sequence[Remark]:
        return [remark for _, remarks in self.documents for remark in remarks if remark.is_loss]


def convert(documents: Sequence[JSON]) -> Converted:
    """Convert all convertible manifests; runtimes go into the jobs, and other objects stay.

    Raises:
        NotConvertible: no manifest can be converted, or there is none.
    """
    refused: list[str] = []
    made: list[tuple[JSON, Sequence[Remark]]] = []
    for document in documents:
        group, kind = str(document.get("apiVersion", "")).partition("/")[0], str(document.get("kind", ""))
        if group == _TRAINER and kind in RUNTIMES:
            continue
        reader = Reader.of({k: v for k, v in document.items() if k not in ("apiVersion", "kind")})
        try:
            if (group, kind) in _ALONE or group == _TRAINER:
                refuse_misshapen(reader.body)
            if (group, kind) == (_TRAINER, "TrainJob"):
                made.append((convert_trainjob(reader, documents), reader.remarks))
            elif (group, kind) in _ALONE:
                made.append((_ALONE[group, kind](reader), reader.remarks))
            elif group in ("kubeflow.org", _TRAINER) and kind.endswith("Job"):
                raise NotConvertible(ANOTHER_KIND)
            else:
                made.append((document, ()))
        except NotConvertible as error:
            name = (document.get("metadata") or {}).get("name", "")
            refused.append(f"{kind} {name}: {error}")
    found = Converted(made, refused)
    if not found.jobs and refused:
        raise NotConvertible(" ".join(refused))
    if not found.jobs:
        raise NotConvertible(f"there is none of {', '.join(CONVERTIBLE)} in it.")
    return found
