"""What both forms of Gong et al.'s defence share: two kinds of generated pictures and a focal loss on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.defense import Step
from leakscope.core.model import SplitModel
from leakscope.defenses._encoding import deployed
from leakscope.defenses._gan import Generator, normal, onehot

#: Step of the inner attacker in the generator's random vectors.
_RATE = 0.1


class Deceiver(nn.Module):
    """A generator, and what an attacker who searched it would have found this epoch."""

    searched: Tensor
    pictures: Tensor
    labels: Tensor

    def __init__(self, generator: Generator, count: int, picture: tuple[int, int, int]) -> None:
        super().__init__()
        self.generator = generator
        self.register_buffer("searched", torch.tensor(-1))  # epoch of the last search
        self.register_buffer("pictures", torch.zeros(count, *picture))
        self.register_buffer("labels", torch.zeros(count, dtype=torch.long))

    def search(self, step: Step, steps: int) -> None:
        """Once an epoch: the pictures of the generator that the network as it stands is surest of."""
        if int(self.searched) == step.epoch:
            return
        classes, device = step.scores.shape[1], step.x.device
        y = torch.randint(classes, self.labels.shape, generator=step.rng, device=step.rng.device).to(device)
        z = normal(len(y), step.rng, device).requires_grad_()
        optimizer = torch.optim.Adam([z], _RATE)
        with deployed(step.split), torch.enable_grad():
            for _ in range(steps):
                loss = F.cross_entropy(step.split.run(self.generator(z, onehot(y, classes)), step.rng).scores, y)
                z.grad = torch.autograd.grad(loss, z)[0]
                optimizer.step()
        with torch.no_grad():
            self.pictures.copy_(self.generator(z, onehot(y, classes)))
        self.labels.copy_(y)
        self.searched.fill_(step.epoch)

    @torch.no_grad()
    def decoys(self, y: Tensor, classes: int, rng: torch.Generator) -> Tensor:
        """Pictures for the labels `y` that look like none of them: between two other classes."""
        pictures: Tensor = self.generator(normal(len(y), rng, y.device), other_classes(y, classes, rng))
        return pictures


def other_classes(y: Tensor, classes: int, rng: torch.Generator) -> Tensor:
    """Half of each of two classes other than y; with fewer than three classes, the mean of all: N×classes."""
    if classes < 3:
        return torch.full((len(y), classes), 1 / classes, device=y.device)
    draws = torch.rand(len(y), classes, generator=rng, device=rng.device).to(y.device)
    two = draws.scatter(1, y[:, None], -1.0).topk(2).indices
    return torch.zeros_like(draws).scatter(1, two, 0.5)


def focal_cross_entropy(scores: Tensor, y: Tensor, gamma: float) -> Tensor:
    """mean −(1 − p_y)^γ log p_y: pictures that are already learned count little."""
    log_p = scores.float().log_softmax(1).gather(1, y[:, None]).squeeze(1)
    return ((1 - log_p.exp()).clamp_min(0) ** gamma * -log_p).mean()


def focal_doubt(scores: Tensor, y: Tensor, gamma: float) -> Tensor:
    """mean p_y^γ · KL(uniform ‖ p): the surer of y, the more it is pushed to know nothing."""
    log_p = scores.float().log_softmax(1)
    classes = scores.shape[1]
    divergence = -log_p.mean(1) - torch.log(log_p.new_tensor(classes))
    return (log_p.gather(1, y[:, None]).squeeze(1).exp() ** gamma * divergence).mean()


def generated_loss(step: Step, aux: Deceiver, gamma: float, inversion_steps: int) -> Tensor:
    """Both kinds in one pass, together as many as the batch has pictures."""
    aux.generator.eval()  # the loop puts what a defence carries in training mode
    classes, count = step.scores.shape[1], len(step.y)
    with torch.autocast(step.x.device.type, enabled=False):
        aux.search(step, inversion_steps)
        fooled = step.y[: (count + 1) // 2]
        decoys = aux.decoys(fooled, classes, step.rng)
        chosen = torch.randint(len(aux.labels), (count - len(fooled),), generator=step.rng, device=step.rng.device)
        chosen = chosen.to(step.x.device)
    scores = _scores(step.split, torch.cat([decoys, aux.pictures[chosen]]), step.rng)
    kinds = scores.split([len(fooled), len(chosen)])
    return focal_cross_entropy(kinds[0], fooled, gamma) + focal_doubt(kinds[1], aux.labels[chosen], gamma)


def _scores(split: SplitModel, x: Tensor, rng: torch.Generator) -> Tensor:
    return split.run(x, rng).scores


def tuning(step: Step, start: float) -> bool:
    """Whether the share `start` of training is over; the last epoch always tunes."""
    return step.epoch >= min(start * step.epochs, step.epochs - 1)
