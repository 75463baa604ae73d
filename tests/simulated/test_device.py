"""The simulated device itself: it refuses what accelerators refuse, and otherwise computes what the CPU does."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.devices import has_float64, widened
from leakscope.testing import device
from leakscope.testing.device import build

SIM = "sim:1"  # a name: torch learns what it means when the fixture runs
OTHER = "sim:0"


def test_fresh_memory_is_nan() -> None:
    assert torch.empty(5, 3, device=SIM).isnan().all()
    assert torch.empty_like(torch.ones(4, device=SIM)).isnan().all()


REFUSED: dict[str, Callable[[], object]] = {
    "cpu operand": lambda: torch.ones(3, device=SIM) + torch.ones(3),
    "other device": lambda: torch.ones(3, device=SIM) + torch.ones(3, device=OTHER),
    "implicit first device": lambda: torch.ones(3, device=SIM) + torch.ones(3, device="sim"),
    "cat": lambda: torch.cat([torch.ones(3, device=SIM), torch.ones(3)]),
    "stacked scalars": lambda: torch.stack([torch.ones((), device=SIM), torch.ones(())]),
    "where": lambda: torch.where(torch.ones(3, device=SIM) > 0, torch.ones(3), torch.ones(3, device=SIM)),
    "gather": lambda: torch.ones(3, device=SIM).gather(0, torch.tensor([0, 1])),
    "searchsorted": lambda: torch.searchsorted(torch.ones(3, device=SIM), torch.ones(2)),
    "device index of a cpu tensor": lambda: torch.ones(3)[torch.tensor([1], device=SIM)],
    "convolution": lambda: nn.Conv2d(1, 1, 3)(torch.ones(1, 1, 5, 5, device=SIM)),
    "linear": lambda: nn.Linear(3, 2).to(SIM)(torch.ones(1, 3)),
    "cpu generator": lambda: torch.randn(3, device=SIM, generator=torch.Generator()),
    "generator of the other device": lambda: torch.randn(3, device=SIM, generator=torch.Generator(OTHER)),
    "device generator for a cpu draw": lambda: torch.randperm(3, generator=torch.Generator(SIM)),
    "multinomial": lambda: torch.multinomial(torch.ones(3, device=SIM), 1, generator=torch.Generator()),
    "numpy": lambda: torch.ones(3, device=SIM).numpy(),
}


@pytest.mark.parametrize("mixed", REFUSED)
def test_mix_ups_are_refused(mixed: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"device|generator|numpy"):
        REFUSED[mixed]()


def test_what_cuda_allows_is_allowed() -> None:
    x = torch.arange(6.0, device=SIM)
    assert (x * torch.tensor(2.0)).device == torch.device(SIM)
    assert x[torch.tensor([0, 1])].tolist() == [0, 1]
    x[1] = torch.tensor(9.0)
    assert x.tolist() == [0, 9, 2, 3, 4, 5]


def test_generators_belong_to_devices_and_draw_the_cpus_numbers() -> None:
    here = torch.randn(40, generator=torch.Generator().manual_seed(3))
    there = torch.randn(40, generator=torch.Generator(SIM).manual_seed(3), device=SIM)
    assert torch.equal(here, there.cpu())
    before = torch.get_rng_state()
    with seeds.ambient(0, "test", device=SIM):
        first = torch.rand(4, device=SIM)
        nn.functional.dropout(torch.ones(4, device=SIM))
    with seeds.ambient(0, "test", device=SIM):
        assert torch.equal(first, torch.rand(4, device=SIM))
    assert torch.equal(before, torch.get_rng_state()), "a draw on the device moved the CPU's generator"


def test_ambient_leaves_other_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the generator of a device opens a context there; nobody asked for that."""
    module, asked = torch.get_device_module("sim"), list[str]()
    read = module.get_rng_state

    def noted(where: object) -> torch.Tensor:
        asked.append(str(where))
        state: torch.Tensor = read(where)
        return state

    monkeypatch.setattr(module, "get_rng_state", noted)
    with seeds.ambient(0, "here"):
        torch.rand(1)
    assert asked == []
    state = [read(0), read(1)]
    with seeds.ambient(0, "there", device=SIM):
        torch.rand(1, device=SIM)
    assert asked == ["sim:1"]
    assert torch.equal(state[0], read(0))
    assert torch.equal(state[1], read(1))


def test_waits_and_copies_are_counted() -> None:
    x = torch.rand(8, device=SIM)
    cases: list[tuple[Callable[[], object], tuple[int, int, int]]] = [
        (lambda: x.sum().item(), (1, 0, 0)),
        (lambda: bool(x.isfinite().all()), (1, 0, 0)),
        (lambda: torch.equal(x, x), (1, 0, 0)),
        (lambda: x[x > 0.5], (1, 0, 0)),
        (lambda: x.cpu(), (0, 0, 1)),
        (lambda: x.tolist(), (0, 0, 1)),
        (lambda: torch.ones(3).to(SIM), (0, 1, 0)),
        (lambda: x[torch.tensor([0, 1])], (0, 1, 0)),
        (lambda: (x * 2 + torch.tensor(1.0)).sum(), (0, 0, 0)),
        (lambda: torch.zeros(3, device=SIM).fill_(2), (0, 0, 0)),
    ]
    for act, wanted in cases:
        with device.counted() as seen:
            act()
        assert (seen.waits, seen.to_device, seen.to_host) == wanted


def test_float64_is_refused_only_inside_the_block() -> None:
    x = torch.ones(3, device=SIM)
    with device.without_float64():
        assert not has_float64(torch.device(SIM))
        for act in (x.double, lambda: torch.ones(2, dtype=torch.float64).to(SIM), lambda: x.to(torch.complex128)):
            with pytest.raises(TypeError, match="no float64"):
                act()
        assert widened(x).device.type == "cpu"
        assert widened(x).dtype == torch.float64
    assert has_float64(torch.device(SIM))
    assert widened(x).device == torch.device(SIM)


def test_widened_is_differentiable_without_float64() -> None:
    x = torch.tensor([1.0, 2.0], device=SIM, requires_grad=True)
    with device.without_float64():
        widened(x).square().sum().to(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


def test_a_network_trains_as_on_the_cpu() -> None:
    with seeds.ambient(0, "net"):
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x, y = torch.rand(6, 1, 8, 8, generator=seeds.generator(0, "x")), torch.arange(6) % 3
    there = copy.deepcopy(net).to(SIM)
    for own, place in ((net, "cpu"), (there, SIM)):
        optimizer = torch.optim.Adam(own.parameters(), 1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(x.to(place)), y.to(place)).backward()
            optimizer.step()
    for a, b in zip(net.state_dict().values(), there.state_dict().values(), strict=True):
        torch.testing.assert_close(b.cpu(), a, atol=1e-5, rtol=1e-5)


def test_a_gru_cell_is_the_cpus() -> None:
    with seeds.ambient(0, "cell"):
        cell, x, h = nn.GRUCell(4, 5), torch.rand(3, 4), torch.rand(3, 5)
    there = copy.deepcopy(cell).to(SIM)
    inputs = x.clone().requires_grad_(), x.to(SIM).requires_grad_()
    cell(inputs[0], h).square().sum().backward()
    there(inputs[1], h.to(SIM)).square().sum().backward()
    torch.testing.assert_close(inputs[1].grad.cpu(), inputs[0].grad)  # type: ignore[union-attr]
    for a, b in zip(cell.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad)  # type: ignore[union-attr]


def test_views_share_memory_and_files_keep_the_device() -> None:
    x = torch.arange(6.0, device=SIM).view(2, 3)
    x.t()[1:].add_(10)
    assert x.tolist() == [[0, 11, 12], [3, 14, 15]]
    kept = io.BytesIO()
    torch.save({"x": x}, kept)
    kept.seek(0)
    assert torch.load(kept, weights_only=True)["x"].device == torch.device(SIM)


def test_without_a_compiler_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(device.Unavailable, match=r"install g\+\+") as raised:
        build.library()
    assert "\n" not in str(raised.value)


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'simulated.cpp:1: error: too old' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(device.Unavailable, match="too old"):
        build.library()
    assert not list(tmp_path.rglob("*.so"))


def test_a_new_process_knows_it_by_name_and_needs_no_pytest() -> None:
    """Workers of a pool are such processes; `auto` never takes it, though torch then names it as the accelerator."""
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import torch; from leakscope.runners.devices import chosen, shared_out\n"
        "assert float((torch.ones(3, device=chosen('sim:1')) * 2).sum()) == 6\n"
        "assert shared_out('sim') == ['sim:0', 'sim:1']\n"
        "assert torch.accelerator.current_accelerator().type == 'sim' != chosen('auto').type\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
