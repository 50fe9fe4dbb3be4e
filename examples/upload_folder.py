#!/usr/bin/env python
"""Make shards of a folder of pictures, and upload them while they are made.

    python upload_folder.py ILSVRC/train http://localhost:8080/imagenet

A folder for every class, as ImageNet and torchvision's ImageFolder have it: FOLDER/CLASS/NAME.jpg. Classes
are numbered in the order of their names. The pictures are shuffled once, so that every shard holds a mix of
classes; a part that follows from the key alone is kept for validation. A sample has the key CLASS/NAME and
two fields: `jpg`, or what the file's extension is, with the file's bytes as they are, and `cls`, the number
of the class.
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
        raise SystemExit(f"{folder}: no picture in it; wanted are files like {folder}/CLASS/NAME.jpg")
    for label, name in enumerate(classes):
        print(f"class {label}: {name}")
    print(f"{len(classes)} classes: train with --classes {len(classes)}")
    return found


def key_of(folder: Path, path: Path) -> str:
    """CLASS/NAME. A dot in the name of a file would end the key too early, so there it becomes an underscore."""
    relative = path.relative_to(folder)
    return (relative.parent / relative.stem.replace(".", "_")).as_posix()


def is_validation(key: str, percent: int) -> bool:
    """The same answer for a key for ever, also when other pictures are added or the shards are cut anew."""
    return int.from_bytes(hashlib.md5(key.encode()).digest()[:8], "big") % 100 < percent


def upload(folder: Path, url: str, val_percent: int, samples_per_shard: int, seed: int) -> dict[str, int]:
    """Write URL/train-%06d.tar and URL/val-%06d.tar; how many samples each part has."""
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
    parser.add_argument("folder", type=Path, help="a folder with a folder for every class")
    parser.add_argument("url", help="http://HOST/BUCKET, or http://HOST/BUCKET/folder")
    parser.add_argument("--val-percent", type=int, default=10, help="kept for validation (default: %(default)s)")
    parser.add_argument("--samples-per-shard", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the samples (default: %(default)s)")
    arguments = parser.parse_args()
    upload(arguments.folder, arguments.url, arguments.val_percent, arguments.samples_per_shard, arguments.seed)


if __name__ == "__main__":
    main()
