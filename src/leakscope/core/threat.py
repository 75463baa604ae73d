"""Who knows what: a threat model names what is handed over, and `grant` hands over nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.errors import NotGranted, UsageError
from leakscope.core.model import SplitModel
from leakscope.core.prior import Generator, Prior, PriorState, Scores
from leakscope.core.spec import LATER
from leakscope.core.watching import Touched


class Access(StrEnum):
    """One thing an attacker may hold."""

    LABELS = "labels"  # the predicted class of any picture it sends
    SCORES = "scores"  # all class scores of any picture it sends
    FEATURES = "features"  # the released features of the victims
    QUERY = "query"  # released features of any picture it sends
    ENCODER = "encoder"  # the weights of the client's half
    HEAD = "head"  # the weights of the server's half


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker is handed. The default is the strongest honest-but-curious server."""

    access: frozenset[Access] = frozenset(Access)
    public_data: bool = True
    knows_defense: bool = True  # False only to demonstrate obscurity
    queries: int | None = None  # pictures it may send; None: no limit
    #: Whose pictures it has: its own, those the target was trained on (CEM's training-time attack), or both.
    public: Literal["own", "private", "both"] = field(default="own", metadata=LATER)
    #: Its pictures may show the attacked classes (Plug-&-Play on one digit set).
    shared_classes: bool = field(default=False, metadata=LATER)

    @property
    def reach(self) -> frozenset[Access]:
        """What is granted and what follows from it: whoever holds the encoder answers queries at home."""
        return self.access | ({Access.QUERY} if Access.ENCODER in self.access else frozenset())

    def require(self, needs: frozenset[Access], attack: str) -> None:
        missing = sorted(needs - self.reach)
        if missing:
            granted = ", ".join(sorted(self.access)) or "nothing"
            raise UsageError(f"{attack} needs {', '.join(missing)}; the threat model grants: {granted}")


class Oracle:
    """A black box that answers for pictures, counts them, and stops at its budget."""

    def __init__(self, target: SplitModel, budget: Budget, rng: torch.Generator) -> None:
        self._target = target
        self._budget = budget
        self._rng = rng

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Released features, with the randomness of a real release."""
        self._budget.spend(len(x))
        return self._target.release(x, self._rng)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        self._budget.spend(len(x))
        return self._target.run(x, self._rng).scores

    def labels(self, x: Tensor) -> Tensor:
        return self.scores(x).argmax(1)


class HomeOracle:
    """Answers that the attacker computes itself from the encoder and the defence it knows; no query budget applies."""

    def __init__(self, encoder: nn.Module, defense: Defense, rng: torch.Generator) -> None:
        self._encoder = encoder
        self._defense = defense
        self._rng = rng

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return self._defense.release(self._encoder(x), self._rng)


@dataclass
class Budget:
    """Pictures sent so far, and how many may be."""

    limit: int | None
    spent: int = 0

    def spend(self, count: int) -> None:
        if self.limit is not None and self.spent + count > self.limit:
            raise QueriesExhausted(f"{self.spent} of {self.limit} queries used; {count} more asked for")
        self.spent += count

    @property
    def left(self) -> float:
        return float("inf") if self.limit is None else self.limit - self.spent


class QueriesExhausted(Exception):
    """The query budget is used up: an attack must end with what it has."""


@dataclass(frozen=True)
class View:
    """All that an attack gets to see. Reading what was not granted raises `NotGranted`."""

    image_shape: tuple[int, int, int]
    classes: int
    device: torch.device
    budget: Budget
    _granted: dict[str, Any] = field(repr=False)
    _priors: PriorSource = field(repr=False)
    _fitted: dict[Prior, PriorState] = field(repr=False, default_factory=dict)

    def _get(self, what: str) -> Any:
        if what not in self._granted:
            raise NotGranted(f"{what} not granted, only: {', '.join(sorted(self._granted)) or 'nothing'}")
        return self._granted[what]

    def __contains__(self, what: str) -> bool:
        return what in self._granted

    @property
    def public(self) -> ImageSet:
        """Pictures of the attacker's own."""
        public: ImageSet = self._get("public")
        return public

    @property
    def encoder(self) -> nn.Module:
        """The client's half, `x ↦ z`, without its release; its weights can be differentiated."""
        encoder: nn.Module = self._get(Access.ENCODER)
        return encoder

    @property
    def network(self) -> SplitModel:
        """The whole network; needs both halves. Its defence is the identity when the attacker does not know it."""
        network: SplitModel = self._get("network")
        return network

    def behind(self, z: Tensor, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """What the server's own layers make of released features, by name, in the order of computation.

        The features are handed to the server as one batch, as they came. Only layers in `names`, when given.
        """
        activations: dict[str, Tensor] = self._get(Access.HEAD)(z, names)
        return activations

    @property
    def defense(self) -> Defense:
        """How features are released; the identity when the attacker does not know the defence."""
        defense: Defense = self._get("defense")
        return defense

    def prior(self, prior: Prior) -> Generator:
        """The generator of a prior fitted to the public pictures; it is fitted at most once."""
        prior.require(self.image_shape)
        if prior not in self._fitted:
            self._fitted[prior] = self._priors(prior, self)
        state = self._fitted[prior]
        prior.require_fit(state, self.image_shape)
        with seeds.ambient(0, "prior"):  # a network draws weights when it is built, before it is given its own
            return prior.generator(state, self.device)

    def query(self, x: Tensor) -> Tensor:
        """Released features of the attacker's pictures; computed at home when only the encoder was granted."""
        answer: Tensor = self._get(Access.QUERY)(x)
        return answer

    def scores(self, x: Tensor) -> Tensor:
        answer: Tensor = self._get(Access.SCORES)(x)
        return answer

    def labels(self, x: Tensor) -> Tensor:
        answer: Tensor = self._get(Access.LABELS)(x)
        return answer


#: Where fitted priors come from: kept from before, or fitted with what the view holds.
PriorSource = Callable[[Prior, View], PriorState]


def fit_prior(
    prior: Prior, view: View, *, seed: int = 0, checkpoint: Path | None = None, start: PriorState | None = None
) -> PriorState:
    """Fit a prior with what the attacker holds; `notes["scored"]` counts the pictures whose scores it read."""
    if "public" not in view:
        raise UsageError(f"prior {prior.kind_name} learns from public pictures; let the threat model grant public_data")
    scores = _scores_for_prior(prior, view, seed) if prior.reads_scores else None
    scored = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal scored
        assert scores is not None
        scored += len(x)
        return scores(x)

    rng = seeds.generator(seed, "prior", prior.kind_name)
    try:
        state = prior.fit(
            view.public, rng, device=view.device, checkpoint=checkpoint,
            scores=counted if prior.reads_scores else None, start=start,
        )  # fmt: skip
    except QueriesExhausted as error:
        raise _too_dear(prior, error) from None
    return replace(state, notes={**state.notes, "scored": scored})


def charge_for_prior(prior: Prior, view: View, pictures: int) -> None:
    """Charge a cached prior's queries to the budget, unless the attacker holds the weights and needs no queries."""
    if pictures and "network" not in view:
        try:
            view.budget.spend(pictures)
        except QueriesExhausted as error:
            raise _too_dear(prior, error) from None


def _scores_for_prior(prior: Prior, view: View, seed: int) -> Scores:
    if "network" in view:
        rng = seeds.generator(seed, "prior", "scores", device=view.device)
        return lambda x: view.network.run(x, rng).scores
    if Access.SCORES in view:
        return view.scores
    raise UsageError(
        f"prior {prior.kind_name} learns from the target's scores; let the threat model grant scores, "
        "or choose a prior that reads none"
    )


def _too_dear(prior: Prior, error: QueriesExhausted) -> UsageError:
    return UsageError(
        f"prior {prior.kind_name} reads the scores of public pictures: {error}; "
        "raise queries, or choose a prior that reads none"
    )


def _fit_in_memory(prior: Prior, view: View) -> PriorState:
    first = prior.begins_with
    return fit_prior(prior, view, start=None if first is None else _fit_in_memory(first, view))


class Encoder(nn.Module):
    """The client's half of a network, with every weight it does not use set to zero."""

    def __init__(self, target: SplitModel, example: Tensor) -> None:
        super().__init__()
        self.split = copy.deepcopy(target).eval()
        self.split.defense = Defense()
        self._forget_head(example)
        self.requires_grad_(False)

    def _forget_head(self, example: Tensor) -> None:
        ran: set[nn.Module] = set()
        handles = [
            module.register_forward_pre_hook(lambda module, args: ran.add(module)) for module in self.split.modules()
        ]
        self.split.requires_grad_(True)
        with torch.enable_grad(), Touched() as touched:
            z = self.split.encode(example)
        for handle in handles:
            handle.remove()
        parameters = list(self.split.parameters())
        gradients = torch.autograd.grad(z.sum(), parameters, allow_unused=True) if z.requires_grad else ()
        used = {id(p) for p, g in zip(parameters, gradients, strict=False) if g is not None}
        with torch.no_grad():
            for p in parameters:
                # A label that is read from scores has no gradient: what operations read counts as well.
                if id(p) not in used and p not in touched:
                    p.zero_()
            for module in self.split.modules():
                if module not in ran:
                    for buffer in module.buffers(recurse=False):
                        buffer.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.split.encode(x)


class Server:
    """The server's half: released features in, the outputs of every layer behind the cut out."""

    def __init__(self, target: SplitModel, example: Tensor) -> None:
        self._split = copy.deepcopy(target).eval().requires_grad_(False)
        self._split.defense = Defense()  # features come released
        self._example = example[:1]

    @torch.no_grad()
    def __call__(self, z: Tensor, names: Collection[str] | None = None) -> dict[str, Tensor]:
        # Any picture starts the network; at the cut its features give way to those that were sent.
        return self._split.behind(self._example.to(z.device).expand(len(z), -1, -1, -1), z, names)


def grant(
    target: SplitModel,
    threat: ThreatModel,
    public: ImageSet,
    rng: torch.Generator,
    *,
    classes: int,
    device: torch.device,
    priors: PriorSource = _fit_in_memory,
) -> View:
    """Copy out of the target what the threat model names, and nothing else.

    `priors` says where fitted priors come from; without one they are fitted when asked for.
    """
    budget = Budget(threat.queries)
    oracle = Oracle(copy.deepcopy(target).eval(), budget, rng)
    example = public.images[:2].to(device)
    known = target.defense if threat.knows_defense else Defense()
    handed: dict[str, Any] = {}
    if threat.public_data:
        handed["public"] = public
    if Access.QUERY in threat.access:
        handed[Access.QUERY] = oracle.features
    if Access.SCORES in threat.access:
        handed[Access.SCORES] = oracle.scores
    if Access.LABELS in threat.access:
        handed[Access.LABELS] = oracle.labels
    if Access.ENCODER in threat.access:
        handed[Access.ENCODER] = Encoder(target, example)
        handed["defense"] = known
        if Access.QUERY not in threat.access:
            handed[Access.QUERY] = HomeOracle(handed[Access.ENCODER], known, rng).features
    if Access.HEAD in threat.access:
        handed[Access.HEAD] = Server(target, example)
    if {Access.ENCODER, Access.HEAD} <= threat.access:
        handed["network"] = copy.deepcopy(target).eval().requires_grad_(False)
        handed["network"].defense = known
    return View(public.shape, classes, device, budget, handed, priors)
