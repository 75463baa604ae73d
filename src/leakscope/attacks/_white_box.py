"""The network in the attacker's hands: scores, and the features that its last linear layer reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leakscope.attacks._release import child
from leakscope.core.model import SplitModel
from leakscope.core.threat import View


class WhiteBox:
    """The granted network, differentiable in its pictures.

    A release that is random draws from one generator for the whole batch: only then do the numbers of a
    class depend on what else is attacked with it.
    """

    def __init__(self, view: View, rng: torch.Generator) -> None:
        self.network: SplitModel = view.network
        self._rng = child(rng, view.device)
        self._last: nn.Module | None = None

    def scores(self, images: Tensor) -> Tensor:
        return self.network.run(images, self._rng).scores

    def scores_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and flat penultimate features: the input of the last linear layer, or the features at the cut."""
        if self._last is None:
            self._last = self._last_linear(images[:1])
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
            kept.append(args[0])

        handle = self._last.register_forward_pre_hook(keep)
        try:
            whole = self.network.run(images, self._rng)
        finally:
            handle.remove()
        return whole.scores, (kept[-1] if kept else whole.features).flatten(1)

    @torch.no_grad()
    def _last_linear(self, example: Tensor) -> nn.Module:
        """The layer that gives the scores; one that never runs when they come from no linear layer."""
        ran: list[tuple[nn.Module, torch.Size]] = []
        linear = [module for module in self.network.modules() if isinstance(module, nn.Linear)]
        handles = [m.register_forward_hook(lambda own, args, out: ran.append((own, out.shape))) for m in linear]
        try:
            scores = self.scores(example)
        finally:
            for handle in handles:
                handle.remove()
        return ran[-1][0] if ran and ran[-1][1] == scores.shape else nn.Identity()
