from __future__ import annotations

import torch

from leakscope.attacks._correction import Size
from leakscope.nn.denormals import denormals_as_zero

TINY = torch.tensor([1e-39, 3e-39])


def test_denormals_are_zero_inside_and_numbers_again_outside() -> None:
    with denormals_as_zero():
        assert not (TINY + TINY).any()
        with denormals_as_zero():
            assert not (TINY * 2).any()
        assert not (TINY + TINY).any()
    assert (TINY + TINY).all()
    try:
        with denormals_as_zero():
            raise RuntimeError
    except RuntimeError:
        pass
    assert (TINY + TINY).all()


def test_who_asked_for_it_elsewhere_keeps_it() -> None:
    torch.set_flush_denormal(True)
    try:
        with denormals_as_zero():
            pass
        assert not (TINY + TINY).any()
    finally:
        torch.set_flush_denormal(False)


def test_gradients_of_a_correction_stay_the_same() -> None:
    """To the last bit where they are not denormal themselves, with activations that make some underflow."""
    network = Size(16, 1, dense=False).build((4, 8, 8), (1, 16, 16), 0)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in network.parameters():
            weights.normal_(0, 3 * (2 / max(1, weights[0].numel())) ** 0.5, generator=rng)
    z, linear = torch.randn(4, 4, 8, 8, generator=rng), torch.rand(4, 1, 16, 16, generator=rng)

    def gradients() -> list[torch.Tensor]:
        network.zero_grad()
        (network(z, linear) - linear).square().mean().backward()
        return [weights.grad.clone() for weights in network.parameters() if weights.grad is not None]

    plain = gradients()
    with denormals_as_zero():
        flushed = gradients()
    assert any(own.any() for own in plain)
    for own, other in zip(plain, flushed, strict=True):
        normal = own.abs() >= torch.finfo(torch.float32).tiny
        assert torch.equal(own[normal], other[normal])
        assert not other[~normal].any()
