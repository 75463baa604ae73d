"""A finished audit as the audit writes it: four targets, three attacks each, and pictures of drawn digits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from safetensors.numpy import save_file

from leakscope.core.reports import (
    AuditReport,
    ControlReport,
    DataRecord,
    EvidenceReport,
    ExposedShare,
    GateReport,
    GroupReport,
    PartRecord,
    ShownPictures,
    TargetReport,
)
from leakscope.core.results import (
    AttackResult,
    ControlResult,
    Diagnostics,
    Direction,
    Flag,
    Method,
    MetricInfo,
    Spread,
    Summary,
    TargetRecord,
    ThreatRecord,
    Traits,
    to_json,
)
from leakscope.core.words import Control, FlagId, Verdict

Pictures = dict[str, NDArray[np.uint8]]

# defence, cut, accuracy, feature shape, client compute, and the leak of each attack
TARGETS: tuple[tuple[str, str, float, tuple[int, ...], float, dict[str, float]], ...] = (
    ("none", "features.3", 0.974, (16, 14, 14), 0.12, {"ridge": 0.931, "decoder": 0.982, "search": 0.958}),
    ("none", "features.7", 0.974, (32, 7, 7), 0.58, {"ridge": 0.702, "decoder": 0.871, "search": 0.755}),
    ("gaussian:sigma=0.5", "features.3", 0.951, (16, 14, 14), 0.12,
     {"ridge": 0.448, "decoder": 0.613, "search": 0.207}),
    ("bottleneck:channels=4+gaussian:sigma=0.5", "features.7", 0.902, (4, 7, 7), 0.59,
     {"ridge": 0.149, "decoder": 0.313, "search": -0.042}),
)  # fmt: skip
GROUPS = ("most leaked", "median", "least leaked")
SPREAD = {"worst": 0.06, "most leaked": 0.05, "median": 0.0, "least leaked": -0.12}


DIRECTIONS: dict[str, Direction] = {"leak": "high", "ssim": "high", "psnr": "high", "mse": "low"}
THREAT = ThreatRecord(("labels", "scores", "features", "query", "encoder"), True, True, None, "all but the head")


def summary(mean: float, half: float, worst: float, n: int = 64) -> Summary:
    return Summary(mean, half * 4, round(mean - half, 4), round(mean + half, 4), worst, n)


def scores(leak: float) -> dict[str, Summary]:
    ssim, mse = 0.35 + 0.63 * max(leak, 0), max(0.052 * (1 - leak), 1e-6)
    return {
        "leak": summary(leak, 0.012, min(0.999, leak + 0.06)),
        "ssim": summary(round(ssim, 4), 0.01, min(0.999, ssim + 0.05)),
        "psnr": summary(round(float(-10 * np.log10(mse)), 3), 0.4, 34.1),
        "mse": summary(round(mse, 6), 0.0007, round(mse / 3, 7)),
    }


def method(text: str) -> Method:
    """A method as `Method.of` describes it, from how it is written: `gaussian:sigma=0.5+dropout`."""
    parts = []
    for part in text.split("+"):
        kind, _, rest = part.partition(":")
        fields = dict(item.split("=", 1) for item in rest.split(",")) if rest else {}
        parts.append({"kind": kind, "revision": 1, **fields})
    kinds = tuple(str(part["kind"]) for part in parts)
    settings = {"kind": "stack", "revision": 1, "parts": parts} if len(parts) > 1 else parts[0]
    return Method(kinds, text, settings, {})


def target_record(key: str, defense: str, cut: str, seed: int, accuracy: float | None, **facts: object) -> TargetRecord:
    made = TargetRecord(
        key=key, trained=key, setting="5e771796", data="mnist5k", model=method("convnet"), defense=method(defense),
        cut=cut, seed=seed, undefended=defense == "none", accuracy=accuracy, calibration=0.021, input_shape=(1, 28, 28),
        classes=tuple("0123456789"), feature_shape=(16, 14, 14), client_compute=0.12, random_release=False,
        batch_dependent=False, separability=Spread(0.41, 3.72, 9.8), has_use=True, identity={},
    )  # fmt: skip
    return replace(made, **facts)  # type: ignore[arg-type]


def attack_result(key: str, target: str, attack: str, leak: float, seed: int = 0, **facts: object) -> AttackResult:
    made = AttackResult(
        key=key, reconstruction=f"{key}-pictures", target=target, attack=method(attack), traits=Traits(), threat=THREAT,
        goal="pictures", seed=seed, victims="71c7145" + "0" * 17, metrics=scores(leak), directions=DIRECTIONS,
        diagnostics=Diagnostics(seconds=1.4, cpu_seconds=1.2), mismatched=-0.4, control="c0ffee",
    )  # fmt: skip
    return replace(made, **facts)  # type: ignore[arg-type]


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


def _flags(attack: str, place: int, key: str) -> tuple[Flag, ...]:
    if attack != "search" or place < 2:
        return ()
    where = f"search on target {place + 1}, seed 0"
    warned = (Flag(FlagId.LINEAR_BEATS_STRONG, where, key),)
    return (Flag(FlagId.NOT_CONVERGED, where, key), *warned) if place == 3 else warned


def _shown(leak: float, place: int, each: int) -> ShownPictures:
    names = ("worst", *(name for name in GROUPS for _ in range(each)))
    own = (round(min(0.999, leak + SPREAD[name] - 0.004 * (i % each)), 4) for i, name in enumerate(names))
    return ShownPictures(names, tuple(own), tuple(7 * i + place for i in range(len(names))))


def sample(channels: int = 1, side: int = 28, each: int = 3) -> tuple[AuditReport, Pictures]:
    """An audit whose gate was not kept, with `each` pictures per group, and the worst one."""
    targets, results, shown, pictures = [], [], {}, {}
    for place, (defense, cut, accuracy, features, compute, leaks) in enumerate(TARGETS):
        key = f"{place + 1:x}" * 4 + "c0ffee5a1e"
        strongest = max(leaks, key=lambda name: leaks[name])
        notes = {} if "gaussian" not in defense else {"gaussian": {"signal_to_noise": 1.9}}
        record = target_record(
            key, defense, cut, 0, accuracy, calibration=0.021 + 0.01 * place, feature_shape=features,
            client_compute=compute, notes=notes, input_shape=(channels, side, side),
        )  # fmt: skip
        targets.append(
            TargetReport(
                record,
                f"{key}-{strongest}",
                scores(round(leaks[strongest] + 0.011, 4)),
                ExposedShare(9 - 3 * place, 64, 0.24),
            )
        )
        for rank, (attack, leak) in enumerate(leaks.items()):
            result = f"{key}-{attack}"
            said = Diagnostics(seconds=1.4 * (rank + 1) ** 2, cpu_seconds=1.2 * (rank + 1) ** 2)
            if attack == "decoder":
                said = replace(said, anytime=tuple((0.3 * 2**i, leak * (1 - 0.6**i)) for i in range(1, 7)))
            flags = _flags(attack, place, result)
            results.append(attack_result(result, key, attack, leak, diagnostics=said, flags=flags))
            shown[result] = _shown(leak, place, each)
            truth = digits(len(shown[result].groups), channels, side, seed=place)
            guesses = [rebuilt(truth[i : i + 1], value, seed=i) for i, value in enumerate(shown[result].leak)]
            pictures[f"truth/{result}"] = truth
            pictures[f"guess/{result}"] = np.concatenate(guesses)
    return _report(tuple(targets), tuple(results), shown, channels, side), pictures


def _report(
    targets: tuple[TargetReport, ...],
    results: tuple[AttackResult, ...],
    shown: Mapping[str, ShownPictures],
    channels: int,
    side: int,
) -> AuditReport:
    where = "decoder on no defence at features.3, seed 0"
    exposed = ExposedShare(9, 64, 0.24)
    return AuditReport(
        verdict=Verdict.FAIL,
        sentence="From the features this network releases, an attacker can rebuild users' pictures almost exactly.",
        reasons=("The strongest attack recovered 98 % of the variance beyond the label; the gate allows 20 %.",),
        gate=GateReport("leak<=0.2 at E1", "leak", 0.2, "E1", 0.982, False, where),
        exit_code=1,
        evidence=EvidenceReport(
            "E0",
            ("the suite ran in full", "the positive control passed", "floors were subtracted"),
            ("three seeds (one was run)",),
        ),
        seconds=93.1,
        command="leakscope audit --data mnist5k --model convnet --cut features.3 --cut features.7 "
        "--defense none --defense gaussian:sigma=0.5 --gate 'leak<=0.2 at E1' --seed 0 --out runs/demo",
        created="2026-11-15T12:30:05+00:00",
        goal="pictures",
        goal_what="rebuild the picture a user sent",
        threat=THREAT,
        data=DataRecord(
            "mnist5k", (channels, side, side), 10, PartRecord(2500, "5f1c0a7e9b2d4c6f8a013579"),
            PartRecord(500, "0b1d2f3a4c5e6f708192a3b4"), PartRecord(2000, "9a8b7c6d5e4f3a2b1c0d9e8f"), 64,
        ),
        config={"data": "mnist5k", "model": {"kind": "convnet", "width": 16}, "cuts": ["features.3", "features.7"],
                "defenses": [target[0] for target in TARGETS],
                "attacks": [{"kind": "ridge", "ridge": 0.1}, {"kind": "decoder", "capacity": "medium"},
                            {"kind": "search", "steps": 400, "rate": 1e-05}],
                "train": {"epochs": 8, "rate": 0.001}, "seeds": [0]},
        versions={"leakscope": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
        targets=targets,
        results=results,
        left_out=(),
        groups=tuple(
            GroupReport(t.record.name, (t.record.key,), t.record.undefended, t.worst_case["leak"], exposed)
            for t in targets
        ),
        metrics=(
            MetricInfo("leak", "high", "share of pixel variance recovered beyond what the label tells"),
            MetricInfo("ssim", "high", "structural similarity"),
            MetricInfo("psnr", "high", "peak signal to noise ratio, in decibels"),
            MetricInfo("mse", "low", "mean squared pixel error"),
            MetricInfo("lpips", "high", "perceptual distance", unavailable="no AlexNet weights on disk"),
        ),
        floors={
            "mean": {"leak": summary(-0.281, 0.02, -0.02), "ssim": summary(0.201, 0.01, 0.33)},
            "class-mean": {"leak": summary(0.0, 0.0, 0.0), "ssim": summary(0.352, 0.01, 0.51)},
            "nearest-public": {"leak": summary(0.118, 0.02, 0.61), "ssim": summary(0.502, 0.02, 0.83)},
        },
        controls=(
            ControlReport(
                Control.POSITIVE, "every attack must invert an encoder that sends the picture itself", True, 0.9,
                tuple(ControlResult(Control.POSITIVE, name, value, 0.9, True)
                      for name, value in (("ridge", 0.999), ("decoder", 0.991), ("search", 0.97))),
            ),
            ControlReport(
                Control.NEGATIVE, "From features of other pictures, no attack may score above the floor.", True, 0.1,
                (ControlResult(Control.NEGATIVE, "decoder", -0.003, 0.1, True, where="the pairs mixed up"),),
            ),
            ControlReport(
                Control.CANARY, "A mark planted in the defended encoder must be found by the suite.", None
            ),
        ),
        flags=tuple(flag for result in results for flag in result.flags),
        pictures=shown,
    )  # fmt: skip


def with_verdict(report: AuditReport, verdict: str) -> AuditReport:
    """The same measurements with another verdict, as the audit would have written it."""
    chosen = Verdict(verdict)
    changed = replace(
        report, verdict=chosen, exit_code=chosen.exit_code, sentence=f"A sentence for the verdict {verdict}."
    )
    if chosen is Verdict.MEASURED:
        return replace(changed, gate=None, reasons=())
    assert report.gate is not None
    return replace(changed, gate=replace(report.gate, held=chosen is Verdict.PASS))


def many(results: int, channels: int, side: int) -> tuple[AuditReport, Pictures]:
    """One audit repeated over seeds until it has that many results."""
    report, pictures = sample(channels, side)
    targets: list[TargetReport] = []
    listed: list[AttackResult] = []
    shown, drawn = {}, {}
    for seed in range(-(-results // len(report.results))):
        for target in report.targets:
            record = replace(target.record, key=f"{target.record.key}s{seed}", seed=seed)
            targets.append(replace(target, record=record, strongest=f"{target.strongest}s{seed}"))
        for result in report.results[: results - len(listed)]:
            key = f"{result.key}s{seed}"
            listed.append(replace(result, key=key, target=f"{result.target}s{seed}", seed=seed))
            shown[key] = report.pictures[result.key]
            for side_name in ("truth", "guess"):
                drawn[f"{side_name}/{key}"] = pictures[f"{side_name}/{result.key}"]
    return replace(report, targets=tuple(targets), results=tuple(listed), pictures=shown), drawn


def save(folder: Path, report: AuditReport, pictures: Pictures) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(to_json(report)), encoding="utf-8")
    save_file(pictures, folder / "pictures.safetensors")
    return folder
