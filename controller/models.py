"""A store's objects as our models: parsed once a version, whoever reads them."""

from __future__ import annotations

from typing import Generic, TypeVar

from controller.resources import Object
from controller.store import Memory, Store
from crds.model import Model

M = TypeVar("M", bound=Model)


class Models(Generic[M]):
    """The models of one kind, shared by everybody: models are frozen."""

    def __init__(self, store: Store, model: type[M]) -> None:
        self._model = model
        self._parsed: Memory[tuple[str, M]] = store.memory()

    def parse(self, raw: Object) -> M:
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
