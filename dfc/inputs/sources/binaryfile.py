"""`gopen`: open a URL of any kind as a binary file, to read or write bytes instead of samples."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from dfc.inputs.base import ShardRef
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, Stream, StreamOptions
from dfc.limits import MIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES: Final = 1 * MIB


class StreamFile(io.RawIOBase):
    """A stream as a raw file. Not seekable."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        self.name = stream.url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer, except at the end; 0 there. The errors of `Stream.readinto`."""
        return self.stream.readinto(memoryview(buffer).cast("B"))

    def close(self) -> None:
        if not self.closed:
            self.stream.close()
        super().close()


def gopen(url: str | ShardRef, mode: str = "rb", *, options: StreamOptions = DEFAULT_OPTIONS) -> BinaryIO:
    """Open a URL for reading ("rb") or writing ("wb"): any kind that `open_stream` or `open_upload` supports.

    Reading resumes after broken connections. A written file is stored when closed, whole or not at all.
    ShardUnreadable if it cannot be opened; ValueError for another mode, or a URL of an unknown kind.
    """
    if mode in ("r", "rb"):
        return cast(BinaryIO, io.BufferedReader(StreamFile(open_stream(url, options=options)), _BUFFER_BYTES))
    if mode in ("w", "wb"):
        from dfc.inputs.writers import open_upload

        return cast(BinaryIO, open_upload(url if isinstance(url, str) else url.url, options=options))
    raise ValueError(f"mode must be 'rb' or 'wb', not {mode!r}")
