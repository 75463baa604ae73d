"""A generator with a mapping network in front of it."""

from __future__ import annotations

from collections.abc import Callable

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
    ) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        self.mapping, self.synthesis, self.critic = mapping, synthesis, critic
        self._finish, self._opinion = finish, opinion

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

    def implausibility(self, images: Tensor) -> Tensor:
        if self.critic is None or self._opinion is None:
            return super().implausibility(images)
        return self._opinion(self.critic(images))
