"""Text from a trained model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.errors import UserError, shown
from selfish_rnn.experiment.settings import LARGEST_SEED
from selfish_rnn.models import LanguageModel


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
    words = vocabulary.encode(prompt)
    words.extend(stream(model, vocabulary, prompt, tokens=tokens, temperature=temperature, seed=seed))
    return vocabulary.join(vocabulary.decode(words))


def stream(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 1.0,
    seed: int | None = None,
) -> Iterator[int]:
    """The ids of the words that continue a prompt, one after the other as they are drawn."""
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature must be a number from 0 (the likeliest word) on, such as 0.8, got {temperature}")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UserError(f"seed must be a number from 0 to {LARGEST_SEED}, got {shown(seed)}")
    device = next(model.parameters()).device
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    pending = [vocabulary.eos_id, *vocabulary.encode(prompt)]
    state = model.initial_state(1)
    for _ in range(tokens):
        with torch.no_grad():  # around each word: what the caller does in between is its own
            scores, state = model(torch.tensor(pending, device=device).view(-1, 1), state)
        last = scores[-1, 0].double().cpu()
        if last.isnan().any():
            raise UserError("the scores of the model are no numbers: its weights are those of a run that diverged")
        if vocabulary.unknown_id is not None:
            last[vocabulary.unknown_id] = -torch.inf
        if temperature > 0:
            # The largest becomes 0 first, which no temperature changes, however small.
            chosen = int(torch.multinomial(torch.softmax((last - last.max()) / temperature, 0), 1, generator=generator))
        else:
            chosen = int(last.argmax())
        yield chosen
        pending = [chosen]
