"""`leakscope export` and `leakscope submit`: targets for others, and attacks by others."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from leakscope.commands.settings import say
from leakscope.options import (
    RUN,
    AllowCode,
    Config,
    Cut,
    Data,
    DataRoot,
    DefenseName,
    Device,
    Epochs,
    Json,
    Model,
    Quiet,
    Resize,
    Scale,
    Seed,
    Set,
    StorePath,
    Threads,
    Victims,
    Weights,
    option,
)


def export(
    key: Annotated[str, typer.Argument(help="The key of a target, or of a result on it; its first digits do.")],
    out: Annotated[Path, option("--out", help="A new folder.", panel=RUN)] = Path("runs/export"),
    weights: Annotated[
        Path | None, option("--weights", help="The file a target was given instead of being trained.", panel=RUN)
    ] = None,
    audit: Annotated[
        Path | None, option("--audit", help="A folder of `audit --out` whose verdict the card quotes.", panel=RUN)
    ] = None,
    store: StorePath = Path("runs/store"),
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> int:
    """Write a target as a folder that `--model path:FOLDER` loads, and the Hugging Face hub takes.

    It holds safetensors weights, a description, a model card with what attacks rebuilt, and checksums.

    Examples:

      leakscope export 3f2a9c41 --out zoo/digits

      leakscope export 3f2a9c41 --out deployed --weights own.pt --allow-code

      leakscope audit --model path:zoo/digits --data digits
    """
    from leakscope.experiments.export import export_target
    from leakscope.store import Store

    written = export_target(Store.existing(store), key, out, weights=weights, audit=audit, allow_code=allow_code)
    if not quiet:
        say(str(written))
    return 0


def submit(
    reconstructions: Annotated[Path, typer.Argument(help="A safetensors file: 'guess', one picture per victim.")],
    config: Config = None,
    card: Annotated[
        Path, option("--card", help="The threat card (YAML): name, by, how, threat, sha256.", panel=RUN)
    ] = Path("card.yaml"),
    data: Data = None,
    data_root: DataRoot = None,
    resize: Resize = None,
    model: Model = None,
    weights: Weights = None,
    cut: Cut = None,
    defense: DefenseName = None,
    epochs: Epochs = None,
    victims: Victims = None,
    scale: Scale = None,
    set_: Set = None,
    allow_code: AllowCode = False,
    seed: Seed = None,
    device: Device = "auto",
    store: StorePath = Path("runs/store"),
    json_: Json = False,
    quiet: Quiet = False,
    threads: Threads = None,
) -> int:
    """Score somebody else's reconstructions of a plan's victims; audits then list it as an outside attack.

    Example:

      leakscope submit theirs.safetensors --card card.yaml --model path:zoo/digits --data digits --victims 64
    """
    from leakscope.commands.settings import plan_of, print_json, work_at
    from leakscope.core.results import to_json
    from leakscope.experiments.submissions import Card
    from leakscope.experiments.submissions import submit as score_outside
    from leakscope.terminal import following, print_scores

    described = Card.read(card)
    plan = plan_of(
        config, scale, set_, threads, allow_code,
        data=data, data_root=data_root, resize=resize, model=model, weights=weights, cuts=cut, defenses=defense,
        victims=victims, seeds=seed, **{"training.epochs": epochs},
    )  # fmt: skip
    command = shlex.join(["leakscope", *sys.argv[1:]])
    with following(quiet=quiet or json_):
        entry = score_outside(plan, work_at(store, device), reconstructions, described, command)
    if json_:
        print_json(to_json(entry.result))
    else:
        print_scores([entry])
    return 0
