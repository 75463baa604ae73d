"""Conditional entropy by slot attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.defense import DEFENSES
from leakscope.defenses._classes import Groups
from leakscope.defenses._gates import hidden_width
from leakscope.defenses._slots import (
    SlotAttention,
    SlotSettings,
    effective_share_of_slots,
    rows,
    slot_attention,
    slot_moments,
)
from leakscope.defenses._surrogate import DIRECTIONS, DirectedForm, Watched, class_average, excess, gradient_times


class Rewriting(nn.Module):
    """What the published form learns beside its slots: cross-attention, gates, margin and slope.

    It counts its calls: the first `silent_calls` of them are without penalty.
    """

    calls: Tensor

    def __init__(self, width: int, settings: SlotSettings) -> None:
        super().__init__()
        hidden = hidden_width(width)
        self.settings = settings
        self.attention = nn.MultiheadAttention(width, settings.heads, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.strengths = nn.Parameter(torch.full((2,), 0.1))
        self.by_variance = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)
        )
        self.hinge_slope = nn.Parameter(torch.tensor(settings.hinge_slope))
        self.margin = nn.Parameter(torch.tensor(settings.margin))
        self.register_buffer("calls", torch.tensor(0))

    def tokens(self, x: Tensor, slots: Tensor) -> Tensor:
        """Samples rewritten by their slots: C×M×D."""
        first, second = self.strengths.tanh()
        x = x + first * self.attention(x, slots, slots, need_weights=False)[0]
        rewritten: Tensor = x + second * self.feed(x)
        return rewritten

    def penalties(self, mean: Tensor, variance: Tensor, log_threshold: float) -> tuple[Tensor, Tensor]:
        """g_d · g_snr · h and the gates g_d · g_snr themselves: C×S×D."""
        ratio = variance / (mean.square() + 1e-6)
        by_ratio = (self.settings.ratio_slope * (ratio - self.settings.ratio_threshold)).sigmoid()
        above = variance.log() - log_threshold - self.margin
        hinge = F.softplus(self.hinge_slope * above) / (self.hinge_slope + 1e-6)
        gates: Tensor = self.by_variance(variance.log()).sigmoid() * by_ratio
        return gates * hinge, gates

    @torch.no_grad()
    def allowed(self, gates: Tensor) -> Tensor:
        """1, or 0 for an early call and for gates open too wide: multiplied by it, a loss keeps its graph."""
        self.calls += 1
        return ((self.calls > self.settings.silent_calls) & (gates.mean() <= self.settings.widest_gate)).float()


class Slots(Watched):
    """Slot attention, what is learned beside it, and the watch on both."""

    def __init__(self, attention: SlotAttention, rewriting: Rewriting | None) -> None:
        super().__init__()
        self.attention = attention
        self.rewriting = rewriting


@DEFENSES.register("cem-slot", revision=2)
@dataclass(frozen=True)
class CEMSlot(DirectedForm):
    """Shrinks the variance of each class around slots, a learned mixture, to the level of the noise.

        L = λ f(η) s · Σ_c (M_c/B) ℓ_c / Σ_c (M_c/B),   ℓ_c = Σ_k w_ck · mean_d h(v_ckd),   w_ck ∝ (m_ck/M_c)^p
        r_mk = softmax_k β cos(x_m, slot_k),   m_ck = Σ_m r_mk,   v_ck = Σ_m r_mk (x_m − μ_ck)² / m_ck

    over classes with M_c ≥ 3 samples in the batch, s being `scale`, from epoch `warmup` on.

    The `form` says whom the slots serve. "published": x is the feature after a learned LayerNorm,
    rewritten by cross-attention to the slots, h(v) = g_d · g_snr · softplus(β_s(log v − log τ − m₀))/β_s with
    learned gates, slope and margin, ℓ_c is gated by class size, and all of it descends the penalty; the first
    `silent_calls` batches have no penalty, nor have those in which the gates are open wider than `widest_gate`.
    "adversarial": slots see detached, normalised features (projected to fewer dimensions, for speed, when
    responsibilities are formed) and ascend the penalty, x is the raw feature in the
    units of τ = ρσ², h(v) = max(0, log v − log τ), and there are no gates. "detached": as that, with
    slots as they were drawn. `settings` holds sizes, and the constants for which the report has no value.

    The interim report "Investigation of defence mechanisms against model inversion attacks", 2025, algorithm 2;
    slots after Locatello et al., "Object-centric learning with slot attention", 2020.

    Differs from the paper: the default form, above. Where report and slot attention disagree (softmax
    axis, √D, place of the residual MLP), slot attention is followed. With 8 slots for 13 samples of a
    class, a variance has fewer than two samples behind it: see effective sample share in the notes.
    """

    scale: float = 0.25
    warmup: int = 3
    settings: SlotSettings = field(default_factory=SlotSettings)

    def learned(self, width: int, rng: torch.Generator) -> Slots:
        published = self.form == "published"
        attention = slot_attention(width, self.settings, rng, published=published)
        if not published:
            return Slots(attention, None)
        with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "rewriting"):
            return Slots(attention, Rewriting(width, self.settings))

    def surrogate(self, learned: Slots, rng: torch.Generator, z: Tensor, classes: Groups) -> tuple[Tensor, Tensor]:
        if learned.rewriting is None:
            losses, responsibilities = self._fixed(learned.attention, z, classes, rng)
        else:
            losses, responsibilities = self._published(learned.attention, learned.rewriting, z, classes, rng)
        share = effective_share_of_slots(responsibilities, classes)
        return self.scale * class_average(classes, losses, least=3), share

    def _published(
        self, attention: SlotAttention, rewriting: Rewriting, z: Tensor, classes: Groups, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        x = attention.tokens(z, classes)
        slots = attention(x, rng)
        responsibilities = attention.responsibilities(x, slots)
        mass, mean, variance = slot_moments(rewriting.tokens(x.values, slots), responsibilities)
        log_threshold = log(max(self.rho * self.sigma**2, 1e-8) + 1e-6)
        penalties, gates = rewriting.penalties(mean, variance.clamp_min(1e-4), log_threshold)  # C×S×D
        size = classes.count / len(z)
        gate = (self.settings.class_slope * (size - self.settings.class_centre)).sigmoid()
        losses = gate * (attention.shares(mass, classes) * penalties.mean(2)).sum(1)
        return rewriting.allowed(gates) * losses, responsibilities

    def _fixed(
        self, attention: SlotAttention, z: Tensor, classes: Groups, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        x = attention.tokens(z.detach(), classes)
        responsibilities = attention.responsibilities(x, attention(x, rng))
        responsibilities = gradient_times(responsibilities, DIRECTIONS[self.form])
        mass, _, variance = slot_moments(rows(z, classes).values, responsibilities)
        penalties = excess(variance, self.sigma, self.rho).mean(2)
        return (attention.shares(mass, classes) * penalties).sum(1), responsibilities
