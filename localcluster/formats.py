"""String formats: in CRDs as lenient as Kubernetes' strfmt, in its own kinds as strict as Go reads times.

https://github.com/kubernetes/kube-openapi/tree/master/pkg/validation/strfmt. Other formats are only words.
"""

from __future__ import annotations

import base64
import binascii
import email.errors
import email.headerregistry
import ipaddress
import re
from collections.abc import Callable
from datetime import date
from typing import Any

from localcluster.patterns import searcher

Check = Callable[[str], bool]


def _matches(pattern: str) -> Check:
    search = searcher(pattern)
    return lambda text: search(text) is not None


is_quantity = _matches(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$")

# --- times ---

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")
_GO_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,][0-9]+)?(?:Z|[+-]([0-9]{2}):([0-9]{2}))")


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    # Python has no year 0, which was a leap year as 2000.
    return _parses(lambda: date.fromisoformat(f"2000{text[4:]}" if text.startswith("0000") else text))


def _is_date_time(text: str) -> bool:
    """Kubernetes reads up to a second `t`, and looks at no zone: `2026-01-01t00:00:00+99:99t x` is a time."""
    day, *times = text.lower().split("t")
    found = _TIME.fullmatch(times[0]) if times and _is_date(day) else None
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


def _is_go_time(text: str) -> bool:
    """What Go reads as RFC 3339: the times of Kubernetes' own kinds."""
    day, _, time = text.partition("T")
    found = _GO_TIME.fullmatch(time) if _is_date(day) else None
    if found is None or found[1] > "23" or found[2] > "59" or found[3] > "59":
        return False
    return (found[4] or "") <= "24" and (found[5] or "") <= "60"


_SPAN = r"(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)"
_GO_DURATION = _matches(rf"^[+-]?(?:(?:{_SPAN})+|0)$")
_LOOSE_SPAN = re.compile(r"([0-9]+)[ \t\n\f\r]*([A-Za-zµ]+)")
_EXACT_UNITS = {"ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"}
_UNITS = ("nano", "micro", "milli", "sec", "min", "hour", "day", "week")


def _is_duration(text: str) -> bool:
    """Go's `1h30m`, or any text with a number and a unit in it, as `2 days`."""
    if _GO_DURATION(text):
        return True
    spans = _LOOSE_SPAN.findall(text)
    if any(int(number) >= 2**63 for number, _ in spans):
        return False
    return any(unit.lower() in _EXACT_UNITS or unit.lower().startswith(_UNITS) for _, unit in spans)


# --- networks ---


def _parses(parse: Callable[[], object]) -> bool:
    try:
        parse()
    except ValueError:
        return False
    return True


def _is_sloppy_ip(text: str) -> bool:
    """An address, whose IPv4 part may have zeros in front."""
    if "%" in text:
        return False
    plain = re.sub(r"(?<![0-9a-fA-F:])0+(?=[0-9])", "", text) if "." in text else text
    return _parses(lambda: ipaddress.ip_address(plain))


def _is_cidr(text: str) -> bool:
    address, _, bits = text.partition("/")
    if not _is_sloppy_ip(address) or not re.fullmatch("[0-9]{1,3}", bits):
        return False
    return int(bits) <= (128 if ":" in address else 32)


_HEX = "[0-9a-fA-F]"
_MAC = re.compile(
    "|".join(
        [
            *(f"{_HEX}{{2}}(?:{sign}{_HEX}{{2}}){{{count}}}" for sign in ":-" for count in (5, 7, 19)),
            *(f"{_HEX}{{4}}(?:\\.{_HEX}{{4}}){{{count}}}" for count in (2, 3, 9)),
        ]
    )
)
_HOSTNAME = _matches(
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}"
    r"[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY = re.compile(
    r"(?:[A-Za-z0-9\-._:~!$&'()*+,;=%@]*@)?(?:\[[^\[\]]*\]|[^\[\]:\s\"<>\\^`{|}]*)(?::[0-9]*)?", re.ASCII
)
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


def _is_hostname(text: str) -> bool:
    size = len(text.encode())
    return size <= 255 and _HOSTNAME(text) and all(len(part.encode()) <= 63 for part in text.split("."))


def _is_uri(text: str) -> bool:
    """An absolute URI or an absolute path, as in a request."""
    if not text or re.search(r"[\x00-\x1f\x7f]", text) or text.startswith(":"):
        return False
    if text == "*":
        return True
    scheme = _SCHEME.match(text)
    rest = (text[scheme.end() :] if scheme else text).partition("?")[0]
    if not rest.startswith("/"):
        return scheme is not None
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        return _AUTHORITY.fullmatch(authority) is not None and not _BAD_ESCAPE.search(
            authority + slash + path
        )
    return not _BAD_ESCAPE.search(rest)


def _is_email(text: str) -> bool:
    """One mailbox, with a name before it or without."""
    if "\n" in text or "\r" in text:
        return False
    try:
        header: Any = email.headerregistry.HeaderRegistry()("to", text)
        addresses = header.addresses
    except (email.errors.HeaderParseError, IndexError, ValueError):
        return False
    return len(addresses) == 1 and bool(addresses[0].username and addresses[0].domain)


# --- numbers ---


def _is_isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text)
    if not re.fullmatch("[0-9]{9}[0-9X]", digits):
        return False
    values = [10 if digit == "X" else int(digit) for digit in digits]
    return sum(weight * value for weight, value in enumerate(values, 1)) % 11 == 0


def _is_isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text)
    if not re.fullmatch("[0-9]{13}", digits):
        return False
    return sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(digits)) % 10 == 0


_CARD = _matches(
    r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}"
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$"
)


def _is_credit_card(text: str) -> bool:
    digits = re.sub("[^0-9]+", "", text)
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return _CARD(digits) and sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


# --- bytes and identifiers ---


def _is_go_bytes(text: str) -> bool:
    """What Go reads into bytes: base64, over several lines too, or nothing."""
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _uuid(third: str = f"{_HEX}{{4}}", fourth: str = f"{_HEX}{{4}}") -> Check:
    return _matches(f"^{_HEX}{{8}}-?{_HEX}{{4}}-?{third}-?{fourth}-?{_HEX}{{12}}$")


_VARIANT = f"[89abAB]{_HEX}{{3}}"
_BYTE = r"(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])"
_SSN = _matches(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$")
_SHORT_NAME = _matches("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LONG_NAME = _matches(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")

_CUSTOM: dict[str, Check] = {
    "bsonobjectid": _matches(f"^{_HEX}{{24}}$"),
    "byte": _matches("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$"),
    "cidr": _is_cidr,
    "creditcard": _is_credit_card,
    "date": _is_date,
    "datetime": _is_date_time,
    "duration": _is_duration,
    "email": _is_email,
    "hexcolor": _matches("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    "hostname": _is_hostname,
    "ipv4": lambda text: "." in text and _is_sloppy_ip(text),
    "ipv6": lambda text: ":" in text and "%" not in text and _parses(lambda: ipaddress.ip_address(text)),
    "isbn": lambda text: _is_isbn10(text) or _is_isbn13(text),
    "isbn10": _is_isbn10,
    "isbn13": _is_isbn13,
    "k8slongname": lambda text: len(text) <= 253 and _LONG_NAME(text),
    "k8sshortname": lambda text: len(text) <= 63 and _SHORT_NAME(text),
    "mac": lambda text: _MAC.fullmatch(text) is not None,
    "rgbcolor": _matches(rf"^rgb\(\s*{_BYTE}\s*,\s*{_BYTE}\s*,\s*{_BYTE}\s*\)$"),
    "ssn": lambda text: len(text) == 11 and _SSN(text),
    "uri": _is_uri,
    "uuid": _uuid(),
    "uuid3": _uuid(third=f"3{_HEX}{{3}}"),
    "uuid4": _uuid(third=f"4{_HEX}{{3}}", fourth=_VARIANT),
    "uuid5": _uuid(third=f"5{_HEX}{{3}}", fourth=_VARIANT),
}
_OF_KUBERNETES: dict[str, Check] = {"byte": _is_go_bytes, "datetime": _is_go_time}


def format_check(name: str, *, custom: bool) -> Check | None:
    """The check of a format, in the schema of a CRD or of Kubernetes' own kinds; None where there is none."""
    return (_CUSTOM if custom else _OF_KUBERNETES).get(name.replace("-", ""))
