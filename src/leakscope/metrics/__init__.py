"""Metrics: how near a reconstruction comes to the truth, how useful the target is, how spread its features are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

#: Where each class is; its module is imported when the class is first used.
EXPORTS = {
    "AttackAccuracy": "recognition", "AttackAccuracy5": "recognition", "CentroidDistance": "recognition",
    "CosineSimilarity": "pixel", "Coverage": "recognition", "Density": "recognition",
    "EmbedderAccuracy": "recognition", "EmbedderRecognised": "recognition", "EvaluatorFrechet": "recognition",
    "FaceDistance": "recognition", "FalsePositive": "recognition", "FrechetDistance": "distribution",
    "IdentityDistance": "identity", "Leak": "pixel", "LearnedPerceptualDistance": "perceptual",
    "MeanSquaredError": "pixel", "NearestPrivate": "recognition", "PaddedStructuralSimilarity": "structural_padded",
    "PeakSignalToNoise": "pixel", "PerceptualSimilarity": "perceptual", "PictureFrechet": "recognition",
    "Precision": "recognition", "Recall": "recognition", "Recognised": "recognition",
    "Reidentified": "identity", "StructuralSimilarity": "structural", "TargetAccuracy": "recognition",
}  # fmt: skip

__all__ = list(EXPORTS)

if TYPE_CHECKING:
    from leakscope.metrics.distribution import FrechetDistance as FrechetDistance
    from leakscope.metrics.identity import IdentityDistance as IdentityDistance
    from leakscope.metrics.identity import Reidentified as Reidentified
    from leakscope.metrics.perceptual import LearnedPerceptualDistance as LearnedPerceptualDistance
    from leakscope.metrics.perceptual import PerceptualSimilarity as PerceptualSimilarity
    from leakscope.metrics.pixel import CosineSimilarity as CosineSimilarity
    from leakscope.metrics.pixel import Leak as Leak
    from leakscope.metrics.pixel import MeanSquaredError as MeanSquaredError
    from leakscope.metrics.pixel import PeakSignalToNoise as PeakSignalToNoise
    from leakscope.metrics.recognition import AttackAccuracy as AttackAccuracy
    from leakscope.metrics.recognition import AttackAccuracy5 as AttackAccuracy5
    from leakscope.metrics.recognition import CentroidDistance as CentroidDistance
    from leakscope.metrics.recognition import Coverage as Coverage
    from leakscope.metrics.recognition import Density as Density
    from leakscope.metrics.recognition import EmbedderAccuracy as EmbedderAccuracy
    from leakscope.metrics.recognition import EmbedderRecognised as EmbedderRecognised
    from leakscope.metrics.recognition import EvaluatorFrechet as EvaluatorFrechet
    from leakscope.metrics.recognition import FaceDistance as FaceDistance
    from leakscope.metrics.recognition import FalsePositive as FalsePositive
    from leakscope.metrics.recognition import NearestPrivate as NearestPrivate
    from leakscope.metrics.recognition import PictureFrechet as PictureFrechet
    from leakscope.metrics.recognition import Precision as Precision
    from leakscope.metrics.recognition import Recall as Recall
    from leakscope.metrics.recognition import Recognised as Recognised
    from leakscope.metrics.recognition import TargetAccuracy as TargetAccuracy
    from leakscope.metrics.structural import StructuralSimilarity as StructuralSimilarity
    from leakscope.metrics.structural_padded import PaddedStructuralSimilarity as PaddedStructuralSimilarity
else:
    __getattr__ = lazily(__name__, EXPORTS)
