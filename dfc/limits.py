"""Every fixed bound of DFC, with the reason for its size. What an operator may change is in `dfc.config`."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Names (docs/http.md).
BUCKET_NAME_CHARS_MAX: Final = 63
OBJECT_NAME_BYTES_MAX: Final = 1024  # S3's bound, so that names move between the two
BLOB_NAME_BYTES_MAX: Final = 180  # escaped name + "@version.idx" stays under the 255 bytes of ext4 and xfs

# HTTP.
REQUEST_LINE_BYTES_MAX: Final = 16 * KIB  # 1,024 bytes of name escaped three for one, twice, and a query
HEADER_FIELD_BYTES_MAX: Final = 16 * KIB
HEADER_COUNT_MAX: Final = 128
JSON_BODY_BYTES_MAX: Final = 1 * MIB  # settings and shard lists; objects are never parsed as JSON
LIST_PAGE_MAX: Final = 10_000
SMALL_BODY_BYTES: Final = 64 * KIB  # up to here a body is read by the event loop, above by a thread from the socket
SMALL_READ_BYTES: Final = 64 * KIB  # up to here an answer is one write of the event loop, above it is sendfile
TRANSFER_BUFFER_BYTES: Final = 256 * KIB  # measured: 1 MiB falls out of the L2 cache and is slower
PIPE_BYTES: Final = 1 * MIB  # the largest pipe that an unprivileged process may have
LINGER_BYTES: Final = 1 * MIB  # read and thrown away after an early answer, so that the client sees it, not a reset
LINGER_S: Final = 2.0
TRANSFER_POLL_S: Final = 0.02  # a thread waits so long for a socket before it gives it back to the event loop

# Tar index.
TAR_HEADER_BYTES: Final = 512
TAR_META_BYTES_MAX: Final = 1 * MIB  # one pax or GNU long-name body; GNU tar itself writes a few KiB
TAR_MEMBER_NAME_BYTES_MAX: Final = 4096  # PATH_MAX
TAR_META_CHAIN_MAX: Final = 16  # pax/long-name headers in front of one member
INDEX_MEMBERS_MAX: Final = 1 << 23  # 8.4 million: more are stored but not indexed
INDEX_FLUSH_BYTES: Final = 256 * KIB  # records are spilled to the index file in pieces of this size
INDEX_SORT_ROWS: Final = 1 << 19  # rows sorted in memory at once: 16 bytes each, 8 MiB
DECOMPRESS_FREE_BYTES: Final = 256 * MIB  # a compressed shard may always grow to this size
DECOMPRESS_RATIO_MAX: Final = 100  # beyond it, at most so many times its compressed size (bombs are 1000:1)

# Shard specs.
SHARD_SPEC_NAMES_MAX: Final = 1_000_000
