"""`FILE.py:FACTORY`: what a factory may ask for, and what can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.errors import OneLine, UsageError
from leakscope.core.spec import describe
from leakscope.models.own_file import OwnFile
from leakscope.models.resolve import instantiate, resolve
from leakscope.models.weights import state_digest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
HEADER = "from torch import nn\nimport torch\n"


def written(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEADER + body)
    return str(path)


def test_the_example_builds_for_the_pictures_it_gets() -> None:
    model = instantiate(resolve(f"{EXAMPLE}:build"), (1, 28, 28), 4)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 4)
    assert isinstance(model.get_submodule("features.3"), nn.MaxPool2d)


def test_three_spellings_are_one_architecture() -> None:
    spellings = (f"{EXAMPLE}:build", f"file:path={EXAMPLE},factory=build", f"file:{EXAMPLE}", str(EXAMPLE))
    assert len({resolve(spelling) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    "signature",
    ["", "classes", "num_classes", "image_shape, classes", "channels=1, *, num_classes=2", "in_channels, **rest"],
)
def test_a_factory_gets_what_it_names(tmp_path: Path, signature: str) -> None:
    body = (
        f"def make({signature}):\n"
        "    given = {k: v for k, v in locals().items() if k != 'rest'}\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 5))\n"
        "    net.given = given\n"
        "    return net\n"
    )
    model = instantiate(resolve(f"{written(tmp_path, body)}:make"), (3, 8, 8), 5)
    offered = {"image_shape": (3, 8, 8), "classes": 5, "num_classes": 5, "channels": 3, "in_channels": 3}
    given = vars(model)["given"]
    assert given == {name: value for name, value in offered.items() if name in given}
    assert len(given) == len([word for word in signature.split(",") if word.strip() not in ("", "*", "**rest")])


def test_weights_made_while_importing_follow_the_seed_and_lazy_layers_get_shapes(tmp_path: Path) -> None:
    body = "net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))\ndef build():\n    return net\n"
    spec = written(tmp_path, body)
    digests = []
    for seed in (0, 0, 1):
        with seeds.ambient(seed, "own"):
            digests.append(state_digest(instantiate(resolve(spec), (1, 4, 4), 3)))
    assert digests[0] == digests[1] != digests[2]


def test_an_edited_file_is_another_network(tmp_path: Path) -> None:
    path = written(tmp_path, "def build(): return nn.Flatten()\n")
    before = describe(resolve(path))
    Path(path).write_text(HEADER + "def build(): return nn.Identity()\n")
    assert describe(resolve(path)) != before
    with pytest.raises(UsageError, match="changed"):
        resolve(before)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def build(depth): return nn.Flatten()", "asks for depth"),
        ("def build(): return 3", "returns int, not a torch.nn.Module"),
        ("def build(): raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def make(): return nn.Flatten()", "no 'build'; write .*:NAME, one of: make$"),
        ("build = nn.Flatten()", "no function"),
        ("import not_installed_anywhere", "PYTHONPATH"),
        ("def build(:", "SyntaxError"),
        ("raise SystemExit(2)", "SystemExit"),
        ("def build(): raise SystemExit", "SystemExit"),
        ("def build(): return nn.Linear(3, 3)", "cannot read 3×8×8 pictures"),
        ("def build(): return nn.Flatten(0)", "one row of scores"),
        ("def build(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))", "scores 2 classes, the data have 5"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, body: str, says: str) -> None:
    path = written(tmp_path, body + "\n")
    with pytest.raises(OneLine, match=says) as caught:
        instantiate(resolve(f"{path}:build"), (3, 8, 8), 5)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_file_that_is_no_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        resolve(str(tmp_path / "absent.py") + ":build")
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(UsageError, match="not a Python file"):
        OwnFile(str(text)).build((1, 8, 8), 2)
