"""Training that no single private picture can change much."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import gcd
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._drawing import blank
from leakscope.defenses._weight import refuse_not_positive

#: Numbers in the per-sample gradients held at once: 256 MB.
_LARGEST = 2**26

WARNING = (
    "differential privacy covers the pictures it was trained on; "
    "features and scores of a picture sent at inference are not hidden by it"
)


class Ledger(nn.Module):
    """How often the private data were asked, and how much of them each time."""

    steps: Tensor
    expected: Tensor
    total: Tensor

    def __init__(self, replaced: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("expected", torch.tensor(0))  # pictures a batch has on average
        self.register_buffer("total", torch.tensor(0))
        self.replaced = replaced
        self.data: ImageSet | None = None  # the training set; batches are drawn from it

    @property
    def rate(self) -> float:
        """The chance q of a picture to be in a batch; whole numbers, not q, are kept: some devices have no float64."""
        return int(self.expected) / max(1, int(self.total))


def _by_groups(layer: nn.Module) -> nn.GroupNorm:
    """A group normalisation with the same scale and shift."""
    channels: int = layer.num_features  # type: ignore[assignment]
    # Groups of two channels or more: one of a single number would always be 0.
    flat = isinstance(layer, nn.BatchNorm1d)
    groups = 1 if flat or channels % 2 else gcd(8, channels // 2)
    norm = nn.GroupNorm(groups, channels, affine=layer.weight is not None)
    if layer.weight is not None:
        norm.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        norm.to(layer.weight)  # type: ignore[arg-type]
    return norm.train(layer.training)


def _exchanged(model: nn.Module) -> int:
    """Exchange batch normalisations in place and let nothing work in place; gives how many were exchanged."""
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    for name, layer in found.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _by_groups(layer))
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # hooks on gradients forbid it
    return len(found)


def _refuse_layers(model: nn.Module) -> None:
    from opacus.grad_sample import GradSampleHooks
    from opacus.validators import ModuleValidator

    was_training = {module: module.training for module in model.modules()}
    problems = [*ModuleValidator.validate(model.train(), strict=False), *GradSampleHooks.validate(module=model)]
    for module, training in was_training.items():
        module.training = training
    if problems:
        reason = str(problems[0]).splitlines()[0]
        raise UsageError(f"dp-sgd has no per-sample gradients for this network ({reason}); take another network")


class Linears:
    """Inputs of linear layers and gradients of their outputs, from which clipped sums follow.

    Of one picture the gradient of the weights is Σ_t g_t a_tᵀ over the rows t that the layer maps, and

        ‖Σ_t g_t a_tᵀ‖² = Σ_ts (a_t·a_s)(g_t·g_s)

    takes no product of inputs and outputs, which for a layer behind a flattened map are millions per picture.
    Goodfellow, "Efficient per-example gradient computations", 2015; for rows, Bu et al., NeurIPS 2022.
    """

    def __init__(self, model: nn.Module) -> None:
        uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        self.layers = [
            layer
            for layer in model.modules()
            if type(layer) is nn.Linear
            and layer._parameters.get("weight") is not None  # normed weights are computed anew in every pass
            and all(p.requires_grad and uses[id(p)] == 1 for p in layer.parameters())
            and not layer._forward_hooks
        ]
        self.parameters = [p for layer in self.layers for p in layer.parameters()]
        self._passed: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in self.layers}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it passes are written down, and nobody else computes gradients of these weights."""
        handles = [layer.register_forward_hook(self._watch) for layer in self.layers]
        for p in self.parameters:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in self.parameters:
                p.requires_grad_()
            for handle in handles:
                handle.remove()

    def _watch(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        if output.requires_grad:
            read = args[0].detach()
            output.register_hook(lambda gradient: self._passed[layer].append((read, gradient)))

    def taken(self) -> dict[nn.Linear, tuple[Tensor, Tensor]]:
        """Inputs n×t×d and gradients n×t×o of every layer that was passed; then forgets them."""
        found = {}
        for layer, passes in self._passed.items():
            if passes:
                rows = [[each.reshape(len(each), -1, each.shape[-1]) for each in pair] for pair in passes]
                found[layer] = torch.cat([a for a, _ in rows], 1), torch.cat([g for _, g in rows], 1)
            passes.clear()
        return found


def squares_of(layer: nn.Linear, a: Tensor, g: Tensor) -> Tensor:
    """‖gradient‖² of the layer's parameters for each of n pictures."""
    if 2 * a.shape[1] ** 2 < layer.weight.numel():
        squares = ((a @ a.mT) * (g @ g.mT)).sum((1, 2))
    else:
        squares = torch.cat([(y.mT @ x).square().sum((1, 2)) for x, y in zip(a.split(8), g.split(8), strict=True)])
    return squares if layer.bias is None else squares + g.sum(1).square().sum(1)


@contextmanager
def _sampling(model: nn.Module) -> Iterator[Linears]:
    """Within it a backward pass leaves per-sample gradients in `grad_sample` of each parameter; no trace after.

    Those of linear layers are not made: what they follow from is in what it yields.
    """
    from opacus.grad_sample import GradSampleHooks

    linears = Linears(model)
    with linears.listening():
        hooks = GradSampleHooks(model, loss_reduction="sum")
        try:
            yield linears
        finally:
            hooks.cleanup()
            for module in model.modules():
                vars(module).pop("activations", None)
                vars(module).pop("max_batch_len", None)


@DEFENSES.register("dp-sgd", revision=2)
@dataclass(frozen=True)
class DpSgd(Defense):
    """Clips the gradient of every picture and adds noise, so that training is (ε, δ)-differentially private.

        g = ( Σ_{i∈B} g_i · min(1, C/‖g_i‖) + σ C n ) / (q N),  n ~ N(0, I),  each of N pictures in B with chance q

    with σ the `noise`, C the `clip` and q the batch size over N. ε for `delta` is in the notes, by Rényi
    accounting over all steps. **It protects the pictures of training. It does not hide a picture that is sent
    to the trained network**: attacks on features at a cut are not what it is made against.

    Abadi et al., "Deep learning with differential privacy", CCS 2016; gradients and accounting by Opacus (extra
    `dp`). Constants of Dibbo et al., "Sparse coding architecture", 2024, for their baseline of Hayes et al.

    Batch normalisation mixes the pictures of a batch, which leaves no per-sample gradient: the network is
    rebuilt with group normalisation in its place (groups of two channels or more; scale and shift are kept), and
    the notes count the layers. A fair twin has the same layers.

    Differs from the paper: batches are drawn here, not by the loop, whose shuffled ones would not have the ε that
    is reported; `training.augment` therefore does not reach it. It cannot be stacked with a penalty. Early
    stopping (`patience`) looks at private pictures outside the ε.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)
    owns_backward: ClassVar[bool] = True
    from_scratch: ClassVar[bool] = True

    noise: float = 1.1
    clip: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 <= self.noise < float("inf"):
            raise ValueError("noise must be 0 (clipping alone, no guarantee) or more, such as 1.1")
        refuse_not_positive(clip=self.clip)
        if not 0 < self.delta < 1:
            raise ValueError("delta is a probability, well below one over the number of pictures, such as 1e-5")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        if find_spec("opacus") is None:
            raise UsageError("dp-sgd needs Opacus; pip install 'leakscope[dp]'")
        rebuilt = copy.copy(split)  # of the same class: another defence may have made it one of its own
        rebuilt._modules = dict(split._modules)
        rebuilt.model = copy.deepcopy(split.model)
        _exchanged(rebuilt.model)
        _refuse_layers(rebuilt.model)
        return rebuilt

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        return Ledger(sum(isinstance(layer, nn.GroupNorm) for layer in split.modules()))

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        assert isinstance(aux, Ledger)
        aux.data = data

    def backward(self, loss: Tensor, step: Step) -> None:
        if loss is not step.task_loss:
            raise UsageError("dp-sgd cannot be stacked with a penalty, which mixes the pictures of a batch; drop one")
        ledger = step.aux
        assert isinstance(ledger, Ledger)
        assert ledger.data is not None
        total, expected = len(ledger.data), len(step.x)
        draws = torch.rand(total, generator=step.rng, device=step.rng.device)
        drawn = (draws < expected / total).nonzero().flatten().cpu()
        parameters = [p for p in step.split.parameters() if p.requires_grad]
        sums = [torch.zeros_like(p) for p in parameters]
        by_parameter: dict[Tensor, Tensor] = dict(zip(parameters, sums, strict=True))
        with _sampling(step.split.model) as linears:
            room = max(1, _LARGEST // max(1, sum(p.numel() for p in parameters if p.requires_grad)))
            for part in drawn.split(room) if len(drawn) else ():
                x, y = ledger.data.images[part].to(step.x.device), ledger.data.labels[part].to(step.x.device)
                self._add(by_parameter, linears, step, x.requires_grad_(), y)
        for p, own in zip(parameters, sums, strict=True):
            if self.noise > 0:
                own = own + self.noise * self.clip * blank(p, step.rng).normal_(generator=step.rng).to(p.device)
            p.grad = own / expected
        ledger.steps += 1
        ledger.expected.fill_(expected)
        ledger.total.fill_(total)

    def _add(self, sums: dict[Tensor, Tensor], linears: Linears, step: Step, x: Tensor, y: Tensor) -> None:
        """Add Σ_i g_i · min(1, C/‖g_i‖), the norm over all parameters of a picture."""
        task = F.cross_entropy(step.split.run(x, step.rng).scores, y, reduction="sum")
        # The gradient of the pictures passes every layer, where the hooks see it; that of the
        # weights, summed over the batch, is not needed and not computed.
        torch.autograd.grad(task, x)
        samples = {p: own for p in sums if (own := getattr(p, "grad_sample", None)) is not None}
        passed = linears.taken()
        squares = [own.flatten(1).square().sum(1) for own in samples.values()]
        squares += [squares_of(layer, a, g) for layer, (a, g) in passed.items()]
        factors = self.clip / torch.stack(squares).sum(0).sqrt().clamp_min(self.clip)
        for p, own in samples.items():
            sums[p] += torch.tensordot(factors, own, 1)
            p.grad_sample = None  # type: ignore[attr-defined]
        for layer, (a, g) in passed.items():
            weighted = factors[:, None, None] * g
            sums[layer.weight] += weighted.flatten(0, 1).T @ a.flatten(0, 1)
            if layer.bias is not None:
                sums[layer.bias] += weighted.sum((0, 1))

    def epsilon(self, rate: float, steps: int) -> float | None:
        """ε for `delta`; None when there is no guarantee."""
        if self.noise == 0:
            return None
        from opacus.accountants import RDPAccountant

        accountant = RDPAccountant()
        accountant.history = [(self.noise, rate, steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that another order might be a little tighter
            return float(accountant.get_epsilon(delta=self.delta))

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        assert isinstance(aux, Ledger)
        aux.data = None
        steps, rate = int(aux.steps), aux.rate
        return {
            "epsilon": self.epsilon(rate, steps) if steps else 0.0,
            "delta": self.delta,
            "sample_rate": rate,
            "steps": steps,
            "group_normalisations": aux.replaced,
            "warning": WARNING,
        }
