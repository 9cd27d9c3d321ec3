"""Shapes: what the cache keeps of the objects of a kind, and how much of their text is parsed.

The cost of an object is counted in units: one for each value of its JSON, and one for each 64 bytes of its
text. A unit takes about a hundred bytes of memory and half a microsecond, while a single byte of text may
take forty bytes of memory. Units are counted in the text, so an object with too many is never parsed.
Parts that the shape does not name are not parsed either, whatever their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
import orjson
from msgspec import UNSET, Raw, UnsetType

from controller import salvage
from controller.resources import Object
from controller.salvage import TOO_DEEP, UnreadableObject

UNIT_BYTES = 64
"""Bytes of text that count as one value."""
METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "generateName", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences"),
)
"""Metadata fields that are kept of every object."""
WRITERS = "managedFields"
"""Field with the writer of each field, kept if a shape requests it and it is not too large."""
MOST_METADATA = 8_000
"""Units of one object's metadata: Kubernetes' 256 KiB of annotations are 4,000, plus their number."""
MOST_WRITERS = 20_000
MOST_CONDITIONS = 2_000
"""Units of the conditions that are kept of an unreadable object."""

Parts: TypeAlias = Any
"""Unparsed object: a struct with the text of each part that its shape names."""


class CannotBeRead(Exception):
    """An object exceeds the limits for reading.

    Args:
        found: name of the object, and reason.
    """

    def __init__(self, found: UnreadableObject) -> None:
        super().__init__(found.reason)
        self.found = found


class Identity(msgspec.Struct):
    """Identity and version of an object."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resourceVersion: str | None = None
    generation: int | None = None


class WatchEvent(NamedTuple):
    """One line of a watch."""

    type: str
    object: Parts


class Page(NamedTuple):
    """One page of a list."""

    metadata: Object
    items: list[Parts]


def units(text: bytes) -> int:
    """Count the units of a JSON text, including commas and brackets in strings."""
    return text.count(b",") + text.count(b"{") + text.count(b"[") + len(text) // UNIT_BYTES


def units_of(obj: Object) -> int:
    """Count the units of an object.

    Raises:
        TypeError: the object is nested too deeply to be written.
    """
    return units(orjson.dumps(obj))


class Shape:
    """Parts of the objects of one kind that are kept.

    Args:
        parts: maximum units of each part besides the metadata; other parts are not parsed.
        keep: returns what is kept of these parts, without changing them. An object for which it raises is
            unreadable.
        writers: whether `managedFields` is kept.
        metadata: metadata fields that are kept in addition to `METADATA`.
    """

    def __init__(
        self,
        parts: Mapping[str, int],
        keep: Callable[[Object], Object] | None = None,
        *,
        writers: bool = False,
        metadata: tuple[str, ...] = (),
    ) -> None:
        self.parts = dict(parts)
        self._keep = keep
        self._fields = (*METADATA, *metadata, *((WRITERS,) if writers else ()))
        self._prefixes = [f',"{field}":'.encode() for field in self._fields]
        self._writers = writers
        parted: Any = _struct("Parts", ("metadata", *self.parts))
        self._metadata = msgspec.json.Decoder(_struct("Metadata", self._fields))
        self._event = msgspec.json.Decoder(_struct("Event", type=str, object=parted))
        self._object = msgspec.json.Decoder(parted)
        page = _struct("Page", ("metadata",), items=list.__class_getitem__(parted))
        self._page = msgspec.json.Decoder(page)

    def event(self, line: bytes) -> WatchEvent:
        """Split a line of a watch.

        Raises:
            msgspec.MsgspecError: it is not an event with an object.
            RecursionError: a value is nested too deeply.
        """
        found: Any = self._event.decode(line)
        return WatchEvent(found.type, found.object)

    def object(self, text: bytes) -> Parts:
        """Split the text of an object. Raises as `event` does."""
        return self._object.decode(text)

    def page(self, text: bytes) -> Page:
        """Split a page of a list. Raises as `event` does."""
        found: Any = self._page.decode(text)
        metadata = {} if found.metadata is UNSET else salvage.parsed(bytes(found.metadata))
        return Page(metadata, found.items or [])

    def read(self, parts: Parts) -> Object:
        """Return what is kept of an object.

        Raises:
            CannotBeRead: it is too large, nested too deeply, or malformed.
        """
        obj: Object = {"metadata": self._metadata_of(parts)}
        for name, most in self.parts.items():
            if (raw := getattr(parts, name)) is not UNSET:
                obj[name] = self._parsed(parts, name, bytes(raw), most)
        return self._kept(obj)

    def take(self, obj: Object) -> Object:
        """Return what is kept of a parsed object. Raises as `read` does."""
        found = {name: obj[name] for name in ("metadata", *self.parts) if name in obj}
        if isinstance(metadata := found.get("metadata"), dict):
            found["metadata"] = {key: metadata[key] for key in self._fields if key in metadata}
        return self._kept(found)

    def names_of(self, parts: Parts) -> Object:
        """Return the object's identity and conditions; empty if it has no identity."""
        try:
            named: Object = {"metadata": msgspec.structs.asdict(_IDENTITY.decode(parts.metadata))}
            raw = getattr(parts, "status", UNSET)
            conditions = b"" if raw is UNSET else bytes(_STATUS.decode(raw).conditions)
            if conditions and units(conditions) <= MOST_CONDITIONS:
                named["status"] = {"conditions": orjson.loads(conditions)}
        except (msgspec.MsgspecError, TypeError, orjson.JSONDecodeError):
            return {}
        return salvage.named(named)

    def identity(self, parts: Parts) -> Identity:
        """Return the identity of an object, or the version of a bookmark; empty for anything else."""
        try:
            return _IDENTITY.decode(parts.metadata)
        except (msgspec.MsgspecError, TypeError):
            return Identity()

    def _kept(self, obj: Object) -> Object:
        if (reason := salvage.strange_parts(obj)) is not None:
            raise CannotBeRead(UnreadableObject(salvage.named(obj), reason))
        try:
            return obj if self._keep is None else self._keep(obj)
        except Exception as error:
            raise CannotBeRead(UnreadableObject(salvage.named(obj), salvage.reason_of(error))) from error

    def _metadata_of(self, parts: Parts) -> Object:
        try:
            fields: Any = self._metadata.decode(parts.metadata)
        except (msgspec.MsgspecError, TypeError) as error:
            raise CannotBeRead(UnreadableObject({}, salvage.strangeness({}) or "")) from error
        found = list(zip(self._prefixes, msgspec.structs.astuple(fields), strict=True))
        if self._writers and found[-1][1] is not UNSET and units(bytes(found[-1][1])) > MOST_WRITERS:
            found.pop()
        pieces = [piece for prefix, raw in found if raw is not UNSET for piece in (prefix, raw)]
        text = b"{" + b"".join(pieces)[1:] + b"}"
        most = MOST_METADATA + MOST_WRITERS * self._writers
        metadata: Object = self._parsed(parts, "metadata", text, most)
        return metadata

    def _parsed(self, parts: Parts, name: str, text: bytes, most: int) -> Any:
        if (counted := units(text)) > most:
            reason = (
                f"its {name} has {counted} values (each {UNIT_BYTES} bytes of text count as one), and at "
                f"most {most} are allowed"
            )
            raise CannotBeRead(UnreadableObject(self.names_of(parts), reason))
        try:
            found = salvage.parsed(text)
        except orjson.JSONDecodeError as error:
            raise CannotBeRead(UnreadableObject(self.names_of(parts), TOO_DEEP)) from error
        if salvage.CUT in text:
            raise CannotBeRead(UnreadableObject(self.names_of(parts), TOO_DEEP))
        return found


def _struct(name: str, texts: tuple[str, ...] = (), **more: Any) -> Any:
    """Define a struct with the text of each of these fields, where present, and typed fields `more`."""
    fields: list[Any] = [*more.items(), *((field, Raw | UnsetType, UNSET) for field in texts)]
    return msgspec.defstruct(name, fields)


class _Status(msgspec.Struct):
    conditions: Raw = Raw(b"")


_IDENTITY, _STATUS = msgspec.json.Decoder(Identity), msgspec.json.Decoder(_Status)
WHOLE = Shape({"spec": 10**9, "status": 10**9, "data": 10**9}, metadata=("finalizers",))
"""Shape with all common parts, for collections that nobody else writes."""
NAMES = Shape({})
"""Shape with only the metadata."""


def named_in(text: bytes) -> Object:
    """Return identity and conditions of an object whose text is too large to be parsed."""
    return WHOLE.names_of(WHOLE.object(text))
