"""All errors that DFC raises on purpose, with their HTTP statuses and codes.

DfcError
 ├─ ClientMistake                the request can never work as it is
 │   ├─ BadRequest 400           malformed request, query, JSON, header
 │   │   ├─ BadName 400          a bucket, object or member name that is not allowed
 │   │   ├─ LengthMismatch 400   the body was shorter or longer than announced
 │   │   └─ BadShardSpec 400     a shard spec that cannot be read or expands too far
 │   ├─ Unauthorized 401 · Forbidden 403
 │   ├─ NotFound 404             BucketNotFound, ObjectNotFound, MemberNotFound, SampleNotFound,
 │   │                         JobNotFound, NoShards
 │   ├─ MethodNotAllowed 405 · BodyTimeout 408
 │   ├─ Conflict 409             BucketConflict, BucketNotEmpty, BucketDeleting, TooFewDomains, WouldLoseObjects,
 │   │                         StillNeeded, NotSeekable, NotAShard, JobFinished, OutputExists, JobCancelled
 │   ├─ JobSpecGone 410 · PreconditionFailed 412 · TooLarge 413 · RangeNotSatisfiable 416
 │   ├─ Misdirected 421 · NotThePrimary 421
 │   ├─ ChecksumMismatch 422 · NotAPicture 422 · TooManyLogins 429
 ├─ ServerTrouble                the request was fine, this server cannot serve it now
 │   ├─ ObjectCorrupt 500 · StorageFailed 500
 │   ├─ Unavailable 503          a holder is down, the map changes, too busy; carries Retry-After; NoLease, NoRegistry,
 │   │                         MapChanging, CopiesMissing, Overtaken
 │   └─ NoSpace 507
 ├─ Unreachable                  in our client only: no node answered, or every answer broke off, after all retries
 │   └─ NotConnected             no connection could be made: nothing was sent
 └─ OperatorError                at start or in a command: ConfigError, DiskRefused, DiskLocked
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class DfcError(Exception):
    """Base class of all errors. Clients see `status`, `code` and the message, which must not contain secrets."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.headers: dict[str, str] = dict(headers or {})


class ClientMistake(DfcError):
    """The request can never work as it is."""

    status = 400
    code = "bad_request"


class BadRequest(ClientMistake):
    """A malformed request line, header, query parameter or JSON body."""


class BadName(BadRequest):
    """A bucket, object or member name outside the rules of `dfc.names`."""

    code = "bad_name"


class LengthMismatch(BadRequest):
    """The body was longer than announced, or shorter (a client that disconnected); nothing was stored."""

    code = "length_mismatch"


class BadShardSpec(BadRequest):
    """A shard spec that cannot be parsed, or that expands to more names than the limit."""

    code = "bad_shard_spec"


class Unauthorized(ClientMistake):
    """A missing or wrong bearer token."""

    status = 401
    code = "unauthorized"

    def __init__(self, message: str = "a valid bearer token is required") -> None:
        super().__init__(message, headers={"WWW-Authenticate": 'Bearer realm="dfc"'})


class Forbidden(ClientMistake):
    """An unsafe method from a foreign web page (its `Origin` is not this server)."""

    status = 403
    code = "forbidden"


class NotFound(ClientMistake):
    """It does not exist: every node that could hold it has said so."""

    status = 404
    code = "not_found"


class BucketNotFound(NotFound):
    code = "bucket_not_found"


class ObjectNotFound(NotFound):
    code = "object_not_found"


class MemberNotFound(NotFound):
    code = "member_not_found"


class SampleNotFound(NotFound):
    code = "sample_not_found"


class JobNotFound(NotFound):
    """The job does not exist, or no longer: finished jobs are kept for `jobs_keep_s`."""

    code = "job_not_found"


class NoShards(NotFound):
    """The input of a job, a pattern or prefix, selects no shard."""

    code = "no_shards"


class MethodNotAllowed(ClientMistake):
    """The path does not support this method; `Allow` lists those it supports."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__(f"method not allowed; allowed here: {', '.join(allowed)}", headers={"Allow": ", ".join(allowed)})


class BodyTimeout(ClientMistake):
    """The request body arrived slower than the minimum rate; nothing was stored."""

    status = 408
    code = "body_timeout"


class Conflict(ClientMistake):
    status = 409
    code = "conflict"


class IdInUse(Conflict):
    """A node has this id already, and runs: this one is a copy of it."""

    code = "id_in_use"


class BucketConflict(Conflict):
    """The bucket exists with other settings."""

    code = "bucket_conflict"


class BucketNotEmpty(Conflict):
    code = "bucket_not_empty"


class BucketDeleting(Conflict):
    """The bucket is being deleted; commits into it are refused everywhere."""

    code = "bucket_deleting"


class TooFewDomains(Conflict):
    """More copies are wanted than there are failure domains to put them in."""

    code = "too_few_domains"


class WouldLoseObjects(Conflict):
    """A lost disk is to be removed for good, and objects are on it that nothing else has."""

    code = "would_lose_objects"


class StillNeeded(Conflict):
    """A node must not be stopped: what it has could not be read then."""

    code = "still_needed"


class NotSeekable(Conflict):
    """A byte range inside a member of a compressed shard was asked for."""

    code = "not_seekable"


class NotAShard(Conflict):
    """A member or sample query on an object without a tar index."""

    code = "not_a_shard"


class JobFinished(Conflict):
    """It is too late for this: the job is publishing its outputs, or has ended."""

    code = "job_finished"


class OutputExists(Conflict):
    """An object already exists that the job could write, and the job may not overwrite."""

    ADVICE: ClassVar[str] = "set 'overwrite' to allow this"  # at the end of the message; command and page put their own there
    code = "output_exists"


class JobCancelled(Conflict):
    """The job was cancelled, has failed or is published; further work of its tasks is useless."""

    code = "job_cancelled"


class JobSpecGone(ClientMistake):
    """What was asked for with a job is known no more: long specs are kept only until their jobs have ended."""

    status = 410
    code = "job_spec_gone"


class PreconditionFailed(ClientMistake):
    """`If-Match` or `If-None-Match`, decided inside the catalog transaction."""

    status = 412
    code = "precondition_failed"


class TooLarge(ClientMistake):
    status = 413
    code = "too_large"


class RangeNotSatisfiable(ClientMistake):
    """Carries `Content-Range: bytes */N`, N = size of the object in bytes."""

    status = 416
    code = "range_not_satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"the range is outside of the {size} bytes available", headers={"Content-Range": f"bytes */{size}"})


class Misdirected(ClientMistake):
    """The request used a host name that the node does not answer to; the message names the setting that allows one."""

    status = 421
    code = "misdirected"


class NotThePrimary(ClientMistake):
    """This target does not hold the object. Told only to clients that send the version of their map; others are relayed."""

    status = 421
    code = "not_the_primary"


class NotAPicture(ClientMistake):
    """A small picture was asked for of what cannot be decoded as one, or is too large."""

    status = 422
    code = "not_a_picture"


class ChecksumMismatch(ClientMistake):
    """The body does not have the checksum that the client sent; nothing was stored."""

    status = 422
    code = "checksum_mismatch"


class TooManyLogins(ClientMistake):
    """Too many logins from this address have failed; `Retry-After` says when it may try again."""

    status = 429
    code = "too_many_logins"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after_s)})


class ServerTrouble(DfcError):
    """The request was fine; this server cannot serve it now."""


class ObjectCorrupt(ServerTrouble):
    """The stored bytes are gone or fail their checksum. Quarantined and listed; never reported as 404."""

    code = "object_corrupt"


class StorageFailed(ServerTrouble):
    """The disk gave an I/O error; nothing of the request was acknowledged."""

    code = "storage_failed"


class Unavailable(ServerTrouble):
    """Try again after `retry_after_s`: a holder is down, the map is changing or a cap is reached."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after_s)})


class NoLease(Unavailable):
    """The target has not heard from the coordinator for too long: it writes nothing, and cannot tell what does not exist."""

    code = "no_lease"


class NoRegistry(NoLease):
    """The registry does not answer, or may be an old copy: nobody gets a lease, the map cannot change, and what is new in it
    is not known."""

    code = "no_registry"


class MapChanging(Unavailable):
    """Nodes have different versions of the cluster map at this moment."""

    code = "map_changing"


class CopiesMissing(Unavailable):
    """Not all disks that must have the write have it in time. It may still be stored, or not."""

    code = "copies_missing"


class Overtaken(Unavailable):
    """A conditional write that began later has been stored: there is no order in which this one could have come before it."""

    code = "overtaken"


class NoSpace(ServerTrouble):
    """The disk is full up to its reserve; deletes still work."""

    status = 507
    code = "no_space"


class Unreachable(DfcError):
    """Raised by our client only: no connection, or a broken one, after all retries that the request allows."""

    status = 503
    code = "unreachable"


class NotConnected(Unreachable):
    """No connection could be made; the request was not sent."""


class OperatorError(DfcError):
    """A node or a command cannot start; the message says what to do."""

    code = "operator_error"


class ConfigError(OperatorError):
    """An unknown setting, a value of the wrong type or a combination that cannot work."""

    code = "config_error"


class DiskRefused(OperatorError):
    """A disk that belongs to someone else, has blobs but no format, or whose catalog fails its check."""

    code = "disk_refused"


class DiskLocked(OperatorError):
    """Another process holds the lock of this disk."""

    code = "disk_locked"
