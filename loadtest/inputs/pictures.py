"""JPEG files that cost a decoder what photographs cost: the size of ImageNet's, a spectrum like that of natural scenes."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 375, 500  # pixels, the commonest in ImageNet
QUALITY = 94  # files of about 110 kB, ImageNet's mean
SLOPE = 1.3  # amplitudes fall with the frequency to this power; about 1 in photographs, more where much is out of focus
CONTRAST, BRIGHTNESS = 50, 118
COLOUR_SHARE = 0.25  # of a channel that it does not share with the others

Pixels = npt.NDArray[np.uint8]


def draw_photograph(number: int) -> Pixels:
    """Noise with the spectrum of a photograph: (375, 500, 3) bytes that depend on `number` alone."""
    chance = np.random.default_rng(number)
    columns = np.fft.rfftfreq(WIDTH)
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], columns[None, :])
    shape = (3, HEIGHT, len(columns))
    waves = chance.standard_normal(shape) + 1j * chance.standard_normal(shape)
    waves[1:] = (1 - COLOUR_SHARE) * waves[0] + COLOUR_SHARE * waves[1:]
    planes = np.fft.irfft2(waves / np.maximum(frequency, 1 / WIDTH) ** SLOPE, (HEIGHT, WIDTH))
    planes /= planes.std(axis=(1, 2), keepdims=True)
    pixels: Pixels = np.clip(planes * CONTRAST + BRIGHTNESS, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(pixels)


def photographs(count: int) -> Iterator[bytes]:
    """JPEG files of different photographs. Needs Pillow."""
    from PIL import Image

    for number in range(count):
        out = io.BytesIO()
        Image.fromarray(draw_photograph(number)).save(out, "JPEG", quality=QUALITY)
        yield out.getvalue()
