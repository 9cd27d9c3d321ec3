"""JSON as Go writes it: https://pkg.go.dev/encoding/json#Marshal (written apart from `crds.texts`)."""

from __future__ import annotations

import json
from typing import Any

ESCAPED = "<>&\u2028\u2029"


def go_bytes(value: Any) -> int:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for letter in ESCAPED:
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return len(text.encode())
