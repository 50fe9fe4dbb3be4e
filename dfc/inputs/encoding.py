"""Encode the fields of samples as bytes by their extensions: the inverse of `dfc.inputs.decoding`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import msgpack

from dfc.inputs.base import Sample
from dfc.inputs.decoding import broken
from dfc.inputs.fields.extensions import IMAGES, JSONS, MESSAGES, NUMBERS, PICKLES, TENSORS


def encode(sample: Sample, *, pickle: bool = False) -> Sample:
    """Return a new sample whose fields are bytes. Bytes, and fields whose name begins with "_", stay as they are.

    SampleBroken for a value that its extension cannot hold, and for pickles unless `pickle=True`.
    """
    result = dict(sample)
    for ext, value in sample.items():
        if type(value) is not bytes and not ext.startswith("_"):
            try:
                result[ext] = encode_field(ext.lower(), value, pickle=pickle)
            except ImportError:
                raise
            except Exception as problem:
                raise broken(sample, f"field {ext!r} cannot be encoded", problem) from problem
    return result


def encode_field(ext: str, value: Any, *, pickle: bool = False) -> bytes:
    """The bytes of one field. TypeError, ValueError for a value that its extension cannot hold."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if ext.endswith(".gz"):
        return gzip.compress(encode_field(ext[:-3], value, pickle=pickle), mtime=0)
    kind = ext.rpartition(".")[2]
    if kind in JSONS:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8")
    if kind in MESSAGES:
        return bytes(msgpack.packb(value, default=_plain))
    if kind in PICKLES:
        return _pickle(kind, value, pickle)
    if kind in IMAGES:
        from dfc.inputs.fields.images import encode_image

        return encode_image(value, kind)
    if kind in TENSORS or kind in ("npy", "npz"):
        from dfc.inputs.fields import arrays

        return {"npy": arrays.encode_npy, "npz": arrays.encode_npz}.get(kind, arrays.encode_ten)(value)
    return _text(kind, value)


def _text(kind: str, value: Any) -> bytes:
    value = _scalar(value)
    if kind in NUMBERS:
        if not isinstance(value, int | float) or value != int(value):
            raise ValueError(f"extension {kind!r} holds a whole number, not {value!r}"[:200])
        return str(int(value)).encode("ascii")
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, int | float):
        return str(value).encode("ascii")
    raise TypeError(f"extension {kind!r} cannot hold a {type(value).__name__}")


def _scalar(value: Any) -> Any:
    """Convert NumPy and torch scalars to Python numbers; return anything else unchanged."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _plain(value: Any) -> Any:
    """Convert arrays, tensors, mappings and sets to types that JSON and MessagePack support."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"JSON and MessagePack cannot hold a {type(value).__name__}")


def _pickle(kind: str, value: Any, allowed: bool) -> bytes:
    if not allowed:
        raise ValueError(f"extension {kind!r} holds a pickle; pass pickle=True to write it")
    import pickle

    return pickle.dumps(value)
