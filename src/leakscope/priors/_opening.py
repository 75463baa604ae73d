"""A start for generators: learn the principal components by regression, before there is an opponent."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core import progress, seeds
from leakscope.priors._game import Players
from leakscope.priors.linear import principal


def imitate_components(
    players: Players, images: Tensor, *, latent: int, steps: int, batch: int, seed: int, learning_rate: float = 1e-3
) -> None:
    """Fit G(z) ≈ clip(x̄ + Σ_k z_k σ_k u_k) by least squares: `steps` steps that need no critic.

    The linear prior takes a second and has the layout of the pictures right; a game that begins there
    spends its steps on what is not linear. Adversarial training may then move anywhere.
    """
    if steps == 0:
        return
    device = next(players.parameters()).device
    rows = images.flatten(1).to(device)
    count = min(latent, len(rows) - 1, rows.shape[1])
    mean = rows.mean(0)
    deviations, directions = principal(rows - mean, count, seeds.generator(seed, "opening", "start"))
    spread = deviations[:, None] * directions
    optimizer = torch.optim.Adam(players.generator.parameters(), learning_rate, betas=(0.9, 0.99), foreach=True)
    players.train()
    with progress.stage("opening", steps) as bar:
        for step in range(steps):
            rng = seeds.generator(seed, "opening", step, device=device)
            z = torch.randn(batch, latent, generator=rng, device=device)
            aim = (mean + z[:, :count] @ spread).clamp(0, 1).view(-1, *images.shape[1:])
            loss = F.mse_loss(players.generator(z), aim)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            bar.advance()
    players.average.load_state_dict(players.generator.state_dict())
