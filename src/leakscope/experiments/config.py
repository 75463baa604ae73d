"""What an audit is asked to do: the configuration, read from YAML, layered and checked."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from leakscope.core import yaml_text
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.spec import describe
from leakscope.core.threat import Access, ThreatModel
from leakscope.data.folder import Folder, located
from leakscope.data.images import checked, resized
from leakscope.data.parts import joined, owners, split_folders
from leakscope.data.splits import SplitIndex, SplitPlan
from leakscope.experiments.evaluator import Evaluator
from leakscope.experiments.pretraining import Pretraining
from leakscope.experiments.training import Training

Spec = str | dict[str, Any]
Source = Literal["heldout", "private", "both"]


def _no_defense() -> list[Spec | list[Spec]]:
    return ["none"]


def _the_last() -> list[int | None]:
    return [None]


def _usual_metrics() -> list[Spec]:
    return ["leak", "mse", "psnr", "ssim", "cosine", "lpips"]


class Threat(BaseModel):
    """What the attacker is handed."""

    model_config = ConfigDict(extra="forbid")

    access: list[Access] = Field(default_factory=lambda: list(Access), description="what is handed over")
    public_data: bool = True
    knows_defense: bool = True
    queries: int | None = None
    public: Literal["own", "private", "both"] = Field(
        default="own", description="the attacker's pictures: its own, those the target was trained on, or both"
    )
    shared_classes: bool = Field(default=False, description="class attacks: public pictures may show private classes")

    def model(self) -> ThreatModel:
        return ThreatModel(
            frozenset(self.access), self.public_data, self.knows_defense, self.queries, self.public, self.shared_classes
        )


class Victims(BaseModel):
    """Which pictures are attacked: of `both`, half (rounded down) are training pictures, and come first."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    source: Source = Field("heldout", alias="from", description="held-out pictures, training pictures, or both")
    count: int = Field(64, ge=2)


class AuditConfig(BaseModel):
    """One audit: data × model × cuts × defences × attacks × seeds."""

    model_config = ConfigDict(extra="forbid")

    data: Spec = Field("mnist5k", description="a data set: a name, folder:PATH, npz:PATH")
    data_root: Path | None = Field(None, description="where data files live; LEAKSCOPE_DATA when left out")
    resize: int | None = Field(None, ge=4, description="side in pixels to which pictures are resized")
    splits: SplitPlan = Field(default_factory=SplitPlan, description="sizes of private, heldout and public")
    private: Spec | None = Field(None, description="what the network was trained on: a folder, or a data set")
    heldout: Spec | None = Field(None, description="what users send: a folder, or a data set")
    public: Spec | None = Field(None, description="what the attacker has: a folder, or a data set")
    split_index: Path | None = Field(None, description="a file of split indices, instead of drawing them")
    model: Spec = Field("convnet", description="a network: a name, torchvision:NAME, timm:NAME, FILE.py:FACTORY")
    weights: Path | None = Field(
        None, description="weights (safetensors) to audit; trained further only when training.epochs says so"
    )
    normalize: str | None = Field(
        None, description="what the weights expect of pixels: imagenet, none, or MEAN/STD such as 0.5/0.25"
    )
    cuts: list[str] = Field(default_factory=list, description="layers to cut at; the model's own when empty")
    defenses: list[Spec | list[Spec]] = Field(default_factory=_no_defense)
    attacks: str | list[Spec] = Field("", description="a suite (quick, full) or a list; by evidence when empty")
    metrics: list[Spec] = Field(default_factory=_usual_metrics)
    threat: Threat = Field(default_factory=Threat)
    training: Training = Field(default_factory=Training)
    seeds: list[int] = Field(default_factory=list, description="target seeds; by evidence when empty")
    victims: Annotated[int, Field(ge=2)] | Victims = Field(
        64, description="how many held-out pictures, or identities, are attacked; or {from: private, count: 64}"
    )
    stops: list[int | None] = Field(
        default_factory=_the_last,
        min_length=1,
        description="epochs of training.keep whose weights are audited; null: the last",
    )
    pretraining: Pretraining | None = Field(None, description="a first training of every target, on public classes")
    evaluator: Evaluator = Field(
        default_factory=lambda: Evaluator(), description="the network that judges class attacks"
    )
    goal: str | None = Field(
        None, description="what is rebuilt: pictures or identities; that of the attacks when empty"
    )
    evidence: Literal["E0", "E1", "E2"] = Field("E0", description="the level to work for")
    gate: str | None = Field(None, description="leak<=0.2, ssim<=0.5 at E1")
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict, description="named overrides for --scale")
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="named overrides: one audit for each, under the --scale"
    )
    study: Spec | None = Field(None, description="what turns the finished audits into a page of results")
    results: Path | None = Field(None, description="folder of the study's page; the output folder when left out")

    _source: Path | None = PrivateAttr(None)  # the file it was read from

    @property
    def chosen_seeds(self) -> list[int]:
        """Target seeds: those asked for, or as many as the evidence level takes."""
        return self.seeds or ([0] if self.evidence == "E0" else [0, 1, 2])

    @property
    def chosen_victims(self) -> Victims:
        """How many, and from which pictures."""
        return self.victims if isinstance(self.victims, Victims) else Victims.model_validate({"count": self.victims})

    @property
    def first_seed(self) -> int:
        return self.chosen_seeds[0]

    @model_validator(mode="before")
    @classmethod
    def _given_weights_stay(cls, tree: Any) -> Any:
        """Weights that are given are audited as they are, unless epochs are asked for by name."""
        if isinstance(tree, dict) and (tree.get("weights") is not None or _comes_with_weights(tree.get("model"))):
            training = tree.get("training") or {}
            if isinstance(training, dict) and "epochs" not in training:
                return {**tree, "training": {**training, "epochs": 0}}
        return tree

    @classmethod
    def read(cls, path: Path | None, overrides: Mapping[str, Any], scale: str | None = None) -> AuditConfig:
        """A YAML file with dotted overrides on top: `{"training.epochs": 3}`; one with variants is refused."""
        configs = cls.read_all(path, overrides, scale)
        if len(configs) > 1:
            raise UsageError(f"{path} has variants ({', '.join(configs)}): only `leakscope audit` runs several")
        return next(iter(configs.values()))

    @classmethod
    def read_all(
        cls, path: Path | None, overrides: Mapping[str, Any], scale: str | None = None
    ) -> dict[str, AuditConfig]:
        """The configuration of every variant; later layers win: the file, a variant, the scale, the overrides."""
        tree: dict[str, Any] = {} if path is None else read_yaml(path)
        preset: dict[str, Any] = {}
        if scale is not None:
            scales = tree.get("scales", {})
            if scale not in scales:
                raise UsageError(f"no scale {scale!r} in {path}; it has: {', '.join(scales) or 'none'}")
            preset = dict(scales[scale])
        variants = preset.pop("variants", None) or tree.get("variants") or {"": {}}
        configs = {}
        for name, variant in variants.items():
            own = copy.deepcopy(tree)
            for layer in (variant, preset, overrides):
                for key, value in layer.items():
                    put(own, key, value)
            configs[name] = cls.checked(own)
            configs[name]._source = path
        return configs

    @classmethod
    def checked(cls, tree: Mapping[str, Any]) -> AuditConfig:
        try:
            return cls.model_validate(dict(tree))
        except ValidationError as error:
            raise UsageError("; ".join(_problem(item, cls) for item in error.errors())) from None


def shipped() -> dict[str, Path]:
    """The configurations that come with Leakscope, by name."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def configuration_at(path: Path) -> Path:
    """The file itself, or, where there is none, the shipped configuration of that name: `demo`."""
    if path.exists() or path.suffix:
        return path
    found = shipped()
    if str(path) not in found:
        raise UsageError(f"no file {path}, and no configuration of that name ships; those are: {', '.join(found)}")
    return found[str(path)]


def read_yaml(path: Path) -> dict[str, Any]:
    path = configuration_at(path)
    tree = yaml_text.read_yaml(path)
    if not isinstance(tree, dict):
        raise UsageError(f"{path} must hold a mapping of settings, such as 'data: mnist5k'")
    return tree


def put(tree: dict[str, Any], dotted: str, value: object) -> None:
    """Set `tree["a"]["b"]` for `a.b`."""
    *path, last = dotted.split(".")
    for part in path:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise UsageError(f"cannot set {dotted!r}: {part!r} is not a group of settings")
        tree = branch
    tree[last] = value


def _problem(item: Any, cls: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = list(cls.model_fields) + list(Training.__dataclass_fields__) + list(Threat.model_fields)
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        return f"unknown setting {where!r}" + (f"; did you mean {near[0]!r}?" if near else "; see `leakscope schema`")
    return f"{where}: {item['msg']}"


def _comes_with_weights(model: object) -> bool:
    """Whether a network is asked for that brings its own: an exported target."""
    kind = model.partition(":")[0] if isinstance(model, str) else model.get("kind") if isinstance(model, dict) else None
    return kind in {"path", "hf"}


def load_data(config: AuditConfig, data_root: Path | None) -> ImageSet:
    """The pictures, checked and resized."""
    return _loaded(config.data, config, data_root)


def _loaded(spec: Spec, config: AuditConfig, data_root: Path | None) -> ImageSet:
    if isinstance(spec, str) and Path(spec).expanduser().is_dir():
        spec = {"kind": "folder", "path": spec}
    data = DATASETS.build(spec).load(data_root)
    return checked(data if config.resize is None else resized(data, config.resize))


def parts_named(config: AuditConfig) -> dict[str, Spec]:
    """Whose pictures are where, if options or the folder's own `train`, `val` and `test` say so."""
    parts: dict[str, Spec] = {
        name: spec for name in ("private", "heldout", "public") if (spec := getattr(config, name)) is not None
    }
    if parts or config.data == "given" or config.split_index is not None or "splits" in config.model_fields_set:
        return parts
    source = DATASETS.build(config.data)
    if not isinstance(source, Folder):
        return {}
    found = owners(split_folders(located(source.path, config.data_root)))
    return {name: {**describe(source), "path": str(path)} for name, path in found.items()}


def load_parts(config: AuditConfig, data_root: Path | None) -> tuple[ImageSet, SplitIndex] | None:
    """The pictures with their owners, where these are known; None: splits are to be drawn."""
    parts = parts_named(config)
    if not parts:
        return None
    if "splits" in config.model_fields_set or config.split_index is not None:
        raise UsageError("the pictures are divided into folders already; leave `splits` and `split_index` out")
    if "private" not in parts and config.training.epochs:
        raise UsageError("nothing to train on: give the training pictures with --private, or --epochs 0")
    return joined({name: _loaded(spec, config, data_root) for name, spec in parts.items()})
