"""Ctrl-C ends a program that decodes, whatever it decodes at that moment."""

from __future__ import annotations

import gzip
import io
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
from job_shards import tar_of
from PIL import Image

from dfc.inputs.images import encode_npy
from dfc.limits import INPUT_IMAGE_SCANS_MAX

ENDS_S = 20.0
PROGRAM = """
import sys
from dfc.inputs import gopen
print("begun", flush=True)
while True:
    for sample in gopen.sharditerator_once(sys.argv[1], handler="skip"):
        pass
"""
NUMBERS = np.arange(5_000_000)


def picture(kind: str, side: int, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((side, side), 50).convert("RGB").save(stream, kind, **options)
    return stream.getvalue()


def scans() -> bytes:
    """As many as are allowed: a second and more."""
    data = picture("JPEG", 1000, progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (INPUT_IMAGE_SCANS_MAX // 2) + data[-2:]


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, a=NUMBERS)
    return stream.getvalue()


FIELDS: dict[str, Callable[[], bytes]] = {
    "jpg": scans,
    "png": lambda: picture("PNG", 4000),
    "webp": lambda: picture("WEBP", 2000),
    "tiff": lambda: picture("TIFF", 2000, compression="jpeg"),
    "gif": lambda: picture("GIF", 2000),
    "jp2": lambda: picture("JPEG2000", 2000),
    "npy": lambda: encode_npy(NUMBERS),
    "npz": npz,
    "json": lambda: json.dumps(list(range(1_000_000))).encode(),
    "json.gz": lambda: gzip.compress(json.dumps(list(range(1_000_000))).encode(), 1),
    "msgpack": lambda: msgpack.packb(list(range(3_000_000))),
    "txt": lambda: b"x" * 20_000_000,
    "cls": lambda: b"7",
}


def interrupted(child: subprocess.Popen[str]) -> str:
    """What a process said that was interrupted; again, if Python told that it dropped the first, as it does in destructors."""
    dropped = 0
    try:
        for _ in range(3):
            child.send_signal(signal.SIGINT)
            try:
                return child.communicate(timeout=ENDS_S)[1]
            except subprocess.TimeoutExpired as error:
                before, dropped = dropped, (error.stderr or b"").count(b"Exception ignored in")
                if dropped <= before:
                    raise
    finally:
        child.kill()
    raise AssertionError("three interrupts were dropped")


@pytest.mark.parametrize("ext", FIELDS)
def test_ctrl_c_while_it_decodes(ext: str, tmp_path: Path) -> None:
    shard, data = tmp_path / "a.tar", FIELDS[ext]()
    shard.write_bytes(tar_of([(f"{number}.{ext}", data) for number in range(4)]))
    command = [sys.executable, "-c", PROGRAM, str(shard)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(random.uniform(0.3, 1.0))
        said = interrupted(child)
    assert child.returncode in (1, 130, -signal.SIGINT), said
    assert said.strip().endswith("KeyboardInterrupt")
