"""The user's own network, made by a function in a Python file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import nn

from leakscope.core.calls import calling
from leakscope.core.errors import UsageError, ended_by, said_by
from leakscope.models.architecture import MODELS, Architecture, normalization_from, normalize_field
from leakscope.models.weights import file_digest


@MODELS.register("file")
@dataclass(frozen=True)
class OwnFile(Architecture):
    """Calls `factory` of the Python file `path`, with those of `image_shape`, `classes`, `num_classes`,
    `channels` and `in_channels` that its signature names.

    `source` is the file's content hash and fills itself in: an edited file is another network. Modules
    that the file imports are not part of it.
    """

    path: str
    factory: str = "build"
    source: str = field(default="", metadata={"shown": False})
    normalize: str = normalize_field()

    def __post_init__(self) -> None:
        found = file_digest(self.path)
        if self.source and self.source != found:
            raise UsageError(f"{self.path} has changed since this was configured; configure it anew")
        object.__setattr__(self, "source", found)

    @property
    def foreign(self) -> bool:
        return True

    @property
    def trained(self) -> bool:
        return True  # its factory may have loaded them

    def normalization(self) -> nn.Module | None:
        return normalization_from(self.normalize)

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        name = f"{self.path}:{self.factory}"
        factory = self._factory()
        offered: dict[str, Any] = {
            "image_shape": image_shape, "channels": image_shape[0], "in_channels": image_shape[0],
        }  # fmt: skip
        if classes:  # pictures without labels leave the number to the function
            offered |= {"classes": classes, "num_classes": classes}
        parameters = inspect.signature(factory).parameters.values()
        required = [
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if not set(required) <= set(offered):
            asked = ", ".join(sorted(set(required) - set(offered)))
            raise UsageError(f"{name} asks for {asked}; give defaults, or take any of: {', '.join(offered)}")
        keywords = {p.name: offered[p.name] for p in parameters if p.name in offered}
        try:
            with calling:
                model = factory(**keywords)
        except SystemExit as error:
            raise ended_by(error) from None
        except Exception as error:
            raise UsageError(f"{name} failed: {_one_line(error)}; mend the function") from None
        if not isinstance(model, nn.Module):
            raise UsageError(f"{name} returns {type(model).__name__}, not a torch.nn.Module; return the network")
        return model

    def _factory(self) -> Callable[..., Any]:
        module = self._execute()
        factory = getattr(module, self.factory, None)
        if factory is None:
            own = [name for name, value in vars(module).items() if _builds(value, module)]
            raise UsageError(
                f"{self.path} has no {self.factory!r}; "
                + (f"write {self.path}:NAME, one of: {', '.join(sorted(own))}" if own else "it defines no function")
            )
        if not callable(factory) or isinstance(factory, nn.Module):
            raise UsageError(f"{self.path}:{self.factory} is no function; write def build(): return the network")
        return factory  # type: ignore[no-any-return]

    def _execute(self) -> ModuleType:
        """Run the file anew each time, so that weights made while importing follow the seed too."""
        name = f"leakscope_own_{self.source}"
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{self.path} is not a Python file; write --model FILE.py:FACTORY")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickling look classes up by their module
        try:
            with calling:
                spec.loader.exec_module(module)
        except SystemExit as error:
            del sys.modules[name]
            raise ended_by(error) from None
        except Exception as error:
            del sys.modules[name]
            remedy = "put its folder on PYTHONPATH" if isinstance(error, ImportError) else "mend the file"
            raise UsageError(f"{self.path} cannot be imported: {_one_line(error)}; {remedy}") from None
        return module


def _builds(value: object, module: ModuleType) -> bool:
    """Whether it may build a network: a function or a network's class, written in the file itself."""
    if getattr(value, "__module__", None) != module.__name__:
        return False
    return inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, nn.Module))


def _one_line(error: BaseException) -> str:
    text = said_by(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
