"""One picture file becomes one array of 8-bit pixels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from leakscope.core.errors import UsageError
from leakscope.core.memory import require_room

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
#: What a file may be, whatever its name says: other formats of Pillow start programs (EPS runs Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
#: Pixels of one picture: 8192×8192. A file of some kilobytes can claim billions.
LARGEST = 1 << 26


def decoded(source: Path | IO[bytes], name: str, *, resize: int | None = None, grey: bool = False) -> NDArray[np.uint8]:
    """The picture as H×W (grey) or H×W×3, upright; `resize` cuts the largest centred square and scales it.

    `name` is what an error calls the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd metadata, which is not read
            picture = _pixels(source, name, grey=grey)
    except UsageError:
        raise
    except PermissionError:
        raise UsageError(f"you may not read {name}; ask its owner, or remove it") from None
    except MemoryError:
        raise UsageError(f"{name} does not fit into memory; scale it down or remove it") from None
    except Exception as error:  # decoders raise nearly anything for a damaged file
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UsageError(f"{name} is not a readable image ({reason}); repair or remove it") from None
    if resize is not None:
        require_room(4 * resize * resize, f"{name} at {resize}×{resize}", "give a smaller --resize")
        picture = ImageOps.fit(picture, (resize, resize), method=Image.Resampling.BILINEAR)
    return np.asarray(picture, dtype=np.uint8)


def _pixels(source: Path | IO[bytes], name: str, *, grey: bool) -> Image.Image:
    with Image.open(source, formats=FORMATS) as opened:
        width, height = opened.size
        if width * height > LARGEST:  # known from the header: nothing has been decoded yet
            raise UsageError(f"{name} has {width}×{height} pixels; scale it down to {LARGEST:,} or fewer, or remove it")
        picture: Image.Image = ImageOps.exif_transpose(opened)
        if picture.mode.startswith("I;16"):  # PIL would clip 16-bit values at 255 instead of scaling them
            deep = np.asarray(picture, dtype=np.float32)
            picture = Image.fromarray((deep / 257).round().astype(np.uint8))
        elif picture.mode in ("I", "F"):
            raise UsageError(f"{name} has 32-bit pixels, whose range is unknown; save it with 8 or 16 bits")
        return picture.convert("L" if grey else "RGB")
