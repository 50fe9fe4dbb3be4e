#!/usr/bin/env python
"""Train a ResNet on pictures and their classes with TensorFlow: DFC reads and shuffles, tf.data decodes, Keras
trains.

    python tensorflow_imagenet.py --train 'http://localhost:8080/imagenet/train-*.tar' \\
        --val 'http://localhost:8080/imagenet/val-*.tar' --checkpoint run.keras

It uses all GPUs of the machine (MirroredStrategy). Samples have a picture (`jpg`, `jpeg` or
`png`) and its class as a number (`cls`), as upload_folder.py makes them. With --checkpoint the model is
saved after each epoch, and a restarted run continues with the next epoch, in the same order as an
uninterrupted run.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from dfc.inputs import tensorflow as tfinputs
from dfc.inputs.loader import Loader

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)


def undecoded(sample: dict[str, Any]) -> dict[str, Any]:
    """The input of TensorFlow: the bytes of the picture, and the class as a number."""
    return {"jpg": sample["jpg"], "cls": int(sample["cls"])}


def train_view(data: tf.Tensor, size: int) -> tf.Tensor:
    """Crop a random 8 % to 100 % of the area, with an aspect ratio of 3:4 to 4:3, and flip at random."""
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    whole = tf.zeros((1, 0, 4))
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image), whole, area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3), use_image_if_no_bounding_boxes=True
    )
    return tf.image.random_flip_left_right(tf.image.resize(tf.slice(image, begin, extent), (size, size)))


def test_view(data: tf.Tensor, size: int) -> tf.Tensor:
    """Crop the centre square, with seven eighths of the shorter side."""
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    side = tf.reduce_min(tf.shape(image)[:2]) * 7 // 8
    top, left = (tf.shape(image)[0] - side) // 2, (tf.shape(image)[1] - side) // 2
    return tf.image.resize(image[top : top + side, left : left + side], (size, size))


def batches(loader: Loader, options: argparse.Namespace, *, train: bool, epoch: int = 0) -> tf.data.Dataset:
    """(float32 of shape (batch, size, size, 3), classes), decoded by threads of TensorFlow; an epoch, then the next ones."""
    view = train_view if train else test_view
    samples = tfinputs.dataset(loader, epoch=epoch)
    samples = samples.map(
        lambda sample: (view(sample["jpg"], options.size), sample["cls"]), num_parallel_calls=tf.data.AUTOTUNE
    )
    normal = samples.batch(options.batch_size).map(lambda images, labels: ((images - MEAN) / DEVIATION, labels))
    return normal.prefetch(tf.data.AUTOTUNE)


def make_model(options: argparse.Namespace) -> keras.Model:
    if options.model == "resnet50":
        model = keras.applications.ResNet50(weights=None, input_shape=(options.size, options.size, 3), classes=options.classes)
    else:
        layers = keras.layers
        convolutions = [layers.Conv2D(width, 3, 2, "same", activation="relu") for width in (8, 16, 32)]
        ending = [layers.GlobalAveragePooling2D(), layers.Dense(options.classes, activation="softmax")]
        model = keras.Sequential([keras.Input((options.size, options.size, 3)), *convolutions, *ending])
    optimizer = keras.optimizers.SGD(options.learning_rate * options.batch_size / 256, momentum=0.9, weight_decay=5e-5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="the shards: http://HOST/BUCKET/train-*.tar, or any other spec")
    parser.add_argument("--val", help="the shards of the validation set; if omitted, no validation")
    parser.add_argument("--checkpoint", type=Path, help="NAME.keras, to save to and to resume from if it exists")
    parser.add_argument("--model", choices=["resnet50", "tiny"], default="resnet50", help="(default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the pictures in pixels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=90, help="number of epochs (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="samples per step, over all GPUs (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="for 256 samples per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order (default: %(default)s)")
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)

    # Single samples, so that TensorFlow decodes each one; `jpg` is whichever of the three a sample has.
    fields = {"fields": ["jpg;jpeg;png", "cls"], "decode": False, "transform": undecoded}
    train = Loader(options.train, seed=options.seed, **fields)
    steps = -(-train.samples // options.batch_size)
    several = len(tf.config.list_physical_devices("GPU")) > 1
    with tf.distribute.MirroredStrategy().scope() if several else contextlib.nullcontext():
        if options.checkpoint and options.checkpoint.exists():
            model = keras.models.load_model(options.checkpoint)
        else:
            model = make_model(options)
    begun = int(model.optimizer.iterations.numpy()) // steps  # epochs
    model.fit(
        batches(train, options, train=True, epoch=begun),
        epochs=options.epochs,
        initial_epoch=begun,
        validation_data=batches(Loader(options.val, shuffle=False, **fields), options, train=False) if options.val else None,
        callbacks=[keras.callbacks.ModelCheckpoint(options.checkpoint)] if options.checkpoint else [],
        shuffle=False,  # the loader shuffles
        verbose=2,
    )


if __name__ == "__main__":
    main()
