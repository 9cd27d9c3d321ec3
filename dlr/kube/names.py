"""Names that the API server takes."""

from __future__ import annotations

import re

OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
NAME_LENGTH_MAX = 253
