"""Small audits, run for real, as a study reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from leakscope.experiments.config import AuditConfig, put
from leakscope.experiments.plan import make_plans
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.store import Store
from leakscope.studies.study import Run, Runs


def runs_of(folder: Path, common: dict[str, Any], variants: dict[str, dict[str, Any]]) -> Runs:
    """The audits of every variant."""
    configs = {}
    for name, changed in variants.items():
        tree: dict[str, Any] = {}
        for key, value in {**common, **changed}.items():
            put(tree, key, value)
        configs[name] = AuditConfig.checked(tree)
    plans = make_plans(configs)
    store = Store(folder / "store")
    audits = run_audits(list(plans.values()), Workplace(store, torch.device("cpu")), command="leakscope audit sample")
    return Runs({name: Run(audit, plans[name], store) for name, audit in zip(plans, audits, strict=True)})
