"""The conditional GAN, and the defences that train on its pictures; label smoothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._deception import Deceiver, focal_cross_entropy, focal_doubt, other_classes
from leakscope.defenses._gan import Generator, normal, onehot, trained_generator
from leakscope.defenses.gan_augment import GanAugment
from leakscope.defenses.gong import Gong
from leakscope.defenses.gong_continual import Continual, GongContinual
from leakscope.defenses.label_smoothing import LabelSmoothing
from leakscope.testing.synthetic import CPU, image_set, small_split


def _bright(count: int, shape: tuple[int, int, int] = (1, 8, 8)) -> ImageSet:
    """Three classes: the upper half bright, the lower half, neither."""
    labels = torch.arange(count) % 3
    images = 0.1 * torch.rand(count, *shape, generator=seeds.generator(0, "bright"))
    half = shape[1] // 2
    images[labels == 0, :, :half] += 0.8
    images[labels == 1, :, half:] += 0.8
    return ImageSet(images, labels, ("up", "down", "none"))


def test_the_gan_draws_the_classes_of_its_data() -> None:
    generator = trained_generator(_bright(96), 150, 16, seeds.generator(0, "gan"), CPU)
    y = torch.arange(30) % 3
    x = generator(normal(30, seeds.generator(1, "z"), CPU), onehot(y, 3))
    assert x.shape == (30, 1, 8, 8)
    upper, lower = x[:, :, :4].mean((1, 2, 3)), x[:, :, 4:].mean((1, 2, 3))
    seen = torch.where(upper - lower > 0.25, 0, torch.where(lower - upper > 0.25, 1, 2))
    assert (seen == y).float().mean() >= 0.9
    assert not any(p.requires_grad for p in generator.parameters())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 64, 48), (1, 17, 5)])
def test_any_picture_size_can_be_drawn(shape: tuple[int, int, int]) -> None:
    data = ImageSet(torch.rand(4, *shape), torch.tensor([0, 1, 1, 0]), ("a", "b"))
    ambient = torch.random.get_rng_state()
    made = [trained_generator(data, 1, 4, seeds.generator(seed, "gan"), CPU) for seed in (0, 0, 1)]
    assert torch.equal(ambient, torch.random.get_rng_state())
    pictures = [g(normal(2, seeds.generator(0, "z"), CPU), onehot(torch.tensor([0, 1]), 2)) for g in made]
    assert pictures[0].shape == (2, *shape)
    assert pictures[0].min() >= 0
    assert pictures[0].max() <= 1
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_points_are_refused() -> None:
    points = ImageSet(torch.rand(4, 5, 1, 1), torch.tensor([0, 1, 0, 1]), ("a", "b"), pixels=False)
    with pytest.raises(UsageError, match="holds points"):
        trained_generator(points, 1, 4, seeds.generator(0, "gan"), CPU)


def _step(defense: Defense, epoch: int = 1, epochs: int = 2) -> tuple[SplitModel, Step]:
    split, data = small_split(), image_set(12, "defended")
    aux = defense.setup(split, data, seeds.generator(0, "setup"))
    split.train()
    out = split.run(data.images)
    return split, Step(
        data.images, data.labels, out.features, out.released, out.scores, F.cross_entropy(out.scores, data.labels),
        split, aux, epoch, epochs, 0.1, seeds.generator(0, "step"),
    )  # fmt: skip


def test_gan_augment_is_the_cross_entropy_of_generated_pictures_with_their_gradient() -> None:
    defense = GanAugment(0.7, gan_steps=2, gan_width=4)
    split, step = _step(defense)
    penalty = defense.penalty(step)
    assert isinstance(step.aux, Generator)
    pictures = step.aux.eval()(normal(12, seeds.generator(0, "step"), CPU), onehot(step.y, 3))
    expected = 0.7 * F.cross_entropy(split(pictures), step.y)
    assert penalty is not None
    torch.testing.assert_close(penalty, expected)
    gradient, own = (torch.autograd.grad(loss, list(split.parameters())) for loss in (penalty, expected))
    assert all(torch.allclose(a, b) for a, b in zip(gradient, own, strict=True))
    assert sum(g.abs().sum() for g in gradient) > 0  # the published term had none


def test_decoys_are_between_two_classes_other_than_their_label() -> None:
    y = torch.arange(40) % 4
    mixture = other_classes(y, 4, seeds.generator(0, "m"))
    assert torch.equal(mixture.sum(1), torch.ones(40))
    assert (mixture.gather(1, y[:, None]) == 0).all()
    assert ((mixture == 0.5).sum(1) == 2).all()
    assert torch.equal(other_classes(y[:2], 2, seeds.generator(0, "m")), torch.full((2, 2), 0.5))


def test_focal_losses_are_their_formulas() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.5, -0.5, 3.0, 1.0]])
    y = torch.tensor([0, 2])
    p = scores.softmax(1)
    own = p[[0, 1], [0, 2]]
    assert focal_cross_entropy(scores, y, 0).item() == pytest.approx(0.33071, abs=1e-5)  # plain cross-entropy
    expected = (-((1 - own) ** 2) * own.log()).mean()
    torch.testing.assert_close(focal_cross_entropy(scores, y, 2), expected)
    divergence = (0.25 * (0.25 / p).log()).sum(1)
    torch.testing.assert_close(focal_doubt(scores, y, 2), (own**2 * divergence).mean())
    assert focal_doubt(torch.zeros(3, 4), torch.tensor([0, 1, 2]), 2).item() == pytest.approx(0, abs=1e-6)


def test_inversions_are_what_the_network_is_surer_of() -> None:
    defense = Gong(inversion_steps=20, gan_steps=2, gan_width=4)
    split, step = _step(defense)
    aux = step.aux
    assert isinstance(aux, Deceiver)
    with torch.no_grad():  # a network with opinions
        split.model.get_submodule("rest.3").weight.mul_(20)  # type: ignore[operator]
    before = {name: value.clone() for name, value in split.state_dict().items()}
    aux.search(step, 20)
    assert all(torch.equal(value, before[name]) for name, value in split.state_dict().items())
    assert all(p.grad is None for p in split.parameters())
    assert split.training
    rng = seeds.generator(0, "step")
    y = torch.randint(3, aux.labels.shape, generator=rng)
    assert torch.equal(aux.labels, y)
    start = aux.generator(normal(len(y), rng, CPU), onehot(y, 3))
    split.eval()

    def loss(x: Tensor) -> float:
        return F.cross_entropy(split(x), y).item()

    assert loss(aux.pictures) < loss(start)
    found = aux.pictures.clone()
    aux.search(step, 20)  # once an epoch
    assert torch.equal(found, aux.pictures)
    aux.search(replace(step, epoch=2), 20)
    assert not torch.equal(found, aux.pictures)


def test_tuning_starts_when_it_should_and_always_happens() -> None:
    defense = Gong(start=0.5, inversion_steps=1, gan_steps=1, gan_width=4)
    _, step = _step(defense, 0, 4)
    assert [defense.penalty(replace(step, epoch=e)) is not None for e in range(4)] == [False, False, True, True]
    assert defense.penalty(replace(step, epoch=0, epochs=1)) is not None


def test_the_memory_is_elastic_weight_consolidation() -> None:
    defense = GongContinual(start=0.5, memory=3.0, inversion_steps=1, gan_steps=1, gan_width=4)
    split, step = _step(defense, 0, 2)
    assert isinstance(step.aux, Continual)
    squared = [torch.zeros_like(p) for p in split.parameters()]
    for k in range(2):
        gradient = torch.autograd.grad((1 + k) * F.cross_entropy(split(step.x), step.y), list(split.parameters()))
        for p, g, total in zip(split.parameters(), gradient, squared, strict=True):
            p.grad = g
            total += g.square() / 2
        defense.after_step(split, step.aux)
    tuned = replace(step, epoch=1)
    alone = Gong(start=0.5, inversion_steps=1, gan_steps=1, gan_width=4)
    step.aux.memory.fix(split)
    shift = 0.1
    with torch.no_grad():
        for p in split.parameters():
            p.add_(shift)
    penalty = defense.penalty(replace(tuned, rng=seeds.generator(5, "r")))
    step.aux.deceiver.searched.fill_(-1)  # type: ignore[operator]
    misled = alone.penalty(replace(tuned, aux=step.aux.deceiver, rng=seeds.generator(5, "r")))
    assert penalty is not None
    assert misled is not None
    expected = 3.0 * 0.5 * 12 * sum(total.sum().item() for total in squared) * shift**2
    assert expected > 1e-3
    assert (penalty - misled).item() == pytest.approx(expected, rel=1e-3)


def _smoothing_step(epoch: int = 9, epochs: int = 10) -> Step:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.5, -0.5, 3.0, 1.0]])
    y, x, z = torch.tensor([0, 2]), torch.zeros(2, 1, 2, 2), torch.zeros(2, 3)
    task = F.cross_entropy(scores, y)
    return Step(x, y, z, z, scores, task, small_split(), nn.Module(), epoch, epochs, 0.1, seeds.generator(0, "s"))


def test_label_smoothing_has_its_known_value() -> None:
    """CE 0.33071 and, with α = −0.05, 0.24321: the specification's values."""
    step = _smoothing_step()
    penalty = LabelSmoothing(-0.05).penalty(step)
    assert penalty is not None
    assert step.task_loss.item() == pytest.approx(0.33071, abs=1e-5)
    assert (step.task_loss + penalty).item() == pytest.approx(0.24321, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.7, 1.0])
def test_positive_label_smoothing_is_that_of_torch(alpha: float) -> None:
    step = _smoothing_step()
    penalty = LabelSmoothing(alpha, schedule="constant").penalty(step)
    assert penalty is not None
    torch.testing.assert_close(step.task_loss + penalty, F.cross_entropy(step.scores, step.y, label_smoothing=alpha))


def test_the_late_schedule_is_the_published_one() -> None:
    """0 before epoch 50 of 100, then α(e − 49)/50 until 74, full α from 75."""
    for epoch in range(100):
        share = 0.0 if epoch < 50 else (epoch - 49) / 50 if epoch <= 74 else 1.0
        step = _smoothing_step(epoch, 100)
        penalty = LabelSmoothing(-0.05).penalty(step)
        full = LabelSmoothing(-0.05, schedule="constant").penalty(step)
        assert full is not None
        assert (penalty.item() if penalty is not None else 0.0) == pytest.approx(share * full.item(), abs=1e-7)


@pytest.mark.parametrize(
    "made",
    [
        lambda: GanAugment(-1),
        lambda: GanAugment(gan_steps=0),
        lambda: Gong(gamma=-1),
        lambda: Gong(start=1),
        lambda: Gong(inversion_steps=0),
        lambda: GongContinual(memory=-1),
        lambda: LabelSmoothing(1.5),
        lambda: LabelSmoothing(float("nan")),
    ],
)
def test_bad_fields_are_refused(made: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        made()  # type: ignore[operator]
