"""How values are shown to people: sizes, numbers, times; and characters made visible that would change the text around them."""

from __future__ import annotations

import re
from typing import Any, Final

# Control characters, and those that turn the direction of writing or cannot be seen: a name could look like another one.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Show characters that cannot be seen by their numbers: `⟨202E⟩`. Line ends and tabs stay."""
    return _UNSEEN.sub(lambda found: f"⟨{ord(found[0]):04X}⟩", text)


def finalize(value: Any) -> Any:
    """Make text visible that a template prints; markup of the template's own is left alone."""
    return visible(value) if type(value) is str else value


def count(number: int | None) -> str:
    """Format a number with groups of three: `1 234 567`, by narrow spaces that break no line. Empty for None."""
    return "" if number is None else f"{number:,}".replace(",", "\u202f")


def seconds(number: float) -> str:
    """Format a time: `4 s`, `3 min`, `2.5 h`, `4 d`."""
    if number < 100:
        return f"{number:.0f} s"
    if number < 6000:
        return f"{number / 60:.0f} min"
    return f"{number / 3600:.1f} h" if number < 172800 else f"{number / 86400:.0f} d"


def percent(part: float, whole: float) -> str:
    """Format a share: `42 %`; empty if there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole else ""


def escaped(json: str) -> str:
    """Escape what cannot be seen in a text that is JSON, so that it can be read and still means the same: `\\u202e`."""
    return _UNSEEN.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _units(found[0])), json)


def _units(character: str) -> list[int]:
    """The UTF-16 code units of a character, as JSON escapes them."""
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]
