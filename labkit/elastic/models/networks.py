"""Networks of all models and their losses, with the papers that they come from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from labkit.core.errors import InputError
from labkit.elastic.models.sizes import Size


def group_norm(n_channels: int) -> nn.GroupNorm:
    """Return the norm that replaces the batch normalisation of published networks.

    Groups of at least 16 channels [1]_, over one sample: a sample's gradient does not depend on its batch.

    References
    ----------
    .. [1] Wu and He, "Group normalization", ECCV 2018, table 3.
    """
    most = max(1, n_channels // 16)
    return nn.GroupNorm(next(n for n in range(most, 0, -1) if n_channels % n == 0), n_channels)


def he_weights(model: nn.Module) -> None:
    """Draw the weights of convolutions and linear layers so that ReLUs keep the variance [1]_; biases are 0.

    References
    ----------
    .. [1] He et al., "Delving deep into rectifiers", ICCV 2015, eq. 10.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class ConvNormReLU(nn.Module):
    """A convolution that keeps the size of the image (or divides it by the stride), a norm, a ReLU."""

    def __init__(
        self, n_in: int, n_out: int, *, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups, bias=bias)
        self.norm = group_norm(n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px, px)."""
        y: Tensor = self.norm(self.conv(x)).relu()
        return y


def mean_of_image(x: Tensor) -> Tensor:
    """Return the mean over the pixels: (B, C, px, px) -> (B, C)."""
    return x.mean(dim=(2, 3))


_ABOUT_SHAPES: Final = re.compile(r"shapes|channels|must match|be the same|scalar type|positional argument")


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return minus the mean log-probability of the targets, which are the last part of the batch.

    The model scores classes in its last axis: (B, C) for one target a sample, (B, T, C) for a target a word. Raise
    InputError if the batch is of another model, or of another width.
    """
    *inputs, targets = batch
    with _fitting():
        return F.cross_entropy(model(*inputs).flatten(0, -2), targets.flatten())


def click_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return minus the mean log-probability of clicks (1.0) and their absence (0.0); the model gives log-odds (B,).

    Raise InputError if the batch is of another model, or of another width.
    """
    *inputs, clicked = batch
    with _fitting():
        return F.binary_cross_entropy_with_logits(model(*inputs), clicked)


@contextmanager
def _fitting() -> Iterator[None]:
    """Raise one-line errors for a batch that does not fit the model, in place of torch's on indices and shapes."""
    try:
        yield
    except IndexError as error:
        raise _misfit("has a word or a class that the model does not know", error) from error
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, InputError) or not _ABOUT_SHAPES.search(str(error)):
            raise
        raise _misfit("has another shape than the model takes", error) from error


def _misfit(what: str, error: Exception) -> InputError:
    reason = str(error).splitlines()[0]
    return InputError(f"this batch {what} ({reason}). Build the model and its dataset by one name and with one width.")


DIGITS_HIDDEN = 64


class Digits(nn.Module):
    """Scores of classes (B, 10) from images (B, 1, 8, 8)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.units(DIGITS_HIDDEN, at_least=16)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(size.px**2, hidden), nn.ReLU(), nn.Linear(hidden, size.n_classes)
        )
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.layers(images)
        return scores


VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and convolutions, of each stage."""
VGG_HIDDEN = 4096


class VGG(nn.Module):
    """Scores of classes (B, C) from images (B, 3, px, px); it has no norm, as published.

    VGG-16: five stages of 3x3 convolutions, and three large linear layers that hold most parameters. Simonyan and
    Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015, table 1 D.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        n = size.n_channels
        self.features = nn.Sequential()
        for published, n_convolutions in VGG_STAGES:
            n_out = size.units(published, at_least=4)
            for _ in range(n_convolutions):
                self.features.extend([nn.Conv2d(n, n_out, 3, padding=1), nn.ReLU()])
                n = n_out
            self.features.append(nn.MaxPool2d(2))
        hidden, px_left = size.units(VGG_HIDDEN, at_least=16), size.px // 2 ** len(VGG_STAGES)
        self.classify = nn.Sequential(
            nn.Linear(n * px_left**2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, size.n_classes),
        )
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classify(self.features(images).flatten(1))
        return scores


RESNET_STAGES = ((256, 3), (512, 4), (1024, 6), (2048, 3))
"""Channels, and blocks, of each stage."""


class ResidualBlock(nn.Module):
    """1x1 down to a quarter of the channels, 3x3, 1x1 up again, added to the input."""

    def __init__(self, n_in: int, n_out: int, *, n_inside: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.down = group_norm(n_in), nn.Conv2d(n_in, n_inside, 1, bias=False)
        self.norm2, self.conv = group_norm(n_inside), nn.Conv2d(n_inside, n_inside, 3, stride, 1, bias=False)
        self.norm3, self.up = group_norm(n_inside), nn.Conv2d(n_inside, n_out, 1, bias=False)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px / stride, px / stride)."""
        active = self.norm1(x).relu()
        y: Tensor = self.conv(self.norm2(self.down(active)).relu())
        y = self.up(self.norm3(y).relu())
        return y + (x if self.shortcut is None else self.shortcut(active))


class ResNet(nn.Module):
    """Scores of classes (B, C) from images (B, 3, px, px).

    ResNet-50 with the activation before the weights, as MXNet's example has it. He et al., "Identity mappings in
    deep residual networks", ECCV 2016; 157 tensors of parameters, which is what Optimus (EuroSys 2018, Table 3)
    distributes over parameter servers.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        n = size.units(64, multiple=8, at_least=8)
        self.whiten = group_norm(size.n_channels)
        self.stem, self.norm = nn.Conv2d(size.n_channels, n, 7, 2, 3, bias=False), group_norm(n)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential()
        for stage, (published, n_blocks) in enumerate(RESNET_STAGES):
            n_out, n_inside = (size.units(c, multiple=8, at_least=8) for c in (published, published // 4))
            for b in range(n_blocks):
                stride = 2 if stage > 0 and b == 0 else 1
                self.blocks.append(ResidualBlock(n, n_out, n_inside=n_inside, stride=stride))
                n = n_out
        self.last_norm, self.classify = group_norm(n), nn.Linear(n, size.n_classes)
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        x = self.pool(self.norm(self.stem(self.whiten(images))).relu())
        x = self.last_norm(self.blocks(x)).relu()
        scores: Tensor = self.classify(mean_of_image(x))
        return scores


N_GROUPS = 8
RESNEXT_STAGES = (72, 144, 288)
"""Channels of each stage: those that make 1.73 million parameters."""
N_BLOCKS = 12  # of each stage; 1 + 3 stages x 12 blocks x 3 layers + 1 = 110 layers


class GroupedBlock(nn.Module):
    """1x1 down to half the channels, 3x3 in groups, 1x1 up again, added to the input."""

    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        n_inside = N_GROUPS * max(1, n_out // (2 * N_GROUPS))
        self.down = ConvNormReLU(n_in, n_inside, kernel=1)
        self.conv = ConvNormReLU(n_inside, n_inside, kernel=3, stride=stride, groups=N_GROUPS)
        self.up, self.norm = nn.Conv2d(n_inside, n_out, 1, bias=False), group_norm(n_out)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 or n_in != n_out else nn.Identity()
        nn.init.zeros_(self.norm.weight)  # a block begins as the identity, so that 110 layers learn from the start

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px / stride, px / stride)."""
        y: Tensor = self.norm(self.up(self.conv(self.down(x))))
        total: Tensor = y + self.shortcut(x)
        return total.relu()


class ResNeXt(nn.Module):
    """Scores of classes (B, C) from images (B, 3, 32, 32); a narrow one has fewer blocks, too.

    ResNeXt for 32x32 images: 110 layers whose 3x3 convolutions work in eight groups. Xie et al., "Aggregated
    residual transformations for deep neural networks", CVPR 2017; the depth and the parameters are those of DL2's
    Table 1 (1.73 million).
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        n_blocks = min(N_BLOCKS, size.units(N_BLOCKS))
        n = size.units(RESNEXT_STAGES[0], multiple=8, at_least=8)
        self.stem = ConvNormReLU(size.n_channels, n, kernel=3)
        self.blocks = nn.Sequential()
        for stage, published in enumerate(RESNEXT_STAGES):
            n_out = size.units(published, multiple=8, at_least=8)
            for b in range(n_blocks):
                stride = 2 if stage > 0 and b == 0 else 1
                self.blocks.append(GroupedBlock(n, n_out, stride=stride))
                n = n_out
        self.classify = nn.Linear(n, size.n_classes)
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classify(mean_of_image(self.blocks(self.stem(images))))
        return scores


# 1x1, then 1x1 to 3x3, then 1x1 to two 3x3, then the 1x1 after pooling; no first and last: halves the image
MIXED = (
    (64, (64, 64), (64, 96), 32),
    (64, (64, 96), (64, 96), 64),
    (0, (128, 160), (64, 96), 0),
    (224, (64, 96), (96, 128), 128),
    (192, (96, 128), (96, 128), 128),
    (160, (128, 160), (128, 160), 128),
    (96, (128, 192), (160, 192), 128),
    (0, (128, 192), (192, 256), 0),
    (352, (192, 320), (160, 224), 128),
    (352, (192, 320), (192, 224), 128),
)


class Mixed(nn.Module):
    """Four branches side by side, their channels joined."""

    def __init__(self, n_in: int, *, single: int, pair: tuple[int, int], triple: tuple[int, int], pooled: int) -> None:
        super().__init__()
        stride = 1 if single else 2
        conv = _convolution
        self.branches = nn.ModuleList(
            [
                nn.Sequential(conv(n_in, pair[0], 1), conv(pair[0], pair[1], 3, stride)),
                nn.Sequential(
                    conv(n_in, triple[0], 1), conv(triple[0], triple[1], 3), conv(triple[1], triple[1], 3, stride)
                ),
            ]
        )
        if single:
            self.branches.append(conv(n_in, single, 1))
            self.branches.append(nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(n_in, pooled, 1)))
        else:
            self.branches.append(nn.MaxPool2d(3, 2, 1))
        self.n_out = pair[1] + triple[1] + (single + pooled if single else n_in)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px, px), or half the px where there is no single branch."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _convolution(n_in: int, n_out: int, kernel: int, stride: int = 1) -> ConvNormReLU:
    return ConvNormReLU(n_in, n_out, kernel=kernel, stride=stride, bias=True)


class Inception(nn.Module):
    """Scores of classes (B, C) from images (B, 3, px, px).

    Inception with a norm after each convolution, as MXNet's example has it: 278 tensors of parameters. Ioffe and
    Szegedy, "Batch normalization", ICML 2015, figure 5; 257 classes as in Caltech-256.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()

        def units(published: int) -> int:
            return size.units(published, at_least=4) if published else 0

        n, n_stem = units(192), units(64)
        self.stem = nn.Sequential(
            _convolution(size.n_channels, n_stem, 7, 2),
            nn.MaxPool2d(3, 2, 1),
            _convolution(n_stem, n_stem, 1),
            _convolution(n_stem, n, 3),
            nn.MaxPool2d(3, 2, 1),
        )
        self.mixed = nn.Sequential()
        for single, (a, b), (c, d), pooled in MIXED:
            block = Mixed(
                n, single=units(single), pair=(units(a), units(b)), triple=(units(c), units(d)), pooled=units(pooled)
            )
            self.mixed.append(block)
            n = block.n_out
        self.classify = nn.Linear(n, size.n_classes)
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classify(mean_of_image(self.mixed(self.stem(images))))
        return scores


LSTM_UNITS, N_LSTM_LAYERS = 200, 2


class WordLSTM(nn.Module):
    """Scores of each next word (B, T, V) from words (B, T).

    A word language model: two layers of LSTM with 200 units over 10,000 words. Zaremba et al., "Recurrent neural
    network regularization", 2014, the small model, which MXNet's example on the Penn treebank has, too. 4.65
    million parameters; DL2's Table 1 gives 4.8.
    """

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


WORD_EMBEDDING, FILTERS, WINDOWS = 300, 100, (3, 4, 5)


class TextCNN(nn.Module):
    """Scores of classes (B, C) from sentences (B, T).

    Text CNN: convolutions over three, four and five words, and the maximum of each. Kim, "Convolutional neural
    networks for sentence classification", EMNLP 2014; 18,766 words of 300 as on movie reviews.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        embedding, filters = size.units(WORD_EMBEDDING, at_least=8), size.units(FILTERS, at_least=8)
        self.embed = nn.Embedding(size.n_words, embedding)
        self.windows = nn.ModuleList(nn.Conv1d(embedding, filters, window) for window in WINDOWS)
        self.classify = nn.Linear(filters * len(WINDOWS), size.n_classes)
        he_weights(self)

    def forward(self, sentences: Tensor) -> Tensor:
        """Return the scores."""
        words = self.embed(sentences).transpose(1, 2)
        strongest = [window(words).relu().amax(dim=2) for window in self.windows]
        scores: Tensor = self.classify(torch.cat(strongest, dim=1))
        return scores


TRIGRAM_EMBEDDING, TOWER_HIDDEN, TOWER_OUT = 64, 256, 128
SHARPNESS = 10.0  # gamma of the softmax over cosines


class DSSM(nn.Module):
    """Scores of documents (B, D) from the trigrams of a query and D documents, in one tensor (B, 1 + D, T).

    DSSM: two towers map a query and documents to one space, where the clicked document is nearest. Shen et al., "A
    latent semantic model with convolutional-pooling structure for information retrieval", CIKM 2014: letter
    trigrams in, cosine out, the clicked document against four others. Bags of trigrams instead of its convolution,
    and embeddings of 64, make the published 1.5 million parameters.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        embedding, hidden, out = (size.units(n, at_least=16) for n in (TRIGRAM_EMBEDDING, TOWER_HIDDEN, TOWER_OUT))
        self.embed = nn.Embedding(size.n_words, embedding)
        self.query, self.document = (
            nn.Sequential(
                nn.Linear(embedding, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out)
            )
            for _ in range(2)
        )

    def forward(self, texts: Tensor) -> Tensor:
        """Return the scores."""
        bags = self.embed(texts).mean(dim=2)
        query, documents = self.query(bags[:, :1]), self.document(bags[:, 1:])
        return SHARPNESS * F.cosine_similarity(query, documents, dim=2)


N_CONV_LAYERS, CHANNELS, KERNEL = 3, 256, 3
HALVED = math.sqrt(0.5)  # keeps the variance of a sum of two


class WordsAndPlaces(nn.Module):
    """The embedding of a word plus that of its position."""

    def __init__(self, n_words: int, length: int, channels: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(n_words, channels), nn.Embedding(length, channels)

    def forward(self, words: Tensor) -> Tensor:
        """Return (B, T, channels) of words (B, T)."""
        x: Tensor = self.word(words) + self.place.weight[: words.shape[1]]
        return x


class GatedConv(nn.Module):
    """A gated convolution over words (B, T, channels), added to its input; `causal`: it uses no later word."""

    def __init__(self, channels: int, *, causal: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, KERNEL)
        self.padding = (KERNEL - 1, 0) if causal else (KERNEL // 2, KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, channels)."""
        y = F.glu(self.conv(F.pad(x.transpose(1, 2), self.padding)), dim=1)
        return (y.transpose(1, 2) + x) * HALVED


class TargetAttention(nn.Module):
    """Attention of each position of the target over the source."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.ask, self.answer = nn.Linear(channels, channels), nn.Linear(channels, channels)

    def forward(self, state: Tensor, target: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return (B, T, channels): source values (B, S, channels), weighted by attention to their keys."""
        query = (self.ask(state) + target) * HALVED
        weights = torch.softmax(query @ keys.transpose(1, 2), dim=2)
        y: Tensor = self.answer(weights @ values) * math.sqrt(keys.shape[1])  # as for equal weights
        return (y + state) * HALVED


class ConvSeq2Seq(nn.Module):
    """Scores of the next word (B, T, V) from a source and the target so far, both (B, T).

    Sequence to sequence with convolutions and attention, without recurrence. Gehring et al., "Convolutional
    sequence to sequence learning", ICML 2017, section 3, which is what DL2's Table 1 cites; three layers a side, of
    256 channels, make the published 9.1 million parameters.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        channels = size.units(CHANNELS, at_least=16)
        self.source = WordsAndPlaces(size.n_words, size.length, channels)
        self.target = WordsAndPlaces(size.n_words, size.length, channels)
        self.encoder = nn.Sequential(*(GatedConv(channels, causal=False) for _ in range(N_CONV_LAYERS)))
        self.decoder = nn.ModuleList(GatedConv(channels, causal=True) for _ in range(N_CONV_LAYERS))
        self.attention = nn.ModuleList(TargetAttention(channels) for _ in range(N_CONV_LAYERS))
        self.score = nn.Linear(channels, size.n_words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores; `target` begins with the start of a sentence and lacks its last word."""
        embedded = self.source(source)
        keys = self.encoder(embedded)
        values = (keys + embedded) * HALVED
        y = wanted = self.target(target)
        for convolve, attend in zip(self.decoder, self.attention, strict=True):
            y = attend(convolve(y), wanted, keys, values)
        scores: Tensor = self.score(y)
        return scores


FEATURE_EMBEDDING, DEEP_HIDDEN, INTERACTIONS, N_INTERACTION_LAYERS = 10, 400, 200, 3

STD = 0.1
"""Standard deviation of the initial embeddings."""


def beginning(features: Tensor, n: int) -> Tensor:
    """Return the initial embedding of each feature (...), (..., n): uniform numbers of standard deviation STD.

    >>> numbers = beginning(torch.arange(1000), 10)
    >>> tuple(numbers.shape), round(float(numbers.std()), 2), abs(float(numbers.mean())) < 0.01
    ((1000, 10), 0.1, True)
    """
    mixed = features.long().unsqueeze(-1) * n + torch.arange(n, device=features.device)
    for factor in (1_103_515_245, 747_796_405):
        mixed = (mixed * factor + 12_345) & 0x7FFF_FFFF
        mixed = mixed ^ (mixed >> 15)
    return (mixed.double() * (2 / 2**31) - 1).float() * (STD * 3**0.5)


class WideDeep(nn.Module):
    """Log-odds of a click (B,) from features (B, fields): a weight of each, plus the output of two layers.

    Wide&Deep and xDeepFM: will a user click? From 39 features, one of each field. Cheng et al., "Wide & deep
    learning for recommender systems", DLRS 2016; Lian et al., "xDeepFM", KDD 2018. Layers as the catalogue counts
    them: embeddings of 10, two layers of 400, three interaction layers of 200.
    """

    def __init__(self, size: Size, *, growing: bool = False) -> None:
        super().__init__()
        self.growing = growing
        hidden = size.units(DEEP_HIDDEN, at_least=16)
        self.wide = nn.Embedding(size.n_words, 1)
        self.embed = nn.Embedding(size.n_words, FEATURE_EMBEDDING)
        self.deep = nn.Sequential(
            nn.Linear(size.length * FEATURE_EMBEDDING, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        he_weights(self)
        nn.init.zeros_(self.wide.weight)
        if growing:
            nn.init.zeros_(self.embed.weight)
        else:
            nn.init.normal_(self.embed.weight, std=STD)

    def forward(self, features: Tensor) -> Tensor:
        """Return the log-odds."""
        return self.log_odds(features, self.embedded(features))

    def embedded(self, features: Tensor) -> Tensor:
        """Return the embeddings of features (B, fields): (B, fields, FEATURE_EMBEDDING).

        A growing table stores the learned difference to the initial embedding, which follows from the feature's number.
        So the row of a feature that no sample has had is zero, and takes no memory (`labkit.elastic.server.block`).
        """
        learned: Tensor = self.embed(features)
        return learned + beginning(features, FEATURE_EMBEDDING) if self.growing else learned

    def log_odds(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return the log-odds from features and their embeddings (B, fields, FEATURE_EMBEDDING)."""
        odds: Tensor = self.wide(features).sum(dim=(1, 2)) + self.deep(embedded.flatten(1)).squeeze(1)
        return odds


class XDeepFM(WideDeep):
    """Wide&Deep plus products of features: a layer mixes each of its inputs times each field, per dimension."""

    def __init__(self, size: Size, *, growing: bool = False) -> None:
        super().__init__(size, growing=growing)
        n, n_fields = size.units(INTERACTIONS, at_least=8), size.length
        n_inputs = [n_fields] + [n] * (N_INTERACTION_LAYERS - 1)
        self.mix = nn.ParameterList(torch.empty(n, k * n_fields) for k in n_inputs)
        for weights in self.mix:
            nn.init.xavier_normal_(weights)
        self.add = nn.Linear(n * N_INTERACTION_LAYERS, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the log-odds."""
        fields = self.embedded(features)
        sums, x = [], fields
        for weights in self.mix:
            products = torch.einsum("bid,bjd->bijd", x, fields).flatten(1, 2)  # (B, inputs x fields, FEATURE_EMBEDDING)
            x = F.conv1d(products, weights.unsqueeze(2))
            sums.append(x.sum(dim=2))
        odds: Tensor = self.log_odds(features, fields) + self.add(torch.cat(sums, dim=1)).squeeze(1)
        return odds
