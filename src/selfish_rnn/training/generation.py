"""Text from a trained model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from selfish_rnn.corpora import Vocabulary
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
        last = scores[-1, 0].float().cpu()
        if vocabulary.unknown_id is not None:
            last[vocabulary.unknown_id] = -torch.inf
        if temperature > 0:
            chosen = int(torch.multinomial(torch.softmax(last / temperature, 0), 1, generator=generator))
        else:
            chosen = int(last.argmax())
        yield chosen
        pending = [chosen]
