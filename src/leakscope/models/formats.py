"""Files that hold a network in another form: what can be done with each, and why not more."""

from __future__ import annotations

import zipfile
from pathlib import Path

from leakscope.core.errors import UsageError

_PYTHON = "give the Python code that builds it, --model FILE.py:FACTORY"
_WEIGHTS = (
    "may hold weights; code to build a network, if a pickle has any, is not run. Give the Python code that builds it, "
    "--model FILE.py:FACTORY, and the file of its model.state_dict() as --weights"
)
_SCRIPT = (
    "is TorchScript, whose layers run inside its own interpreter, where features at a cut cannot be read or changed; "
    f"{_PYTHON}, and its weights as safetensors, saved where you trust it"
)
_EXPORTED = "is a torch.export program, not weights alone; give it as --model pt2:FILE"
_ONNX = "is an ONNX network, not weights alone; give it as --model FILE.onnx"
_KERAS = "is a network of another framework; Leakscope audits PyTorch networks"


def format_of(path: Path) -> str | None:
    """`torchscript`, `pt2`, `onnx`, `keras` or `weights`: by content where there is a file, else by name."""
    suffix = path.suffix.lower()
    if path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name.partition("/")[2] for name in archive.namelist()]
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError):
            names = []  # no archive, or a damaged one: reading it will tell
        if "archive_format" in names or any(name.startswith("models/") for name in names):
            return "pt2"
        if "constants.pkl" in names and any(name.startswith("code/") for name in names):
            return "torchscript"
    named = {
        ".pt2": "pt2", ".onnx": "onnx", ".ts": "torchscript", ".torchscript": "torchscript", ".h5": "keras",
        ".keras": "keras", ".tflite": "keras", ".pt": "weights", ".pth": "weights", ".ckpt": "weights",
        ".bin": "weights", ".safetensors": "weights",
    }  # fmt: skip
    return named.get(suffix)


_REASONS = {"torchscript": _SCRIPT, "pt2": _EXPORTED, "onnx": _ONNX, "keras": _KERAS, "weights": _WEIGHTS}


def model_file(text: str) -> dict[str, str] | None:
    """The network in a file given as --model, where one can be read; None where no file is named."""
    path = Path(text)
    found = format_of(path)
    if found is None or ":" in text:
        return None
    if found in {"pt2", "onnx"}:
        return {"kind": found, "path": text}
    raise UsageError(f"{path} {_REASONS[found]}")


def refuse_weights_file(path: Path) -> None:
    """Say why a file given as --weights is none."""
    found = format_of(path)
    if found in {"pt2", "onnx", "keras"}:
        raise UsageError(f"{path} {_REASONS[found]}")
