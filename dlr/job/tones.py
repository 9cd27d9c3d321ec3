"""Colours of states: each word for a state has one of five tones, on pages, in pictures and on terminals."""

from __future__ import annotations

from dataclasses import dataclass

WAITING = "Waiting"
"""State of a worker that is up but not in the world."""
UP = "Up"
"""State of a worker that is up while the world is unknown."""


@dataclass(frozen=True)
class Tone:
    name: str
    fill: str
    """Colour of bars and marks, on light and dark backgrounds."""
    ink: tuple[str, str]
    """Colours of text on a light and on a dark background."""
    terminal: str
    words: tuple[str, ...]
    """States, phases, verdicts and kinds of Events, in the order of a legend."""
    shape: str
    """Shape of the mark before such a word, as CSS clip-path, for readers who cannot tell the colours."""


TONES = (
    Tone(
        "good",
        "#009e73",
        ("#00694d", "#4fd0a8"),
        "green",
        ("Training", "Running", UP, "Succeeded", "Healthy"),
        "circle()",
    ),
    Tone(
        "busy",
        "#56b4e9",
        ("#0b5c94", "#7cc4f2"),
        "cyan",
        ("Forming", "Checking", "Scaling", "Starting", "Ready"),
        "polygon(50% 0,100% 50%,50% 100%,0 50%)",
    ),
    Tone(
        "warn",
        "#e69f00",
        ("#855400", "#f0b45b"),
        "yellow",
        ("Recovering", "Reforming", "Restarting", "Warning", "Straggler", "Inconclusive"),
        "polygon(50% 0,100% 100%,0 100%)",
    ),
    Tone(
        "bad",
        "#d55e00",
        ("#a63603", "#ff9a66"),
        "bold red",
        ("Down", "Failed", "Faulty", "Cordoned"),
        "polygon(20% 0,50% 30%,80% 0,100% 20%,70% 50%,100% 80%,"
        "80% 100%,50% 70%,20% 100%,0 80%,30% 50%,0 20%)",
    ),
    Tone(
        "idle",
        "#a3a8ae",
        ("#5c646d", "#9aa2ab"),
        "dim",
        ("Pending", WAITING, "Suspended", "Standby", "Stopped", "Unobserved"),
        "inset(35% 0)",
    ),
)
"""Okabe and Ito's palette, which colour-blind people can distinguish."""
TONE_OF = {word: tone for tone in TONES for word in tone.words}

LIGHT = {"text": "#1b1f24", "quiet": "#5c646d", "ground": "#ffffff", "line": "#dfe2e6", "link": "#0b57a4"}
DARK = {"text": "#e4e6e9", "quiet": "#9aa2ab", "ground": "#16181b", "line": "#343a40", "link": "#7cb7f5"}


def tone_of(word: str) -> Tone:
    return TONE_OF.get(word, TONES[-1])


def terminal_style(word: str) -> str:
    """Return rich's style for a cell with such a word; empty for other text."""
    tone = TONE_OF.get(word)
    return tone.terminal if tone else ""


def _properties(ground: dict[str, str], shade: int) -> str:
    colors = ground | {tone.name: tone.ink[shade] for tone in TONES}
    return ";".join(f"--{name}:{color}" for name, color in colors.items())


def _rules() -> str:
    rules = []
    for tone in TONES:
        words = ",".join(f"[data-state={word}]" for word in tone.words)
        rules.append(f":is({words}){{--ink:var(--{tone.name});--fill:{tone.fill};--shape:{tone.shape}}}")
    return "\n".join(rules)


STYLE = f"""
:root {{ color-scheme: light dark; {_properties(LIGHT, 0)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_properties(DARK, 1)} }} }}
{_rules()}
* {{ box-sizing: border-box; }}
body {{ margin: 0; font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); }}
main {{ max-width: 1400px; margin: auto; padding: 24px; }}
h1 {{ font-size: 22px; line-height: 1.25; font-weight: 600; margin: 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 14px; font-weight: 600; margin: 0 0 8px; }}
p {{ margin: 0 0 8px; }}
section {{ padding: 20px 0; border-top: 1px solid var(--line); }}
.quiet {{ color: var(--quiet); }}
[data-state] {{ color: var(--ink, inherit); }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 4px 16px 4px 0; text-align: left; vertical-align: top; }}
th, td {{ border-bottom: 1px solid var(--line); }}
th {{ color: var(--quiet); font-size: 12px; font-weight: 400; white-space: nowrap; }}
td.wide {{ overflow-wrap: anywhere; min-width: 12em; }}
@media (max-width: 700px) {{
  main {{ padding: 16px; }}
  thead {{ display: none; }}
  tr {{ display: flex; flex-wrap: wrap; gap: 0 12px; padding: 8px 0; border-bottom: 1px solid var(--line); }}
  td {{ border: 0; padding: 0; }}
  td:empty {{ display: none; }}
  td:first-child, td.wide {{ flex: 1 1 100%; min-width: 0; }}
  td[data-label]::before {{ content: attr(data-label) " "; color: var(--quiet); font-size: 12px; }}
}}
"""
"""Style of every page: colours, type, and tables that become lists on a phone."""
