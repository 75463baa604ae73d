"""Features behind two linear, two convolutional and two sparse layers of trained networks."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from leakscope.core.model import SplitModel
from leakscope.core.spec import label
from leakscope.pipeline.execute import target_plan
from leakscope.studies.study import Figures, Run, Runs

#: Held-out pictures whose features are looked at, directions kept of them, neighbours asked.
PICTURES, DIRECTIONS, NEIGHBORS = 500, 50, 15
#: What stands behind two layers of each kind: variant, defence, layer.
PLACES = {
    "linear": ("linear", "none", "relu2"),
    "convolutional": ("split", "none", "norm2"),
    "sparse": ("split", "sca", "norm2"),
}


def _features(run: Run, defense_name: str, layer: str) -> Iterator[np.ndarray]:
    """One array a seed: pictures × the leading directions of their features."""
    defense = next((d for d in run.plan.defenses if label(d) == defense_name), None)
    if defense is None:
        return
    for seed in run.plan.seeds:
        chosen = target_plan(run.plan, run.plan.cuts[0], defense, seed)
        trained = run.store.get("trained", chosen.trained_key)
        if trained is None:
            continue
        split = run.plan.build(chosen.cut, defense, seed)
        split.load_state_dict(trained.tensors())
        behind = SplitModel(split.model, layer, normalize=split.normalize).eval()
        pictures = run.plan.splits.heldout.images[:PICTURES]
        with torch.no_grad():
            flat = torch.cat([behind.encode(part).flatten(1) for part in pictures.split(100)]).numpy()
        kept = min(DIRECTIONS, *flat.shape)
        yield PCA(kept, random_state=0).fit_transform(flat)


def separability(runs: Runs) -> Figures:
    """How far the classes lie apart: silhouette, and accuracy of the nearest neighbours, for each seed."""
    found: Figures = {}
    for kind, (variant, defense, layer) in PLACES.items():
        if variant not in runs.runs:
            continue
        labels = runs[variant].plan.splits.heldout.labels[:PICTURES].numpy()
        neighbors = KNeighborsClassifier(NEIGHBORS)
        rows = [
            {
                "silhouette": float(silhouette_score(points, labels)),
                "neighbours": float(cross_val_score(neighbors, points, labels, cv=5).mean()),
            }
            for points in _features(runs[variant], defense, layer)
        ]
        if rows:
            found[kind] = rows
    return found


def embeddings(runs: Runs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """UMAP of the first seed's features and the classes; nothing where umap-learn (extra `umap`) is not installed."""
    if find_spec("umap") is None:
        return {}
    found = {}
    for kind, (variant, defense, layer) in PLACES.items():
        if variant in runs.runs and (points := next(_features(runs[variant], defense, layer), None)) is not None:
            umap = import_module("umap").UMAP(n_neighbors=NEIGHBORS, min_dist=0.1, random_state=0, n_jobs=1)
            flat = umap.fit_transform(points)
            found[kind] = (flat, runs[variant].plan.splits.heldout.labels[:PICTURES].numpy())
    return found
