"""`dlrover-run`, DLRover's launcher: the flags that it adds to torchrun's, and what each becomes here.

Standard library only: the agent, which takes the launcher's place, and the controller, which tells what the
job has to say instead, both read this. The flags are DLRover's (`dlrover/trainer/torch/elastic_run.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

LAUNCHER = "dlrover-run"
OUR_BACKEND = "dlr"
BACKENDS = (OUR_BACKEND, "dlrover-master")
"""Values of torchrun's `--rdzv-backend` that are the job's own rendezvous. DLRover's has no master here."""

NUMA_AFFINITY = "numa-affinity"
RENDEZVOUS_SETTINGS = "rdzv-conf"
"""torchrun's flag for `KEY=VALUE,…`."""


class Flag(NamedTuple):
    """A flag of DLRover's, or a key of its `--rdzv-conf`, and who does what it asks for."""

    name: str
    """Name without the dashes in front, and with dashes inside."""
    takes_value: bool = False
    off: tuple[str, ...] = ()
    """The values that ask for nothing."""
    field: str = ""
    """The field of the ElasticJob's spec that asks for the same."""
    setting: str = ""
    """What that field has to be; empty for the flag's own value."""
    remark: str = ""
    """Why it is not obeyed, where no field asks for the same."""

    @property
    def ignored(self) -> bool:
        """Whether the launcher itself does nothing about it; the others are obeyed, or need nothing."""
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
"""By name. A flag of `dlrover-run` that is not here is torchrun's."""

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
"""Of `--rdzv-conf`, by key; the agent reads the others that mean anything here."""

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
"""Flags that dlr adds, which may not."""
SWITCHES = frozenset(
    {*(flag.name for flag in FLAGS.values() if not flag.takes_value), *TORCHS_SWITCHES, "no-warm-start"}
)
"""The flags that have no value, DLRover's, torchrun's and ours; all others take the next word, if not `=`."""


class Option(NamedTuple):
    """A flag as it stands in a command, whoever's it is."""

    name: str
    """Name of the flag, as in `Flag.name`."""
    value: str | None
    words: tuple[str, ...]
    """All of it, as it was written."""

    @property
    def in_full(self) -> tuple[str, ...]:
        """All of it, with the flag's whole name where it was shortened."""
        written, *value = self.words
        if not written.startswith("--"):
            return self.words
        _, equals, text = written.partition("=")
        return f"--{self.name}{equals}{text}", *value


class Ignored(NamedTuple):
    """What a command asks for and the launcher does not do."""

    flag: Flag
    text: str
    """The setting as a user would write it, such as `--rdzv-conf lastcall_timeout=60`."""
    value: str | None

    @property
    def setting(self) -> str:
        """What the job's field has to be."""
        return self.flag.setting or self.value or ""

    @property
    def advice(self) -> str:
        """What to do about it, or why nothing can be done."""
        if self.flag.field:
            return f"{self.text}: set the job's spec.{self.flag.field}: {self.setting}"
        return f"{self.text}: {self.flag.remark}"


def options(words: Sequence[str]) -> list[Option]:
    """The flags in front of the script; the words of them all, in order, are what stands in front of it.

    As argparse divides a command: a flag's value is behind `=`, or the next word if that is no flag. The
    first other word is the script, or, behind `-m`, the module; so is whatever follows `--`.
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
    """Return the name of torchrun's flag that begins so; the name itself if there is no such one."""
    if len(name) > 1 and (name in FLAGS or name in OUR_FLAGS or name in TORCHS_FLAGS):
        return name
    meant = [flag for flag in TORCHS_FLAGS if flag.startswith(name) and len(flag) > 1]
    return meant[0] if len(meant) == 1 else name


def ignored(found: Sequence[Option]) -> list[Ignored]:
    """What of these the launcher does nothing about, each flag once: the last one counts, as in argparse."""
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
    """A dash alone, a negative number and anything with a space in its name is none, as for argparse."""
    name = word.partition("=")[0]
    return word.startswith("-") and word not in ("-", "--") and not word[1].isdigit() and " " not in name


def _is_value(word: str) -> bool:
    return word != "--" and not _is_flag(word)
