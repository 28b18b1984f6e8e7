"""A word language model: two layers of LSTM with 200 units over 10,000 words.

Zaremba et al., "Recurrent neural network regularization", 2014, the small model, which MXNet's example on the Penn
treebank has, too. 4.65 million parameters; DL2's Table 1 gives 4.8.
"""

from __future__ import annotations

from torch import Tensor, nn

from labkit.elastic.models.sizes import Size

LSTM_UNITS, N_LSTM_LAYERS = 200, 2


class WordLSTM(nn.Module):
    """Scores of each next word (B, T, V) from words (B, T)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        units = size.units(LSTM_UNITS, at_least=16)
        self.embed = nn.Embedding(size.n_words, units)
        self.lstm = nn.LSTM(units, units, N_LSTM_LAYERS, batch_first=True)
        self.score = nn.Linear(units, size.n_words)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores."""
        states, _ = self.lstm(self.embed(words))
        scores: Tensor = self.score(states)
        return scores
