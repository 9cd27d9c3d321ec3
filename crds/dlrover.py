"""`dlrover-run`, DLRover's launcher: the flags that it adds to torchrun's, and their meaning here.

Standard library only: the agent, which replaces the launcher, and the controller, which reports the fields
to set in the job instead, both import this. The flags are DLRover's
(`dlrover/trainer/torch/elastic_run.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

LAUNCHER = "dlrover-run"
OUR_BACKEND = "dlr"
BACKENDS = (OUR_BACKEND, "dlrover-master")
"""Values of torchrun's `--rdzv-backend` for the job's own rendezvous. DLRover's needs a master, which does
not exist here."""

NUMA_AFFINITY = "numa-affinity"
RENDEZVOUS_SETTINGS = "rdzv-conf"
"""torchrun's flag for `KEY=VALUE,…`."""


class Flag(NamedTuple):
    """Flag of DLRover's, or key of its `--rdzv-conf`, and what replaces it."""

    name: str
    """Name without leading dashes, and with dashes inside."""
    takes_value: bool = False
    off: tuple[str, ...] = ()
    """Values that turn the flag off."""
    field: str = ""
    """Field of the ElasticJob's spec with the same effect."""
    setting: str = ""
    """Value for that field; empty for the flag's own value."""
    remark: str = ""
    """Why the flag is ignored, if no field has the same effect."""

    @property
    def ignored(self) -> bool:
        """Whether the launcher ignores the flag; it obeys the others, or they need nothing."""
        return bool(self.field or self.remark)


FLAGS: Mapping[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag("network-check", field="nodeCheck.enabled", setting="true"),
        Flag("comm-perf-test", field="nodeCheck.enabled", setting="true"),
        Flag("precheck", takes_value=True, off=("0",), field="nodeCheck.enabled", setting="true"),
        Flag("exclude-straggler", field="nodeCheck.excludeStragglers", setting="true"),
        Flag("node-unit", takes_value=True, field="elasticPolicy.nodeUnit"),
        Flag("auto-config", field="nodeCheck.enabled", setting="true"),
        Flag("auto-tunning", remark="nothing here tunes batch size or learning rate"),
        Flag("save-at-breakpoint", remark="the script itself saves, when it gets SIGTERM"),
        Flag("training-port", takes_value=True, remark="every round takes ports that are free"),
        Flag("membind-policy", takes_value=True, off=("none",), remark="torch binds to cores, not to memory"),
        Flag("ucp-device-type", takes_value=True, remark="checkpoints are the script's own"),
        Flag("accelerator", takes_value=True),
        Flag(NUMA_AFFINITY),
    )
}
"""Flags by name. Other flags of `dlrover-run` are torchrun's."""

SETTINGS: Mapping[str, Flag] = {
    setting.name: setting
    for setting in (
        Flag("lastcall_timeout", field="elasticPolicy.lastCallSeconds"),
        Flag(
            "pend_timeout",
            off=("inf",),
            remark="a worker waits until the job's spec.runPolicy.activeDeadlineSeconds are over",
        ),
    )
}
"""Keys of `--rdzv-conf`; the agent reads the others that have a meaning here."""

TORCHS_SWITCHES = frozenset(
    ("h", "help", "standalone", "m", "module", "no-python", "run-path", "virtual-local-rank")
)
TORCHS_FLAGS = TORCHS_SWITCHES | {
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts"),
    *("monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee"),
    *("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank"),
    *("master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle"),
    *("shutdown-timeout",),
}
"""torchrun's flags, which may be shortened."""
OUR_FLAGS = frozenset(("no-warm-start", "preload", "failure-grace", "hang-timeout", "memory-checkpoint"))
"""Flags that dlr adds, which may not be shortened."""
SWITCHES = frozenset(
    {*(flag.name for flag in FLAGS.values() if not flag.takes_value), *TORCHS_SWITCHES, "no-warm-start"}
)
"""Flags without a value, of DLRover, torchrun and dlr; all others take the next word unless they contain
`=`."""


class Option(NamedTuple):
    """Flag in a command, of any origin."""

    name: str
    """Name of the flag, as in `Flag.name`."""
    value: str | None
    words: tuple[str, ...]
    """The flag and its value, as written."""

    @property
    def in_full(self) -> tuple[str, ...]:
        """The flag and its value, with the flag's full name if it was shortened."""
        written, *value = self.words
        if not written.startswith("--"):
            return self.words
        _, equals, text = written.partition("=")
        return f"--{self.name}{equals}{text}", *value


class Ignored(NamedTuple):
    """Request of a command that the launcher ignores."""

    flag: Flag
    text: str
    """Setting as a user would write it, such as `--rdzv-conf lastcall_timeout=60`."""
    value: str | None

    @property
    def setting(self) -> str:
        """Value for the job's field."""
        return self.flag.setting or self.value or ""

    @property
    def advice(self) -> str:
        """What to do instead, or why nothing can be done."""
        if self.flag.field:
            return f"{self.text}: set the job's spec.{self.flag.field}: {self.setting}"
        return f"{self.text}: {self.flag.remark}"


def options(words: Sequence[str]) -> list[Option]:
    """Return the flags in front of the script; concatenated, their words are all that precedes the script.

    Words are divided as by argparse: a flag's value follows `=`, or is the next word if that is no flag.
    The first other word is the script, or, after `-m`, the module; so is any word after `--`.
    """
    found: list[Option] = []
    number = 0
    while number < len(words) and _is_flag(words[number]):
        word = words[number]
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        name = _whole(name.replace("_", "-")) if word.startswith("--") else name
        following = words[number + 1 : number + 2]
        taken: tuple[str, ...] = (word,)
        option = Option(name, value if equals else None, taken)
        if not equals and not word.startswith("--") and len(word) > 2:
            option = Option(word[1], word[2:], taken)
        elif not equals and name not in SWITCHES and following and _is_value(following[0]):
            option = Option(name, following[0], (word, following[0]))
        found.append(option)
        number += len(option.words)
    return found


def _whole(name: str) -> str:
    """Return torchrun's flag of which this is a unique prefix, or the name itself."""
    if len(name) > 1 and (name in FLAGS or name in OUR_FLAGS or name in TORCHS_FLAGS):
        return name
    meant = [flag for flag in TORCHS_FLAGS if flag.startswith(name) and len(flag) > 1]
    return meant[0] if len(meant) == 1 else name


def ignored(found: Sequence[Option]) -> list[Ignored]:
    """Return the options that the launcher ignores, each flag once: the last one counts, as in argparse."""
    last: dict[str, Ignored] = {}
    for flag, text, value in _of_dlrover(found):
        last.pop(flag.name, None)
        if flag.ignored and value not in flag.off:
            last[flag.name] = Ignored(flag, text, value)
    return list(last.values())


def _of_dlrover(found: Sequence[Option]) -> Iterator[tuple[Flag, str, str | None]]:
    for option in found:
        flag = FLAGS.get(option.name)
        if flag is not None:
            value = option.value if flag.takes_value else None
            yield flag, f"--{flag.name}" + ("" if value is None else f"={value}"), value
        elif option.name == RENDEZVOUS_SETTINGS:
            for entry in (option.value or "").split(","):
                key, _, text = (part.strip() for part in entry.partition("="))
                if key in SETTINGS:
                    yield SETTINGS[key], f"--{RENDEZVOUS_SETTINGS} {key}={text}", text


def _is_flag(word: str) -> bool:
    """Return whether argparse takes the word for a flag: not a lone dash, a negative number or a name with a
    space."""
    name = word.partition("=")[0]
    return word.startswith("-") and word not in ("-", "--") and not word[1].isdigit() and " " not in name


def _is_value(word: str) -> bool:
    return word != "--" and not _is_flag(word)
