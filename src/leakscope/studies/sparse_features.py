"""Features behind two linear, two convolutional and two sparse layers of trained networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

from leakscope.core.model import SplitModel
from leakscope.core.results import TargetRecord
from leakscope.core.spec import digest
from leakscope.stats.distributions import Array
from leakscope.studies.picks import Pick
from leakscope.studies.study import Run, Runs

#: Held-out pictures whose features are looked at, directions kept of them, neighbours of UMAP.
PICTURES, DIRECTIONS, NEIGHBORS = 500, 50, 15


def _features(run: Run, target: TargetRecord, layer: str) -> tuple[Array, Array] | None:
    """Held-out pictures × the leading directions of their features, and their classes; None without the weights."""
    split = run.network(target)
    if split is None:
        return None
    behind = SplitModel(split.model, layer, normalize=split.normalize).eval()
    heldout = run.plan.scene.splits.heldout
    with torch.no_grad():
        parts = [behind.encode(part).flatten(1) for part in heldout.images[:PICTURES].split(100)]
    flat = torch.cat(parts).numpy()
    kept = PCA(min(DIRECTIONS, *flat.shape), random_state=0).fit_transform(flat)
    return np.asarray(kept), heldout.labels[:PICTURES].numpy()


def silhouettes(runs: Runs, pick: Pick, layer: str) -> dict[str, float]:
    """How far the classes lie apart behind a layer, by key of the target; kept in the store."""
    trained = [(run, target) for run, target in runs.targets(pick) if target.trained is not None]
    found = {target.key: _silhouette(run, target, layer) for run, target in trained}
    return {key: value for key, value in found.items() if value is not None}


def _silhouette(run: Run, target: TargetRecord, layer: str) -> float | None:
    """From the store, or measured now; None where neither it nor the weights are there."""
    key = digest({"silhouette": target.key, "layer": layer, "pictures": PICTURES, "directions": DIRECTIONS})
    with run.store.claim("silhouette", key) as done:
        if done is not None:
            return float(done.record["silhouette"])
        seen = _features(run, target, layer)
        if seen is None:
            return None
        value = float(silhouette_score(*seen))
        run.store.put("silhouette", key, {"silhouette": value})
        return value


def embeddings(
    runs: Runs, places: Mapping[str, tuple[Pick, str]]
) -> dict[str, tuple[Sequence[float], Sequence[float], Sequence[int]]]:
    """UMAP of the first seed's features; nothing where umap-learn (extra `umap`) is not installed."""
    if find_spec("umap") is None:
        return {}
    found = {}
    for name, (pick, layer) in places.items():
        run, target = next(runs.targets(pick), (None, None))
        if run is None or target is None or target.trained is None:
            continue
        seen = _features(run, target, layer)
        if seen is not None:
            features, classes = seen
            umap = import_module("umap").UMAP(n_neighbors=NEIGHBORS, min_dist=0.1, random_state=0, n_jobs=1)
            flat = umap.fit_transform(features)
            found[name] = (flat[:, 0].tolist(), flat[:, 1].tolist(), classes.tolist())
    return found
