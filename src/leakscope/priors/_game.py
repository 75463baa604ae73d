"""The one adversarial training loop: two networks, an average of one of them, resumable at any step."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core import progress, seeds
from leakscope.core.checkpoint import load_checkpoint, save_checkpoint
from leakscope.core.errors import UsageError
from leakscope.nn.averages import follow, warmed_up
from leakscope.nn.precision import Precision, computing

_FOLLOWED = 50  # steps between two points of the loss curves
_SECONDS = 10  # between two checkpoints, at the least


class Players(nn.Module):
    """A generator, its critic, and the running average of the generator that is kept in the end."""

    def __init__(self, generator: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.generator, self.critic = generator, critic
        self.average = copy.deepcopy(generator).requires_grad_(False)

    def fake(self, count: int, latent: int, rng: torch.Generator) -> Tensor:
        """Pictures of random latents."""
        images: Tensor = self.generator(torch.randn(count, latent, generator=rng, device=rng.device))
        return images

    def kept(self) -> dict[str, Tensor]:
        """The tensors of the averaged generator, `network.…`, and of the critic, `critic.…`."""
        return {
            f"{part}.{name}": tensor.contiguous()
            for part, network in (("network", self.average), ("critic", self.critic))
            for name, tensor in network.state_dict().items()
        }


class Rules(ABC):
    """The losses of a game. Every random number comes from the generator that is handed over."""

    @abstractmethod
    def critic_loss(self, players: Players, step: int, rng: torch.Generator) -> Tensor: ...

    @abstractmethod
    def generator_loss(self, players: Players, step: int, rng: torch.Generator) -> Tensor: ...


class Batches:
    """Public pictures in random batches, each independent of the last."""

    def __init__(self, images: Tensor, size: int, device: torch.device) -> None:
        self.images, self.size, self.device = images, min(size, len(images)), device

    def draw(self, rng: torch.Generator) -> Tensor:
        index = torch.randint(len(self.images), (self.size,), generator=rng, device=rng.device)
        return self.images[index.cpu()].to(self.device)


@dataclass(frozen=True)
class Pace:
    """How long and how fast a game is played."""

    steps: int  # of the generator
    critic_steps: int  # of the critic for each of the generator's
    learning_rate: float
    decay: float  # of the average: β in θ̄ ← βθ̄ + (1 − β)θ
    betas: tuple[float, float] = (0.5, 0.99)
    precision: Precision = "float32"


@dataclass
class Course:
    """What a game looked like."""

    critic: list[float] = field(default_factory=list)
    generator: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def notes(self) -> dict[str, Any]:
        return {"curve": {"critic": self.critic, "generator": self.generator}, "seconds": round(self.seconds, 1)}


def play(
    players: Players,
    rules: Rules,
    pace: Pace,
    *,
    seed: int,
    name: str,
    identity: str,
    checkpoint: Path | None,
    opening: Callable[[], None] | None = None,
) -> Course:
    """Play to the end, from the checkpoint in the folder `checkpoint` when it has one.

    Each step draws from a generator named after it, so nothing about randomness need be saved.
    `identity` says whose game it is: a checkpoint of another is refused. `opening` runs before the
    first step, and not when a checkpoint lies beyond it.
    """
    networks = (players.generator, players.critic)
    optimizers = [
        torch.optim.Adam(net.parameters(), pace.learning_rate, betas=pace.betas, foreach=True) for net in networks
    ]
    course, first = Course(), 0
    started = saved = time.monotonic()
    path = None if checkpoint is None else checkpoint / f"{name}.pt"
    if path is not None:
        first = _resume(path, identity, players, optimizers, course)
    if first == 0 and opening is not None:
        opening()
    device = next(players.parameters()).device
    before = course.seconds
    players.train()
    with progress.stage(name, pace.steps) as bar:
        bar.advance(first)
        for step in range(first, pace.steps):
            rng = seeds.generator(seed, name, step, device=device)
            players.generator.requires_grad_(False)
            for _ in range(pace.critic_steps):
                with computing(pace.precision, device):
                    loss = rules.critic_loss(players, step, rng)
                critic_loss = _descend(loss, optimizers[1])
            players.generator.requires_grad_(True)
            players.critic.requires_grad_(False)
            with computing(pace.precision, device):
                loss = rules.generator_loss(players, step, rng)
            generator_loss = _descend(loss, optimizers[0])
            players.critic.requires_grad_(True)
            follow(players.average, players.generator, warmed_up(pace.decay, step))
            bar.advance()
            if step % _FOLLOWED == _FOLLOWED - 1 or step == pace.steps - 1:
                losses = critic_loss.item(), generator_loss.item()
                if not all(map(torch.isfinite, (critic_loss, generator_loss))):
                    raise UsageError(f"prior {name} diverged at step {step + 1}; lower learning_rate")
                course.critic.append(losses[0])
                course.generator.append(losses[1])
                bar.advance(0, critic=losses[0], generator=losses[1])
            course.seconds = before + time.monotonic() - started
            if path is not None and time.monotonic() - saved > _SECONDS:
                _save(path, identity, step + 1, players, optimizers, course)
                saved = time.monotonic()
    return course


def _descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _save(
    path: Path, identity: str, step: int, players: Players, optimizers: list[torch.optim.Adam], course: Course
) -> None:
    state = {
        "identity": identity,
        "step": step,
        "players": players.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "course": vars(course),
    }
    save_checkpoint(path, state)


def _resume(path: Path, identity: str, players: Players, optimizers: list[torch.optim.Adam], course: Course) -> int:
    state = load_checkpoint(path, next(players.parameters()).device)
    if state is None:
        return 0
    if state["identity"] != identity:
        raise UsageError(f"checkpoint {path} belongs to another prior; delete it to begin again")
    players.load_state_dict(state["players"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    vars(course).update(state["course"])
    return int(state["step"])
