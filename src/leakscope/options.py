"""Options that several commands share, each with the help that teaches it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

TARGET, ATTACKER, RUN, BOARD = "The target", "The attacker", "The run", "The leaderboard"


class RunnerName(StrEnum):
    """Where jobs run."""

    here = "here"
    pool = "pool"
    ray = "ray"
    slurm = "slurm"


class Retry(StrEnum):
    """What is tried again."""

    nothing = "nothing"
    failed = "failed"


class ReproductionScale(StrEnum):
    """How large a published protocol is run."""

    small = "small"
    trial = "trial"
    paper = "paper"


class GroupName(StrEnum):
    """What the rows of a leaderboard are."""

    defense = "defense"
    model = "model"
    cut = "cut"


class Format(StrEnum):
    """How a leaderboard is written."""

    html = "html"
    md = "md"
    tex = "tex"
    csv = "csv"


def option(*names: str, help: str, panel: str, **kwargs: Any) -> Any:
    # What stands in brackets (a default) is not rich's markup, which would swallow it.
    return typer.Option(*names, help=help.replace("[", r"\["), rich_help_panel=panel, **kwargs)


Config = Annotated[
    Path | None, typer.Argument(help="A YAML file, or a shipped one by name (demo); options override it.")
]
Data = Annotated[
    str | None,
    option(
        "--data",
        help="Data set by name, folder:PATH (a folder per class), npz:PATH.  [mnist5k]",
        panel=TARGET,
    ),
]
DataRoot = Annotated[
    Path | None, option("--data-root", help="Where data files live.", panel=TARGET, envvar="LEAKSCOPE_DATA")
]
Resize = Annotated[int | None, option("--resize", help="Resize pictures to this side.", panel=TARGET)]
Model = Annotated[
    str | None,
    option(
        "--model",
        help="Network: a name, torchvision:NAME, timm:NAME, FILE.py:FACTORY, FILE.onnx, http://…  [convnet]",
        panel=TARGET,
    ),
]
Weights = Annotated[
    Path | None,
    option(
        "--weights",
        help="Weights (safetensors, or a .pt of tensors) to audit as they are; --epochs trains further.",
        panel=TARGET,
    ),
]
Private = Annotated[
    str | None, option("--private", help="Folder of what the network was trained on, CLASS/picture.", panel=TARGET)
]
Heldout = Annotated[str | None, option("--heldout", help="Folder of what users send.", panel=TARGET)]
Public = Annotated[str | None, option("--public", help="Folder of what the attacker has.", panel=TARGET)]
Normalized = Annotated[
    str | None,
    option("--normalize", help="What the weights expect: imagenet, none, MEAN/STD such as 0.5/0.25.", panel=TARGET),
]
Cut = Annotated[
    list[str] | None,
    option("--cut", help="Layer to cut at, as `leakscope cuts` names it; repeat.  [the model's own]", panel=TARGET),
]
DefenseName = Annotated[
    list[str] | None,
    option("--defense", help="none, gaussian:sigma=0.5, dropout:p=0.2+topk, FILE.py:CLASS …; repeat.", panel=TARGET),
]
Epochs = Annotated[int | None, option("--epochs", help="Epochs of training; 0 audits as it is.", panel=TARGET)]
AttackName = Annotated[
    list[str] | None,
    option(
        "--attack",
        help="A suite (quick, full) or attacks, such as decoder:capacity=large or FILE.py:CLASS; repeat.",
        panel=ATTACKER,
    ),
]
Victims = Annotated[int | None, option("--victims", help="How many held-out pictures are attacked.", panel=ATTACKER)]
Evidence = Annotated[str | None, option("--evidence", help="Evidence level to work for: E0, E1 or E2.", panel=ATTACKER)]
Gate = Annotated[
    str | None, option("--gate", help='What may leak at most: "leak<=0.2", "ssim<=0.5 at E1".', panel=ATTACKER)
]
Scale = Annotated[str | None, option("--scale", help="A named preset of the configuration file.", panel=RUN)]
Set = Annotated[
    list[str] | None, option("--set", help="Any setting, dotted: --set training.batch=32; repeat.", panel=RUN)
]
Seed = Annotated[list[int] | None, option("--seed", help="Seed; repeat for several.", panel=RUN)]
Device = Annotated[str, option("--device", help="auto, cpu, cuda, cuda:1 …; sim:1 to rehearse.", panel=RUN)]
StorePath = Annotated[
    Path, option("--store", help="Where finished stages are kept.", panel=RUN, envvar="LEAKSCOPE_STORE")
]
Out = Annotated[Path, option("--out", help="Folder for the report.", panel=RUN)]
Json = Annotated[bool, option("--json", help="Print machine-readable JSON.", panel=RUN)]
Quiet = Annotated[bool, option("--quiet", help="Print only the result.", panel=RUN)]
DryRun = Annotated[bool, option("--dry-run", help="Check everything, tell what it takes; compute nothing.", panel=RUN)]
Threads = Annotated[int | None, option("--threads", help="CPU threads.", panel=RUN)]
AllowCode = Annotated[
    bool,
    option("--allow-code", help="Let the configuration file name code (.py files, plug-ins), run as you.", panel=RUN),
]
Isolate = Annotated[
    bool | None,
    option(
        "--isolate/--no-isolate",
        help="Run in a child process: a network that ends it cannot pass.  [where there is a gate]",
        panel=RUN,
    ),
]
Patience = Annotated[
    float, option("--patience", help="Seconds that one call into the network may take, isolated.", panel=RUN)
]
Workers = Annotated[
    int | None,
    option(
        "--workers",
        help="Processes that share the work, one thread each unless --threads says more.  "
        "[one per core for large audits on a processor; else all in this process]",
        panel=RUN,
    ),
]
