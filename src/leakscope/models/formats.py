"""Files that hold a network in another form: what can be done with each, and why not more."""

from __future__ import annotations

import zipfile
from pathlib import Path

from leakscope.core.errors import UsageError

_PYTHON = "give the Python code that builds it, --model FILE.py:FACTORY"
_WEIGHTS = f"holds weights and no code to build a network from them; {_PYTHON}, and this file as --weights"
_SCRIPT = (
    "is TorchScript, whose layers run inside its own interpreter, where features at a cut cannot be read or changed; "
    f"{_PYTHON}, and its weights as safetensors, saved where you trust it"
)
_EXPORTED = (
    "is a torch.export program, which torch reads by unpickling and whose graph cannot be copied or rebuilt; "
    f"{_PYTHON}, and its weights as safetensors: save_file(torch.export.load(…).state_dict, 'w.safetensors')"
)
_ONNX = (
    "is ONNX: a graph of operators that is not made of PyTorch layers, which attacks and defences need; "
    "convert it to PyTorch (such as with onnx2torch) and audit the module through leakscope.audit(module, …)"
)
_KERAS = "is a network of another framework; Leakscope audits PyTorch networks"


def format_of(path: Path) -> str | None:
    """`torchscript`, `pt2`, `onnx`, `keras` or `weights`: by content where there is a file, else by name."""
    suffix = path.suffix.lower()
    if path.is_file() and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name.partition("/")[2] for name in archive.namelist()]
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError):
            names = []  # damaged: reading it will tell
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


def refuse_model_file(text: str) -> None:
    """Say what a file given as --model is, and what to do with it."""
    path = Path(text)
    found = format_of(path)
    if found is not None and ":" not in text:
        raise UsageError(f"{path} {_REASONS[found]}")


def refuse_weights_file(path: Path) -> None:
    """Say why a file given as --weights is none."""
    found = format_of(path)
    if found in {"pt2", "onnx", "keras"}:
        raise UsageError(f"{path} {_REASONS[found]}")
