"""Small networks that learn to answer as the target does, on public pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import progress, seeds

_BATCH = 64
_MOMENTUM, _DECAY = 0.9, 1e-4


class Student(nn.Module):
    """Convolution, normalisation, rectifier and pooling until 4 pixels are left; then a linear layer."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        channels, height, pixels = shape
        blocks: list[nn.Module] = []
        before, after = channels, width
        while True:
            blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            if min(height, pixels) <= 4:
                break
            blocks.append(nn.MaxPool2d(2))
            height, pixels = height // 2, pixels // 2
            before, after = after, min(2 * after, 4 * width)
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.head = nn.Linear(after * height * pixels, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(2 * x - 1))
        return scores


def distilled(
    student: Student, images: Tensor, answers: Tensor, *, epochs: int, rate: float, seed: int
) -> tuple[Student, list[float]]:
    """A student taught the target's scores, and the divergence KL(target ‖ student) after each epoch.

    SGD with momentum at the given rate, halved every 20 epochs; the batches of an epoch have a generator of their own.
    """
    wanted = answers.log_softmax(1)
    sgd = torch.optim.SGD(student.parameters(), rate, momentum=_MOMENTUM, weight_decay=_DECAY)
    halving = torch.optim.lr_scheduler.StepLR(sgd, 20, 0.5)
    curve: list[float] = []
    student.train()
    with progress.stage("student", epochs) as bar:
        for epoch in range(epochs):
            order = torch.randperm(len(images), generator=seeds.generator(seed, "order", epoch)).to(images.device)
            losses: list[tuple[Tensor, int]] = []
            for index in order.split(_BATCH):
                if len(index) < 2:  # batch normalisation needs two
                    continue
                loss = F.kl_div(
                    student(images[index]).log_softmax(1), wanted[index], reduction="batchmean", log_target=True
                )
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                losses.append((loss.detach(), len(index)))
            halving.step()
            values = torch.stack([loss for loss, _ in losses]).tolist() if losses else []
            total = sum(value * size for value, (_, size) in zip(values, losses, strict=True))
            curve.append(total / len(images))
            bar.advance(1, divergence=curve[-1])
    return student.eval().requires_grad_(False), curve
