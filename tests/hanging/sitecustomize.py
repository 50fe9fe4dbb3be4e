"""On PYTHONPATH of a node: `fdatasync` hangs for ever while the file $HANG_FILE is there, as on a dying disk."""

import os

_fdatasync = os.fdatasync
_hang = os.environ.get("HANG_FILE", "")


def _hanging_fdatasync(file: int) -> None:
    if _hang and os.path.exists(_hang):
        with open(os.path.splitext(_hang)[0] + ".hung", "w"):
            pass
        os.read(os.pipe()[0], 1)
    _fdatasync(file)


os.fdatasync = _hanging_fdatasync
