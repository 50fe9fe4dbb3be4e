"""The protocol over the pipes of a sandbox: frames of a length (4 bytes, little-endian) and that many bytes of msgpack."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

LENGTH: Final = struct.Struct("<I")


class WireSample(msgspec.Struct, frozen=True, array_like=True):
    """A sample: its key, and the bytes of every extension, in order."""

    key: str
    fields: dict[str, bytes]


class Setup(msgspec.Struct, frozen=True):
    """The first frame to a child: an entry point of the group `dfc.map` with its arguments, a command, or a module of DFC whose
    `work` is what to do; and the limits."""

    scratch: str
    module_path: list[str]
    function: str | None
    args: dict[str, Any]
    command: list[str]
    memory_bytes: int
    cpu_s: int
    file_bytes: int
    processes: int
    own: str = ""
    nice: int = 0


class Ready(msgspec.Struct, frozen=True):
    """The reply to Setup: the isolation in effect, or why the code cannot start."""

    isolation: list[str] = []
    error: str = ""


class Call(msgspec.Struct, frozen=True):
    """One sample to process. `seed`: 64 bits from the seed of the job and the ordinal of the sample."""

    seed: int
    sample: WireSample


class Reply(msgspec.Struct, frozen=True):
    """The resulting samples, or the error."""

    samples: list[WireSample] = []
    error: str = ""


def frame(value: Any) -> bytes:
    content = msgspec.msgpack.encode(value)
    return LENGTH.pack(len(content)) + content
