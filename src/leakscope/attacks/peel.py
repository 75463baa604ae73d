"""PEEL as published: residual blocks inverted one by one, from the deepest, by a penalty method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._memory import at_once
from leakscope.attacks._observed import checked_features, explainable, release_error
from leakscope.attacks._release import child
from leakscope.attacks.embedding import EmbeddingInversion
from leakscope.attacks.peeling.chain import Block, Chain
from leakscope.attacks.peeling.krylov import dot, norm, rows
from leakscope.attacks.peeling.pieces import IDENTITY, Affine, Rectifier, Smooth
from leakscope.attacks.peeling.take_apart import take_apart, why_not
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.chunks import in_chunks
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, Encoder, View
from leakscope.nn.curves import mean_curve, mean_of_finite, mean_where_finite

_CHUNK = 32
_POINTS = 20  # of the curve
_DIVERGED = 1.0  # relative fit of a block from which on its solve explains no more than zeros do


@ATTACKS.register("peel")
@dataclass(frozen=True)
class Peel(Attack):
    """Splits every activation into p − n and lets projected Adam find x, p and n together, block after block.

    min over x, p ≥ 0, n ≥ 0 of ‖y − W_s x − W_2 p‖² + λ₁ (nᵀp)² + λ₂ ‖W_1 x − p + n‖²

    from zero, 2000 steps a block, with gradients in closed form (each is one transposed convolution).
    The input of a block is the output of the one before it; what precedes the first block is inverted by
    `embedding`. PReLU and LeakyReLU with slope a: W_2(p − a∘n). Bottlenecks: one split an activation. A
    ReLU behind the sum is one more split. Attention and GELU have no split: Adam on x alone. Layers
    without shortcut (`plain_layers`, equation 8) are the same problem without W_s.

    Arif et al., "PEEL the layers and find yourself: revisiting inference-time data leakage for residual
    neural networks", 2025; equations 5 to 8, algorithm 1.

    Differs from the paper: equation 6 prints ‖W_1 x − p − n‖², whose minimum is not the block's inverse;
    the sign here follows the constraint W_1 x = p − n. `cosine` and smaller penalties are ours. The
    PyGRANSO route for tiny blocks is left out: pygranso 1.2.0 downloads as a wheel but does not run as
    installed (it declares no dependencies, and imports osqp, gurobipy and tkinter), it is AGPL-3.0, and
    the paper itself reports 30 minutes for a block of 5×8×8 against 45 seconds for the penalty. With the published
    rate and penalties single blocks reach a relative error of 1e-4 … 8e-4 here, not the 3.5e-5 … 9e-5 of table VI;
    `PRESETS["tuned"]`, in half as many steps more, does (mean over several seeds).
    """

    complementarity: float = 1000.0  # λ₁
    consistency: float = 1000.0  # λ₂
    steps: int = 2000
    learning_rate: float = 0.01
    cosine: bool = False
    plain_layers: bool = False
    shallow: EmbeddingInversion = field(default_factory=EmbeddingInversion)

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.FEATURES})
    white_box: ClassVar[bool] = True
    control: ClassVar[str] = "residual"

    def __post_init__(self) -> None:
        if min(self.complementarity, self.consistency) < 0:
            raise ValueError("complementarity and consistency are weights of penalties: 0 or more; the paper has 1000")
        if self.steps < 0 or self.learning_rate <= 0:
            raise ValueError("steps must be 0 or more and learning_rate positive; the paper has 2000 and 0.01")

    @torch.no_grad()
    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        return why_not(split, image_shape, plain_layers=self.plain_layers)

    @torch.no_grad()
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        noise = child(rng, view.device)
        features = checked_features(view, seen, "peel")
        assert isinstance(view.encoder, Encoder)
        chain = take_apart(view.encoder.split, view.image_shape, plain_layers=self.plain_layers)
        allowed = explainable(features, release_error(view, rng))
        fits: dict[str, list[Tensor]] = {block.name: [] for block in chain.blocks}
        images, finite, curves = [], [], []

        def undone(y: Tensor) -> tuple[list[tuple[str, Tensor, list[float]]], Tensor, Tensor]:
            told = []
            for block, x, fit, curve in self._peeled(chain, y):
                told.append((block.name, fit, curve))
                y = x
            pictures, usable, _ = self.shallow.invert(chain.shallow, y, view.image_shape, noise)
            return told, pictures, usable

        size = at_once(view, _CHUNK, kept=8)
        for told, pictures, usable in in_chunks(undone, features, size=size, what="peel", rngs=(noise,)):
            for name, fit, curve in told:
                fits[name].append(fit)
                curves.append(curve)
            images.append(pictures.clamp(0, 1))
            finite.append(usable)
        fit_of = {name: torch.cat(parts).cpu() for name, parts in fits.items()}  # looked at below, more than once
        peeled = list(reversed(fit_of.items()))  # in the order they were solved: a failure spreads onwards
        worst = torch.stack(list(fit_of.values())).nan_to_num(torch.inf).amax(0)
        found = Diagnostics(
            curve=mean_curve(curves),
            diverged=float((~(worst < _DIVERGED) | ~torch.cat(finite).cpu()).float().mean()),
            diverged_blocks=tuple(name for name, fit in peeled if not bool((fit < _DIVERGED).all())),
            unexplained=float((~(worst <= allowed)).float().mean()),
            unexplained_blocks=tuple(name for name, fit in peeled if not bool((fit <= allowed).all())),
            details={"blocks": {name: _summary(fit) for name, fit in fit_of.items()}},
        )
        return Reconstruction(torch.cat(images), found)

    @torch.no_grad()
    def block_inputs(self, view: View, seen: Observed, rng: torch.Generator) -> dict[str, Tensor]:
        """What the attack takes each block to have read, by the block's name, the deepest first."""
        features = checked_features(view, seen, "peel")
        assert isinstance(view.encoder, Encoder)
        chain = take_apart(view.encoder.split, view.image_shape, plain_layers=self.plain_layers)
        return {block.name: x for block, x, _, _ in self._peeled(chain, features)}

    def _peeled(self, chain: Chain, y: Tensor) -> Iterator[tuple[Block, Tensor, Tensor, list[float]]]:
        """From the deepest block on: the block, its input, how well that explains its output, and the curve."""
        for block in reversed(chain.blocks):
            x, curve = self.invert_block(block, y)
            yield block, x, norm(block(x) - y) / norm(y).clamp_min(torch.finfo(y.dtype).tiny), curve
            y = x

    def invert_block(self, block: Block, y: Tensor) -> tuple[Tensor, list[float]]:
        """The input of the block, and the objective over ‖y‖² as steps grow; the last finite input if it diverges."""
        problem = _Penalty(block, y, self.complementarity, self.consistency)
        optimizer = torch.optim.Adam(problem.variables, self.learning_rate, fused=True)
        size = dot(y, y).clamp_min(torch.finfo(y.dtype).tiny)
        kept, curve = problem.variables[0].clone(), list[Tensor]()
        every = max(1, self.steps // _POINTS)
        for step in range(self.steps):
            if self.cosine:
                turn = 0.5 * (1 + math.cos(math.pi * step / self.steps))
                optimizer.param_groups[0]["lr"] = self.learning_rate * turn
            value = problem.set_gradients(measure=step % every == 0)
            if value is not None:
                usable = value.isfinite()
                kept = torch.where(rows(usable, kept), problem.variables[0], kept)
                curve.append(mean_where_finite(value / size))
            optimizer.step()
            for part in problem.variables[1:]:
                part.clamp_(min=0)
        x = problem.variables[0]
        finite = x.flatten(1).isfinite().all(1)
        return torch.where(rows(finite, x), x, kept), torch.stack(curve).tolist() if curve else []


class _Penalty:
    """The variables x, p₁, n₁, p₂, n₂, … of one block and the gradients of its penalised objective.

    With h₀ = x and hᵢ = pᵢ − aᵢ∘nᵢ, the splits demand cᵢ = Aᵢ hᵢ₋₁ − pᵢ + nᵢ = 0; the last one, behind
    the sum, also sees the shortcut. Then ∂pᵢ = gᵢ + 2λ₁(nᵢᵀpᵢ) nᵢ − 2λ₂ cᵢ and
    ∂nᵢ = −aᵢ∘gᵢ + 2λ₁(nᵢᵀpᵢ) pᵢ + 2λ₂ cᵢ, with gᵢ the gradient with respect to hᵢ.
    """

    def __init__(self, block: Block, y: Tensor, complementarity: float, consistency: float) -> None:
        self.block, self.y = block, y
        self.complementarity, self.consistency = complementarity, consistency
        x = y.new_zeros(len(y), *block.inputs)
        self.variables = [x]
        self.maps: list[Affine] = []
        self.splits: list[Rectifier] = []
        if not block.piecewise_linear:
            return
        waiting: Affine | None = None
        shape = x
        for piece in block.branch:
            assert not isinstance(piece, Smooth)
            shape = piece(shape)
            if isinstance(piece, Affine):
                waiting = piece
                continue
            self.maps.append(waiting or IDENTITY)
            self.splits.append(piece)
            self.variables += [torch.zeros_like(shape), torch.zeros_like(shape)]
            waiting = None
        self.maps.append(waiting or IDENTITY)
        if block.outer is not None:
            self.variables += [torch.zeros_like(y), torch.zeros_like(y)]

    def set_gradients(self, *, measure: bool) -> Tensor | None:
        """Sets `.grad` of the variables; the objective of each row when asked to measure."""
        if not self.block.piecewise_linear:
            return self._set_smooth_gradient(measure)
        x, block = self.variables[0], self.block
        pairs = list(zip(self.variables[1::2], self.variables[2::2], strict=True))
        splits = self.splits if block.outer is None else [*self.splits, block.outer]
        states = [x, *(p if a.plain else p - a.slope * n for (p, n), a in zip(pairs, splits, strict=True))]
        # Forward: what each map makes of the state before it.
        reached = [apply(h) for apply, h in zip(self.maps, states, strict=False)]
        if block.shortcut is not None:
            reached[-1] = reached[-1] + block.shortcut(x)
        gaps = [z - p + n for z, (p, n) in zip(reached, pairs, strict=False)]
        last = self.y - (reached[-1] if block.outer is None else states[-1])
        # Backward: pulls[i] is the gradient with respect to the value that map i reaches.
        pulls = [2 * self.consistency * gap for gap in gaps]
        if block.outer is None:
            pulls.append(-2 * last)
        gradients = [apply.adjoint(pull) for apply, pull in zip(self.maps, pulls, strict=True)]
        if block.shortcut is not None:
            gradients[0] = gradients[0] + block.shortcut.adjoint(pulls[-1])
        if block.outer is not None:
            gradients.append(-2 * last)
        x.grad = gradients[0]
        products = [dot(p, n) for p, n in pairs]
        for (p, n), a, product, pull, g in zip(pairs, splits, products, pulls, gradients[1:], strict=False):
            weight = rows(2 * self.complementarity * product, p)
            p.grad = torch.addcmul(g - pull, weight, n)
            n.grad = torch.addcmul(pull if a.plain else pull - a.slope * g, weight, p)
        if not measure:
            return None
        value = dot(last, last)
        for gap, product in zip(gaps, products, strict=True):
            value = value + self.complementarity * product.square() + self.consistency * dot(gap, gap)
        return value

    def _set_smooth_gradient(self, measure: bool) -> Tensor | None:
        x = self.variables[0]
        s, jacobian = self.block.linearise(x)
        outer = self.block.outer
        last = self.y - (s if outer is None else outer(s))
        pull = -2 * last if outer is None else -2 * last * outer.slopes(s)
        x.grad = jacobian.adjoint(pull)
        return dot(last, last) if measure else None


def _summary(fit: Tensor) -> dict[str, float | None]:
    worst = float(fit.max())
    return {"fit": mean_of_finite(fit), "worst": worst if math.isfinite(worst) else None}


#: As published, and what reaches the published errors of single blocks (table VI), as means over seeds.
PRESETS: dict[str, Peel] = {
    "published": Peel(),
    "tuned": Peel(complementarity=10.0, consistency=10.0, steps=3000, learning_rate=0.1, cosine=True),
}
