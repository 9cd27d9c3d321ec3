"""The string formats that the API server checks; others are only words, as in Kubernetes."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime

_QUANTITY = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_DATE_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:?\d{2})")
_SPAN = r"(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h|d|w)"
_DURATION = re.compile(rf"[+-]?(?:{_SPAN})+|0")
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,255}}$){_LABEL}(?:\.{_LABEL})*\.?")
_UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:\S+|/\S*)")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def is_quantity(text: str) -> bool:
    return _QUANTITY.fullmatch(text) is not None


def _is_date_time(text: str) -> bool:
    if not _DATE_TIME.fullmatch(text):
        return False
    return _parses(lambda: datetime.fromisoformat(re.sub(r"\.\d+", "", text.upper().replace(" ", "T"))))


def _is_date(text: str) -> bool:
    return len(text) == 10 and _parses(lambda: date.fromisoformat(text))


def _is_bytes(text: str) -> bool:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _parses(parse: Callable[[], object]) -> bool:
    try:
        parse()
    except ValueError:
        return False
    return True


CHECKS: dict[str, Callable[[str], bool]] = {
    "byte": _is_bytes,
    "cidr": lambda text: "/" in text and _parses(lambda: ipaddress.ip_network(text, strict=False)),
    "date": _is_date,
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "hostname": lambda text: _HOSTNAME.fullmatch(text) is not None,
    "ipv4": lambda text: _parses(lambda: ipaddress.IPv4Address(text)),
    "ipv6": lambda text: _parses(lambda: ipaddress.IPv6Address(text)),
    "quantity": is_quantity,
    "uri": lambda text: _URI.fullmatch(text) is not None,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}
