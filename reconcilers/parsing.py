"""From the cache's raw objects to our models: pydantic only here, and only once a version of an object."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from crds.model import Model
from reconcilers.recent import Recent

M = TypeVar("M", bound=Model)


class Parser(Generic[M]):
    """Remembers the model of each object's last version, since a job's workers are read many times over."""

    def __init__(self, model: type[M]) -> None:
        self._model = model
        self._parsed: Recent[str, tuple[str, M]] = Recent()

    def parse(self, raw: dict[str, Any]) -> M:
        """The object as a model.

        Raises:
            pydantic.ValidationError: the API server holds an object that its CRD's schema would refuse.
        """
        metadata = raw["metadata"]
        uid, version = metadata["uid"], metadata["resourceVersion"]
        known = self._parsed.get(uid)
        if known is None or known[0] != version:
            known = self._parsed.put(uid, (version, self._model.model_validate(raw)))
        return known[1]
