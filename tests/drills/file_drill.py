"""Files of runs and exported models, damaged at random or edited under a checksum that holds.

Each use ends well or in one line of bounded length. A model that loads has the weights it was saved with, unless they
were edited under a new checksum; a run that goes on after raw damage to a checkpoint ends as if nothing had happened.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from drill import LONGEST_MESSAGE, SCRATCH, FailedError, Outcome, in_children, quiet, source
from torch import Tensor, nn

from selfish_rnn import Sparsifier
from selfish_rnn.engine import load_packed, pack, save_packed
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.runs.checkpoints import seal, unseal
from selfish_rnn.runs.export import export, load_model
from selfish_rnn.runs.run import Run
from selfish_rnn.training.evaluation import evaluate_splits, generate
from tiny_runs import bits, finished_run, result_of, stop_after, tiny_run, write_corpus

JUNK = (
    None,
    True,
    -1,
    0,
    3,
    2**70,
    0.5,
    "",
    "x",
    "é" * 300,
    [],
    [1, "a"],
    {},
    {"$tensor": "x"},
    {"$float": "y"},
    {"$pairs": 3},
)


class Templates:
    """A run that was interrupted in its last epoch, what it would come to, and its exported model; for both engines."""

    def __init__(self, folder: Path) -> None:
        texts = write_corpus(folder / "texts", train_lines=40)
        self.engines = ("masked", "packed")
        self.runs, self.results, self.models = {}, {}, {}
        for engine in self.engines:
            finished_run(texts, folder / f"whole-{engine}", engine=engine, epochs=2)
            self.runs[engine] = folder / engine
            stop_after(tiny_run(texts, folder / engine, engine=engine, epochs=2), 9)
            self.results[engine] = result_of(folder / f"whole-{engine}")
            self.models[engine] = folder / f"{engine}.safetensors"
            export(Run.open(folder / f"whole-{engine}"), self.models[engine])
        self.models["int8"] = folder / "int8.safetensors"
        export(Run.open(folder / "whole-packed"), self.models["int8"], precision="int8")
        finished_run(texts, folder / "other", engine="masked", epochs=2, seed=8)
        self.other = folder / "other"
        self.shipped = folder / "shipped.safetensors"
        save_packed(_made(), self.shipped)
        self.weights = {engine: bits(load_tensors(path)[0]) for engine, path in self.models.items()}


def drill(tries: int, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="drill-", dir=SCRATCH) as name:
        folder = Path(name)
        templates = Templates(folder)

        def attempt(number: int) -> str:
            chosen = source(seed, number)
            quiet()
            torch.set_num_threads(1)
            work = folder / f"try-{number}"
            work.mkdir()
            try:
                return chosen.choice(WAYS)(chosen, work, templates)
            except UserError as error:
                if len(str(error)) > 2 * LONGEST_MESSAGE:
                    raise FailedError(f"a message of {len(str(error))} characters") from error
                return "refused"
            finally:
                shutil.rmtree(work)

        return in_children("files", tries, seed, attempt, batch=100)


# What is damaged, and how it is used


def _exported(chosen: random.Random, work: Path, templates: Templates) -> str:
    kind = chosen.choice(list(templates.models))
    path = work / "model.safetensors"
    shutil.copy(templates.models[kind], path)
    _damage(chosen, path)
    _used(load_model(path, packed=chosen.random() < 0.5))
    if bits(load_tensors(path)[0]) != templates.weights[kind]:
        raise FailedError("a damaged model was loaded")
    return "the damage did not matter"


def _exported_content(chosen: random.Random, work: Path, templates: Templates) -> str:
    path = _with_other_content(chosen, templates.models[chosen.choice(list(templates.models))], work)
    _used(load_model(path, packed=chosen.random() < 0.5))
    return "edited content was used"


def _shipped(chosen: random.Random, work: Path, templates: Templates) -> str:
    """A packed model of one's own, whose file has the index that kernels follow."""
    if chosen.random() < 0.3:
        path = Path(shutil.copy(templates.shipped, work / "model.safetensors"))
        _damage(chosen, path)
    else:
        path = _with_other_content(chosen, templates.shipped, work)
    model = load_packed(_dense, path)
    model(torch.randn(3, 2, 7))[0].sum().backward()
    model.to_dense()
    return "edited content was used"


def _dense() -> nn.LSTM:
    return nn.LSTM(7, 9)


def _made() -> nn.Module:
    dense = _dense()
    Sparsifier(dense, sparsity=0.6, rewirings=1).detach()
    return pack(dense)


def _with_other_content(chosen: random.Random, template: Path, work: Path) -> Path:
    """The file with its content edited, and the checksum of what it has now."""
    tensors, about = load_tensors(template)
    if chosen.random() < 0.5:
        key = chosen.choice(list(about))
        try:
            about[key] = json.dumps(_edited(chosen, json.loads(about[key])))
        except ValueError:
            about[key] = str(chosen.choice(JUNK))
    else:
        _edit_tensor(chosen, tensors)
    path = work / "model.safetensors"
    save_tensors(path, tensors, about)
    return path


def _used(model: Any) -> None:
    try:
        generate(model, model.vocabulary, "", tokens=3, seed=1)
    except IndexError as error:
        raise FailedError(f"IndexError: {error}") from error


def _run(chosen: random.Random, work: Path, templates: Templates) -> str:
    engine = chosen.choice(templates.engines)
    path = Path(shutil.copytree(templates.runs[engine], work / "run"))
    files = sorted(found for found in path.rglob("*") if found.is_file() and "events" not in found.parts)
    damaged = chosen.choice(files)
    if chosen.random() < 0.1:
        swapped = templates.other / damaged.relative_to(path)
        if swapped.exists():
            shutil.copy(swapped, damaged)
    else:
        _damage(chosen, damaged)
    if chosen.random() < 0.4:
        run = Run.open(path)
        evaluate_splits(run.model(), run.experiment, run.corpus)
        return "the damage did not matter"
    Run.open(path).train()
    result, expected = result_of(path), templates.results[engine]
    if damaged.parent.name == "checkpoints" and result != expected:
        raise FailedError(f"another result after damage to {damaged.name}")
    if damaged.name == "model.safetensors" and result["model"] != expected["model"]:
        raise FailedError("another model after damage to it")
    return "went on"


def _checkpoint_content(chosen: random.Random, work: Path, templates: Templates) -> str:
    engine = chosen.choice(templates.engines)
    path = Path(shutil.copytree(templates.runs[engine], work / "run"))
    newest = max((path / "checkpoints").glob("step-*.json"), key=lambda found: int(found.stem.partition("-")[2]))
    newest.write_bytes(seal(_edited(chosen, unseal(newest.read_bytes()))))
    try:
        Run.open(path).train()
    except ValueError as error:  # json that cannot hold what was edited
        if isinstance(error, UserError):
            raise
        raise FailedError(f"{type(error).__name__}: {error}") from error
    return "went on"


# How


def _damage(chosen: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    ways: list[Callable[[], Any]] = [
        lambda: data.__setitem__(chosen.randrange(len(data)), chosen.randrange(256)),
        lambda: data.__setitem__(chosen.randrange(min(len(data), 300)), chosen.randrange(256)),
        lambda: data.__delitem__(slice(chosen.randrange(len(data)), None)),
        lambda: data.extend(chosen.randbytes(chosen.randrange(1, 100))),
        lambda: data.__setitem__(slice(start := chosen.randrange(len(data)), start + 64), bytes(64)),
        lambda: data.__delitem__(slice(start := chosen.randrange(len(data)), start + chosen.randrange(1, 20))),
        data.clear,
    ]
    for _ in range(chosen.choice((1, 1, 2))):
        if data:
            chosen.choice(ways)()
    path.write_bytes(data)


def _edited(chosen: random.Random, value: Any) -> Any:
    """Nested JSON with one thing in it replaced, removed or added."""
    if isinstance(value, dict) and value and chosen.random() < 0.9:
        key = chosen.choice(list(value))
        way = chosen.random()
        if way < 0.15:
            return {other: item for other, item in value.items() if other != key}
        if way < 0.25:
            return {**value, f"{key}x": chosen.choice(JUNK)}
        return {**value, key: _edited(chosen, value[key])}
    if isinstance(value, list) and value and chosen.random() < 0.9:
        place = chosen.randrange(len(value))
        if chosen.random() < 0.2:
            return value[:place]
        return [*value[:place], _edited(chosen, value[place]), *value[place + 1 :]]
    return chosen.choice(JUNK)


def _edit_tensor(chosen: random.Random, tensors: dict[str, torch.Tensor]) -> None:
    name = chosen.choice(list(tensors))
    tensor = tensors[name]
    ways: list[Callable[[], Any]] = [
        lambda: tensors.pop(name),
        lambda: tensors.update({name: tensor[:-1] if tensor.ndim else tensor.reshape(1)}),
        lambda: tensors.update(
            {name: tensor.to(chosen.choice((torch.float64, torch.int32, torch.bool, torch.bfloat16)))}
        ),
        lambda: tensors.update({name: tensor.flatten().unsqueeze(0)}),
        lambda: tensors.update(
            {name: torch.full_like(tensor, chosen.choice((0, -128 if tensor.dtype == torch.int8 else 255)))}
        ),
        lambda: tensors.update({name: torch.full(tensor.shape, torch.nan)}),
        lambda: tensors.update({f"{name}.bits": torch.zeros(3, dtype=torch.uint8)}),
        lambda: tensors.update({"x": tensor}),
        lambda: tensors.update({name: torch.cat([tensor, tensor])}) if tensor.ndim else None,
        lambda: tensors.update({name: _with_another_number(chosen, tensor)}),
    ]
    chosen.choice(ways)()


def _with_another_number(chosen: random.Random, tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    if changed.numel():
        changed.view(-1)[chosen.randrange(changed.numel())] = chosen.choice((0, 1, 2, 100, 127))
    return changed


WAYS = (_exported, _exported_content, _exported_content, _shipped, _run, _run, _checkpoint_content)
