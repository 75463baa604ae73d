"""Layers of style generators against slow references: own weights for each sample, SciPy for the filters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import convolve2d, upfirdn
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.seeds import generator
from leakscope.priors._modulation import ScaledLinear, binomial, filtered, modulated, modulated_up, upsampled


def _random(*shape: int, name: str) -> Tensor:
    return torch.randn(*shape, generator=generator(0, "modulation", name), dtype=torch.float64)


def _own_weights(weight: Tensor, style: Tensor, demodulate: bool) -> Tensor:
    """The published definition, for one sample: scale every input channel, then give outputs unit norm."""
    own = weight * style.view(1, -1, 1, 1)
    return own / (own.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt() if demodulate else own


@pytest.mark.parametrize("demodulate", [True, False])
@pytest.mark.parametrize("kernel", [1, 3])
def test_modulated_convolution(kernel: int, demodulate: bool) -> None:
    x, weight, style = _random(3, 4, 5, 6, name="x"), _random(2, 4, kernel, kernel, name="w"), _random(3, 4, name="s")
    slow = torch.cat(
        [F.conv2d(one[None], _own_weights(weight, s, demodulate), padding=1) for one, s in zip(x, style, strict=True)]
    )
    torch.testing.assert_close(modulated(x, weight, style, demodulate=demodulate, padding=1), slow)


@pytest.mark.parametrize(("up", "down", "padding"), [(1, 1, (0, 0)), (2, 1, (2, 1)), (1, 2, (3, 0)), (3, 2, (4, 5))])
def test_filters_against_scipy(up: int, down: int, padding: tuple[int, int]) -> None:
    x, row = _random(2, 3, 7, 7, name="x"), _random(4, name="row")  # not symmetric: a flip would show
    ours = filtered(x, row, up=up, down=down, padding=padding)
    # SciPy pads a signal by as many zeros as the filter is long, less one; we pad by `padding` and lose as many.
    low, high = padding

    def along(signal: np.ndarray) -> np.ndarray:
        zeros = np.zeros(len(signal) * up)
        zeros[::up] = signal
        padded = np.concatenate([np.zeros(low), zeros, np.zeros(high)])
        return np.asarray(upfirdn(row.numpy(), padded)[len(row) - 1 : len(padded)][::down])

    slow = np.apply_along_axis(along, 3, np.apply_along_axis(along, 2, x.numpy()))
    torch.testing.assert_close(ours, torch.from_numpy(slow))
    square = filtered(x, torch.outer(row, row), up=up, down=down, padding=padding)
    torch.testing.assert_close(square, ours)


def test_negative_padding_crops() -> None:
    x = _random(1, 1, 6, 6, name="x")
    one = torch.ones(1, dtype=torch.float64)
    torch.testing.assert_close(filtered(x, one, padding=(-1, -2)), x[:, :, 1:4, 1:4])


def test_doubling_is_zeros_between_pixels_filter_convolution() -> None:
    x, weight, style = _random(2, 3, 4, 4, name="x"), _random(5, 3, 3, 3, name="w"), _random(2, 3, name="s")
    taps = binomial().double()
    ours = modulated_up(x, weight, style, taps)
    for sample in range(2):
        own = _own_weights(weight, style[sample], True).numpy()
        for out in range(5):
            total = np.zeros((8, 8))
            for channel in range(3):
                zeros = np.zeros((8, 8))
                zeros[::2, ::2] = x[sample, channel].numpy()
                # The whole convolution with the composed kernel, from which the centre is taken: the filter's
                # middle lies between its second and third tap, the kernel's at its second.
                whole = convolve2d(convolve2d(zeros, 4 * taps.numpy()), own[out, channel])
                total += whole[2:10, 2:10]
            torch.testing.assert_close(ours[sample, out], torch.from_numpy(total))


def test_doubling_keeps_a_constant() -> None:
    doubled = upsampled(torch.ones(1, 2, 6, 6), binomial())
    assert doubled.shape == (1, 2, 12, 12)
    torch.testing.assert_close(doubled[..., 2:-2, 2:-2], torch.ones(1, 2, 8, 8))
    # Each new pixel is ¾ and ¼ of its two nearest: a ramp stays a ramp of half the slope.
    ramp = upsampled(torch.arange(6.0).expand(1, 1, 6, 6), binomial())[0, 0, 4]
    torch.testing.assert_close(ramp[2:-2], torch.arange(0.75, 4.5, 0.5))


def test_scaled_linear() -> None:
    layer = ScaledLinear(9, 2, bias=3.0, rate=0.01)
    x = torch.randn(4, 9, generator=generator(0, "x"))
    slow = x @ (layer.weight * 0.01 / 3).T + layer.bias * 0.01
    torch.testing.assert_close(layer(x), slow)
    torch.testing.assert_close(layer.bias * 0.01, torch.full((2,), 3.0))
