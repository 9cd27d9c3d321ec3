"""All objects on disk: a write that was answered survives the death of the whole cluster.

SQLite in WAL mode with `synchronous=NORMAL`: a write is in the operating system's hands before its request is
answered. That survives the death of the process, not a power cut, which is the right bargain for a cluster
whose Pods die with the machine anyway.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localcluster.paths import PRIVATE_FILE_MODE

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
  collection TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  version INTEGER NOT NULL, object BLOB NOT NULL,
  PRIMARY KEY (collection, namespace, name));
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM objects WHERE collection = ? AND namespace = ? AND name = ?"
_COUNT = "INSERT OR REPLACE INTO counters VALUES ('version', ?)"


class DatabaseUnusable(Exception):
    """The state file cannot be opened; the message says why."""


@dataclass(frozen=True)
class Row:
    collection: str
    namespace: str
    name: str
    version: int
    raw: bytes


class Database:
    """The state file. One process at a time holds it."""

    def __init__(self, path: Path) -> None:
        try:
            path.touch(mode=PRIVATE_FILE_MODE, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=1, isolation_level=None)
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            locked = "locked" in str(error)
            why = "another API server is using it" if locked else str(error)
            raise DatabaseUnusable(f"cannot open the cluster's state in {path}: {why}") from error

    def version(self) -> int:
        """The highest resource version that was ever given out."""
        counted = self._connection.execute("SELECT max(value) FROM counters").fetchone()[0]
        stored = self._connection.execute("SELECT max(version) FROM objects").fetchone()[0]
        return max(counted or 0, stored or 0)

    def rows(self) -> Iterator[Row]:
        for row in self._connection.execute(
            "SELECT collection, namespace, name, version, object FROM objects"
        ):
            yield Row(*row)

    def put(self, row: Row) -> None:
        self._connection.execute(_PUT, (row.collection, row.namespace, row.name, row.version, row.raw))

    def delete(self, collection: str, namespace: str, name: str, version: int) -> None:
        """Forget an object, and remember that its deletion took a version."""
        self._connection.execute("BEGIN")
        self._connection.execute(_DELETE, (collection, namespace, name))
        self._connection.execute(_COUNT, (version,))
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
