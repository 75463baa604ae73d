"""The trial of the sparse-coding architecture: does it hide pictures better than nine rivals and its own twin?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from leakscope.studies._crossed import crossed_interval
from leakscope.studies._sparse_claims import Trial, claims, known_as
from leakscope.studies._sparse_features import embeddings, separability
from leakscope.studies._sparse_page import page
from leakscope.studies._sparse_pictures import reconstructions, sweep_plot, umap_plot
from leakscope.studies._sparse_time import epoch_seconds
from leakscope.studies.study import STUDIES, Figures, Run, Runs, Study, published

THREATS = ("split", "end-to-end")


@STUDIES.register("sparse-coding")
@dataclass(frozen=True)
class SparseCodingStudy(Study):
    """Ten defences and the undefended twin under the paper's split and end-to-end threats, beside its tables.

    `part` is the data set as the paper's figures call it. The variants `split` and `end-to-end` are the
    threats; `linear`, where there is one, gives the features behind two linear layers.
    """

    part: str = "mnist"

    def measure(self, runs: Runs) -> Figures:
        trials = {threat: trial(runs[threat]) for threat in THREATS if threat in runs.runs}
        figures: Figures = {
            "data": runs.origin["data"],
            "published": published("sparse_coding")["threats"].get(self.part, {}),
            "threats": {threat: _threat(runs[threat], found) for threat, found in trials.items()},
            "separability": separability(runs),
            "umap": find_spec("umap") is not None,
            "seconds": epoch_seconds(runs["split"]) if "split" in trials else {},
        }
        figures["claims"] = [claim.as_dict() for claim in claims(trials, figures)]
        return figures

    def page(self, parts: Mapping[str, Figures]) -> str:
        return page(parts, published("sparse_coding"))

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        drawn = {f"{threat}.png": reconstructions(runs[threat]) for threat in THREATS if threat in runs.runs}
        tables = {threat: trial(runs[threat]) for threat in THREATS if threat in runs.runs}
        drawn["sparsity.png"] = sweep_plot(tables)
        maps = embeddings(runs)
        return drawn | ({"umap.png": umap_plot(maps)} if maps else {})


def trial(run: Run) -> Trial:
    """Seeds × pictures of the worst-case leak of every defence, and the accuracy of every seed."""
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in run.rows:
        rows.setdefault(known_as(row["defense"]), {}).setdefault(int(row["seed"]), []).append(row)
    leak = {name: _worst(run, own, "leak") for name, own in rows.items()}
    psnr = {name: _worst(run, own, "psnr") for name, own in rows.items()}
    accuracy = {
        name: [float(t["accuracy"]) for t in run.targets if known_as(t["defense"]) == name] for name in rows
    }  # fmt: skip
    return Trial(leak, psnr, accuracy)


def _worst(run: Run, seeds: Mapping[int, list[dict[str, Any]]], metric: str) -> Tensor:
    return torch.stack([torch.stack([run.values(row)[metric] for row in seeds[s]]).amax(0) for s in sorted(seeds)])


def _threat(run: Run, found: Trial) -> Figures:
    defenses: Figures = {}
    for name in found.leak:
        targets = [t for t in run.targets if known_as(t["defense"]) == name]
        rows = [row for row in run.rows if known_as(row["defense"]) == name]
        attacks = {kind: _attack(rows, kind) for kind in dict.fromkeys(_kind(row) for row in rows)}
        defenses[name] = {
            "accuracy": _spread(found.accuracy[name]),
            "leak": crossed_interval(found.leak[name]),
            "psnr": crossed_interval(found.psnr[name]),
            "psnr_by_seed": found.psnr[name].mean(1).tolist(),
            "ssim": fmean(t["worst_case"]["ssim"]["mean"] for t in targets),
            "worst_picture": float(found.leak[name].max()),
            "attacks": attacks,
            "strongest": sorted({str(t["strongest"]).partition(":")[0] for t in targets}),
            "flags": sorted({flag for row in rows for flag in row["flags"]}),
            "notes": targets[0]["notes"],
        }
    settings = run.plan.config
    return {
        "model": run.targets[0]["model"],
        "cut": run.targets[0]["cut"],
        "features": run.targets[0]["feature_shape"],
        "seeds": run.plan.seeds,
        "victims": len(run.plan.victims),
        "private": len(run.plan.splits.private),
        "public": len(run.plan.splits.public),
        "epochs": settings.training.epochs,
        "floor": _floor(run),
        "verdict": run.audit.document["verdict"],
        "defenses": defenses,
    }


def _floor(run: Run) -> Figures:
    """PSNR of the mean public picture: what an attacker gets who has seen nothing."""
    victims = run.plan.victims.images
    error = (victims - run.plan.splits.public.images.mean(0)).square().flatten(1).mean(1)
    return {"mean_picture_psnr": float((-10 * error.log10()).mean())}


def _kind(row: Mapping[str, Any]) -> str:
    return str(row["attack"]).partition(":")[0]


def _attack(rows: list[dict[str, Any]], kind: str) -> Figures:
    own = [row["metrics"] for row in rows if _kind(row) == kind]
    fid = next((name for name in own[0] if name.startswith("fid[")), None)
    figures = {metric: fmean(row[metric]["mean"] for row in own) for metric in ("leak", "psnr", "ssim")}
    return figures | ({} if fid is None else {"fid": fmean(row[fid]["mean"] for row in own), "fid_network": fid})


def _spread(values: list[float]) -> Figures:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None, "seeds": len(values)}
