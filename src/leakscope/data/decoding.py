"""One picture file becomes one array of 8-bit pixels."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from leakscope.core.errors import UsageError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})


def decoded(source: Path | IO[bytes], name: str, *, resize: int | None = None, grey: bool = False) -> NDArray[np.uint8]:
    """The picture as H×W (grey) or H×W×3, upright; `resize` cuts the largest centred square and scales it.

    `name` is what an error calls the file.
    """
    try:
        with Image.open(source) as opened:
            picture: Image.Image = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I;16"):  # PIL would clip 16-bit values at 255 instead of scaling them
                deep = np.asarray(picture, dtype=np.float32)
                picture = Image.fromarray((deep / 257).round().astype(np.uint8))
            elif picture.mode in ("I", "F"):
                raise UsageError(f"{name} has 32-bit pixels, whose range is unknown; save it with 8 or 16 bits")
            picture = picture.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"{name} is not a readable image ({reason}); repair or remove it") from None
    if resize is not None:
        picture = ImageOps.fit(picture, (resize, resize), method=Image.Resampling.BILINEAR)
    return np.asarray(picture, dtype=np.uint8)
