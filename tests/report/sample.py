"""A finished audit as the audit writes it: four targets, three attacks each, and pictures of drawn digits."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from safetensors.numpy import save_file

Pictures = dict[str, NDArray[np.uint8]]

# defence, cut, accuracy, feature shape, client compute, and the leak of each attack
TARGETS: tuple[tuple[str, str, float, list[int], float, dict[str, float]], ...] = (
    ("none", "features.3", 0.974, [16, 14, 14], 0.12, {"ridge": 0.931, "decoder": 0.982, "search": 0.958}),
    ("none", "features.7", 0.974, [32, 7, 7], 0.58, {"ridge": 0.702, "decoder": 0.871, "search": 0.755}),
    ("gaussian:sigma=0.5", "features.3", 0.951, [16, 14, 14], 0.12,
     {"ridge": 0.448, "decoder": 0.613, "search": 0.207}),
    ("bottleneck:channels=4+gaussian:sigma=0.5", "features.7", 0.902, [4, 7, 7], 0.59,
     {"ridge": 0.149, "decoder": 0.313, "search": -0.042}),
)  # fmt: skip
GROUPS = ("most leaked", "median", "least leaked")
SPREAD = {"most leaked": 0.05, "median": 0.0, "least leaked": -0.12}


def summary(mean: float, half: float, worst: float, n: int = 64) -> dict[str, Any]:
    low, high = round(mean - half, 4), round(mean + half, 4)
    return {"mean": mean, "low": low, "high": high, "worst": worst, "std": half * 4, "n": n}


def scores(leak: float) -> dict[str, Any]:
    ssim, mse = 0.35 + 0.63 * max(leak, 0), 0.052 * (1 - leak)
    return {
        "leak": summary(leak, 0.012, min(0.999, leak + 0.06)),
        "ssim": summary(round(ssim, 4), 0.01, min(0.999, ssim + 0.05)),
        "psnr": summary(round(float(-10 * np.log10(mse)), 3), 0.4, 34.1),
        "mse": summary(round(mse, 6), 0.0007, round(mse / 3, 7)),
    }


def digits(count: int, channels: int, side: int, seed: int) -> NDArray[np.uint8]:
    """Tilted digits, count×channels×side×side."""
    rng = np.random.default_rng(seed)
    font = ImageFont.load_default(size=side * 0.8)
    made = []
    for _ in range(count):
        sheet = Image.new("L", (side, side), 0)
        draw = ImageDraw.Draw(sheet)
        draw.text((side / 2, side / 2), str(rng.integers(10)), fill=255, font=font, anchor="mm")
        made.append(np.asarray(sheet.rotate(float(rng.uniform(-18, 18)), Image.Resampling.BICUBIC)))
    tint = rng.uniform(0.5, 1, (count, channels, 1, 1)) if channels == 3 else np.ones((count, 1, 1, 1))
    return np.round(np.stack(made)[:, None] * tint).astype(np.uint8)


def rebuilt(truth: NDArray[np.uint8], leak: float, seed: int) -> NDArray[np.uint8]:
    """What an attack of that leak would make: blurred and noisy in proportion to what it missed."""
    rng = np.random.default_rng(seed)
    missed = 1 - max(0.0, min(1.0, leak))
    blur = ImageFilter.GaussianBlur(3 * missed)
    soft = np.stack([[np.asarray(Image.fromarray(plane).filter(blur)) for plane in image] for image in truth])
    noisy = soft * (1 - 0.3 * missed) + rng.normal(0, 70 * missed, truth.shape)
    return np.clip(np.round(noisy), 0, 255).astype(np.uint8)


def sample(channels: int = 1, side: int = 28, each: int = 3) -> tuple[dict[str, Any], Pictures]:
    """An audit whose gate was not kept, with `each` pictures a group."""
    targets, results, shown, pictures = [], [], {}, {}
    for place, (defense, cut, accuracy, features, compute, leaks) in enumerate(TARGETS):
        key = f"{place + 1:x}" * 4 + "c0ffee5a1e"
        common = {"model": "convnet", "defense": defense, "cut": cut, "seed": 0, "accuracy": accuracy}
        strongest = max(leaks, key=lambda name: leaks[name])
        worst_case = scores(round(leaks[strongest] + 0.011, 4))
        targets.append({
            "key": key, **common, "calibration": 0.021 + 0.01 * place, "feature_shape": features,
            "client_compute": compute, "separability": {"min": 0.41, "mean": 3.72, "max": 9.8},
            "notes": {} if "gaussian" not in defense else {"gaussian": {"signal_to_noise": 1.9}},
            "strongest": strongest, "worst_case": worst_case,
        })  # fmt: skip
        for rank, (attack, leak) in enumerate(leaks.items()):
            result = f"{key}-{attack}"
            flags = ["not-converged"] if (attack, place) == ("search", 3) else []
            flags += ["linear-beats-search"] if attack == "search" and place >= 2 else []
            results.append({
                "key": result, "target": key, **common, "attack": attack, "flags": flags, "metrics": scores(leak),
                "seconds": 1.4 * (rank + 1) ** 2, "notes": {},
            })  # fmt: skip
            names = [name for name in GROUPS for _ in range(each)]
            own = [round(min(0.999, leak + SPREAD[name] - 0.004 * (i % each)), 4) for i, name in enumerate(names)]
            truth = digits(len(names), channels, side, seed=place)
            guesses = [rebuilt(truth[i : i + 1], value, seed=i) for i, value in enumerate(own)]
            pictures[f"truth/{result}"] = truth
            pictures[f"guess/{result}"] = np.concatenate(guesses)
            shown[result] = {"groups": names, "leak": own, "victims": [7 * i + place for i in range(len(names))]}
    where = "decoder on no defence at features.3, seed 0"
    audit: dict[str, Any] = {
        "schema": "leakscope/audit/1",
        "verdict": "fail",
        "sentence": "From the features this network releases, an attacker can rebuild users' pictures almost exactly.",
        "reasons": ["The strongest attack recovered 98 % of the variance beyond the label; the gate allows 20 %."],
        "gate": {"text": "leak<=0.2 at E1", "metric": "leak", "limit": 0.2, "level": "E1", "value": 0.982,
                 "held": False, "where": where},
        "exit_code": 1,
        "evidence": "E0",
        "evidence_detail": {
            "met": ["the suite ran in full", "the positive control passed", "floors were subtracted"],
            "missing": ["three seeds (one was run)"],
        },
        "seconds": 93.1,
        "command": "leakscope audit --data mnist5k --model convnet --cut features.3 --cut features.7 "
                   "--defense none --defense gaussian:sigma=0.5 --gate 'leak<=0.2 at E1' --seed 0 --out runs/demo",
        "created": "2026-11-15T12:30:05+00:00",
        "threat": {"access": ["labels", "scores", "features", "query", "encoder"], "public_data": True,
                   "knows_defense": True, "queries": None, "goal": "rebuild the picture a user sent"},
        "data": {"name": "mnist5k", "shape": [channels, side, side], "classes": 10,
                 "private": {"images": 2500, "digest": "5f1c0a7e9b2d4c6f8a013579"},
                 "heldout": {"images": 500, "digest": "0b1d2f3a4c5e6f708192a3b4"},
                 "public": {"images": 2000, "digest": "9a8b7c6d5e4f3a2b1c0d9e8f"}, "victims": 64},
        "config": {"data": "mnist5k", "model": {"kind": "convnet", "width": 16}, "cuts": ["features.3", "features.7"],
                   "defenses": [target[0] for target in TARGETS],
                   "attacks": [{"kind": "ridge", "ridge": 0.1}, {"kind": "decoder", "capacity": "medium"},
                               {"kind": "search", "steps": 400, "rate": 1e-05}],
                   "train": {"epochs": 8, "rate": 0.001}, "seeds": [0]},
        "versions": {"leakscope": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
        "targets": targets,
        "results": results,
        "metrics": {
            "leak": {"more_leak": "high", "what": "share of pixel variance recovered beyond what the label tells"},
            "ssim": {"more_leak": "high", "what": "structural similarity"},
            "psnr": {"more_leak": "high", "what": "peak signal to noise ratio, in decibels"},
            "mse": {"more_leak": "low", "what": "mean squared pixel error"},
            "lpips": {"more_leak": None, "unavailable": "no AlexNet weights on disk"},
        },
        "floors": {
            "mean": {"leak": summary(-0.281, 0.02, -0.02), "ssim": summary(0.201, 0.01, 0.33)},
            "class-mean": {"leak": summary(0.0, 0.0, 0.0), "ssim": summary(0.352, 0.01, 0.51)},
            "nearest-public": {"leak": summary(0.118, 0.02, 0.61), "ssim": summary(0.502, 0.02, 0.83)},
        },
        "controls": {
            "positive": {"passed": True, "required": 0.9, "attacks": {"ridge": 0.999, "decoder": 0.991, "search": 0.97},
                         "what": "every attack must invert an encoder that sends the picture itself"},
            "negative": {"passed": True, "required": 0.1, "value": -0.003, "pairs": 64,
                         "what": "From features of other pictures, no attack may score above the floor."},
            "canary": {"passed": None, "what": "A mark planted in the defended encoder must be found by the suite."},
        },
        "flags": [
            {"id": "not-converged", "severity": "blocks", "where": "search on bottleneck at features.7, seed 0",
             "explanation": "The objective was still falling when the budget ended, so the attack may be stronger than "
                            "it looks. Give it more steps."},
            *({"id": "linear-beats-search", "severity": "warns", "where": f"search on {name}, seed 0",
               "explanation": "A linear inverter did better than the optimisation attack, which suggests that its "
                              "gradients are of little use here."} for name in ("gaussian at features.3",
                                                                              "bottleneck at features.7")),
        ],
        "pictures": shown,
    }  # fmt: skip
    return audit, pictures


def with_verdict(audit: dict[str, Any], verdict: str) -> dict[str, Any]:
    """The same measurements with another verdict, as the audit would have written it."""
    changed = copy.deepcopy(audit)
    changed["verdict"] = verdict
    changed["exit_code"] = {"measured": 0, "pass": 0, "fail": 1, "inconclusive": 4}[verdict]
    changed["sentence"] = f"A sentence for the verdict {verdict}."
    if verdict == "measured":
        changed["gate"], changed["reasons"] = None, []
    else:
        changed["gate"]["held"] = verdict == "pass"
    return changed


def many(results: int, channels: int, side: int) -> tuple[dict[str, Any], Pictures]:
    """One audit repeated over seeds until it has that many results."""
    audit, pictures = sample(channels, side)
    targets, listed, shown, drawn = [], [], {}, {}
    for seed in range(-(-results // len(audit["results"]))):
        for target in audit["targets"]:
            targets.append({**target, "key": f"{target['key']}s{seed}", "seed": seed})
        for result in audit["results"][: results - len(listed)]:
            key = f"{result['key']}s{seed}"
            listed.append({**result, "key": key, "target": f"{result['target']}s{seed}", "seed": seed})
            shown[key] = audit["pictures"][result["key"]]
            for side_name in ("truth", "guess"):
                drawn[f"{side_name}/{key}"] = pictures[f"{side_name}/{result['key']}"]
    return {**audit, "targets": targets, "results": listed, "pictures": shown}, drawn


def save(folder: Path, audit: dict[str, Any], pictures: Pictures) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    save_file(pictures, folder / "pictures.safetensors")
    return folder
