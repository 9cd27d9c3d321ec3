"""torch's `.metadata`, joined from what the ranks report that they have written.

A pickle is a program that puts objects on a stack, and into numbered places of a memo, to refer to them
later. Thousands of ranks have millions of parts of tensors. So none becomes an object here: of each, a few
bytes are added to the program, which begins with all that more than one of them may refer to.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from dlr.checkpoint.dcp import properties
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.storage import File

_HEADER = b"\x80\x02"
"""Of protocol 2, as `torch.save` has it."""
_NUMBER = pickle.LONG1 + b"\x08"
"""An integer of 8 bytes follows."""


def encode_part(pieces: Iterable[Piece], results: Iterable[WriteResult], files: Iterable[File]) -> bytes:
    """Encode what a rank has written, as JSON, which nobody can run."""
    tensors = [(it.name, it.dtype, it.shape, it.global_shape, it.global_offset) for it in pieces]
    places = [
        (it.index.fqn, it.index.offset, info.relative_path, info.offset, info.length)
        for it in results
        for info in [it.storage_data]
    ]
    return json.dumps([tensors, places, [*map(vars, files)]]).encode()


class Parts:
    """What all ranks have written.

    Args:
        parts: what `encode_part` has returned on each rank.

    Raises:
        ValueError, TypeError, OverflowError: one of them is something else.
    """

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._shared: dict[Hashable, bytes] = {}
        """Programs that put on the stack what `_beginning` has put into the memo."""
        self._beginning: list[bytes] = [_HEADER]
        self._tensors: dict[str, list[bytes]] = {}
        """Programs of each tensor's properties, of its size and of each of its chunks."""
        self._places: list[bytes] = []
        self.files: list[dict[str, Any]] = []
        """Fields of each `File`."""
        self._chunk = self._object(ChunkStorageMetadata, "offsets", "sizes")
        self._index = self._object(MetadataIndex, "fqn", "offset", "index")
        self._info = self._object(_StorageInfo, "relative_path", "offset", "length")
        for part in parts:
            tensors, places, files = json.loads(part)
            for tensor in tensors:
                self._add_tensor(*tensor)
            self._places.append(b"".join([self._place(*place) for place in places]))
            self.files += files

    def encode(self, whole: Metadata) -> bytes:
        """Return the content of `.metadata`.

        Args:
            whole: that of a checkpoint without tensors.
        """
        tensor = self._object(TensorStorageMetadata, "properties", "size", "chunks")
        tensors = []
        for name, (of_type, size, *chunks) in self._tensors.items():
            listed = b"".join((pickle.EMPTY_LIST, pickle.MARK, *chunks, pickle.APPENDS))
            tensors += [self._text(name), tensor % (of_type, size, listed)]
        more = {"state_dict_metadata": tensors, "storage_data": self._places}
        programs = [self._kind(Metadata), pickle.EMPTY_DICT, pickle.MARK]
        for name, value in (vars(whole) | {"storage_data": {}}).items():
            programs += [self._text(name), _program(value)]
            if name in more:
                programs += [pickle.MARK, *more[name], pickle.SETITEMS]
        return b"".join((*self._beginning, *programs, pickle.SETITEMS, pickle.BUILD, pickle.STOP))

    def _add_tensor(
        self, name: str, dtype: str, shape: list[int], whole: list[int], offset: list[int]
    ) -> None:
        if (programs := self._tensors.get(name)) is None:
            made = properties(dtype)
            of_type = self._share(made.dtype, lambda: _program(made))
            programs = self._tensors[name] = [of_type, self._size(whole)]
        chunk = tuple(offset), tuple(shape)
        programs.append(self._share(chunk, lambda: self._chunk % (self._size(offset), self._size(shape))))

    def _place(self, name: str, offset: list[int] | None, path: str, start: int, nbytes: int) -> bytes:
        begins_at = pickle.NONE if offset is None else self._size(offset)
        index = self._index % (self._text(name), begins_at, pickle.NONE)
        return index + self._info % (self._text(path), _number(start), _number(nbytes))

    def _object(self, kind: type, *fields: str) -> bytes:
        """Return the program that makes an object, with a gap, `%b`, for that of each field's value."""
        named = [self._text(field).replace(b"%", b"%%") + b"%b" for field in fields]
        filled = b"".join((pickle.EMPTY_DICT, pickle.MARK, *named, pickle.SETITEMS, pickle.BUILD))
        return self._kind(kind).replace(b"%", b"%%") + filled

    def _kind(self, kind: type) -> bytes:
        return self._share(kind, lambda: _program(kind)) + pickle.EMPTY_TUPLE + pickle.NEWOBJ

    def _text(self, text: str) -> bytes:
        if type(text) is not str:
            raise TypeError(f"{text!r:.100} is no text")
        return self._share(text, lambda: _program(text))

    def _size(self, size: list[int]) -> bytes:
        return self._share(tuple(size), lambda: _program(torch.Size(size)))

    def _share(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the program that puts a value on the stack, of which there is one for each key."""
        if (program := self._shared.get(key)) is None:
            made = make()
            place = len(self._shared).to_bytes(4, "little")
            self._beginning += [made, pickle.LONG_BINPUT, place, pickle.POP]
            program = self._shared[key] = pickle.LONG_BINGET + place
        return program


def _number(number: int) -> bytes:
    return _NUMBER + int.to_bytes(number, 8, "little", signed=True)


def _program(value: object) -> bytes:
    """Return the program that puts a value on the stack, without the memo."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 2)
    pickler.fast = True
    pickler.dump(value)
    return buffer.getvalue()[len(_HEADER) : -1]
