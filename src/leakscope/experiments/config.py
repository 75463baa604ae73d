"""The configuration of an audit: read from YAML, layered and checked."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from leakscope.core import yaml_text
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.shipped import configuration_at
from leakscope.core.spec import describe, digest, has_odd_number
from leakscope.core.threat import Access, ThreatModel
from leakscope.data.folder import Folder, located
from leakscope.data.images import checked, resized
from leakscope.data.parts import joined, owners, split_folders
from leakscope.data.splits import SplitIndex, SplitPlan
from leakscope.experiments.evaluator import Evaluator
from leakscope.experiments.permission import require_permission
from leakscope.experiments.pretraining import Pretraining
from leakscope.experiments.training import Training

Spec = str | dict[str, Any]
#: A variant's name is the name of a folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
#: Data sets that are in memory at a time.
_READ = 2
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
    public_data: bool = Field(default=True, description="pictures of its own, of the same kind as the victims'")
    knows_defense: bool = Field(default=True, description="how the defence works; false only to show obscurity")
    queries: int | None = Field(default=None, ge=0, description="pictures it may send; null: no limit")
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
    count: int = Field(64, ge=2, description="how many")


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
    model: Spec = Field(
        "convnet", description="a network: a name, torchvision:NAME, timm:NAME, FILE.py:FACTORY, http://…"
    )
    weights: Path | None = Field(
        None, description="weights (safetensors) to audit; trained further only when training.epochs says so"
    )
    normalize: str | None = Field(
        None, description="what the weights expect of pixels: imagenet, none, or MEAN/STD such as 0.5/0.25"
    )
    cuts: list[str] = Field(default_factory=list, description="layers to cut at; the model's own when empty")
    defenses: list[Spec | list[Spec]] = Field(
        default_factory=_no_defense, min_length=1, description="each is one target; a list inside the list is a stack"
    )
    attacks: str | list[Spec] = Field("", description="a suite (quick, full) or a list; by evidence when empty")
    metrics: list[Spec] = Field(default_factory=_usual_metrics, description="what is measured; leak is needed")
    threat: Threat = Field(default_factory=Threat, description="what the attacker is handed")
    training: Training = Field(default_factory=Training, description="how targets are trained")
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
        None,
        description="what is rebuilt: pictures, identities, or unlabelled (pictures without labels); that of the "
        "attacks when empty",
    )
    utility: str | None = Field(
        None,
        description="goal unlabelled: FILE.py:FUNCTION from outputs and pictures to a number from 0 to 1, in the "
        "place of accuracy",
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
    def own_parts(self) -> dict[str, Spec]:
        """Folders named by option, in place of `data`."""
        named = {"private": self.private, "heldout": self.heldout, "public": self.public}
        return {name: spec for name, spec in named.items() if spec is not None}

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
    def read(
        cls, path: Path | None, overrides: Mapping[str, Any], scale: str | None = None, *, allow_code: bool = False
    ) -> AuditConfig:
        """A YAML file with dotted overrides on top: `{"training.epochs": 3}`; one with variants is refused."""
        configs = cls.read_all(path, overrides, scale, allow_code=allow_code)
        if len(configs) > 1:
            raise UsageError(f"{path} has variants ({', '.join(configs)}): only `leakscope audit` runs several")
        return next(iter(configs.values()))

    @classmethod
    def read_all(
        cls, path: Path | None, overrides: Mapping[str, Any], scale: str | None = None, *, allow_code: bool = False
    ) -> dict[str, AuditConfig]:
        """The configuration of every variant; later layers win: the file, a variant, the scale, the overrides.

        Variants that a scale brings itself win over what else it says. A file that names code is refused without
        `allow_code`.
        """
        tree: dict[str, Any] = {} if path is None else read_yaml(path)
        scaled = preset(tree, path, scale)
        brought = scaled.pop("variants", None)
        variants = brought or tree.get("variants") or {"": {}}
        configs = {}
        for name, variant in _named_groups(variants, f"{path}: variants").items():
            if name and not _NAME.fullmatch(name):
                raise UsageError(f"{path}: a variant is called {name!r}; take letters, digits, '.', '_' and '-' alone")
            file = layered(tree, scaled, variant) if brought else layered(tree, variant, scaled)
            own = layered(file, overrides)
            if path is not None and not allow_code:
                require_permission(path, file, own, overrides)
            configs[name] = cls.checked(own)
            configs[name]._source = path
        return configs

    @classmethod
    def checked(cls, tree: Mapping[str, Any]) -> AuditConfig:
        try:
            config = cls.model_validate(dict(tree))
        except ValidationError as error:
            raise UsageError("; ".join(_problem(item, cls) for item in error.errors())) from None
        for name, value in config.model_dump().items():
            if has_odd_number(value):  # YAML reads 1e400 as text, which is a number all the same
                raise UsageError(f"{name}: a number in it is not finite; no result could be kept under it")
        return config


def read_yaml(path: Path) -> dict[str, Any]:
    path = configuration_at(path)
    tree = yaml_text.read_yaml(path)
    if not isinstance(tree, dict):
        raise UsageError(f"{path} must hold a mapping of settings, such as 'data: mnist5k'")
    return tree


def _named_groups(value: Any, where: str) -> dict[str, dict[str, Any]]:
    """Groups of settings by name, or one line."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a table of names, such as 'small: {{victims: 8}}'; not {value!r:.60}")
    for name, own in value.items():
        if not isinstance(own, dict):
            raise UsageError(f"{where}.{name} must be a table of settings, such as 'victims: 8'; not {own!r:.60}")
    return value


def preset(tree: Mapping[str, Any], path: Path | None, scale: str | None) -> dict[str, Any]:
    """The settings of a named scale of a file; none when no scale is asked for."""
    if scale is None:
        return {}
    scales = _named_groups(tree.get("scales") or {}, f"{path}: scales")
    if scale not in scales:
        raise UsageError(f"no scale {scale!r} in {path}; it has: {', '.join(scales) or 'none'}")
    return dict(scales[scale])


def layered(tree: Mapping[str, Any], *layers: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `tree` with the dotted settings of every layer on top."""
    own = copy.deepcopy(dict(tree))
    for layer in layers:
        for key, value in layer.items():
            put(own, key, copy.deepcopy(value))
    return own


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
    """Whether a network is asked for that brings its own: an exported target, or a service."""
    if isinstance(model, str):
        kind, named = model.partition(":")[0], model.lower().endswith((".pt2", ".onnx"))
    else:
        kind, named = str(model.get("kind")) if isinstance(model, dict) else "", False
    return named or kind in {"path", "hf", "http", "https", "pt2", "onnx"}


def load_data(config: AuditConfig, data_root: Path | None) -> ImageSet:
    """The pictures, checked and resized."""
    return _loaded(config.data, config, data_root)


def shared_pictures(config: AuditConfig, read: dict[str, ImageSet], where: str = "") -> ImageSet | None:
    """The pictures as `load_data` reads them, once for all audits that share `read`.

    None where folders say whose pictures are whose: each audit then reads its parts.
    """
    if parts_named(config):
        return None
    source = digest([where, config.data, config.resize, str(config.data_root)])
    if source not in read:
        while len(read) >= _READ:
            del read[next(iter(read))]
        read[source] = load_data(config, config.data_root)
    return read[source]


def _loaded(spec: Spec, config: AuditConfig, data_root: Path | None) -> ImageSet:
    if isinstance(spec, str) and Path(spec).expanduser().is_dir():
        spec = {"kind": "folder", "path": spec}
    data = DATASETS.build(spec).load(data_root)
    return checked(data if config.resize is None else resized(data, config.resize))


def parts_named(config: AuditConfig) -> dict[str, Spec]:
    """Whose pictures are where, if options or the folder's own `train`, `val` and `test` say so."""
    parts = config.own_parts
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
