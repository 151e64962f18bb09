"""A corpus: three token streams and their vocabulary."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Literal

import torch

from selfish_rnn.corpora.vocabulary import EOS, UNKNOWN, Vocabulary
from selfish_rnn.errors import UserError, short_repr

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as numbers: ``train``, ``valid`` and ``test`` are one-dimensional int64 tensors of token ids.

    Each line of the text ends with ``vocabulary.eos_id``; lines follow each other without a gap.
    """

    name: str
    vocabulary: Vocabulary
    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor

    def checksum(self) -> str:
        """Return the SHA-256 of the words and the three streams."""
        digest = hashlib.sha256(self.vocabulary.to_json().encode())
        for split in SPLITS:
            digest.update(hashlib.sha256(getattr(self, split).contiguous().numpy().data).digest())
        return digest.hexdigest()


def encode_texts(name: str, texts: dict[str, str], tokenizer: str) -> Corpus:
    """Number the whitespace-separated words of three texts in order of first appearance: train, valid, test.

    Every line, also an empty one, is closed with ``<eos>``. The texts are already split; ``tokenizer`` is stored for
    prompts.
    """
    ids: dict[str, int] = {}
    streams = {}
    for split in SPLITS:
        stream: list[int] = []
        for line in lines_of(texts[split]):
            stream.extend([ids.setdefault(word, len(ids)) for word in line.split()])
            stream.append(ids.setdefault(EOS, len(ids)))
        streams[split] = torch.tensor(stream, dtype=torch.int64)
    return Corpus(name, Vocabulary(tuple(ids), tokenizer), **streams)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text; only a line feed, or its Windows or old Mac form, ends a line.

    ``str.splitlines`` also breaks at rare Unicode separators, which would add end-of-sentence tokens.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def truncated(corpus: Corpus, tokens: int) -> Corpus:
    """Return the corpus with only the first ``tokens`` training tokens; vocabulary, valid and test are unchanged."""
    if tokens < 1:
        raise UserError(f"a training stream needs at least 1 token, not {tokens}")
    return replace(corpus, train=corpus.train[:tokens])


def with_frequent_words(corpus: Corpus, words: int) -> Corpus:
    """Return the corpus with a vocabulary of ``words`` tokens: the most frequent of the training stream, and ``<unk>``.

    ``<eos>`` and ``<unk>`` are always among them. Of equally frequent words the first in the corpus is preferred.
    """
    known = corpus.vocabulary
    if words >= len(known):
        return corpus
    if words < 3:
        raise UserError(f"a vocabulary needs at least 3 words, {EOS}, {UNKNOWN} and another, not {words}")
    counts = torch.bincount(corpus.train, minlength=len(known))
    always = [known.eos_id] if known.unknown_id is None else [known.eos_id, known.unknown_id]
    counts[always] = corpus.train.numel() + 1
    added = () if UNKNOWN in known else (UNKNOWN,)
    frequent = counts.argsort(descending=True, stable=True)[: words - len(added)].sort().values
    return with_words(corpus, Vocabulary((*known.decode(frequent), *added), known.tokenizer))


def with_words(corpus: Corpus, vocabulary: Vocabulary) -> Corpus:
    """Return the corpus in the numbers of a smaller vocabulary, whose ``<unk>`` replaces all other words."""
    foreign = next((word for word in vocabulary.tokens if word not in corpus.vocabulary and word != UNKNOWN), None)
    if foreign is not None:
        raise UserError(f"the corpus {corpus.name} does not have the word {short_repr(foreign)}")
    ids = torch.tensor(vocabulary.encode(corpus.vocabulary.tokens))
    return Corpus(corpus.name, vocabulary, ids[corpus.train], ids[corpus.valid], ids[corpus.test])


def unigram_perplexity(corpus: Corpus, split: Literal["valid", "test"] = "test") -> float:
    r"""Return the perplexity of the test or validation stream under the word frequencies of the training text.

    .. math:: \exp\Bigl(-\frac{1}{T} \sum_{t=1}^{T} \log \frac{c(w_t) + 1}{N + V}\Bigr)

    with c(w) the count of w among the N training tokens, V the size of the vocabulary and T the length of the
    stream. Adding one gives unseen words a probability. A network that has learned anything from context is below this
    number.
    """
    stream = corpus.test if split == "test" else corpus.valid
    if stream.numel() == 0:
        raise UserError(f"the {split} stream of the corpus {corpus.name} is empty")
    size = len(corpus.vocabulary)
    counts = torch.bincount(corpus.train, minlength=size).double()
    log_probability = torch.log(counts + 1) - math.log(corpus.train.numel() + size)
    return math.exp(-log_probability[stream].mean().item())
