"""The style sheet: what tests of pages take for granted."""

from __future__ import annotations

import re

from dfc.ui.rendering import PageFiles


def test_a_dark_page_differs_from_a_light_one_in_the_values_of_colours() -> None:
    """So one of them is enough where tests look at how wide things are."""
    style = PageFiles()._found["style.css"].content.decode()
    assert style.count("prefers-color-scheme") == 1
    assert "light-dark(" not in style
    [block] = re.findall(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", style, re.DOTALL)
    dark = dict(re.findall(r"(--[a-z-]+): (#[0-9a-f]{3,8});", block))
    assert re.sub(r"--[a-z-]+: #[0-9a-f]{3,8};|\s", "", block) == ""
    assert len(dark) > 10
    first, _, _ = style.partition("@media")
    assert all(re.search(rf"{name}: #[0-9a-f]{{3,8}};", first) for name in dark), "colours in the light as well"
