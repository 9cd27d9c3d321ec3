"""What processes take of this machine, from /proc."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Footprint:
    processes: int
    threads: int
    open_files: int
    memory_mib: float
    """Resident, of which some is shared."""


def footprint(pids: Iterable[int]) -> Footprint:
    """Return the footprint of these processes together; those that have ended count nothing."""
    processes = threads = open_files = 0
    memory_mib = 0.0
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            open_files += len(list((folder / "fd").iterdir()))
        except OSError:
            continue
        processes += 1
        threads += int(status["Threads"])
        memory_mib += int(status.get("VmRSS", "0 kB").split()[0]) / 1024
    return Footprint(processes, threads, open_files, memory_mib)


def growth(before: Mapping[str, Footprint], after: Mapping[str, Footprint]) -> str:
    """A table of both and of their ratio, of what is in both."""
    lines = ["| | processes | threads | open files | memory, MiB |", "|---|--:|--:|--:|--:|"]
    for name in before.keys() & after.keys():
        pairs = zip(astuple(before[name]), astuple(after[name]), strict=True)
        cells = [f"{was:.0f} → {is_:.0f} (× {is_ / was:.2f})" for was, is_ in pairs]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines[:2], *sorted(lines[2:])])
