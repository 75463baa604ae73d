"""The Python interface: what the command line does, for networks and pictures already in memory."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.attack import ATTACKS
from leakscope.core.data import UNLABELLED, ImageSet, without_labels
from leakscope.core.defense import DEFENSES, Stack
from leakscope.core.errors import UsageError
from leakscope.core.progress import Inline, listening
from leakscope.core.results import Finding
from leakscope.core.spec import Kind
from leakscope.data.images import from_torch
from leakscope.experiments.audit import results_of
from leakscope.experiments.config import AuditConfig, load_data
from leakscope.experiments.deployed import Deployed
from leakscope.experiments.finished import Audit
from leakscope.experiments.folder import write_folder
from leakscope.experiments.jobs import plan_jobs
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.reading import flagged, read_target
from leakscope.experiments.stages import Case, Target, read_rebuilt, reconstruct, train_target
from leakscope.experiments.usefulness import Usefulness
from leakscope.experiments.workplace import Workplace
from leakscope.models.asked import Asked
from leakscope.models.given import Given
from leakscope.runners.audit import Labour, run_all, run_audits
from leakscope.runners.devices import chosen
from leakscope.store import Store

Model = nn.Module | Callable[[Tensor], Any] | str | dict[str, Any]
Data = (
    str
    | dict[str, Any]
    | ImageSet
    | tuple[Tensor, Tensor]
    | Tensor
    | torch.utils.data.Dataset[Any]
    | torch.utils.data.DataLoader[Any]
)


def audit(
    model: Model,
    data: Data,
    *,
    cut: str | list[str] | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    progress: bool | None = None,
    **settings: Any,
) -> Audit:
    """Audit a network for what its features at `cut` give away.

    `model` is a module with its trained weights, a function that answers pictures with scores or labels (a model
    behind an interface), or what `--model` takes; `data` is a pair of tensors, a tensor of pictures without labels, a
    `torch.utils.data.Dataset` or `DataLoader`, or what `--data` takes. `settings` are those of a configuration file
    (`defenses`, `attacks`, `seeds`, `gate`, `training`, …); attacks and defences of your own may be given as
    classes or instances. With `out`, the report is written there;
    without `store`, finished stages are kept for this call only. `progress` shows a line while it works; left out, it
    is shown in notebooks.
    """
    plan = plan_for(model, data, cut, settings)
    with _workplace(store, device) as place, _shown(progress):
        result = run_audits([plan], place, command="leakscope.audit(…)")[0]
    if out is not None:
        write_folder(result, Path(out))
    return result


def attack(
    model: Model,
    data: Data,
    *,
    cut: str | list[str] | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    **settings: Any,
) -> list[Finding]:
    """Scores of attacks, without controls or verdict: for looking, not for claims. Arguments are those of `audit`."""
    plan = plan_for(model, data, cut, settings)
    with _workplace(store, device) as place:
        return run_attacks(plan, place, Labour())


def train(
    model: Model,
    data: Data,
    *,
    cut: str | list[str] | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    **settings: Any,
) -> Target:
    """Train one target with its defence; its `split` is the trained network, its `record` what it is good for."""
    plan = plan_for(model, data, cut, settings)
    if len(plan.targets) != 1:
        raise UsageError(f"{len(plan.targets)} targets are asked for; name one cut, one defence and one seed")
    with _workplace(store, device) as place:
        return train_target(plan.scene, plan.targets[0], place)


def load(folder: str | Path, *, trust_code: bool = False, device: str = "auto") -> Deployed:
    """A target that `leakscope export` wrote, ready for use: `.client(x)` gives what leaves the device, with the
    release of its defence, and `.server(z)` the scores. Code that the folder brings runs only with `trust_code`."""
    return Deployed.load(folder, trust_code=trust_code, device=chosen(device))


def plan_for(model: Model, data: Data, cut: str | list[str] | None, settings: dict[str, Any]) -> Plan:
    """Settings around a network and pictures as a checked plan."""
    tree: dict[str, Any] = dict(settings)
    for name, kind in (("attacks", ATTACKS), ("defenses", DEFENSES)):
        if name in tree:
            tree[name] = _adopted(tree[name], kind)
    if cut is not None:
        tree["cuts"] = [cut] if isinstance(cut, str) else list(cut)
    given = not isinstance(model, str | dict)
    images = _images(data)
    tree["data"] = data if isinstance(data, str | dict) else "given"
    tree["model"] = "given" if given else model
    if given:
        # The weights are there: train only when told to.
        tree["training"] = {"epochs": 0, **tree.get("training", {})}
    tree.setdefault("data_root", os.environ.get("LEAKSCOPE_DATA"))
    if images is not None and images.classes == UNLABELLED:
        tree.setdefault("goal", "unlabelled")
    measure = settings.get("utility")
    utility = None if isinstance(measure, str | None) else Usefulness.of(measure)
    if utility is not None:
        del tree["utility"]
    config = AuditConfig.checked(tree)
    if isinstance(model, str | dict):
        return make_plan(config, data=images, utility=utility)
    if isinstance(model, nn.Module):
        return make_plan(config, data=images, architecture=Given.of(model), utility=utility)
    if not callable(model):
        raise UsageError(f"{type(model).__name__} is no network; give an nn.Module, a function or a name")
    images = images if images is not None else load_data(config, config.data_root)
    return make_plan(config, data=images, architecture=Asked.of(model, images.shape), utility=utility)


def run_attacks(plan: Plan, place: Workplace, labour: Labour) -> list[Finding]:
    """Every attack of a plan on every target, scored, with the flags that results raise against each other."""
    run_all([plan], plan_jobs(plan, controls=False), place, labour)
    results = [result for target in plan.targets for result in results_of(plan, target, place.store)]
    records = {target.key: record for target in plan.targets if (record := read_target(place.store, target.key))}
    return flagged(records, results)


def rebuilt_by(plan: Plan, place: Workplace) -> dict[str, Tensor]:
    """By the key of its result what each attack of a plan rebuilt; made again where the store has scores alone."""
    found = {}
    for target in plan.targets:
        for attack, result in zip(plan.attacks_on(target), results_of(plan, target, place.store), strict=True):
            rebuilt = read_rebuilt(place.store, result.reconstruction)
            if rebuilt is None:
                rebuilt = reconstruct(Case.of(plan.scene, train_target(plan.scene, target, place), attack), place)
            found[result.key] = rebuilt.images
    return found


def _adopted(value: Any, kind: Kind[Any]) -> Any:
    """Classes and instances as descriptions; names, mappings and lists stay."""
    if isinstance(value, str | dict):
        return value
    if isinstance(value, list | tuple):
        return [_one_adopted(item, kind) for item in value]
    return [_one_adopted(value, kind)]


def _one_adopted(item: Any, kind: Kind[Any]) -> Any:
    if isinstance(item, str | dict):
        return item
    if isinstance(item, list | tuple):  # a stack of defences
        return [_one_adopted(part, kind) for part in item]
    if isinstance(item, Stack):
        return [kind.adopt(part) for part in item.parts]
    return kind.adopt(item)


@contextmanager
def _workplace(store: str | Path | None, device: str) -> Iterator[Workplace]:
    if store is not None:
        yield Workplace(Store(store), chosen(device))
        return
    with tempfile.TemporaryDirectory(prefix="leakscope-") as passing:
        yield Workplace(Store(passing), chosen(device))


@contextmanager
def _shown(wanted: bool | None) -> Iterator[None]:
    """A line about what is done so far."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if wanted or (wanted is None and type(shell).__name__ == "ZMQInteractiveShell"):
        with listening(Inline(sys.stderr.write)):
            yield
    else:
        yield


def _images(data: Any) -> ImageSet | None:
    if isinstance(data, str | dict):
        return None
    if isinstance(data, Tensor):  # pictures without labels
        return without_labels(from_torch((data, torch.arange(len(data)))))
    return data if isinstance(data, ImageSet) else from_torch(data)
