"""Attacks, one method per file: `from leakscope.attacks import Ridge`.

Modules that begin with an underscore are what several of them share; `peeling` is a library of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

#: Where each class is; its module is imported when the class is first used.
EXPORTS = {
    "AnalyticSparse": "analytic_sparse", "Auto": "auto", "Brepmi": "brepmi", "ClassMap": "class_map", "DecoderGAN":
    "decoder_gan", "EmbeddingInversion": "embedding", "EndToEnd": "e2e_lbfgs", "Gmi": "gmi", "Kedmi": "kedmi",
    "Latent": "latent", "LommaGmi": "lomma_gmi", "LommaKedmi": "lomma_kedmi", "Miface": "miface", "Mirror":
    "mirror", "MirrorBlackbox": "mirror_blackbox", "Peel": "peel", "PeelExact": "peel_exact", "Ppa": "ppa",
    "PseudoClient": "pseudo_client", "Ridge": "ridge", "Search": "search", "TrainedDecoder": "decoder", "Vmi":
    "vmi",
}  # fmt: skip

__all__ = list(EXPORTS)

if TYPE_CHECKING:
    from leakscope.attacks.analytic_sparse import AnalyticSparse as AnalyticSparse
    from leakscope.attacks.auto import Auto as Auto
    from leakscope.attacks.brepmi import Brepmi as Brepmi
    from leakscope.attacks.class_map import ClassMap as ClassMap
    from leakscope.attacks.decoder import TrainedDecoder as TrainedDecoder
    from leakscope.attacks.decoder_gan import DecoderGAN as DecoderGAN
    from leakscope.attacks.e2e_lbfgs import EndToEnd as EndToEnd
    from leakscope.attacks.embedding import EmbeddingInversion as EmbeddingInversion
    from leakscope.attacks.gmi import Gmi as Gmi
    from leakscope.attacks.kedmi import Kedmi as Kedmi
    from leakscope.attacks.latent import Latent as Latent
    from leakscope.attacks.lomma_gmi import LommaGmi as LommaGmi
    from leakscope.attacks.lomma_kedmi import LommaKedmi as LommaKedmi
    from leakscope.attacks.miface import Miface as Miface
    from leakscope.attacks.mirror import Mirror as Mirror
    from leakscope.attacks.mirror_blackbox import MirrorBlackbox as MirrorBlackbox
    from leakscope.attacks.peel import Peel as Peel
    from leakscope.attacks.peel_exact import PeelExact as PeelExact
    from leakscope.attacks.ppa import Ppa as Ppa
    from leakscope.attacks.pseudo_client import PseudoClient as PseudoClient
    from leakscope.attacks.ridge import Ridge as Ridge
    from leakscope.attacks.search import Search as Search
    from leakscope.attacks.vmi import Vmi as Vmi
else:
    __getattr__ = lazily(__name__, EXPORTS)
