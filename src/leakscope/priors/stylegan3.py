"""StyleGAN3 generators."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.core.prior import PRIORS
from leakscope.priors._generator_file import Build, GeneratorFile
from leakscope.priors._stylegan3 import synthesis3


@PRIORS.register("stylegan3")
@dataclass(frozen=True)
class Stylegan3(GeneratorFile):
    """A StyleGAN3 generator (configuration T or R) from a safetensors file, without custom operators or pickled code.

    The tensors are those of `G_ema.state_dict()` of the published PyTorch code (unconditional), whose
    filters are read from the file and whose sampling rates follow from the picture's size.

    Karras et al., "Alias-free generative adversarial networks", 2021.

    Differs from the published code: styles are normalised for each picture, not over the batch (the
    demodulation cancels either).
    """

    @property
    def build(self) -> Build:
        return synthesis3
