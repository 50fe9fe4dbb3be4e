"""All fixed limits of DFC, with the reason for each size. What an operator can change is in `dfc.config`."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Names (docs/http.md).
BUCKET_NAME_CHARS_MAX: Final = 63
OBJECT_NAME_BYTES_MAX: Final = 1024  # S3's limit, so that names are valid in both
PATHS_REMEMBERED: Final = 8192  # cache of parsed paths: 2 MB of usual names, 30 MB of the longest
BLOB_NAME_BYTES_MAX: Final = 180  # escaped name + "@version.idx" stays under the 255 bytes of ext4 and xfs
ATTRIBUTES_BYTES_MAX: Final = 4 * KIB  # per object, encoded: S3 allows 2 KiB of user metadata
PLACEMENT_NAMES_MAX: Final = 16_384  # objects whose disk a map caches: about 4 MiB, or 20 MiB with the longest names

# HTTP.
ADDRESSES_MAX: Final = 32  # per cluster: each dead one costs the first request a second
REQUEST_LINE_BYTES_MAX: Final = 16 * KIB  # 1,024 bytes of name escaped three for one, twice, and a query
HEADER_FIELD_BYTES_MAX: Final = 16 * KIB
HEADER_COUNT_MAX: Final = 128
HOST_CHARS_MAX: Final = 253  # RFC 1035, written with dots
HOSTS_REMEMBERED_MAX: Final = 256  # cache of checked values of Host
HEAD_BYTES_MAX: Final = 64 * KIB  # of an incomplete head; one on each of 4,096 connections takes 256 MiB
DATASET_SHARDS_MAX: Final = 1_000_000  # that are grouped for one request: 8 bytes each
DATASETS_MAX: Final = 100_000  # of one request: about 1 kB each
DATASET_MISSING_MAX: Final = 100  # numbers that are named for each dataset; all are counted
STATS_KEPT_S: Final = 900  # that each node remembers, second by second: 8 bytes for each of its figures
STATS_POINTS_MAX: Final = 300  # of one figure of a node in an answer; several seconds are one point then
STATS_VALUES_MAX: Final = 200_000  # in an answer, about 2 MB: with more than 100 nodes, figures have fewer points
LINEAGE_BUCKETS_MAX: Final = 32  # in which a page looks for what jobs left about a dataset, each with a listing
LINEAGE_LISTED_MAX: Final = 1000  # names of such objects of a bucket
LINEAGE_JOBS_MAX: Final = 64  # such objects, the newest, that a page reads
LINEAGE_BYTES_MAX: Final = 256 * KIB  # of each: 1,000 shards
LINEAGE_READS: Final = 8  # at a time, of all pages of a proxy together
LINEAGE_LOOK_S: Final = 3.0
REPORT_BYTES_MAX: Final = 2 * MIB  # of a report of `stats` that a page shows: 40,000 classes
DATASET_LOOK_S: Final = 10.0  # at samples, for the page of a dataset
SAMPLE_FIELDS_SHOWN_MAX: Final = 32  # on the page of a sample, which has names and sizes of others; and in a tile of a grid
SAMPLE_FIELDS_NAMED_MAX: Final = 512  # on the page of a sample: all that it may have would be 80 MB with the longest names
SAMPLE_FIELDS_DECOMPRESSED_MAX: Final = 8  # the same in a compressed shard, which is read anew for each
LOGIN_ADDRESSES_MAX: Final = 10_000  # whose failed logins are remembered
FORM_BYTES_MAX: Final = 64 * KIB  # of a page
FORM_FIELDS_MAX: Final = 64
JSON_BODY_BYTES_MAX: Final = 1 * MIB  # settings and shard lists; objects are never parsed as JSON
LIST_PAGE_DEFAULT: Final = 1000  # names in a page of a listing whose request sets no limit
LIST_PAGE_MAX: Final = 10_000
LIST_ROW_BYTES_MAX: Final = 4 * KIB  # of a target's page: a name, and numbers
CLUSTER_MAP_BYTES_MAX: Final = 64 * MIB  # 10,000 disks and 100,000 buckets
NODE_ANSWER_BYTES_MAX: Final = CLUSTER_MAP_BYTES_MAX  # that another node may give to a call, unless that says less
NODE_LIST_STALL_S: Final = 60.0  # that a node may send nothing of a list of keys; whoever waits holds room meanwhile
NODE_LIST_SIGN_S: Final = 15.0  # after which it sends an empty line, while it looks for the next keys
NODE_LIST_SIGNS_MAX: Final = 20  # one after the other: five minutes, in which it may decompress a large shard
ERROR_BODY_BYTES_MAX: Final = 64 * KIB  # an error's body; more of one is not read
SMALL_BODY_BYTES: Final = 64 * KIB  # up to this size the event loop reads a body; larger ones a thread, from the socket
SMALL_READ_BYTES: Final = 64 * KIB  # up to this size an answer is one write of the event loop; larger ones use sendfile
TRANSFER_BUFFER_BYTES: Final = 256 * KIB  # several are in use at once: together they fit into the L2 cache
RECEIVE_BUFFER_BYTES: Final = 1 * MIB  # one buffer that is reused; with 256 KiB an upload costs 5 % more
PIPE_BYTES: Final = 1 * MIB  # the largest pipe that an unprivileged process may have
LINGER_BYTES: Final = 1 * MIB  # read and discarded after an early answer, so that the client sees it, not a reset
LINGER_S: Final = 2.0
# Stopping a node after SIGTERM: `drain_timeout_s` for running requests, then these. Supervisors should kill later than that.
STOP_CANCEL_S: Final = 2.0  # for cancelled requests: an upload removes what it has written
STOP_CLOSE_S: Final = 1.0  # for threads to finish their current call; the same for disks and databases to close
STOP_EXTRA_S: Final = 6.0  # after the drain timeout: the process is gone by then, whatever hangs
STOP_EXIT_S: Final = 1.0  # for the interpreter to exit, once everything is closed or given up
STOP_KILL_S: Final = 8.0  # after the drain timeout: then `dfc serve` kills its children
TRANSFER_POLL_S: Final = 0.02  # how long a thread waits for a socket before the event loop takes over

# Threads of one disk of a target, and the calls waiting for them. A hanging disk blocks this many requests, and no other disk.
DISK_READ_THREADS: Final = 32
DISK_WRITE_THREADS: Final = 64  # small uploads wait in them for their group's commit
DISK_COPY_THREADS: Final = 32  # bodies on their way to and from other targets
DISK_CALLS_MAX: Final = 1024  # of each kind at a time; more are answered 503. Each may hold a body of SMALL_BODY_BYTES
NODE_THREADS: Final = 16  # per target, for work that does not concern a single disk
BATCH_THREADS: Final = 32  # per target, for batch reads, which read from many disks at once
DISK_ANSWER_S: Final = 2.0  # a disk that does not answer for this long is reported as failed until it does

# Copies: how many, and messages between targets.
COPIES_MAX: Final = 8
COPY_ITEMS_MAX: Final = 1024  # rows, names or confirmations in one message
COPY_CONFIRMED_MAX: Final = 16 * COPY_ITEMS_MAX  # rows that count, to be told to one target; it asks about the others
COPY_REQUEST_BYTES: Final = 4 * MIB  # of small bodies in one message
TEE_STREAMS_MAX: Final = 32  # bodies on their way to other disks while they are received; more are sent when they are here
PREPARED_MAX: Final = 48  # bodies that wait for their rows on a disk, or are on their way; fewer than the orphans of an alarm
COPY_MESSAGE_BYTES_MAX: Final = 16 * MIB  # what a target reads: the items above with their longest names
COPY_ANSWER_BYTES_MAX: Final = CLUSTER_MAP_BYTES_MAX + COPY_MESSAGE_BYTES_MAX  # an answer may come with a map
MOVE_BYTES_PER_S: Final = 64 * MIB  # from each disk while objects move, unless the cluster was told otherwise
MOVE_BYTES_PER_S_MAX: Final = 1024 * GIB
CHECKED_BUCKETS_MAX: Final = 1000  # named when copies are to be compared; more are all of them
EXPECT_DOWN_S_MAX: Final = 30 * 24 * 3600  # for so long a target may be expected to be down
REMOVED_DISKS_MAX: Final = 10_000  # lost disks, removed for good, that are refused: 360 KB of the map; then the oldest go
WEIGHT_MIN: Final = 1e-6  # of a disk: 1 KiB, where its weight is its size in GiB
WEIGHT_MAX: Final = 1e9  # an exbibyte

# What a node keeps.
SMALL_FILE_BYTES_MAX: Final = 64 * KIB  # ids and identities; the longest has about 200 bytes

# Tar index.
TAR_HEADER_BYTES: Final = 512
TAR_META_BYTES_MAX: Final = 1 * MIB  # one pax or GNU long-name body; GNU tar itself writes a few KiB
TAR_MEMBER_NAME_BYTES_MAX: Final = 4096  # PATH_MAX
TAR_META_CHAIN_MAX: Final = 31  # headers for long names, pax and so on in front of one member; libarchive's limit
TAR_SPARSE_MAP_BYTES_MAX: Final = 64 * MIB  # 2.7 million extents of one sparse file
INDEX_MEMBERS_MAX: Final = 1 << 23  # 8.4 million: more are stored but not indexed
DEPOSIT_LINE_BYTES_MAX: Final = 1 * MIB  # the description of a deposit, which may contain many warnings about an archive
INDEX_FLUSH_BYTES: Final = 256 * KIB  # records are spilled to the index file in pieces of this size
INDEX_SORT_ROWS: Final = 1 << 18  # rows in memory while sorted runs are merged: 16 bytes each, 4 MiB
INDEX_RUN_ROWS: Final = 1 << 16  # rows collected before they are sorted and spilled: 1 MiB per table and upload
INDEX_BLOCK_BYTES: Final = 64 * KIB  # records are checksummed in blocks of this size, verified when first read (5 µs)
INDEX_CACHE_BYTES: Final = 16 * MIB  # pages of indexes that one disk, or worker, keeps in memory
INDEX_LOOP_READS_MAX: Final = 200  # per lookup on the event loop, 1 µs each; a sample of more than 90 members needs a thread
INDEX_COLUMNS_BYTES: Final = 32 * MIB  # records in memory while many samples are looked up at once
SAMPLE_RECORDS_MAX: Final = 4096  # members from the first to the last of one sample; bounds what one lookup may cost
DECOMPRESS_CHUNK_BYTES: Final = 256 * KIB
DECOMPRESS_MEMORY_MAX: Final = 96 * MIB  # dictionary or window: enough for `xz -9` (65 MiB) and zstd windows of 64 MiB
DECOMPRESSIONS_MAX: Final = 8  # xz and zstd shards that are read, or uploaded, at a time: each keeps its window in memory
DECOMPRESSED_READ_WAIT_S: Final = 5.0  # how long one more waits for another to finish before it is answered 503
DECOMPRESSED_PUT_WAIT_S: Final = 60.0  # the same for uploads, which come in bursts; the body is not read while waiting
DECOMPRESS_FRAMES_FREE: Final = 1024  # tiny gzip members or frames cost more to open than to read: this many are free,
DECOMPRESS_FRAME_BYTES_MIN: Final = 4096  # and beyond that they must hold this much on average (bgzip has 64 KiB)
DECOMPRESS_FREE_BYTES: Final = 256 * MIB  # a compressed shard may always decompress to this size
DECOMPRESS_RATIO_MAX: Final = 100  # beyond that, to at most this many times its compressed size (bombs are 1000:1)

# Batch reads.
BATCH_ITEMS_MAX: Final = 100_000  # 1 GB of samples of 10 kB; split longer lists into several requests
BATCH_BODY_BYTES_MAX: Final = 32 * MIB  # that many items with names of 250 bytes each
BATCH_WINDOW_BYTES: Final = 1 * MIB  # read in order of offset, then sent; also all that a batch holds in memory of its data
BATCH_DECODED_BYTES_MAX: Final = 4 * GIB  # of decompressed shards, in unnamed files, per request
BATCH_OPEN_SHARDS_MAX: Final = 512  # that one request keeps open
HELD_MAX: Final = 512  # requests that a proxy holds while a target restarts; more are answered 503
BATCHES_MAX: Final = 128  # at a time per node and kind; more are answered 503. Each holds its window and its list
BATCH_SHORT_BYTES: Final = 512 * KIB  # of a list that is only counted: five times as long as those of loaders
BATCH_LISTS_BYTES_MAX: Final = 48 * MIB  # of all longer lists together, per node and kind: about 150 MB of memory
BATCH_RETRY_S: Final = 30.0  # how long a target that broke off mid-stream has to come back: longer than a restart takes

# Budgets of a node: what requests of one kind take together (`dfc/http/budget.py`).
NODE_CONNECTIONS_MAX: Final = 64  # beyond `connections_max`, of other nodes, whose heartbeats must pass
NODE_CONNECTION_S: Final = 2.0  # for such a connection to say that it is one, by its first request
BUDGET_WAIT_S: Final = 10.0  # for room, before a request is answered 503
LISTINGS_MAX: Final = 64  # of objects, datasets and keys, at a time
LISTINGS_BYTES_MAX: Final = 128 * MIB  # of rows that they hold
LISTING_ROW_BYTES: Final = 3 * KIB  # that one takes while a page is made: a name of 800 bytes, three times, and the rest
LISTING_STREAM_ROWS: Final = 1000  # that a listing as text, which has no end, takes from all targets at a time
KEYS_BYTES: Final = 1 * MIB  # of lines that a list of keys keeps for a slow reader
DATASETS_BYTES: Final = 24 * MIB  # that grouping a bucket's shards by their names takes
BODIES_MAX: Final = 64  # of JSON, at a time, that are longer than the next line says
BODY_FREE_BYTES: Final = 64 * KIB
BODIES_BYTES_MAX: Final = 64 * MIB
BODY_S: Final = 60.0  # for a body to arrive that has a place in a budget meanwhile
STREAMS_MAX: Final = 500  # of events, to browsers and to those who follow a job, a connection each
PAGES_MAX: Final = 64  # for browsers, at a time

# Search for samples by their keys.
SEARCH_LINES_DEFAULT: Final = 100
SEARCH_LINES_MAX: Final = LIST_PAGE_MAX
SEARCH_KEY_BYTES_MAX: Final = TAR_MEMBER_NAME_BYTES_MAX  # no key is longer
SEARCH_SHARDS_MAX: Final = 100_000  # in one search: their names are held and sent, and each costs a look-up
SEARCH_SCAN_S: Final = 2.0  # for looking through keys: about a million samples a second and target
SEARCH_LOOKUP_S: Final = 30.0  # for look-ups of one key: that many shards on disks that have nothing cached
SEARCH_BODY_BYTES_MAX: Final = 128 * MIB  # of what a target is asked: so many shards with the longest names
SEARCH_ANSWER_BYTES_MAX: Final = 16 * MIB  # of lines, about; a line is longer than 200 bytes only if a sample has many members
SEARCH_LINE_BYTES: Final = 1280  # that a line takes while it is found, merged and written
SEARCH_LINES_HELD: Final = 2 * LIST_PAGE_MAX  # of all targets together, of which the first ones are shown
SEARCH_TOKEN_CHARS_MAX: Final = 8 * KIB  # of where a search goes on: a name cut to 1,025 characters of 4 bytes, in base64
SEARCH_UNSEARCHED_MAX: Final = 100  # shards that could not be searched and are named; all are counted
SEARCHES_MAX: Final = 32  # at a time per proxy
SEARCHES_BYTES_MAX: Final = 256 * MIB  # of the names of their shards, and what goes with them
SEARCH_BYTES: Final = 40 * MIB  # that one of them may hold besides lines, until it is known which shards it goes through
SEARCH_NAMES_CHARS_MAX: Final = 8 * MIB  # of all names of one search: 100,000 of 80
SEARCH_SHARD_BYTES: Final = 224  # that each of its shards takes, besides its name, twice
TARGET_SEARCHES_MAX: Final = 8  # at a time per target; more wait for their turn
SEARCH_THREADS: Final = 4  # per disk, of one search: its disk is asked for so many look-ups at a time

# Shard specs.
SHARD_SPEC_NAMES_MAX: Final = 1_000_000
SHARD_LIST_CHARS_MAX: Final = 8 * KIB  # of a list of shards in a query: half of a request line
SHARD_SPEC_CHARS_MAX: Final = 64 * KIB  # a person types or generates a spec; long lists are sent as lists
SHARD_SPEC_EXPANDED_CHARS_MAX: Final = 64 * MIB  # a million names of 64 characters
SHARD_SPEC_DEPTH_MAX: Final = 16  # braces inside braces
SHARD_SPEC_GLOBS_MAX: Final = 64  # each pattern is tried on every name of a listing

# Jobs.
JOB_LABEL_CHARS_MAX: Final = 256
JOB_MEMBER_BYTES_MAX: Final = 1 * GIB  # of a member or sample that an operation reads into memory; larger ones are only moved
JOB_SPEC_BYTES_MAX: Final = 16 * MIB  # the body of a job, with a list of about 500,000 shards
JOB_SPEC_KEPT_BYTES: Final = 256 * KIB  # of a spec that the journal keeps after the end of its job: longer ones are in lineages
JOB_SPEC_SHARED_BYTES: Final = 8 * KIB  # of a spec that the registry has, for the next coordinator
JOB_OUTPUT_PAUSE_S: Final = 3600.0  # between two pieces of an output: a task may take long to make a sample
JOB_INPUT_SHARDS_MAX: Final = 1_000_000
JOB_INPUTS_ANSWER_BYTES_MAX: Final = 1024 * MIB  # of a target about them: so many with long names
JOB_TASKS_MAX: Final = 10_000_000  # of one stage; each takes 100 bytes or more in the journal
JOB_WARNINGS_MAX: Final = 100  # kept per job; more are only counted
JOB_WARNING_CHARS_MAX: Final = 1000
JOB_LIST_MAX: Final = 1000  # jobs on a page
JOB_HISTORY_POINTS_MAX: Final = 600  # of the figures of a job over time: more than a plot has pixels
JOB_BUSY_STEPS_MAX: Final = 120  # in which it is counted how long each worker was busy
JOB_WORKERS_SHOWN_MAX: Final = 64  # whose tasks are shown by worker
JOB_SPANS_MAX: Final = 2000  # tasks of a job that are shown one by one over time
JOB_TASKS_RECENT_MAX: Final = 1000  # of those that have ended, in memory while a job runs: 300 bytes each
JOB_TASKS_SLOWEST_MAX: Final = 100
JOB_LOG_LINES_MAX: Final = 1000
JOB_LOG_LINE_CHARS_MAX: Final = 1000
JOB_SUMMARY_BYTES_MAX: Final = 256_000  # of what is kept of all this after the end of a job
JOB_PARTITION_BUFFER_BYTES: Final = 16 * MIB  # records held in memory until they are written, sorted by partition
JOB_PARTITIONS_MAX: Final = 256  # a partition that is still too large is read in several passes
JOB_CLASSES_MAX: Final = 100_000  # classes, or extensions, that `stats` counts; if there are more, they are not classes
JOB_CLASS_CHARS_MAX: Final = 256
JOB_PROBLEMS_MAX: Final = 1000  # problems of each kind that a report names; all are counted
JOB_IMAGE_PIXELS_MAX: Final = 1 << 26  # 8,192 x 8,192, 200 MB decoded

# Small pictures of members.
THUMBNAIL_PIXELS: Final = (96, 192, 384)  # of the longer side
THUMBNAIL_INPUT_BYTES_MAX: Final = 64 * MIB  # of a picture that is made small
THUMBNAIL_OUTPUT_BYTES_MAX: Final = 1 * MIB  # what its process may answer
THUMBNAIL_PROCESSES: Final = 2
THUMBNAIL_MEMORY_BYTES: Final = 1 * GIB  # address space of each
THUMBNAIL_PICTURES: Final = 2000  # that a process makes before another one takes its place
THUMBNAIL_S: Final = 3.0  # for one picture
THUMBNAIL_IDLE_S: Final = 30.0  # after which the processes end
THUMBNAIL_REQUESTS_MAX: Final = 64  # at a time, that wait for pictures
THUMBNAIL_QUEUE_MAX: Final = 512  # pictures that wait, or are being made: 8 pages of samples
THUMBNAILS_TOGETHER_MAX: Final = 100  # in one answer
THUMBNAILS_AHEAD: Final = 6  # of one answer that wait, or are being made: as many as a browser has connections
THUMBNAILS_KEPT_S: Final = 600  # by browsers, an answer that may have an error in it, which the next one may not have
THUMBNAILS_KEPT_BYTES: Final = 64 * MIB

# Formats of files that jobs read and write.
ZIP_DIRECTORY_BYTES_MAX: Final = 32 * MIB  # about 400,000 members; the library keeps 0.5 KB in memory for each
PARQUET_ROW_GROUP_BYTES: Final = 16 * MIB  # small, so that a reader of few samples reads little
PARQUET_ROW_GROUP_ROWS: Final = 10_000
FORMAT_FIELDS_MAX: Final = 1000  # different extensions in one dataset: columns of a table
FORMAT_TREE_OBJECTS_MAX: Final = 100_000  # files of one directory tree, read or written by one task
FORMAT_NUMBERS_MAX: Final = 1 << 20  # of one list of numbers in a tf.train.Example, which becomes text
FORMAT_TEXT_BYTES_MAX: Final = 1 * MIB  # a key or a class name in the head of a SequenceFile
FORMAT_PAIRS_MAX: Final = 4096  # of metadata in that head
JOB_USER_MEMORY_BYTES: Final = 2 * GIB  # address space of each process of user code: numpy alone maps half a GiB
JOB_USER_PROCESSES: Final = 64  # processes and threads per sandbox: numerical libraries start one per core
JOB_USER_FILE_BYTES: Final = 1 * GIB  # per file; for all files of a sandbox if its scratch space is a file system of its own
JOB_USER_FRAME_BYTES_MAX: Final = 1 * GIB  # one sample on its way in, or everything made from it on the way out
JOB_USER_START_S: Final = 60.0  # from the start of a process of user code until it has imported everything
JOB_USER_TIMEOUT_S_MAX: Final = 24 * 3600.0
JOB_COMMAND_ARGUMENTS_MAX: Final = 256
JOB_MERGE_SOURCES_MAX: Final = 256  # each position in the order is a sum over all of them
JOB_MERGE_PREFIX_CHARS_MAX: Final = 256
JOB_TABLE_LINE_BYTES_MAX: Final = 64 * MIB  # of CSV or JSON lines
JOB_TABLE_COLUMNS_MAX: Final = 1024
JOB_REGEX_CHARS_MAX: Final = 1000
JOB_REGEX_BYTES_MAX: Final = 8 * MIB  # of a compiled expression; RE2 refuses larger ones
JOB_PREDICATE_PARTS_MAX: Final = 1000  # of a condition on samples: each part is evaluated for every sample
JOB_PREDICATE_DEPTH_MAX: Final = 32
JOB_SORT_TEXT_BYTES_MAX: Final = 64 * KIB  # of a text to sort samples by: a range of values is sorted in memory
JOB_SPLIT_PARTS_MAX: Final = 256  # a label is one byte
JOB_INLINE_SHARDS_MAX: Final = 500  # that a task lists itself, about 100 kB; longer lists are stored once and shared
JOB_OPEN_SOURCES_MAX: Final = 256  # files that a task has open at a time; the usual limit of a process is 1,024

# Inputs.
INPUT_IMAGE_PIXELS_MAX: Final = 1 << 26  # of one picture: 8,192 x 8,192, 200 MB decoded, 800 MB as floats
INPUT_IMAGE_SCANS_MAX: Final = 500  # of one JPEG; each takes as long as all pixels; progressive ones have about ten
INPUT_FIELD_BYTES_MAX: Final = 1 * GIB  # that a compressed field (.gz, .npz) may decompress to
INPUT_EXTENSIONS_KEPT: Final = 10_000  # cache of decoders by extension; the names come with the data
INPUT_EXTENSIONS_SHOWN: Final = 20  # existing extensions listed in the message that one is missing
INPUT_RETRIES: Final = 10  # without a new byte: about 20 s, longer than a node takes to restart
INPUT_REDIRECTS_MAX: Final = 5
INPUT_SHARDS_FILE_BYTES_MAX: Final = 64 * MIB  # of a .shards file: a million URLs
INPUT_MAP_BYTES_MAX: Final = 64 * MIB  # of a cluster's map
INPUT_PIPE_CHARS_KEPT: Final = 2000  # of the error output of a `pipe:` command that failed
SHUFFLE_WINDOW_MAX: Final = 1 << 24  # samples; keys of the order are 64 bits with a fraction
LOADER_WORKERS_MAX: Final = 512  # per rank: each has a row of counters in shared memory
LOADER_BATCHES_HELD: Final = 2  # per worker: batches in its memory that the caller is using, besides those read ahead
LOADER_SLOT_BYTES: Final = 64 * MIB  # for one batch, at first; the part that is never written takes no memory
LOADER_SLOT_BYTES_MAX: Final = 8 * GIB  # what does not fit is sent by copying
INPUT_BATCH_ITEMS: Final = 4_000  # samples of one batch read: about 100 kB of a request, about 20 ms to find them all
INPUT_BATCH_FIRST_ITEMS: Final = 64  # of the first one, for a fast answer; each that follows has four times as many
INPUT_BATCH_BYTES: Final = 16 * MIB  # of samples in one batch read, estimated from their average size
INPUT_BATCH_PORTION_BYTES: Final = 2 * MIB  # of an answer that a reading thread hands over at a time
INPUT_BATCH_AHEAD_BYTES: Final = 32 * MIB  # of answers that have arrived and are not yet used, for all threads
INPUT_MEMBER_BYTES_MAX: Final = 4 * GIB  # of one member of a sample, which is held in memory whole
INPUT_SAMPLE_BYTES_MAX: Final = 8 * GIB  # of all members of one sample that are wanted
INPUT_BUFFER_BYTES: Final = 2 * MIB  # smaller ones wake the reading thread too often, which then waits for the interpreter
INPUT_BUFFER_BYTES_MIN: Final = 256 * KIB  # the first buffer of a shard, and all on slow links: samples come sooner
INPUT_AHEAD_BYTES: Final = 16 * MIB  # read ahead, for all shards together. Measured: 32 MiB cost 15 % more CPU (cache misses)
INPUT_READERS_MAX: Final = 64  # threads that read ahead for one consumer
INPUT_AHEAD_SHARDS: Final = 4  # small shards that each reading thread may be ahead
INPUT_CACHE_FREE_SHARE: Final = 0.95  # of its own size plus the free space on its disk that a cache of shards may fill
INPUT_CACHE_POLL_S: Final = 0.02  # between two checks whether another process has fetched a shard
INPUT_MIX_SOURCES_MAX: Final = 256  # each has its own connections and threads
INPUT_THREADS_MAX: Final = 256  # decoding threads of one loader


# --- Sizes in the units that people read.

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def format_size(size: float) -> str:
    """Format a size like `1.2 GB`, in powers of 1000."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"
