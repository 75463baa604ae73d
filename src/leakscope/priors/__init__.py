"""Priors, one per file; modules that begin with an underscore are what several of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

#: Where each class is; its module is imported when the class is first used.
EXPORTS = {
    "Dcgan": "dcgan", "KedmiGan": "kedmi_gan", "Linear": "linear", "Style": "style", "Stylegan2": "stylegan2",
    "Stylegan3": "stylegan3",
}  # fmt: skip

__all__ = list(EXPORTS)

if TYPE_CHECKING:
    from leakscope.priors.dcgan import Dcgan as Dcgan
    from leakscope.priors.kedmi_gan import KedmiGan as KedmiGan
    from leakscope.priors.linear import Linear as Linear
    from leakscope.priors.style import Style as Style
    from leakscope.priors.stylegan2 import Stylegan2 as Stylegan2
    from leakscope.priors.stylegan3 import Stylegan3 as Stylegan3
else:
    __getattr__ = lazily(__name__, EXPORTS)
