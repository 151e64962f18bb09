"""Text as token streams: the built-in corpus, Penn Treebank, WikiText-2, or a folder with your own files."""

from selfish_rnn.corpora.corpus import Corpus, truncated, unigram_perplexity, with_frequent_words, with_words
from selfish_rnn.corpora.loading import KNOWN_CORPORA, load_corpus
from selfish_rnn.corpora.vocabulary import Vocabulary

__all__ = [
    "KNOWN_CORPORA",
    "Corpus",
    "Vocabulary",
    "load_corpus",
    "truncated",
    "unigram_perplexity",
    "with_frequent_words",
    "with_words",
]
