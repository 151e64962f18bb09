"""What a run came to, and using its model afterwards."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from selfish_rnn.corpora import Corpus, Vocabulary, unigram_perplexity
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.checkpoints import load_tensors
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.saved_weights import restore
from selfish_rnn.system import peak_memory
from selfish_rnn.training.build import new_model
from selfish_rnn.training.evaluation import evaluate, perplexity
from selfish_rnn.training.trainer import Trainer


def load_best(experiment: Experiment, folder: RunFolder, vocabulary: int) -> LanguageModel:
    """The best model of a run, ready to evaluate."""
    if not folder.model.exists() and not folder.checkpoints.steps():
        raise UserError(
            f"{folder.path} has no model yet, its first epoch is not finished: continue it with `selfish-rnn resume`"
        )
    tensors, _ = load_tensors(folder.model)
    make = partial(new_model, experiment.model.model_dump(), vocabulary)
    model = restore(make, tensors, str(folder.model), packed=experiment.engine == "packed")
    return model.to(experiment.device).eval()


def evaluate_splits(model: LanguageModel, experiment: Experiment, corpus: Corpus) -> dict[str, float]:
    """Perplexity on the validation and test text."""
    sizes = {"valid": experiment.valid_batch_size, "test": experiment.test_batch_size}
    return {
        f"{split}_perplexity": perplexity(
            evaluate(model, getattr(corpus, split), batch_size=size, window=experiment.window)
        )
        for split, size in sizes.items()
    }


def summarise(trainer: Trainer) -> dict[str, Any]:
    """The outcome of a finished run, measured on its best model."""
    experiment, network = trainer.experiment, trainer.position.best
    best = load_best(experiment, trainer.folder, len(trainer.corpus.vocabulary))
    # Of a packed matrix the existing weights are all there is, so positions are counted by the sparsifier.
    others = sum(parameter.numel() for parameter in trainer.model.parameters()) - trainer.sparse_parameters
    return {
        **evaluate_splits(best, experiment, trainer.corpus),
        "unigram_perplexity": unigram_perplexity(trainer.corpus),
        "best_epoch": trainer.position.best_epoch,
        "epochs": trainer.position.epoch,
        "steps": trainer.position.step,
        **network,
        "active_parameters": others + network["active_weights"],
        "total_parameters": others + network["total_weights"],
        "seconds": trainer.position.seconds,
        "peak_memory_mib": peak_memory(),
        "engine": experiment.engine,
        "threads": torch.get_num_threads(),
        "seed": experiment.seed,
    }


@torch.no_grad()
def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 1.0,
    seed: int | None = None,
) -> str:
    """Continue a prompt with ``tokens`` words drawn from the model; temperature 0 takes the likeliest word."""
    device = next(model.parameters()).device
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    words = vocabulary.encode(prompt)
    pending = [vocabulary.eos_id, *words]
    state = model.initial_state(1)
    for _ in range(tokens):
        scores, state = model(torch.tensor(pending, device=device).view(-1, 1), state)
        last = scores[-1, 0].float().cpu()
        if vocabulary.unknown_id is not None:
            last[vocabulary.unknown_id] = -torch.inf
        if temperature > 0:
            chosen = int(torch.multinomial(torch.softmax(last / temperature, 0), 1, generator=generator))
        else:
            chosen = int(last.argmax())
        words.append(chosen)
        pending = [chosen]
    return vocabulary.join(vocabulary.decode(words))
