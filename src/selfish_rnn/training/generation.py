"""Text from a trained model."""

from __future__ import annotations

import torch

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.models import LanguageModel


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
