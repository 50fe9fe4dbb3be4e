"""Untrusted regular expressions, matched by RE2, whose time is linear in the text for any expression."""

from __future__ import annotations

from typing import Any, cast

import re2

from dfc.errors import BadRequest
from dfc.limits import JOB_REGEX_BYTES_MAX, JOB_REGEX_CHARS_MAX


class Regex:
    """A compiled expression over UTF-8. BadRequest if RE2 does not accept it."""

    def __init__(self, text: str) -> None:
        options = re2.Options()
        options.max_mem = JOB_REGEX_BYTES_MAX
        options.log_errors = False
        if len(text) > JOB_REGEX_CHARS_MAX:
            raise BadRequest(f"a regular expression can have at most {JOB_REGEX_CHARS_MAX} characters")
        try:
            self._compiled: Any = re2.compile(text, options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise BadRequest(f"invalid regular expression {text[:80]!r}: {said[:200]}") from None

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None

    def prefix(self, text: str) -> str | None:
        """Return the match at the beginning of the text, or None."""
        found = self._compiled.match(text)
        return None if found is None else cast(str, found.group(0))
