"""Known answers (spec F.6) and independent truths for the parts that class attacks share."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks._draws import ClassDraws
from leakscope.attacks._flows import Flows, divergence
from leakscope.attacks._identity_losses import cross_entropy, negative_logit, poincare
from leakscope.attacks._latent_descent import Lookahead
from leakscope.attacks._lomma import REFERENCES, LommaTerm
from leakscope.attacks._selection import Pool, draw_pool, top_of_each_class
from leakscope.attacks._students import Student, distilled
from leakscope.attacks._views import Views
from leakscope.attacks._white_box import WhiteBox
from leakscope.attacks.lomma_gmi import LommaGmi
from leakscope.attacks.lomma_kedmi import LommaKedmi
from leakscope.attacks.mirror import ramped
from leakscope.core import seeds
from leakscope.core.model import SplitModel
from leakscope.core.prior import PRIORS
from leakscope.core.threat import Access
from leakscope.testing.synthetic import CLASSES, CPU, image_set, small_view, smooth_images

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.5, -0.5, 3.0, 1.0]])
LABELS = torch.tensor([0, 2])


def test_identity_losses_have_their_known_values() -> None:
    torch.testing.assert_close(poincare(LOGITS, LABELS), torch.tensor([9.3924, 8.9338]), atol=2e-4, rtol=0)
    assert float(negative_logit(LOGITS, LABELS).mean()) == pytest.approx(-2.5)
    assert float(cross_entropy(LOGITS, LABELS).mean()) == pytest.approx(0.33071, abs=1e-5)


def test_the_poincare_distance_in_double_by_its_other_formula() -> None:
    """d = 2 artanh(‖(−u) ⊕ v‖), with Möbius addition."""
    u = (LOGITS / LOGITS.abs().sum(1, keepdim=True)).double()
    v = F.one_hot(LABELS, 4).double() * (1 - 1e-4)
    dot, uu, vv = (-u * v).sum(1), u.square().sum(1), v.square().sum(1)
    added = ((1 + 2 * dot + vv)[:, None] * -u + (1 - uu)[:, None] * v) / (1 + 2 * dot + uu * vv)[:, None]
    torch.testing.assert_close(poincare(LOGITS.double(), LABELS), 2 * torch.atanh(added.norm(dim=1)))


@given(st.integers(0, 2**20), st.floats(1e-3, 1e3))
def test_the_poincare_distance_ignores_scale_and_stays_finite(seed: int, scale: float) -> None:
    scores = torch.randn(4, 5, generator=seeds.generator(seed, "scores"))
    labels = torch.arange(4)
    torch.testing.assert_close(poincare(scores, labels), poincare(scale * scores, labels), atol=1e-2, rtol=1e-2)
    corner = F.one_hot(labels, 5).float().requires_grad_()
    (gradient,) = torch.autograd.grad(poincare(corner, labels).sum(), corner)
    assert gradient.isfinite().all()


def test_the_gmi_update_has_its_known_values() -> None:
    descent, z, v = Lookahead(2, 0.02), torch.tensor([0.3]), torch.zeros(1)
    seen = []
    for gradient in (1.0, -0.5):
        z, v = descent.step(z, v, torch.tensor([gradient]))
        seen.append(float(z))
    assert seen == pytest.approx([0.262, 0.2648])
    clipped, _ = descent.step(torch.tensor([0.99]), torch.zeros(1), torch.tensor([-10.0]))
    assert float(clipped) == 1.0


def test_the_kedmi_prior_has_its_known_value() -> None:
    """softplus(−lse) of the critic's logits, as the inversion-specific GAN's generator reports it."""
    prior = PRIORS.build(
        {"kind": "kedmi-gan", "base": {"kind": "dcgan", "width": 4, "latent": 8, "steps": 0, "opening": 0}, "steps": 0}
    )
    public = image_set(40, "public")
    with seeds.ambient(0, "kedmi"):
        state = prior.fit(public, seeds.generator(0, "k"), device=CPU, scores=lambda x: torch.zeros(len(x), 3))
        generator = prior.generator(state, CPU)
    logits = torch.tensor([[0.0, 1.0, 2.0], [-1.0, -2.0, 0.0]])

    class Critic(nn.Module):
        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return images.flatten(1), logits

    generator.critic = Critic()
    assert float(generator.implausibility(public.images[:2]).mean()) == pytest.approx(0.29809, abs=1e-5)


def _term(feature: str, students: list[Student], weight: float = 1.0) -> LommaTerm:
    view = small_view(frozenset({Access.ENCODER, Access.HEAD}))
    target = WhiteBox(view, seeds.generator(0, "w"))
    mean, deviation = torch.linspace(-1, 1, 32), torch.linspace(0.1, 0.5, 32)
    return LommaTerm(target, students, mean, deviation, negative_logit, weight, REFERENCES[feature])


def test_the_lomma_term_is_its_equation() -> None:
    images, labels = smooth_images(4, "lomma"), torch.tensor([0, 1, 2, 0])
    draws = ClassDraws(0, "x", torch.arange(2), CPU)
    with seeds.ambient(0, "students"):
        students = [Student((1, 16, 16), CLASSES, width).eval() for width in (4, 5)]
    term = _term("mean", list(students), weight=0.7)
    network = term.target.network
    rest = network.model.get_submodule("rest")
    assert isinstance(rest, nn.Sequential)
    features = rest[:-1](network.encode(images))
    scores = [network(images), *(student(images) for student in students)]
    expected = torch.stack([-s[torch.arange(4), labels] for s in scores]).mean(0)
    expected = expected + 0.7 * (features - term.mean).square().mean(1)
    torch.testing.assert_close(term(images, labels, draws), expected)


def test_the_sampled_regulariser_is_the_coded_one_plus_its_variance() -> None:
    """E mean((f − m − s·ε)²) = mean((f − m)²) + mean(s²)."""
    images, labels = smooth_images(1, "lomma"), torch.tensor([0])
    coded, sampled = _term("mean", []), _term("sampled", [])
    draws = ClassDraws(0, "x", torch.tensor([0]), CPU)
    with torch.no_grad():
        mean = torch.stack([sampled(images, labels, draws) for _ in range(400)]).mean()
        truth = coded(images, labels, draws) + sampled.deviation.square().mean()
    assert float(mean) == pytest.approx(float(truth), abs=0.03)


def test_the_penultimate_features_of_a_network_without_a_linear_head_are_those_at_the_cut() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.body(x)).mean((2, 3))
            return scores

    with seeds.ambient(0, "pooled"):
        split = SplitModel(Pooled(), "body").eval()
    view = small_view(frozenset({Access.ENCODER, Access.HEAD}), split=split)
    images = smooth_images(2, "x")
    scores, features = WhiteBox(view, seeds.generator(0, "w")).scores_and_features(images)
    torch.testing.assert_close(features, split.encode(images).flatten(1))
    torch.testing.assert_close(scores, split(images))


def test_a_student_learns_to_answer_as_the_target_does() -> None:
    images = smooth_images(192, "student")
    answers = 20 * torch.stack([images[:, 0, :8].mean((1, 2)), images[:, 0, 8:].mean((1, 2))], 1)
    with seeds.ambient(0, "student"):
        student = Student((1, 16, 16), 2, 4)
    taught, curve = distilled(student, images, answers, epochs=12, rate=0.05, seed=0)
    fresh = smooth_images(100, "fresh")
    truth = 20 * torch.stack([fresh[:, 0, :8].mean((1, 2)), fresh[:, 0, 8:].mean((1, 2))], 1)
    agree = (taught(fresh).argmax(1) == truth.argmax(1)).float().mean()
    assert curve[-1] < 0.5 * curve[0]
    assert agree > 0.85


def test_a_step_of_distillation_is_the_published_one() -> None:
    """The first step of SGD: p − 0.01·(∂KL/∂p + 1e-4·p); the default of both attacks is that rate."""
    images, answers = smooth_images(8, "step"), torch.randn(8, 3, generator=seeds.generator(0, "answers"))
    with seeds.ambient(0, "student"):
        student = Student((1, 16, 16), 3, 4)
    before = {name: p.detach().clone() for name, p in student.named_parameters()}
    p, log_q = answers.softmax(1), student(images).log_softmax(1)
    loss = (p * (p.log() - log_q)).sum() / 8
    gradients = dict(zip(before, torch.autograd.grad(loss, list(student.parameters())), strict=True))
    rate = LommaGmi().student_rate
    assert rate == LommaKedmi().student_rate == 0.01
    taught, _ = distilled(student, images, answers, epochs=1, rate=rate, seed=0)
    for name, value in taught.named_parameters():
        expected = before[name] - 0.01 * (gradients[name] + 1e-4 * before[name])
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 28, 28), (1, 4, 4), (3, 33, 20), (1, 2, 3)])
def test_students_fit_any_picture(shape: tuple[int, int, int]) -> None:
    with seeds.ambient(0, "student"):
        assert Student(shape, 7, 4).eval()(torch.rand(2, *shape)).shape == (2, 7)


def test_a_view_that_shows_everything_is_the_picture_and_a_mirrored_one_its_mirror_image() -> None:
    images, uniform = smooth_images(3, "views"), torch.rand(3, 5, generator=seeds.generator(0, "v"))
    torch.testing.assert_close(Views((1.0, 1.0))(images, uniform), images)
    flipped = Views((1.0, 1.0), mirrored=1.0)(images, uniform)
    torch.testing.assert_close(flipped, images.flip(3), atol=1e-5, rtol=0)


def test_a_view_is_a_crop_of_the_area_and_place_it_was_drawn() -> None:
    """On a picture whose pixels are their own coordinates, a view's ends tell which crop it is."""
    ramp = torch.linspace(-1, 1, 101).expand(1, 1, 101, 101)
    uniform = torch.tensor([[0.5, 0.5, 0.25, 0.9, 0.9]])
    seen = Views((0.2, 0.6), mirrored=0.5)(ramp, uniform)[0, 0, 50]
    width = math.sqrt(0.4)
    centre = (1 - width) * (2 * 0.25 - 1)
    assert float(seen[50]) == pytest.approx(centre, abs=0.02)
    assert float(seen[-1] - seen[0]) / 2 == pytest.approx(width, abs=0.02)


def test_the_pool_gives_each_class_what_it_likes_most() -> None:
    values = torch.rand(50, 4, generator=seeds.generator(0, "pool"))
    pool = Pool(torch.arange(50.0)[:, None], values)
    styles, found = pool.best(torch.tensor([2, 0]), 3)
    for row, label in enumerate((2, 0)):
        truth = values[:, label].sort(descending=True)
        assert styles[row, :, 0].tolist() == truth.indices[:3].tolist()
        assert torch.equal(found[row], truth.values[:3])
    images, rows = top_of_each_class(torch.arange(6.0), torch.tensor([1.0, 3, 2, 9, 7, 8]), 2, 2)
    assert images.tolist() == [1, 2, 3, 5] == rows.tolist()


def test_a_pool_has_the_size_asked_for() -> None:
    view = small_view(frozenset({Access.SCORES}))
    generator = view.prior(PRIORS.build("linear:components=8"))
    pool = draw_pool(generator, 300, 0.5, 0, view.scores)
    assert pool.styles.shape == (300, 8)
    assert pool.values.shape == (300, CLASSES)
    assert float(pool.styles.std()) == pytest.approx(0.5, abs=0.05)
    assert view.budget.spent == 300


def test_classes_draw_for_themselves() -> None:
    whole = ClassDraws(3, "x", torch.tensor([4, 7, 9]), CPU)
    alone = ClassDraws(3, "x", torch.tensor([7]), CPU)
    assert torch.equal(whole.normal(5)[1:2], alone.normal(5))
    assert torch.equal(whole.uniforms(((2, 2),), torch.tensor([1]))[0], alone.uniform(2, 2))
    assert not torch.equal(whole.normal(5)[0], whole.normal(5)[2])


def test_the_schedule_of_mirror() -> None:
    assert [ramped(share) for share in (0.0, 0.025, 0.05, 0.5, 0.75)] == pytest.approx([0, 0.5, 1, 1, 1])
    assert ramped(0.875) == pytest.approx(0.5)
    assert ramped(1.0) == pytest.approx(0)


def _flows(width: int, count: int = 2) -> Flows:
    draws = ClassDraws(0, "flows", torch.arange(count), CPU)
    flows = Flows(width, couplings=3, levels=2, hidden=6, normal=draws.normal)
    with torch.no_grad():
        for tensor in flows.trained:
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=seeds.generator(1, "t")).double())
    return flows


@pytest.mark.parametrize("width", [2, 5, 8])
def test_a_flow_knows_its_volume(width: int) -> None:
    """log|det| against the Jacobian; flows of one batch do not see each other."""
    flows = _flows(width)
    noise = torch.randn(2, 3, width, generator=seeds.generator(0, "n")).double()
    _, volume = flows(noise)
    for flow in range(2):
        for row in range(3):

            def one(x: Tensor, flow: int = flow, row: int = row) -> Tensor:
                whole = noise.clone()
                whole[flow, row] = x
                return flows(whole)[0].flatten()

            jacobian = torch.autograd.functional.jacobian(one, noise[flow, row])
            own = slice((flow * 3 + row) * width, (flow * 3 + row + 1) * width)
            assert torch.linalg.slogdet(jacobian[own]).logabsdet == pytest.approx(float(volume[flow]), abs=1e-8)
            others = torch.ones(len(jacobian), dtype=torch.bool)
            others[own] = False
            assert jacobian[others].abs().max() == 0


def test_the_divergence_of_an_affine_flow_is_the_gaussian_one() -> None:
    """z = s·ε + m: KL = Σ(s² + m² − 1)/2 − log s."""
    scale, shift = torch.tensor([0.5, 2.0]).double(), torch.tensor([0.3, -1.0]).double()
    noise = torch.randn(1, 200_000, 2, generator=seeds.generator(0, "n")).double()
    found = divergence(noise, noise * scale + shift, scale.log().sum()[None])
    truth = ((scale.square() + shift.square() - 1) / 2 - scale.log()).sum()
    assert float(found) == pytest.approx(float(truth), abs=0.02)


def test_a_fresh_flow_gives_normal_latents() -> None:
    flows = Flows(6, couplings=3, levels=2, hidden=5, normal=ClassDraws(0, "f", torch.arange(1), CPU).normal)
    z, _ = flows(torch.randn(1, 4000, 6, generator=seeds.generator(0, "n")))
    assert z.mean().abs() < 0.1
    assert float(z.std()) == pytest.approx(1, abs=0.1)
