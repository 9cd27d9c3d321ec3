"""Small files by which the agent and its training processes tell each other something."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write such a file, so that whoever reads it meanwhile finds the old text or the new one.

    It is `PATH.new` until it is whole. A crash of the machine may lose it, as it does its readers.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
