"""The saver: a process beside each training process that writes slots to storage.

`dlr.checkpoint.persistence` starts it as a program. It reads requests from its input, one per line: a number,
and JSON. It answers with lines of JSON on its original output. When the training process ends, the saver
finishes the save under way, and ends too; after a failure under dlr the agent soon kills it. The savers of
all ranks agree on which rank writes what (`dlr.checkpoint.sharing`).
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import IO, Any

import torch
from torch import Tensor

from agent.slots.slot import DamagedError, Slot
from crds.checkpoint_files import AFTER_FAILURE
from dlr.checkpoint import storage
from dlr.checkpoint.dcp import SlotPlanner, encode_part, join_parts, save_plan
from dlr.checkpoint.files import files_at
from dlr.checkpoint.folder_pickles import check_metadata
from dlr.checkpoint.plan import Piece, encode_plan, name_of_rank, owner_of, pieces_of
from dlr.checkpoint.sharing import PART, PLAN, Digest, SaveError, SaveRequest, Savers, digest
from dlr.checkpoint.state import VALUES, flatten_values
from dlr.checkpoint.surroundings import logger
from dlr.checkpoint.values import WITHIN, TensorReference, load_values
from dlr.checkpoint.writing import write

_PROTOCOL_OF_TORCH = 2
"""Pickle protocol of `torch.save`; before Python 3.13 it cannot encode `torch.channels_last`."""


def main() -> None:
    """Serve requests until the input ends."""
    requests, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the training process; its end ends this one
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    gc.freeze()  # otherwise every collection while plans are read would traverse all of torch
    serve(requests, answers, lambda: _is_heard(answers.fileno()))


def serve(requests: Iterable[str], answers: IO[str], is_heard: Callable[[], bool]) -> None:
    """Serve requests as long as the training process reads the answers.

    A request of a killed process may wait here while this one imports torch. By then the next start saves,
    and the earlier save would remove its files.
    """

    def answer(to: str, **fields: object) -> None:
        with suppress(OSError):  # the training process has ended
            answers.write(json.dumps({"number": int(to), **fields}) + "\n")
            answers.flush()

    for line in requests:
        if not is_heard():
            return
        to, _, request = line.partition(" ")
        error = try_to_persist(SaveRequest(**json.loads(request)), partial(answer, to, read=True))
        answer(to, **({"done": True} if error is None else {"error": error}))


def _is_heard(answers: int) -> bool:
    """Whether the other end of that pipe is open."""
    looks = select.poll()
    looks.register(answers, 0)
    return not looks.poll(0)


def try_to_persist(request: SaveRequest, has_read: Callable[[], None]) -> str | None:
    """Call `persist`; return the reason of a failure in one clause, or None."""
    try:
        persist(request, has_read)
    except (OSError, DamagedError, SaveError, storage.StorageError) as error:
        return str(error)
    except Exception as error:  # torch.save raises RuntimeError if the storage is full
        return f"{type(error).__name__}: {error}"
    return None


def persist(request: SaveRequest, has_read: Callable[[], None]) -> None:
    """Write a slot to storage, together with the other ranks' savers.

    Args:
        has_read: called when the slot may be overwritten.

    Raises:
        OSError, DamagedError, SaveError: the step was not saved.
    """
    save = _Save(request)
    if save.is_there():
        has_read()
        return
    try:
        save.write()
        has_read()
        save.complete()
    except BaseException as error:
        if save.is_removed_by(error):
            raise SaveError(
                "others save a later step, and have removed what was written of this one"
            ) from error
        save.give_up(str(error))
        raise


class _Save:
    def __init__(self, request: SaveRequest) -> None:
        self.request = request
        self._files = files_at(request.path)
        self._folder = storage.try_folder(request.step, request.attempt)
        self._writer = self._files.writer(storage.folder_of(request.step))
        self._savers = Savers(self._files, self._folder, request.rank, request.world_size)
        self._leaves: dict[str, Any] = {}
        self._paths: dict[str, Any] = {}

    def is_there(self) -> bool:
        """Whether the save is after a failure, and the loaded checkpoint is in storage already."""
        if not self.request.attempt.startswith(AFTER_FAILURE):
            return False
        try:
            if not storage.is_complete(self._files, self.request.step):
                return False
            return storage.read_manifest(self._files, self.request.step).job == self.request.job
        except (OSError, storage.StorageError):
            return False

    def write(self) -> None:
        request = self.request
        if request.rank == 0:
            storage.check_owner(self._files, request.job)  # another job may have adopted the path
            storage.clear(self._files, request.step, request.attempt, request.beside)
        slot = Slot.open(request.slot)
        if not slot.lock(shared=True) or slot.mark != request.mark:
            raise SaveError("its slot was written into again")
        try:
            header = slot.verify()
            entries = {name_of_rank(entry.name, request.rank): entry for entry in header.entries}
            pieces = pieces_of(slot, header, request.rank)
            self._savers.tell(PLAN, encode_plan(pieces))
            if request.rank == 0:
                self._leaves, self._paths = _leaves(
                    slot.data(entries[name_of_rank(VALUES, 0)]), lambda name: slot.tensor(entries[name])
                )
            mine = self._share(pieces, lambda name: slot.tensor(entries[name]))
            planner = SlotPlanner(lambda name: slot.tensor(entries[owner_of(name)[1]]), self._leaves)
            plan, subfolder = save_plan(mine, self._leaves), self._folder.rpartition("/")[2]
            results, files = write(self._writer, plan, planner, request.rank, request.world_size, subfolder)
            if slot.mark != request.mark:
                raise SaveError("its slot was written into again")
        finally:
            slot.close()  # with its lock
        self._savers.tell(PART, encode_part(mine, results, files))

    def complete(self) -> None:
        """Make the checkpoint complete, or wait until rank 0's saver has."""
        request = self.request
        if request.rank != 0:
            self._savers.wait_for_rank_0()
            return
        whole, files = join_parts(self._savers.collect(PART), self._leaves, self._paths)
        whole.storage_meta = self._writer.storage_meta()
        names = ("job", "step", "world_size", "attempt")
        manifest = storage.Manifest.of({it: getattr(request, it) for it in names} | {"files": files})
        storage.publish(self._files, manifest, pickle.dumps(check_metadata(whole, manifest)))
        self._savers.remove_notes()
        with suppress(OSError):  # the step is there; old ones go at the next save
            storage.retire(self._files, request.keep, request.step)

    def is_removed_by(self, error: BaseException) -> bool:
        """Whether the cause of an error is that another start has removed this save's folder."""
        if not isinstance(error, FileNotFoundError) or self._folder not in str(error):
            return False
        with suppress(OSError):
            return not self._files.names(self._folder)
        return False

    def give_up(self, reason: str) -> None:
        """Announce to the other ranks' savers that this one does not write."""
        storage.give_up(self._files, self.request.step, self.request.attempt, self.request.rank, reason)

    def _share(self, pieces: Sequence[Piece], tensor: Callable[[str], Tensor]) -> Sequence[Piece]:
        """Return the pieces that this rank writes, with their names in storage."""

        def digests(names: Collection[str]) -> dict[str, Digest | None]:
            return {piece.name: digest(tensor(piece.name)) for piece in pieces if piece.name in names}

        if self.request.rank != 0:
            return self._savers.follow(pieces, digests)
        shares = self._savers.lead(digests)
        if names := shares.own:  # without integers, such as each rank's position in the data
            _warn(str(self._files), len(names), min(names), self.request.world_size)
        return shares.of_ranks[0].of(pieces, 0)


@cache
def _warn(path: str, count: int, name: str, ranks: int) -> None:
    """Warn once that the checkpoint fits only a world of the same size."""
    logger.warning(
        "the checkpoints in %s have %d tensors once a rank, such as %s, since ranks hold different ones "
        "under one name: of parameters and optimizers, %d ranks can load such, and no other number; give "
        "what ranks do not share names of its own, or make it a part of a DTensor",
        path,
        count,
        name,
        ranks,
    )


def _leaves(values: bytes, tensor: Callable[[str], Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return values that are no tensors, by their names in torch.distributed.checkpoint, and all paths.

    They let torch load the folder without dlr. Classes that the script has registered are unknown in this
    process; then nothing is returned, and only `dlr.checkpoint` can read the values.

    Args:
        tensor: returns a tensor by its name.
    """

    def find(name: str) -> Tensor | TensorReference:
        return tensor(name) if name.startswith(WITHIN) else TensorReference(name)

    try:
        leaves, paths = flatten_values(load_values(values, find))
    except Exception:  # pickles may raise anything
        return {}, {}
    left_out = {name for name, leaf in leaves.items() if not _is_pickled(leaf)}
    readable = {name: leaf for name, leaf in leaves.items() if name not in left_out}
    return readable, {name: path for name, path in paths.items() if name not in left_out}


def _is_pickled(leaf: object) -> bool:
    try:
        pickle.dumps(leaf, _PROTOCOL_OF_TORCH)
    except Exception:  # as above
        return False
    return True


if __name__ == "__main__":
    main()
