#!/usr/bin/env python
"""Draw a toy dataset, with a folder for each class like ImageNet, and upload it as shards.

    python toy_dataset.py toy http://localhost:8080/toy

makes toy/circle/000003.jpg and so on, and from them the shards toy/train-000000.tar … and
toy/val-000000.tar … in the cluster. A network of a few thousand weights learns the classes in a minute on
one processor. With one argument, it draws but does not upload.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from PIL import Image, ImageDraw
from upload_folder import upload

CLASSES = ("circle", "cross", "ring", "square")


def draw(number: int, label: str) -> Image.Image:
    """Draw a bright shape on a dark ground. The number determines position, size and colours."""
    chance = random.Random(number)
    width, height = chance.randrange(64, 97), chance.randrange(64, 97)
    image = Image.new("RGB", (width, height), tuple(chance.randrange(96) for _ in range(3)))
    radius = chance.uniform(16, 26)
    x, y = chance.uniform(radius, width - radius), chance.uniform(radius, height - radius)
    box = (x - radius, y - radius, x + radius, y + radius)
    colour = tuple(chance.randrange(128, 256) for _ in range(3))
    pen = ImageDraw.Draw(image)
    if label == "circle":
        pen.ellipse(box, fill=colour)
    elif label == "ring":
        pen.ellipse(box, outline=colour, width=6)
    elif label == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.line((x - radius, y, x + radius, y), fill=colour, width=6)
        pen.line((x, y - radius, x, y + radius), fill=colour, width=6)
    return image


def make_folder(folder: Path, count: int) -> None:
    """Write `count` JPEG files, about as many of each class."""
    for number in range(count):
        label = CLASSES[number % len(CLASSES)]
        path = folder / label / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(number, label).save(path, quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("url", nargs="?", help="where the shards go: http://HOST/BUCKET")
    parser.add_argument("--pictures", type=int, default=1200, help="number of pictures to draw (default: %(default)s)")
    parser.add_argument("--samples-per-shard", type=int, default=200, help="samples in each shard (default: %(default)s)")
    parser.add_argument("--val-percent", type=int, default=10, help="percentage kept for validation (default: %(default)s)")
    arguments = parser.parse_args()
    make_folder(arguments.folder, arguments.pictures)
    print(f"{arguments.folder}: {arguments.pictures} pictures of {len(CLASSES)} classes")
    if arguments.url:
        upload(arguments.folder, arguments.url, arguments.val_percent, arguments.samples_per_shard, 0)


if __name__ == "__main__":
    main()
