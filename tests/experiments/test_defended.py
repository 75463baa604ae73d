"""A defence in one's own loop is the defence of ours: same weights after the same batches."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import pytest
import torch

import leakscope
from leakscope.core import seeds
from leakscope.core.defense import Stack, build_defense
from leakscope.core.errors import UsageError
from leakscope.experiments.training import Training, train
from leakscope.testing import small
from leakscope.testing.synthetic import CPU, image_set, small_split

DATA = image_set(24, "private")
RATE, BATCH, EPOCHS = 0.01, 8, 2
GONG = {"kind": "gong++", **small.DEFENSES["gong++"]}
DEFENSES = [
    "none", "cem+gaussian:sigma=0.1", {"kind": "cem", "two_stage": True}, "bottleneck:channels=2", "adversarial",
    "nopeek", "topk+unicon", [GONG, "topk"],
]  # fmt: skip


def _ours(spec: Any) -> torch.nn.Module:
    """The library's loop, at a constant rate."""
    split = small_split()
    defense = build_defense(spec)
    with seeds.ambient(0, "target", "init"):
        split = defense.rebuild(split.eval(), DATA.images[:2])
    split.defense = defense
    plan = Training(EPOCHS, BATCH, "sgd", RATE, 0.0, 0.0, "constant", 0.0)
    return train(split, DATA, plan, seed=0, device=CPU)[0]


def _net(spec: Any, **settings: Any) -> leakscope.Defended:
    plain = small_split()
    return leakscope.Defended(plain.model, plain.cut, spec, **{"data": DATA, "epochs": EPOCHS, **settings})


def _loop(net: leakscope.Defended, epochs: int = EPOCHS) -> None:
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for epoch in range(epochs):
        net.start_epoch(optimizer)
        order = torch.randperm(len(DATA), generator=seeds.generator(0, "target", "order", epoch))
        with seeds.ambient(0, "target", "epoch", epoch):
            for index in order.split(BATCH):
                optimizer.zero_grad()
                net.loss(DATA.images[index], DATA.labels[index]).backward()
                optimizer.step()


@pytest.mark.parametrize("spec", DEFENSES)
def test_an_own_loop_gives_the_weights_of_ours(spec: Any) -> None:
    net = _net(spec)
    _loop(net)
    for name, tensor in _ours(spec).state_dict().items():
        assert torch.allclose(net.split.state_dict()[name], tensor, atol=1e-6), name


def test_dp_sgd_keeps_its_ledger_and_refuses_a_scaled_loss() -> None:
    pytest.importorskip("opacus")
    net = _net("dp-sgd")
    _loop(net)
    expected = _ours("dp-sgd").state_dict()
    assert all(torch.allclose(net.split.state_dict()[name], tensor, atol=1e-5) for name, tensor in expected.items())
    assert net.notes()["steps"] == EPOCHS * len(DATA) // BATCH
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    net.start_epoch(optimizer)
    with pytest.raises(UsageError, match="do not scale"):
        (net.loss(DATA.images[:8], DATA.labels[:8]) / 2).backward()


def test_the_optimiser_gets_no_attacker_of_the_defence() -> None:
    net = _net("adversarial")
    inner = {id(p) for p in net.aux.parameters()}
    assert inner
    assert not inner & {id(p) for p in net.parameters()}
    assert {id(p) for p in net.split.parameters()} == {id(p) for p in net.parameters()}


def test_eval_is_the_task_alone_and_the_release_stays() -> None:
    net = _net("nopeek:weight=100+gaussian:sigma=0.5").eval()
    x, y = DATA.images[:8], DATA.labels[:8]
    torch.manual_seed(0)
    scores = net(x)
    torch.manual_seed(0)
    assert torch.equal(net.loss(x, y), torch.nn.functional.cross_entropy(scores, y))
    assert not torch.equal(net.release(x), net.release(x))
    client, server = net.halves(x)
    assert server(client(x)).shape == scores.shape


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UsageError, match="data="):
        _net("cem", data=None)
    with pytest.raises(UsageError, match="data="):
        _net("bottleneck", data=None)
    net = _net("nopeek+gaussian", data=None)
    with pytest.raises(UsageError, match="start_epoch"):
        net.loss(DATA.images[:4], DATA.labels[:4])
    _loop(net, 1)


def test_a_copy_and_a_saved_state_are_whole() -> None:
    net = _net("cem+gaussian")
    _loop(net)
    twin = copy.deepcopy(net)
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert int(twin.epoch) == EPOCHS - 1
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = _net("cem+gaussian")
    other.load_state_dict(torch.load(file, weights_only=True))
    assert int(other.epoch) == EPOCHS - 1
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_an_optimiser_does_not_keep_a_network_alive() -> None:
    net = _net(GONG)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], RATE)
    net.start_epoch(optimizer)
    del net
    gc.collect()
    optimizer.step()


def test_a_name_that_ends_in_plus_signs_can_be_stacked() -> None:
    stack = build_defense("gong+++topk")
    assert isinstance(stack, Stack)
    assert [part.kind_name for part in stack.parts] == ["gong++", "topk"]
