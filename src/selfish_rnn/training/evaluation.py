"""Evaluation and text generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from selfish_rnn.corpora import Corpus, Vocabulary
from selfish_rnn.errors import UserError, short_repr
from selfish_rnn.experiment.sections import LARGEST_SEED, Count, Section
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import LanguageModel, detach
from selfish_rnn.runtime.next_word import choose
from selfish_rnn.training.ranks import ALONE, Ranks
from selfish_rnn.training.windows import batched, windows


@torch.no_grad()
def evaluate(model: LanguageModel, stream: Tensor, *, batch_size: int, window: int, ranks: Ranks = ALONE) -> float:
    """Return the mean negative log-probability per token, without dropout.

    The text is cut into ``batch_size`` pieces of equal length, and the state is carried through each piece from zero.
    The few tokens that do not fill a row are left out. Ranks that evaluate together share the pieces.
    """
    device = next(model.parameters()).device
    rows = batched(stream, batch_size)[:, ranks.share(batch_size)].to(device)
    columns = rows.shape[1]
    was_training = model.training
    model.eval()
    state = model.initial_state(columns)
    total = torch.zeros((), dtype=torch.float64)
    for inputs, targets in windows(rows, window) if columns else ():
        encoded = model.encode(inputs, state)
        total += model.loss(encoded.output, targets).cpu().double() * len(inputs)
        state = detach(encoded.state)
    model.train(was_training)
    return ranks.sum(float(total) * columns / batch_size) / (len(rows) - 1)


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``, or infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class EvaluationSettings(Section):
    """Batch sizes and window of the evaluation of an experiment."""

    valid_batch_size: Count = 20
    test_batch_size: Count = 20
    window: Count = 35

    @classmethod
    def of(cls, experiment: Experiment) -> EvaluationSettings:
        return cls.model_validate(experiment.model_dump(include=set(cls.model_fields)))


def evaluate_splits(
    model: LanguageModel, settings: Experiment | EvaluationSettings, corpus: Corpus, ranks: Ranks = ALONE
) -> dict[str, float]:
    """Return the perplexity on the validation and test text."""
    sizes = {"valid": settings.valid_batch_size, "test": settings.test_batch_size}
    return {
        f"{split}_perplexity": perplexity(
            evaluate(model, getattr(corpus, split), batch_size=size, window=settings.window, ranks=ranks)
        )
        for split, size in sizes.items()
    }


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 1.0,
    top: int = 0,
    seed: int | None = None,
) -> str:
    """Continue a prompt with ``tokens`` words drawn from the model.

    Temperature 0 chooses the likeliest word. With ``top`` only this number of likeliest words is considered.
    """
    words = vocabulary.encode(prompt)
    words.extend(stream(model, vocabulary, prompt, tokens=tokens, temperature=temperature, top=top, seed=seed))
    return vocabulary.join(vocabulary.decode(words))


def stream(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 1.0,
    top: int = 0,
    seed: int | None = None,
) -> Iterator[int]:
    """Yield the ids of the words that continue a prompt as they are drawn.

    A packed or int8 model computes every word in one call of the kernels.
    """
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature must be a number from 0 (the likeliest word) on, such as 0.8, got {temperature}")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UserError(f"seed must be a number from 0 to {LARGEST_SEED}, got {short_repr(seed)}")
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    scores_after = _reader(model)
    pending = [vocabulary.eos_id, *vocabulary.encode(prompt)]
    for _ in range(tokens):
        number = float(torch.rand((), dtype=torch.float64, generator=generator))
        scores = scores_after(pending)
        if scores.isnan().any():
            raise UserError("the scores of the model are NaN: its weights come from a run that diverged")
        word = choose(scores, temperature=temperature, top=top, forbidden=vocabulary.unknown_id, number=number)
        yield word
        pending = [word]


def _reader(model: LanguageModel) -> Callable[[Sequence[int]], Tensor]:
    """Return a function that reads words and returns the scores of the next word; it carries the state."""
    step = model.next_word()
    if step is not None:
        return lambda words: [step(word) for word in words][-1]
    device, state = next(model.parameters()).device, model.initial_state(1)

    @torch.no_grad()
    def read(words: Sequence[int]) -> Tensor:
        nonlocal state
        scores, state = model(torch.tensor(words, device=device).view(-1, 1), state)
        last: Tensor = scores[-1, 0]
        return last

    return read
