"""What a folder of an exported target tells people: its card, and an example of its use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from leakscope.core.escaping import markdown, markdown_code
from leakscope.core.results import AttackResult, TargetRecord
from leakscope.models._exported import CODE, EXAMPLE, WEIGHTS
from leakscope.report import numbers


def example(record: TargetRecord) -> str:
    """A Python file that sends one picture through both halves."""
    shape = ", ".join(map(str, record.input_shape))
    trust = ", trust_code=True" if record.model.kinds == ("file",) else ""
    return f'''"""One picture through the client's half and the server's half. Needs: pip install leakscope"""

from pathlib import Path

import leakscope
import torch

target = leakscope.load(Path(__file__).parent{trust})
picture = torch.rand(1, {shape})  # yours: pixels in [0, 1], not normalised
features = target.client(picture)  # what leaves the device, as the defence releases it
scores = target.server(features)  # what the server answers
print("sent:", tuple(features.shape), "answer:", target.classes[int(scores.argmax())])
'''


def card(record: TargetRecord, hashes: Mapping[str, str], results: Sequence[AttackResult], verdict: str | None) -> str:
    """The model card: front matter as the Hugging Face hub reads it, then what a person must know."""
    model, defense = markdown(model_name(record)), markdown_code(record.defense.label)
    shape = numbers.shape(record.input_shape)
    randomness = ", with fresh randomness every time" if record.random_release else ""
    protected = "It has no defence." if defense == "none" else f"Its defence is `{defense}`."
    trusted = ",trust_code=true" if CODE in hashes else ""
    blocks = [
        f"---\n{yaml.safe_dump(_front(record), sort_keys=False, allow_unicode=True)}---",
        f"# {model}, cut at `{markdown_code(record.cut)}`, defence `{defense}`",
        f"A target of [Leakscope](https://pypi.org/project/leakscope/): it reads {shape} pictures in [0, 1] and tells "
        f"{len(record.classes)} classes apart. Its client sends "
        f"{numbers.shape(record.feature_shape)} features{randomness}. {protected}",
        "| | |\n|---|---|\n"
        f"| data | {markdown(record.data)} |\n"
        f"| training | {_training(record)} |\n"
        f"| {_accuracy(record)} |\n"
        f"| seed | {record.seed} |\n"
        f"| key | `{record.key}` |\n"
        f"| weights, SHA-256 | `{hashes[WEIGHTS]}` |",
        f"## Use\n\n```python\n{example(record).split(chr(10), 2)[2].replace('Path(__file__).parent', repr('FOLDER'))}"
        f"```\n\n```bash\nleakscope audit --model path:FOLDER{trusted} --data …\n```\n\n"
        f"The first is `{EXAMPLE}`. {_executed(hashes)}",
        "## Inversion leakage",
        *([f"**{markdown(verdict)}**"] if verdict else []),
        *_leakage(results),
    ]
    return "\n\n".join(blocks) + "\n"


def model_name(record: TargetRecord) -> str:
    """What the network is called; without the path of its file, which is private."""
    own = record.model
    return f"{CODE}:{own.settings['factory']}" if own.kinds == ("file",) else own.label


def _front(record: TargetRecord) -> dict[str, object]:
    task = {
        "task": {"type": "image-classification"},
        "dataset": {"name": record.data, "type": record.data},
        "metrics": [{"type": "accuracy", "value": record.accuracy}],
    }
    return {
        "library_name": "leakscope",
        "pipeline_tag": "image-classification",
        "tags": ["leakscope", "split-inference", "model-inversion", "privacy"],
        "metrics": ["accuracy"],
        "model-index": [{"name": f"{model_name(record)} ({record.defense.label})", "results": [task]}],
    }


def _training(record: TargetRecord) -> str:
    epochs = int(record.identity["training"]["epochs"])
    if epochs:
        before = ", beginning with weights that were given" if record.identity["weights"] is not None else ""
        return f"here, {epochs} epochs on the private part of the data{before}"
    return "not here: its weights were given, and what they learned from is not known" if record.has_use else "none"


def _accuracy(record: TargetRecord) -> str:
    # Of weights that came from elsewhere nobody here knows which pictures they have seen.
    seen = "held-out pictures" if record.identity["training"]["epochs"] else "pictures of this data set"
    value = "not measured" if record.accuracy is None else f"{record.accuracy:.4f}"
    return f"accuracy on {seen} | {value}"


def _executed(hashes: Mapping[str, str]) -> str:
    if CODE not in hashes:
        return "Its cut and defence come with it. Nothing in this folder is executed when it is loaded."
    return (
        f"Its cut and defence come with it. Its network is built by `{CODE}`, Python code of whoever exported it "
        f"(SHA-256 `{hashes[CODE]}`): it is run only where `trust_code` says so; files that it imports are not here."
    )


def _leakage(results: Sequence[AttackResult]) -> list[str]:
    if not results:
        return ["It has not been attacked yet. Nothing is known about what its features give away."]
    names = sorted({name for result in results for name in result.metrics}, key=lambda name: (name != "leak", name))
    lines = [
        "| attack | threat model | seed | " + " | ".join(map(markdown, names)) + " | worst leak | doubts |",
        "|---|---|---|" + "---|" * (len(names) + 2),
    ]
    for result in sorted(results, key=lambda result: -result.leak):
        scores = [result.metrics.get(name) for name in names]
        shown = [f"{numbers.number(s.mean)} ({numbers.interval(s)})" if s else numbers.NOTHING for s in scores]
        words = [markdown(result.attack.label), markdown(result.threat.label), str(result.seed), *shown]
        doubts = ", ".join(flag.id for flag in result.flags if flag.blocks)
        lines.append(f"| {' | '.join(words)} | {numbers.number(result.metrics['leak'].worst)} | {doubts} |")
    return [
        "\n".join(lines),
        "These attacks, on these pictures, rebuilt no more than this; others may. Leak is the share of what "
        "distinguishes a picture from the average of its class that was rebuilt: 1 is the picture, 0 what the label "
        "alone tells.",
    ]
