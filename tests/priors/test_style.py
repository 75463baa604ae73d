"""The small style generator: its mapping network, its P space, its mean style."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.seeds import generator
from leakscope.nn.style_space import from_p, style_bounds, to_p
from leakscope.priors._mapping import Mapping
from leakscope.priors._styled import StyledGenerator
from leakscope.priors.style import Modulated, Style, StyleNetwork
from leakscope.testing.synthetic import CPU, image_set


def _styled() -> StyledGenerator:
    with seeds.ambient(0, "style"):
        network = StyleNetwork((1, 16, 16), 8, 4, 2)
    return StyledGenerator((1, 16, 16), 8, network.mapping, network.synthesis, lambda images: images)


def test_the_p_space_undoes_the_last_rectifier() -> None:
    made = _styled()
    z = made.sample(2000, generator(0, "z"))
    mapping = made.mapping
    before = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
    before = F.leaky_relu(mapping.get_submodule("fc0")(before), 0.2) * 2**0.5
    before = mapping.get_submodule("fc1")(before) * 2**0.5  # what the last rectifier reads, with its gain
    p = to_p(made, made.to_style(z))
    torch.testing.assert_close(p, before, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(from_p(made, p), made.to_style(z))


def test_bounds_hold_two_thirds_of_each_coordinate() -> None:
    made = _styled()
    low, high, deviation = style_bounds(made, 20000, generator(0, "bounds"), batch=3000)
    w = made.to_style(made.sample(20000, generator(1, "z")))
    # P is nearly Gaussian: 68 % lie within a deviation. W is not, but the map is monotone.
    inside = ((w >= low) & (w <= high)).float().mean(0)
    assert inside.min() > 0.6
    assert inside.max() < 0.76
    p = to_p(made, w)
    torch.testing.assert_close(deviation, p.std(0), rtol=0.03, atol=0)
    torch.testing.assert_close(to_p(made, high), p.mean(0) + p.std(0), rtol=0.03, atol=0.03)
    wide_low, wide_high, _ = style_bounds(made, 20000, generator(0, "bounds"), deviations=3)
    assert (wide_low < low).all()
    assert (wide_high > high).all()


def test_truncation_draws_towards_the_mean_style() -> None:
    prior = Style(width=4, latent=8, steps=3, batch=4, opening=0)
    made = prior.generator(prior.fit(image_set(12, "public"), generator(0, "fit"), device=CPU), CPU)
    assert isinstance(made, StyledGenerator)
    z = made.sample(6000, generator(0, "z"))
    w, mean = made.to_style(z), made.mapping.w_avg
    torch.testing.assert_close(w.mean(0), mean, atol=5 * float(w.std(0).max()) / 6000**0.5, rtol=0)
    torch.testing.assert_close(made.to_style(z, 0.3), mean + 0.3 * (w - mean), atol=1e-5, rtol=1e-5)


def test_a_fresh_mapping_keeps_the_scale() -> None:
    with seeds.ambient(0, "mapping"):
        mapping = Mapping(64, 64, 2, rate=0.1)
    w = mapping(5 * torch.randn(4000, 64, generator=generator(0, "z")))
    assert 0.8 < float(w.detach().square().mean()) < 1.25  # the scale of z is taken out, that of w is one


def test_a_doubling_layer_is_one_convolution_with_each_samples_own_weights() -> None:
    with seeds.ambient(0, "layer"):
        layer = Modulated(3, 5, 4, 6)
        x, w = torch.randn(2, 3, 4, 4), torch.randn(2, 6)
        layer.bias.data.normal_()
    rows = []
    for one, style in zip(x, layer.affine(w), strict=True):
        weight = layer.weight * style.view(1, -1, 1, 1)
        weight = 2 * weight / weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        y = F.conv_transpose2d(one[None], weight.transpose(0, 1), stride=2, padding=1)
        rows.append(2**0.5 * F.leaky_relu(y + layer.bias.view(-1, 1, 1), 0.2))
    torch.testing.assert_close(layer(x, w), torch.cat(rows), atol=1e-5, rtol=1e-4)


def test_layers_read_their_own_style() -> None:
    made = _styled()
    w = made.to_style(made.sample(2, generator(0, "z")))
    styles = w[:, None].repeat(1, made.layers, 1)
    assert made.layers == 3
    base = made.from_style(styles)
    for layer in range(made.layers):
        other = styles.clone()
        other[0, layer] += 1
        changed = (made.from_style(other) - base).abs().amax((1, 2, 3))
        assert changed[0] > 1e-4
        assert changed[1] == 0
