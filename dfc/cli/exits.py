"""Exit codes of `dfc` and `tarshards`, and the errors they stand for. They are documented in docs/cli.md and never change."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from dfc.errors import (
    BadName,
    BadShardSpec,
    ChecksumMismatch,
    DfcError,
    Forbidden,
    NotFound,
    ObjectCorrupt,
    OperatorError,
    OutputExists,
    Unauthorized,
    Unavailable,
    Unreachable,
)


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1  # something failed for a reason without its own code, or for several reasons
    USAGE = 2  # the command line is wrong; nothing was done
    NOT_FOUND = 3  # an object, bucket, member, sample or file does not exist
    UNREACHABLE = 4  # no node answers, or the one that holds the object is down
    MISMATCH = 5  # bytes do not match their checksum: damaged on the way or on the disk
    NOT_ALLOWED = 6  # the token is missing or wrong
    INTERRUPTED = 130  # Ctrl-C
    OUTPUT_CLOSED = 141  # the reader of standard output closed it


class UsageMistake(DfcError):
    """The command line is wrong; the message says how to correct it."""

    code = "usage"


def exit_for(error: BaseException) -> Exit:
    """The exit code for one error."""
    match error:
        case UsageMistake() | BadName() | BadShardSpec() | OperatorError():
            return Exit.USAGE
        case NotFound() | FileNotFoundError():
            return Exit.NOT_FOUND
        case Unreachable() | Unavailable():
            return Exit.UNREACHABLE
        case ChecksumMismatch() | ObjectCorrupt():
            return Exit.MISMATCH
        case Unauthorized() | Forbidden():
            return Exit.NOT_ALLOWED
        case BrokenPipeError():
            return Exit.OUTPUT_CLOSED
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
    return Exit.FAILED


def exit_for_all(errors: Iterable[BaseException]) -> Exit:
    """The exit code for many errors: the one they share, else FAILED; OK for none."""
    codes = {exit_for(error) for error in errors}
    if not codes:
        return Exit.OK
    return codes.pop() if len(codes) == 1 else Exit.FAILED


def describe(error: BaseException) -> tuple[str, str]:
    """Return code and message of an error."""
    if isinstance(error, OutputExists):
        return error.code, error.message.replace(error.ADVICE, "give --overwrite to allow this")
    if isinstance(error, DfcError):
        return error.code, error.message
    if isinstance(error, OSError) and error.strerror:
        return "os_error", f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return "error", f"{type(error).__name__}: {error}"
