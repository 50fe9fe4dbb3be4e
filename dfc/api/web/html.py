"""Listings of objects as HTML, with links for people and programs. Every name is escaped; there are no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from dfc.names import object_path
from dfc.pages import ListedObject
from dfc.units import format_size

_STYLE: Final = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:60em}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.25em .8em;text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "tr:nth-child(even){background:#f4f4f4}"
)


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def object_list(bucket: str, prefixes: Sequence[str], objects: Sequence[ListedObject], next_url: str | None) -> str:
    """Render a page of one bucket: prefixes first, then objects with size, samples and time."""
    rows = [
        f'<tr><td><a href="/{quote(bucket)}/?delimiter=/&amp;prefix={quote(prefix, safe="")}">{escape(prefix)}</a></td>'
        "<td></td><td></td><td></td></tr>"
        for prefix in prefixes
    ]
    rows += [
        f'<tr><td><a href="{escape(object_path(bucket, entry.name))}">{escape(entry.name)}</a></td>'
        f'<td class="n">{format_size(entry.size)}</td><td class="n">{_count(entry.samples)}</td>'
        f"<td>{entry.modified}</td></tr>"
        for entry in objects
    ]
    more = f'<p><a href="{escape(next_url)}">next page</a></p>' if next_url else ""
    head = "<tr><th>name</th><th>size</th><th>samples</th><th>modified</th></tr>"
    return _page(bucket, f'<p><a href="/ui/buckets">all buckets</a></p><table>{head}{"".join(rows)}</table>{more}')
