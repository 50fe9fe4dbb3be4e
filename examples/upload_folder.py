#!/usr/bin/env python
"""Turn a folder of pictures into shards, and upload them as they fill.

    python upload_folder.py ILSVRC/train http://localhost:8080/imagenet

The folder has one folder per class, like ImageNet and torchvision's ImageFolder: FOLDER/CLASS/NAME.jpg.
Classes are numbered in the order of their names. The pictures are shuffled once, so that every shard holds a
mix of classes. A part is kept for validation; whether a sample belongs to it depends only on its key. A
sample has the key CLASS/NAME and two fields: `jpg` (or the file's extension) with the unchanged bytes of the
file, and `cls` with the number of the class.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from pathlib import Path

from dfc.inputs.writers import ShardWriter

EXTENSIONS = {".jpg": "jpg", ".jpeg": "jpg", ".png": "png"}


def pictures(folder: Path) -> list[tuple[Path, int]]:
    """(path, number of the class) of every picture, in the order of the names. Prints the numbers."""
    if not folder.is_dir():
        raise SystemExit(f"{folder}: no such folder")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in EXTENSIONS
    ]
    if not found:
        raise SystemExit(f"{folder}: no pictures found; expected files like {folder}/CLASS/NAME.jpg")
    for label, name in enumerate(classes):
        print(f"class {label}: {name}")
    print(f"{len(classes)} classes: train with --classes {len(classes)}")
    return found


def key_of(folder: Path, path: Path) -> str:
    """CLASS/NAME. A dot in the name of a file would end the key too early, so there it becomes an underscore."""
    relative = path.relative_to(folder)
    return (relative.parent / relative.stem.replace(".", "_")).as_posix()


def is_validation(key: str, percent: int) -> bool:
    """Whether a key belongs to the validation part. It never changes, even if other pictures are added."""
    return int.from_bytes(hashlib.md5(key.encode()).digest()[:8], "big") % 100 < percent


def upload(folder: Path, url: str, val_percent: int, samples_per_shard: int, seed: int) -> dict[str, int]:
    """Write URL/train-%06d.tar and URL/val-%06d.tar. Returns the number of samples in each part."""
    found = pictures(folder)
    random.Random(seed).shuffle(found)
    counts = {}
    for part in ("train", "val"):
        counts[part] = 0
        with ShardWriter(f"{url.rstrip('/')}/{part}-%06d.tar", maxcount=samples_per_shard) as writer:
            for path, label in found:
                key = key_of(folder, path)
                if is_validation(key, val_percent) == (part == "val"):
                    writer.write({"__key__": key, EXTENSIONS[path.suffix.lower()]: path.read_bytes(), "cls": label})
                    counts[part] += 1
        print(f"{url.rstrip('/')}/{part}-*.tar: {counts[part]} samples")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder with one folder per class")
    parser.add_argument("url", help="http://HOST/BUCKET, or http://HOST/BUCKET/folder")
    parser.add_argument("--val-percent", type=int, default=10, help="percentage kept for validation (default: %(default)s)")
    parser.add_argument("--samples-per-shard", type=int, default=1000, help="samples in each shard (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample order (default: %(default)s)")
    arguments = parser.parse_args()
    upload(arguments.folder, arguments.url, arguments.val_percent, arguments.samples_per_shard, arguments.seed)


if __name__ == "__main__":
    main()
