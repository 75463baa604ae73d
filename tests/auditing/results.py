"""Results and targets made by hand, with only what a rule looks at."""

from __future__ import annotations

from typing import Any

from leakscope.core.reports import ExposedShare, GroupReport, TargetReport
from leakscope.core.results import (
    AttackResult,
    Diagnostics,
    Method,
    Spread,
    Summary,
    TargetRecord,
    ThreatRecord,
    Traits,
)
from leakscope.stats.exposure import share_bound

THREAT = ThreatRecord(("features",), True, True, None, "all")


def method(kind: str, **settings: Any) -> Method:
    shown = ",".join(f"{name}={value}" for name, value in settings.items())
    return Method((kind,), f"{kind}:{shown}" if shown else kind, {"kind": kind, **settings}, settings)


def summary(mean: float, low: float | None = None, high: float | None = None, n: int = 8) -> Summary:
    low, high = mean if low is None else low, mean if high is None else high
    return Summary(mean, 0.1, low, high, high, n)


def target(
    key: str = "t", defense: str = "gaussian", accuracy: float = 0.9, *, random_release: bool = False, **changed: Any
) -> TargetRecord:
    fields: dict[str, Any] = {
        "key": key, "trained": None, "setting": "s", "data": "digits", "model": method("convnet"),
        "defense": method(defense), "cut": "c", "seed": 0, "undefended": defense == "none", "accuracy": accuracy,
        "calibration": 0.0, "input_shape": (1, 8, 8), "classes": tuple("0123456789"), "feature_shape": (4,),
        "client_compute": 0.1, "random_release": random_release, "batch_dependent": False,
        "separability": Spread(0.0, 1.0, 2.0), "has_use": True, "identity": {},
    }  # fmt: skip
    return TargetRecord(**{**fields, **changed})


def result(
    key: str, attack: str, leak: float, *, white_box: bool = False, averages: bool = True, of: str = "t", seed: int = 0,
    **diagnostics: Any,
) -> AttackResult:  # fmt: skip
    return AttackResult(
        key=key, reconstruction=key, target=of, attack=method(attack),
        traits=Traits(white_box=white_box, linear=attack == "ridge", averages_noise=averages), threat=THREAT,
        goal="pictures", seed=seed, victims="v", metrics={"leak": summary(leak)}, directions={"leak": "high"},
        diagnostics=Diagnostics(**diagnostics), control="control", mismatched=0.0,
    )  # fmt: skip


def report(mean: float, high: float, defense: str = "gaussian", mse: float = 0.1) -> TargetReport:
    worst = {"leak": summary(mean, 2 * mean - high, high), "mse": summary(mse, mse - 0.01, mse + 0.01)}
    return TargetReport(target(key=defense, defense=defense), None, worst)


def group(own: TargetReport, exposed: int = 0, victims: int = 64) -> GroupReport:
    record = own.record
    share = ExposedShare(exposed, victims, share_bound(exposed, victims))
    return GroupReport(record.name, (record.key,), record.undefended, own.worst_case["leak"], share)
