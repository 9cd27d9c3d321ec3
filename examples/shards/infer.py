"""Batch inference over files that workers pull: each file's result is there once, whatever happens to them.

`$OUT/data` has 400 text files of unequal length (made here if there are none yet). A worker writes the result
of a file under the file's name, at once or not at all, so a file that is done a second time after a failure
changes nothing. `$OUT/work.log` has a line for each try.

Runs under `dlr run`, under stock `torchrun` (each rank has a fixed share then), and as one plain process.
"""

import json
import os
import random
import time
import uuid
from pathlib import Path

from dlr import shards

OUT = Path(os.environ.get("OUT", "/tmp/dlr-shards"))
FILES = int(os.environ.get("FILES", "400"))
FILE_SECONDS = float(os.environ.get("FILE_SECONDS", "0.1"))  # leaves time to kill something
BAD = os.environ.get("BAD", "")  # the name of a file that cannot be read, to see what becomes of it
MAX_FAILED = int(os.environ.get("MAX_FAILED", "0"))
WORKER = os.environ.get("DLR_WORKER_INDEX", os.environ.get("RANK", "0"))


def write(path: Path, text: str) -> None:
    draft = path.with_suffix(f".{uuid.uuid4().hex}")  # pids repeat across Pods
    draft.write_text(text)
    draft.replace(path)


def make_data(folder: Path) -> list[Path]:
    """The same files whoever makes them, and however often."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    files = [folder / f"{number:04}.txt" for number in range(FILES)]
    for file in files:
        lines = [str(draw.randint(0, 1_000)) for _ in range(draw.randint(1, 60))]
        if not file.exists():
            write(file, "\n".join(lines) + "\n")
    return files


def infer(file: Path) -> dict[str, int]:
    """What a model would say of a file; here its samples are counted and added up."""
    if file.stem == BAD:
        raise ValueError(f"{file.name} is damaged")
    time.sleep(FILE_SECONDS)
    samples = [int(line) for line in file.read_text().splitlines()]
    return {"samples": len(samples), "sum": sum(samples)}


def main() -> None:
    files = make_data(OUT / "data")
    results = OUT / "results"
    results.mkdir(exist_ok=True)
    for part in shards.pull("files", files, retries=2, max_failed=MAX_FAILED):
        with part, (OUT / "work.log").open("a") as log:
            for file in part:
                log.write(f"{WORKER} {file.stem}\n")
                log.flush()
                write(results / f"{file.stem}.json", json.dumps(infer(file)))


if __name__ == "__main__":
    main()
