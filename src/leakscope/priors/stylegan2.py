"""StyleGAN2 and StyleGAN2-ADA generators."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.core.prior import PRIORS
from leakscope.priors._generator_file import Build, GeneratorFile
from leakscope.priors._stylegan2 import synthesis2


@PRIORS.register("stylegan2")
@dataclass(frozen=True)
class Stylegan2(GeneratorFile):
    """A StyleGAN2 generator from a safetensors file, run without custom operators or pickled code.

    The tensors are those of `G_ema.state_dict()` of the published PyTorch code (unconditional, skip
    architecture, any power of two from 8 pixels).

    Karras et al., "Analyzing and improving the image quality of StyleGAN", 2020.

    Differs from the published code: single precision throughout, and the constant noise is used always.
    """

    @property
    def build(self) -> Build:
        return synthesis2
