"""The saver: a process beside each training process that writes slots to storage.

It reads requests, a line of JSON each, from its input, and answers with lines on its output. Training goes on
meanwhile. When the training process ends, the saver finishes what was begun, and ends too. Under dlr, where
the training process failed, the agent soon kills all that it leaves behind, the saver too: a step that is not
complete by then does not reach the storage.

The savers of all ranks agree through files in the working folder, since the process group is the training's:

    plan-<rank>.json   what the rank has, with sums; when all are there, each saver knows who writes what
    digest-<rank>.json where ranks hold different tensors under one name: how different they are
    part-<rank>        what it has written, pickled; when all are there, rank 0's makes the folder complete
    gave-up-<rank>     why it does not write: nobody waits for it any longer
"""

from __future__ import annotations

import json
import pickle
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan

from agent.memory.slot import DamagedError, Slot
from crds.protocol import AFTER_FAILURE
from dlr.checkpoint import storage
from dlr.checkpoint.dcp import SlotPlanner, metadata, save_plan
from dlr.checkpoint.folder_pickles import read_pickle
from dlr.checkpoint.plan import Piece, divide, name_of_rank, own_name, owner_of, pieces_of
from dlr.checkpoint.request import Request
from dlr.checkpoint.state import VALUES, flatten_values
from dlr.checkpoint.surroundings import logger
from dlr.checkpoint.unshared import differing, digest, own_of_each
from dlr.checkpoint.values import WITHIN, TensorReference, load_values

T = TypeVar("T")

WAIT_SECONDS = 600.0
"""For the other ranks' savers, at most."""
GONE_SECONDS = 90.0
"""So long a folder may seem to be gone on a shared file system that is slow to tell of a new name."""
_LOOK_SECONDS = 0.02
_SLOWEST_LOOK_SECONDS = 0.5


class SaveError(Exception):
    """A step does not reach the storage; one clause says why."""


def main(requests: IO[str] = sys.stdin, answers: IO[str] = sys.stdout) -> None:
    """Carry out requests until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the training process, whose end ends this one
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)

    def answer(**fields: object) -> None:
        with suppress(OSError):  # nobody is there to hear it
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

    for line in requests:
        error = try_to_persist(Request(**json.loads(line)), lambda: answer(read=True))
        answer(**({"done": True} if error is None else {"error": error}))


def try_to_persist(request: Request, has_read: Callable[[], None]) -> str | None:
    """As `persist`, and return why the step is not there, in one clause; None if it is."""
    try:
        persist(request, has_read)
    except (OSError, DamagedError, SaveError) as error:
        return str(error)
    except Exception as error:  # torch.save says RuntimeError where the storage is full
        return f"{type(error).__name__}: {error}"
    return None


def persist(request: Request, has_read: Callable[[], None]) -> None:
    """Write a slot to storage, together with the other ranks' savers.

    Args:
        has_read: called when the slot is needed no longer.

    Raises:
        OSError, DamagedError, SaveError: the step is not there.
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
        storage.give_up(save.working, request.rank, str(error))
        raise


class _Save:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.path = Path(request.path)
        self.working = storage.working_folder(self.path, request.step, request.attempt)
        self._final = storage.folder_of(self.path, request.step)
        self._writer = FileSystemWriter(self.working)
        self._plans: list[list[Piece]] = []
        self._leaves: dict[str, Any] = {}
        self._paths: dict[str, Any] = {}

    def is_there(self) -> bool:
        """After a failure, what all go on from may be in storage already: then nothing is to be written."""
        if not self.request.attempt.startswith(AFTER_FAILURE):
            return False
        try:
            return storage.read_manifest(self._final).job == self.request.job
        except storage.StorageError:
            return False

    def write(self) -> None:
        """Write this rank's part."""
        request = self.request
        self.working.mkdir(parents=True, exist_ok=True)
        if request.rank == 0:
            storage.clear(self.path, request.step, request.attempt)
        slot = Slot.open(request.slot)
        if not slot.lock(shared=True) or slot.mark != request.mark:
            raise SaveError("its slot was written into again")
        try:
            header = slot.verify()
            entries = {name_of_rank(entry.name, request.rank): entry for entry in header.entries}
            pieces = pieces_of(slot, header, request.rank)
            plan = json.dumps([asdict(piece) for piece in pieces]).encode()
            storage.write_atomically(self.working / f"plan-{request.rank}.json", plan)
            if request.rank == 0:
                self._leaves, self._paths = _leaves(
                    slot.data(entries[name_of_rank(VALUES, 0)]), lambda name: slot.tensor(entries[name])
                )
            self._plans = [
                [Piece.decode(fields) for fields in json.loads(data)]
                for data in self._collect("plan-{}.json")
            ]
            self._tell_apart(lambda name: slot.tensor(entries[name]))
            mine = divide(self._plans)[request.rank]
            prefix = self._writer.prepare_global_plan([SavePlan([])] * request.world_size)[
                request.rank
            ].storage_data
            planner = SlotPlanner(lambda name: slot.tensor(entries[owner_of(name)[1]]), self._leaves)
            results = self._writer.write_data(save_plan(mine, self._leaves, prefix), planner).wait()
            if slot.mark != request.mark:
                raise SaveError("its slot was written into again")
        finally:
            slot.close()  # with its lock
        names = sorted({result.storage_data.relative_path for result in results})
        files = [storage.describe(self.working / name) for name in names]
        storage.write_atomically(self.working / f"part-{request.rank}", pickle.dumps((results, files)))

    def complete(self) -> None:
        """Make the checkpoint complete, or wait until rank 0's saver has."""
        request = self.request
        if request.rank != 0:
            self._await(lambda: (not self.working.exists() and self._final.exists()) or None)
            return
        parts = [read_pickle(data, "a rank's part") for data in self._collect("part-{}")]
        pieces = [piece for of_rank in divide(self._plans) for piece in of_rank]
        self._writer.finish(metadata(pieces, self._leaves, self._paths), [results for results, _ in parts])
        files = [file for _, files in parts for file in files]
        files.append(storage.describe(self.working / ".metadata"))
        for rank in range(request.world_size):
            for name in (f"plan-{rank}.json", f"digest-{rank}.json", f"part-{rank}"):
                (self.working / name).unlink(missing_ok=True)
        manifest = storage.Manifest(request.job, request.step, request.world_size, tuple(files))
        storage.publish(self.working, self.path, manifest)
        with suppress(OSError):  # the step is there; old ones go at the next save
            storage.retire(self.path, request.keep)

    def _tell_apart(self, tensor: Callable[[str], Tensor]) -> None:
        """Give tensors of which each rank has its own under one name names of their own in the plans."""
        request, pieces = self.request, dict(enumerate(self._plans))
        if not (names := differing(pieces)):
            return
        mine = {
            piece.name: digest(tensor(piece.name)) for piece in pieces[request.rank] if piece.name in names
        }
        storage.write_atomically(self.working / f"digest-{request.rank}.json", json.dumps(mine).encode())
        digests = dict(enumerate(map(json.loads, self._collect("digest-{}.json"))))
        if not (own := own_of_each(pieces, digests)):
            return
        numbers = {name for of_rank in digests.values() for name, sums in of_rank.items() if sums is not None}
        if request.rank == 0 and (
            names := own & numbers
        ):  # not where each rank of a data loader has its place
            _warn(request.path, len(names), min(names), request.world_size)
        self._plans = [
            [
                replace(piece, name=own_name(piece.name, rank)) if piece.name in own else piece
                for piece in of_rank
            ]
            for rank, of_rank in pieces.items()
        ]

    def _collect(self, name: str) -> list[bytes]:
        """Read a file of every rank, as soon as it is there."""
        found: dict[int, bytes] = {}

        def look() -> list[bytes] | None:
            for rank in range(self.request.world_size):
                if rank not in found:
                    with suppress(FileNotFoundError):
                        found[rank] = (self.working / name.format(rank)).read_bytes()
            return [found[rank] for rank in sorted(found)] if len(found) == self.request.world_size else None

        return self._await(look)

    def _await(self, look: Callable[[], T | None]) -> T:
        """Look until there is something; a shared file system cannot tell by itself."""
        deadline, pause = time.monotonic() + WAIT_SECONDS, _LOOK_SECONDS
        seen_at = time.monotonic()
        while (found := look()) is None:
            if self.working.exists():
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > GONE_SECONDS:
                raise SaveError("rank 0 has given it up, and removed it")
            for gave_up in self.working.glob(f"{storage.GAVE_UP}*"):
                reason = gave_up.read_text(errors="replace")
                raise SaveError(
                    f"rank {gave_up.name.removeprefix(storage.GAVE_UP)} has not saved it: {reason}"
                )
            if time.monotonic() > deadline:
                raise SaveError(
                    f"other ranks have not saved it within {WAIT_SECONDS:.0f} s: do all see {self.path}?"
                )
            time.sleep(pause)
            pause = min(pause * 1.2, _SLOWEST_LOOK_SECONDS)
        return found


@cache
def _warn(path: str, count: int, name: str, ranks: int) -> None:
    """Say once that a checkpoint is for as many ranks alone."""
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
    """What is no tensor, by the names that torch.distributed.checkpoint gives it, and the paths of all names.

    So whoever loads the folder with torch alone finds all of it. What cannot be unpickled outside of the
    training script, since its class is there, is left to `dlr.checkpoint`.

    Args:
        tensor: gives one by its name.
    """
    try:
        nested = load_values(
            values, lambda name: tensor(name) if name.startswith(WITHIN) else TensorReference(name)
        )
    except Exception:  # pickles may raise anything
        return {}, {}
    return flatten_values(nested)


if __name__ == "__main__":
    main()
