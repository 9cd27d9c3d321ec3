"""A store's objects as our models: parsed once a version, whoever reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from pydantic import ValidationError

from controller.resources import Object
from controller.store import Memory, Store
from crds.model import Model

M = TypeVar("M", bound=Model)


class Models(Generic[M]):
    """The models of one kind, shared by everybody: models are frozen.

    What cannot be read is remembered too, so that a large object costs its readers one attempt a version.
    """

    def __init__(self, store: Store, model: type[M]) -> None:
        self._model = model
        self._parsed: Memory[tuple[str, M]] = store.memory()
        self._faults: Memory[tuple[str, ValidationError]] = store.memory()

    def parse(self, raw: Object) -> M:
        """The object as a model, for its own reconciler, which reports the error on it.

        Raises:
            pydantic.ValidationError: the API server took an object that the model refuses.
        """
        metadata = raw["metadata"]
        uid, version = metadata["uid"], metadata["resourceVersion"]
        known = self._parsed.get(uid)
        if known is not None and known[0] == version:
            return known[1]
        fault = self._faults.get(uid)
        if fault is not None and fault[0] == version:
            raise fault[1].with_traceback(None)
        try:
            model = self._model.model_validate(raw)
        except ValidationError as error:
            self._faults.put(uid, (version, error))
            self._parsed.forget(uid)
            raise
        self._faults.forget(uid)
        return self._parsed.put(uid, (version, model))[1]

    def parse_or_none(self, raw: Object) -> M | None:
        """The object as a model, for everybody else: None if it cannot be read.

        The API server takes more than the models do: its check of dates lets `+99:99` pass, for one. So a
        reader of many objects goes on without those that it cannot read. The reconciler of such an object
        reports it there (`reconcilers/runtime/reconciled.py`), and a metric counts it.
        """
        try:
            return self.parse(raw)
        except ValidationError:
            return None

    def readable(self, raws: Iterable[Object]) -> Iterator[M]:
        """The objects that can be read, as models."""
        return (model for raw in raws if (model := self.parse_or_none(raw)) is not None)

    @property
    def unreadable(self) -> int:
        """How many objects of the store cannot be read, of those that somebody has tried to read."""
        return len(self._faults)
