"""A generator with a mapping network in front of it."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from leakscope.core.prior import Generator
from leakscope.priors._mapping import Mapping
from leakscope.priors._modulation import SLOPE


class StyledGenerator(Generator):
    """z → mapping → w → synthesis (N×layers×style to raw pictures) → `finish` (to [0, 1] and the wanted size)."""

    slope = SLOPE

    def __init__(
        self,
        shape: tuple[int, int, int],
        latent: int,
        mapping: Mapping,
        synthesis: nn.Module,
        finish: Callable[[Tensor], Tensor],
        *,
        critic: nn.Module | None = None,
        opinion: Callable[[Tensor], Tensor] | None = None,
        hidden_maps: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        self.mapping, self.synthesis, self.critic = mapping, synthesis, critic
        self._finish, self._opinion = finish, opinion
        self.hidden_maps = hidden_maps  # the synthesis takes changes of its hidden maps

    @property
    def style(self) -> int:
        return len(self.mapping.w_avg)

    @property
    def layers(self) -> int:
        count = self.synthesis.layers
        assert isinstance(count, int)
        return count

    def to_style(self, z: Tensor, truncation: float = 1.0) -> Tensor:
        return self.mapping.truncated(z, truncation)

    def from_style(self, w: Tensor) -> Tensor:
        styles = w if w.ndim == 3 else w[:, None].expand(-1, self.layers, -1)
        return self._finish(self.synthesis(styles))

    def decode(self, z: Tensor) -> Tensor:
        return self.from_style(self.to_style(z))

    @property
    def blocks(self) -> int:
        return self.layers if self.hidden_maps else 0

    def hidden(self, w: Tensor, block: int, changes: abc.Mapping[int, Tensor]) -> Tensor:
        synthesis: Any = self.synthesis
        found: Tensor = synthesis.hidden(w, block, changes)
        return found

    def from_hidden(self, w: Tensor, changes: abc.Mapping[int, Tensor]) -> Tensor:
        return self._finish(self.synthesis(w, changes)) if changes else self.from_style(w)

    def implausibility(self, images: Tensor) -> Tensor:
        if self.critic is None or self._opinion is None:
            return super().implausibility(images)
        return self._opinion(self.critic(images))
