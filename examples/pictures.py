"""Prepare pictures for a network, without a framework: decode, crop, resize, flip.

`train_view` and `test_view` take the bytes of a JPEG or PNG and return a uint8 array of shape (3, size,
size), RGB. So workers send only a quarter of the bytes of float32 to the training process, which
normalises on its device, a batch at a time.
"""

from __future__ import annotations

import io
import math
import random

import numpy as np
from PIL import Image

# Mean and standard deviation of the colours in ImageNet, for values in 0..255.
MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)


def train_view(data: bytes, size: int, chance: random.Random) -> np.ndarray:
    """Crop a random 8 % to 100 % of the area, with an aspect ratio of 3:4 to 4:3, and flip at random."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    box = random_box(width, height, chance)
    pixels = resized(image, box, size)
    return pixels[:, :, ::-1].copy() if chance.random() < 0.5 else pixels


def test_view(data: bytes, size: int) -> np.ndarray:
    """Crop the centre square, with seven eighths of the shorter side."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return resized(image, (left, top, left + side, top + side), size)


def random_box(width: int, height: int, chance: random.Random) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of a random part; the whole picture if none of ten tries fits into it."""
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = chance.uniform(0, width - wide), chance.uniform(0, height - high)
            return left, top, left + wide, top + high
    return 0.0, 0.0, float(width), float(height)


def resized(image: Image.Image, box: tuple[float, float, float, float], size: int) -> np.ndarray:
    """Resize a part of a picture to (3, size, size). A JPEG is decoded at 1/2, 1/4 or 1/8 if that is enough."""
    width, height = image.size
    scale = size / min(box[2] - box[0], box[3] - box[1])
    if scale < 1:
        image.draft("RGB", (math.ceil(width * scale), math.ceil(height * scale)))
    across, down = image.size[0] / width, image.size[1] / height
    scaled = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=scaled, reducing_gap=2.0)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))
