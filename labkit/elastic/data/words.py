"""Words: text of a Markov chain, sentences with a mood, a language to translate, queries and documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Ints
from labkit.elastic.data.base import Generated
from labkit.elastic.data.draws import below, uniforms, zipf

START: Final = 0
"""The word that precedes the first word of a translation."""


@dataclass(frozen=True)
class Language(Generated):
    """Text in which each word has four likely successors: words (B, T) and the next word of each (B, T)."""

    FOLLOWS: ClassVar[float] = 0.9  # else any word
    LIKELY: ClassVar = np.array([0.5, 0.75, 0.875, 1.0])  # of the first successor, the first two, ...

    @cached_property
    def successors(self) -> Ints:
        """The likely successors of each word, (V, 4), the likeliest first."""
        return zipf(self.taught(self.size.n_words, 4), self.size.n_words)

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return words and next words."""
        length, n_words = self.size.length, self.size.n_words
        drawn = self.drawn(index, 2 * (length + 1))
        words = zipf(drawn[:, : length + 1], n_words)
        chance = uniforms(drawn[:, length + 1 :]) / self.FOLLOWS
        which = np.searchsorted(self.LIKELY, chance, side="right")
        for t in range(1, length + 1):
            likely = self.successors[words[:, t - 1], np.minimum(which[:, t], 3)]
            words[:, t] = np.where(chance[:, t] < 1, likely, words[:, t])
        return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])


@dataclass(frozen=True)
class Sentences(Generated):
    """Sentences (B, T) of good or bad mood (B,): one word in seven comes from the rare words of its mood."""

    TELLING: ClassVar[float] = 1 / 7

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return sentences and moods."""
        length, n_words, n_moods = self.size.length, self.size.n_words, self.size.n_classes
        drawn = self.drawn(index, 3 * length + 1)
        mood = below(drawn[:, -1], n_moods)
        words = zipf(drawn[:, :length], n_words)
        telling = uniforms(drawn[:, length : 2 * length]) < self.TELLING
        nth = below(drawn[:, 2 * length : 3 * length], max(4, n_words // 100))
        words = np.where(telling, n_words - 1 - (n_moods * nth + mood[:, None]), words)
        return words, mood


@dataclass(frozen=True)
class Translation(Generated):
    """A source (B, T), its translation from `START` without the last word (B, T), and the translation (B, T).

    Each word has one translation, and neighbours change places: words 0 and 1, 2 and 3, ...
    """

    @cached_property
    def dictionary(self) -> Ints:
        """The translation of each word, (V,); that of `START` is itself."""
        shuffled = 1 + np.argsort(self.taught(self.size.n_words - 1, 1)[:, 0], kind="stable")
        return np.concatenate([[START], shuffled])

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return sources, targets shifted by one word, and targets."""
        length = self.size.length
        source = 1 + zipf(self.drawn(index, length), self.size.n_words - 1)
        swapped = np.minimum(np.arange(length) ^ 1, length - 1)
        target = self.dictionary[source[:, swapped]]
        before = np.concatenate([np.full((len(index), 1), START), target[:, :-1]], axis=1)
        return source, before, target


@dataclass(frozen=True)
class Search(Generated):
    """A query and five documents of letter trigrams (B, 6, T), and 0 (B,): the first document was clicked.

    Query and clicked document are of one topic, the others of other topics. Half of the trigrams of a text are
    those of its topic.
    """

    ON_TOPIC: ClassVar[float] = 0.5
    N_TRIGRAMS: ClassVar[int] = 8

    @cached_property
    def topics(self) -> Ints:
        """The trigrams of each topic, (topics, 8)."""
        return below(self.taught(max(8, self.size.n_words // 32), self.N_TRIGRAMS), self.size.n_words)

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return texts and zeros."""
        n_documents, length = self.size.n_classes, self.size.length
        shape = len(index), 1 + n_documents, length
        drawn = self.drawn(index, 3 * shape[1] * length + n_documents)
        place, any_word, which = np.moveaxis(drawn[:, n_documents:].reshape(*shape, 3), 3, 0)
        wanted = below(drawn[:, :1], len(self.topics))
        others = (wanted + 1 + below(drawn[:, 1:n_documents], len(self.topics) - 1)) % len(self.topics)
        topic = np.concatenate([wanted, wanted, others], axis=1)[:, :, None]
        on_topic: NDArray[Any] = self.topics[topic, below(which, self.N_TRIGRAMS)]
        texts = np.where(uniforms(place) < self.ON_TOPIC, on_topic, zipf(any_word, self.size.n_words))
        return texts, np.zeros(len(index), np.int64)
