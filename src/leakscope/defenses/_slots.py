"""Slot attention over the samples of a class: a mixture whose components are learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.defenses._classes import Groups
from leakscope.defenses._drawing import blank
from leakscope.defenses._gates import hidden_width
from leakscope.defenses._weight import refuse_not_positive

#: Attention over D features has some 10·D² weights; beyond this they outgrow the network they protect.
_WIDEST = 4096


@dataclass(frozen=True)
class SlotSettings:
    """Sizes and constants of slot attention; the report gives no value for those below `sharpness`."""

    slots: int = 8
    rounds: int = 3
    heads: int = 4
    sharpness: float = 2.5  # p: slots weigh by their mass to this power
    temperature: float = 5.0  # β of the responsibilities
    ratio_slope: float = 1.0  # β_snr
    ratio_threshold: float = 1.0  # t_snr
    hinge_slope: float = 5.0  # β_s, then learned
    margin: float = 0.0  # m₀, then learned
    class_slope: float = 10.0  # a_c
    class_centre: float = 0.0  # b_c
    silent_calls: int = 50  # N: the published form has no penalty in its first calls
    widest_gate: float = 0.95  # nor where its gates are open wider than this on average

    def __post_init__(self) -> None:
        if min(self.slots, self.rounds, self.heads) < 1:
            raise ValueError("slots, rounds and heads must be at least 1")
        if self.silent_calls < 0 or not 0 < self.widest_gate <= 1:
            raise ValueError("silent_calls must be 0 or more, and widest_gate above 0 and at most 1")
        refuse_not_positive(sharpness=self.sharpness, temperature=self.temperature, hinge_slope=self.hinge_slope)


@dataclass(frozen=True)
class Rows:
    """The samples of each class side by side: C×M×D, with a mask C×M of the places that are filled."""

    values: Tensor
    mask: Tensor


def rows(x: Tensor, classes: Groups) -> Rows:
    """N×D to C×M×D, M being the size of the largest class."""
    groups, most = len(classes.count), int(classes.count.max())
    place = classes.index * most + classes.ranks()
    values = x.new_zeros(groups * most, x.shape[1]).index_copy(0, place, x)
    mask = x.new_zeros(groups * most).index_fill(0, place, 1.0)
    return Rows(values.view(groups, most, -1), mask.view(groups, most))


class SlotAttention(nn.Module):
    """Locatello et al., 2020: slots compete for samples (softmax over slots), and each averages its share.

    As published, slots are as wide as the features and the normalisation before them is learned. Otherwise
    samples are told apart in a narrower space: variances are those of the features in any case, and D² weights
    are what the surrogate costs.
    """

    def __init__(self, features: int, settings: SlotSettings, *, published: bool) -> None:
        super().__init__()
        self.settings = settings
        width = features if published else hidden_width(features)
        self.norm = nn.LayerNorm(features, elementwise_affine=published)
        self.reduce = nn.Identity() if published else nn.Linear(features, width, bias=False)
        self.mean = nn.Parameter(torch.randn(width) * width**-0.5)
        self.log_deviation = nn.Parameter(torch.zeros(width))
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.cell = nn.GRUCell(width, width)
        self.before_query, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        hidden = hidden_width(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def tokens(self, z: Tensor, classes: Groups) -> Rows:
        """Features N×D as the slots see them."""
        return rows(self.reduce(self.norm(z)), classes)

    def forward(self, x: Rows, rng: torch.Generator) -> Tensor:
        """Slots: C×S×D."""
        classes, _, width = x.values.shape
        shape = x.values.new_empty(classes, self.settings.slots, width)
        noise = blank(shape, rng).normal_(generator=rng).to(shape.device)
        slots = self.mean + self.log_deviation.exp() * noise
        key, value = self.key(x.values), self.value(x.values)
        for _ in range(self.settings.rounds):
            query = self.query(self.before_query(slots))
            attention = (key @ query.mT * width**-0.5).softmax(2) * x.mask[..., None]  # C×M×S
            attention = attention / (attention.sum(1, keepdim=True) + 1e-8)
            update = attention.mT @ value  # C×S×D
            slots = self.cell(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            slots = slots + self.mlp(self.before_mlp(slots))
        return slots

    def responsibilities(self, x: Rows, slots: Tensor) -> Tensor:
        """softmax over slots of β cos(x, slot), 0 in unfilled places: C×M×S."""
        cosine = F.normalize(x.values, dim=2) @ F.normalize(slots, dim=2).mT
        return (self.settings.temperature * cosine.float()).softmax(2) * x.mask[..., None]

    def shares(self, mass: Tensor, classes: Groups) -> Tensor:
        """(m/M)^p, summing to 1 over slots: C×S."""
        powers = (mass / classes.count[:, None]) ** self.settings.sharpness
        return powers / powers.sum(1, keepdim=True)


def slot_moments(x: Tensor, responsibilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass C×S, mean and variance C×S×D of samples C×M×D under their responsibilities."""
    x = x.float()
    mass = responsibilities.sum(1) + 1e-8
    average = (responsibilities / mass[:, None]).mT  # C×S×M
    # E[x²] − E[x]² loses its digits far from 0 and does not depend on the origin, which is put in the
    # middle of the class; the deviations themselves would be C×M×S×D numbers.
    filled = (responsibilities.sum(2, keepdim=True) > 0).to(x.dtype)
    origin = ((x * filled).sum(1, keepdim=True) / filled.sum(1, keepdim=True)).detach()
    around = x - origin
    with torch.autocast(x.device.type, enabled=False):
        mean = average @ around
        variance = (average @ around.square() - mean.square()).clamp_min(0)
    return mass, mean + origin, variance


def effective_share_of_slots(responsibilities: Tensor, classes: Groups) -> Tensor:
    """The effective share of a class's samples behind a slot, in the mean over slots by mass: C."""
    with torch.no_grad():
        mass = responsibilities.sum(1)
        size = mass.square() / responsibilities.square().sum(1).clamp_min(1e-12)  # C×S
        return (mass * size).sum(1) / classes.count.square()


def slot_attention(features: int, settings: SlotSettings, rng: torch.Generator, *, published: bool) -> SlotAttention:
    """Slots for so many features, with weights drawn from `rng`."""
    if published and features > _WIDEST:
        raise UsageError(
            f"published slots over {features} features would outgrow the network; cut where there are at most "
            f"{_WIDEST}, put a bottleneck first, or take form=adversarial"
        )
    if published and features % settings.heads:
        raise UsageError(f"{settings.heads} heads do not divide {features} features; choose other heads")
    with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "slots"):
        return SlotAttention(features, settings, published=published)
