"""The parameter-free attack: linear picture, learnt correction, refinement; each kept where it helps."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from leakscope.attacks._campaign import ENOUGH, Campaign, Effort, Refinement, at_once
from leakscope.attacks._correction import Correction, Size
from leakscope.attacks._expectation import learn_release
from leakscope.attacks._linear import Linear
from leakscope.attacks._refine import Held, refine
from leakscope.attacks._residual import Eyes, corrected
from leakscope.attacks._sights import Reader
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.devices import brought
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View

_PROBES = 32  # pictures on which a release is studied

_EFFORTS: dict[str, Effort] = {
    "quick": Effort((2.6, 7.8), 0, 2, 32, (4e-3,), (32, 1), (1.0,), (40, 160), 15.0, 0.02, 0.99),
    "full": Effort((4.0, 28.0), 7, 2, 32, (5e-3, 2e-3), (48, 2), (0.3, 1.0), (40, 320), 240.0, 0.01, 0.9995),
}


@ATTACKS.register("auto", revision=7)
@dataclass(frozen=True)
class Auto(Attack):
    """Does what the threat allows, cheapest first, and keeps what helps on pictures of its own.

    Three stages, each judged on a held-out part of the public pictures:

        x₀ = ridge(z)                                    on the release, or on the server's own activations
        x₁ = x₀ + s·D_θ(z, x₀),  D_θ = 0 at the start    trained on fresh releases of shifted pictures
        x₂ = argmin ‖E[release(encoder(x))] − z‖²/2σ² + w·½(x − x₁)ᵀC⁻¹(x − x₁)      where the encoder is granted

    C is the covariance of the errors of x₁ on pictures it did not learn from, or of pictures around their mean, as
    validation decides; so it does about sights, rate, width, w and the number of steps. D_θ is trained in rounds,
    each twice as long as the one before, until a round brings nothing; its weights are averaged. `converged` says
    that the last doubling of training gained less than 0.01 leak on validation (quick: 0.02), or that the leak is
    above 0.99. Where a residual encoder is granted, its own solver (`peel-exact`, or `e2e-lbfgs`) is tried as well, and
    each victim gets the picture that explains its features better. A refinement through a dear encoder is cut short,
    or left out, by a counted price, never by a clock.
    `anytime` says what was reached after how many CPU seconds.

    In the spirit of Croce & Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse
    parameter-free attacks" (AutoAttack), 2020. Ridge: Hoerl & Kennard, 1970; decoders: Dosovitskiy & Brox, 2016;
    averaged weights: Polyak & Juditsky, 1992; orthogonal steps: Jordan et al., "Muon", 2024.
    """

    effort: Literal["quick", "full"] = "quick"
    seconds: float | None = None  # CPU seconds after which it ends with what it has; None: when it has converged

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY})
    white_box: ClassVar[bool] = True
    averages_noise: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def longer(self) -> Auto | None:
        return replace(self, effort="full", seconds=None) if self.effort == "quick" or self.seconds else None

    def __post_init__(self) -> None:
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError("seconds must be positive, or None to go on until nothing is gained")

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        campaign = Campaign.begin(view, _EFFORTS[self.effort], self.seconds, rng)
        if campaign is None:
            return Prepared(diagnostics=Diagnostics(details={"rows": 0}))
        watch = campaign.watch
        eyes, judge, offsets = campaign.read()
        model, network, converged = campaign.study(), None, True
        tensors: dict[str, Tensor] = {}
        refinement: Refinement | None = None
        paid = 0 if model is None else campaign.affordable(model, judge)
        if paid:
            campaign.solve(judge, paid)
        unsolved = "solver" not in campaign.plan or watch.leak(watch.curve[-1]) < campaign.effort.solved
        if model is not None and paid >= campaign.effort.iterations[1] and unsolved and not watch.over:
            refinement = campaign.refined(model, judge, judge.guess(None), paid, thorough=False)
            watch.note(_expected(judge(None), refinement))
        if watch.leak(watch.curve[-1]) < campaign.effort.solved and not watch.over:
            learnt = campaign.correct(eyes, judge, offsets)
            converged, network = learnt.converged, learnt.network
            if model is not None and paid:
                again = campaign.refined(model, judge, judge.guess(network), paid, thorough=True)
                refinement = _better(refinement, judge(None), again, judge(network))
                network = None if refinement is not None and refinement is not again else network
                watch.note(_expected(judge(network), refinement))
            if network is not None:
                tensors |= {f"net.{name}": tensor.contiguous() for name, tensor in network.state_dict().items()}
                campaign.plan |= {"size": [learnt.size.width, learnt.size.depth, int(learnt.size.dense)]}
        for number, reader in enumerate(eyes.readers.values()):
            tensors |= {f"sight{number}.center": reader.center, f"sight{number}.scale": reader.scale}
        tensors |= {"front.center": eyes.front.center, "front.scale": eyes.front.scale}
        tensors |= {f"linear.{name}": tensor.contiguous() for name, tensor in eyes.linear.tensors.items()}
        plan = {**campaign.plan, "unit": judge.unit, "bounds": list(judge.bounds), "shape": [*judge.features.shape[1:]]}
        if refinement is not None:
            tensors["held.precision"] = refinement.held.precision.contiguous()
            if refinement.held.mean is not None:
                tensors["held.mean"] = refinement.held.mean
            plan |= {"prior": refinement.kind, "weight": refinement.weight, "iterations": refinement.iterations}
        tensors["plan"] = torch.tensor(list(json.dumps(plan).encode()), dtype=torch.uint8)
        converged = (converged or watch.leak(watch.curve[-1]) > ENOUGH) and not watch.over
        found = Diagnostics(curve=tuple(watch.curve), converged=converged, anytime=tuple(watch.anytime), details=plan)
        return Prepared(tensors, found)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        if seen.features is None:
            raise ValueError("auto rebuilds observed inputs; it was handed no features")
        if not prepared.tensors:
            mean = view.public.images.mean(0).to(view.device)
            return Reconstruction(mean.expand(len(seen), *mean.shape).clone(), prepared.diagnostics)
        plan = json.loads(bytes(prepared.tensors["plan"].tolist()).decode())
        tensors = {name: brought(tensor, view.device) for name, tensor in prepared.tensors.items() if name != "plan"}
        every = [seen.features.to(view.device), *([] if seen.repeats is None else seen.repeats.to(view.device))]
        images = torch.stack([_guessed(view, tensors, plan, z) for z in every]).mean(0)
        if "held.precision" in tensors and Access.ENCODER in view:
            with torch.no_grad():
                clean = view.encoder(view.public.images[:_PROBES].to(view.device))
            model = learn_release(view.defense, clean, 8, rng)
            held = Held(tensors["held.precision"], tensors.get("held.mean"))
            z = torch.stack(every).mean(0) if model.additive else every[0]
            repeats = len(every) if model.additive else 1
            images = refine(view, model, z, images, held, plan["weight"], plan["iterations"], repeats=repeats)
        if "solver" in plan and Access.ENCODER in view:
            solved = ATTACKS.build(plan["solver"]).reconstruct(view, Prepared(), Observed(every[0]), rng).images
            better = _misfit(view, solved, every[0]) < _misfit(view, images, every[0])
            images = torch.where(better[:, None, None, None], solved, images)
        return Reconstruction(images.contiguous(), prepared.diagnostics)


def _guessed(view: View, tensors: dict[str, Tensor], plan: dict[str, Any], z: Tensor) -> Tensor:
    """Linear picture and correction for one observation of every victim, in batches as the server gets them."""
    readers = {
        name: Reader(tensors[f"sight{number}.center"], tensors[f"sight{number}.scale"], weight)
        for number, (name, weight) in enumerate(plan["sights"].items())
    }
    named = {name.removeprefix("linear."): tensor for name, tensor in tensors.items() if name.startswith("linear.")}
    eyes = Eyes(view, readers, Reader(tensors["front.center"], tensors["front.scale"]), Linear(named))
    network: Correction | None = None
    if "size" in plan:
        width, depth, dense = plan["size"]
        network = Size(width, depth, bool(dense)).build(tuple(plan["shape"]), view.image_shape, 0).to(view.device)
        weights = {name.removeprefix("net."): tensor for name, tensor in tensors.items() if name.startswith("net.")}
        network.load_state_dict(weights)
    bounds = (plan["bounds"][0], plan["bounds"][1])
    return torch.cat(
        [corrected(network, *eyes(chunk), plan["unit"], bounds) for chunk in z.split(at_once(view, z[:1]))]
    )


@torch.no_grad()
def _misfit(view: View, images: Tensor, z: Tensor) -> Tensor:
    """By how much the features of each picture miss those that were seen."""
    pairs = zip(images.split(_PROBES), z.split(_PROBES), strict=True)
    return torch.cat([(view.encoder(x) - seen).flatten(1).square().sum(1) for x, seen in pairs])


def _expected(error: float, refinement: Refinement | None) -> float:
    """The error on all validation pictures, if a refinement helps there as it did on some."""
    return error if refinement is None else error * refinement.error / refinement.before


def _better(first: Refinement | None, guess: float, second: Refinement | None, learnt: float) -> Refinement | None:
    """The refinement of the linear picture only where neither the network nor its refinement does as well."""
    if first is None:
        return second
    return first if _expected(guess, first) < _expected(learnt, second) else second
