"""Residual networks (He et al., 2015, arXiv:1512.03385) for the PyTorch examples, so that they need torch
alone.

`resnet50` and `resnet18` are those of the paper, for pictures of 224 × 224. `tiny` has 20,000 weights and is
for experiments.
"""

from __future__ import annotations

from torch import Tensor, nn


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of the picture for stride 1, then batch normalisation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """`body` with a shortcut, which is the identity unless the shape changes."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)
        nn.init.zeros_(body[-1][1].weight)  # every block begins as the identity, which makes the first epochs stable

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.relu(self.body(values) + self.shortcut(values))


def basic(inputs: int, width: int, stride: int) -> Block:
    """Two convolutions of 3 × 3: ResNet-18."""
    body = nn.Sequential(convolution(inputs, width, 3, stride), nn.ReLU(), convolution(width, width, 3))
    return Block(body, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> Block:
    """1 × 1, 3 × 3 and 1 × 1, four times as wide at its end: ResNet-50."""
    body = nn.Sequential(
        convolution(inputs, width, 1),
        nn.ReLU(),
        convolution(width, width, 3, stride),
        nn.ReLU(),
        convolution(width, 4 * width, 1),
    )
    return Block(body, inputs, 4 * width, stride)


def residual(classes: int, block, factor: int, widths: list[int], depths: list[int]) -> nn.Sequential:
    """A stem that makes the picture four times smaller, stages of blocks that halve it, and a linear layer."""
    layers: list[nn.Module] = [convolution(3, widths[0], 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = widths[0]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for number in range(depth):
            layers.append(block(inputs, width, 2 if stage > 0 and number == 0 else 1))
            inputs = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


MODELS = {
    "resnet50": lambda classes: residual(classes, bottleneck, 4, [64, 128, 256, 512], [3, 4, 6, 3]),
    "resnet18": lambda classes: residual(classes, basic, 1, [64, 128, 256, 512], [2, 2, 2, 2]),
    "tiny": lambda classes: residual(classes, basic, 1, [8, 16, 32], [1, 1, 1]),
}
