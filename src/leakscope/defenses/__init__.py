"""Defences, one method per file: `from leakscope.defenses import Gaussian`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

#: Where each class is; its module is imported when the class is first used.
EXPORTS = {
    "Adversarial": "adversarial", "BidoCoco": "bido_coco", "BidoHsic": "bido_hsic", "Bottleneck": "bottleneck",
    "CEM": "cem", "CEMFused": "cem_fused", "CEMGated": "cem_gated", "CEMLogDet": "cem_logdet", "CEMSlot": "cem_slot",
    "DpSgd": "dp_sgd", "Dropout": "dropout", "FisherNoise": "fisher_noise", "GanAugment": "gan_augment",
    "Gaussian": "gaussian", "Gong": "gong", "GongContinual": "gong_continual", "LabelSmoothing": "label_smoothing",
    "Laplace": "laplace", "Mid": "mid", "MixCon": "mixcon", "NoDefense": "none", "NoPeek": "nopeek", "Patrol": "patrol",
    "Sca": "sca", "ScaConv": "sca_conv", "SparseStandard": "sparse_standard", "TiedSparse": "tied_sparse", "TlDmi":
    "tl_dmi", "TopK": "topk", "UniCon": "unicon",
}  # fmt: skip

__all__ = list(EXPORTS)

if TYPE_CHECKING:
    from leakscope.defenses.adversarial import Adversarial as Adversarial
    from leakscope.defenses.bido_coco import BidoCoco as BidoCoco
    from leakscope.defenses.bido_hsic import BidoHsic as BidoHsic
    from leakscope.defenses.bottleneck import Bottleneck as Bottleneck
    from leakscope.defenses.cem import CEM as CEM
    from leakscope.defenses.cem_fused import CEMFused as CEMFused
    from leakscope.defenses.cem_gated import CEMGated as CEMGated
    from leakscope.defenses.cem_logdet import CEMLogDet as CEMLogDet
    from leakscope.defenses.cem_slot import CEMSlot as CEMSlot
    from leakscope.defenses.dp_sgd import DpSgd as DpSgd
    from leakscope.defenses.dropout import Dropout as Dropout
    from leakscope.defenses.fisher_noise import FisherNoise as FisherNoise
    from leakscope.defenses.gan_augment import GanAugment as GanAugment
    from leakscope.defenses.gaussian import Gaussian as Gaussian
    from leakscope.defenses.gong import Gong as Gong
    from leakscope.defenses.gong_continual import GongContinual as GongContinual
    from leakscope.defenses.label_smoothing import LabelSmoothing as LabelSmoothing
    from leakscope.defenses.laplace import Laplace as Laplace
    from leakscope.defenses.mid import Mid as Mid
    from leakscope.defenses.mixcon import MixCon as MixCon
    from leakscope.defenses.none import NoDefense as NoDefense
    from leakscope.defenses.nopeek import NoPeek as NoPeek
    from leakscope.defenses.patrol import Patrol as Patrol
    from leakscope.defenses.sca import Sca as Sca
    from leakscope.defenses.sca_conv import ScaConv as ScaConv
    from leakscope.defenses.sparse_standard import SparseStandard as SparseStandard
    from leakscope.defenses.tied_sparse import TiedSparse as TiedSparse
    from leakscope.defenses.tl_dmi import TlDmi as TlDmi
    from leakscope.defenses.topk import TopK as TopK
    from leakscope.defenses.unicon import UniCon as UniCon
else:
    __getattr__ = lazily(__name__, EXPORTS)
