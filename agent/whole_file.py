"""Small files that the agent and its training processes exchange."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically, so that a reader finds either the old text or the new one.

    The file is `PATH.new` until it is complete. It is not synced to disk, since its readers would not survive
    a crash of the machine either.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
