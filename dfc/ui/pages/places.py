"""What a page about a shard, or about something in it, is asked for, and what its template is told of that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dfc.errors import BadRequest
from dfc.names import check_bucket_name, check_object_name, object_path
from dfc.ui.addresses import above

_ORDINAL: Final = re.compile("[0-9]{1,15}")


class ShownPlace(NamedTuple):
    """What a page is about: a shard, and the ordinal of a sample or of a member."""

    bucket: str
    name: str
    ordinal: int

    @property
    def shown(self) -> dict[str, Any]:
        """What templates show of the shard: its names, the folders that it is in, the path of its bytes."""
        return {
            "bucket": self.bucket,
            "name": self.name,
            "folders": above(self.bucket, self.name),
            "url": object_path(self.bucket, self.name),
        }


def place_of(query: Mapping[str, str], ordinal: str) -> ShownPlace:
    """Return what the query of a page names. BadRequest, BadName."""
    text = query.get(ordinal, "0") or "0"
    if not _ORDINAL.fullmatch(text):
        raise BadRequest(f"{ordinal} must be a number from 0, in decimal digits")
    if "bucket" not in query or "object" not in query:
        raise BadRequest("the address must name a bucket and an object")
    return ShownPlace(check_bucket_name(query["bucket"]), check_object_name(query["object"]), int(text))
