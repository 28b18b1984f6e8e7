"""What generated samples show: the teacher that made them can be read off them."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.elastic.data import dataset

N = 4000


def made(name: str, *, seed: int = 0, width: float = 0.1):
    samples = dataset(name, n=N, seed=seed, width=width)
    return samples, samples.make(np.arange(N))


@pytest.mark.parametrize("name", ["resnet-50", "digits-like"])
def test_the_mean_image_of_a_class_is_its_pattern(name):
    samples, (images, labels) = made(name, width=0.1)
    repeat = images.shape[-1] // 8
    for label in range(10):
        mean = images[labels == label].mean(axis=0)
        pattern = samples.patterns[label].repeat(repeat, axis=1).repeat(repeat, axis=2)
        np.testing.assert_allclose(mean, pattern, atol=5.5 / (labels == label).sum() ** 0.5)


def test_classes_come_as_often():
    counts = np.bincount(made("vgg-16")[1][1], minlength=10)
    assert ((counts - N / 10) ** 2 / (N / 10)).sum() < 27.9  # chi-squared, 9 degrees: once in a thousand


def test_patterns_have_variance_1_and_a_tint():
    patterns = dataset("resnet-50").patterns  # a thousand classes
    assert patterns.var() == pytest.approx(1, abs=0.04)
    assert patterns.mean(axis=(2, 3)).var() == pytest.approx(0.5 + 0.5 / 64, abs=0.03)


def test_each_word_follows_its_likely_ones():
    """0.9 x (1/2, 1/4, 1/8, 1/8), plus a tenth of any word."""
    samples, (words, following) = made("wlm")
    hits = following[:, :, None] == samples.successors[words]
    distinct = [len(set(row)) == 4 for row in samples.successors[words].reshape(-1, 4).tolist()]
    share = hits.reshape(-1, 4)[distinct].mean(axis=0)
    assert (share > 0.9 * np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8]) - 0.01).all()
    assert share.sum() < 0.97


def test_next_words_are_the_words_one_later():
    _, (words, following) = made("wlm")
    np.testing.assert_array_equal(words[:, 1:], following[:, :-1])


def test_a_mood_shows_in_one_word_of_seven():
    samples, (words, moods) = made("cnn-text-classification")
    n_words = samples.size.n_words
    from_the_end = n_words - 1 - words
    telling = from_the_end < 8  # four rare words for each of two moods
    fits = from_the_end % 2 == moods[:, None]
    assert telling[fits].mean() > 5 * telling[~fits].mean()
    assert (telling & fits).mean() == pytest.approx(1 / 7, abs=0.02)


def test_a_translation_is_word_by_word_with_neighbours_swapped():
    samples, (source, before, target) = made("seq2seq")
    assert sorted(samples.dictionary) == list(range(samples.size.n_words))
    assert samples.dictionary[0] == 0
    back = np.argsort(samples.dictionary)
    np.testing.assert_array_equal(back[target][:, 0::2], source[:, 1::2])
    np.testing.assert_array_equal(back[target][:, 1::2], source[:, 0::2])
    np.testing.assert_array_equal(before[:, 1:], target[:, :-1])
    assert (before[:, 0] == 0).all()
    assert source.min() > 0


def test_only_the_clicked_document_shares_the_topic_of_its_query():
    samples, (texts, _) = made("dssm", width=0.5)
    topic_of = {frozenset(topic): t for t, topic in enumerate(samples.topics.tolist())}
    assert len(topic_of) == len(samples.topics)
    overlap = [[len(set(text[0]) & set(document)) for document in text[1:]] for text in texts.tolist()]
    clicked, others = np.array(overlap)[:, 0], np.array(overlap)[:, 1:]
    assert clicked.mean() > 1.8 * others.mean()
    np.testing.assert_allclose(others.mean(axis=0), others.mean(), atol=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_about_one_in_three_is_clicked(seed):
    assert 0.2 < made("wide-deep", seed=seed)[1][1].mean() < 0.5


def test_clicks_come_with_the_chance_that_the_teacher_gives():
    samples, (features, clicked) = made("wide-deep")
    chance = 1 / (1 + np.exp(-samples.log_odds(features)))
    for low in np.arange(0, 1, 0.2):
        at = (chance >= low) & (chance < low + 0.2)
        assert clicked[at].mean() == pytest.approx(chance[at].mean(), abs=3.5 * (0.25 / at.sum()) ** 0.5)


def test_features_are_numbered_through_all_fields():
    samples, (features, _) = made("xdeepfm")
    per_field = samples.size.n_words // samples.size.length
    np.testing.assert_array_equal(features // per_field, np.tile(np.arange(39), (N, 1)))


def test_pairs_of_features_tell_what_neither_tells_alone():
    """Signs of two features multiply: the product of pair 0 and 1 moves the odds by 2, whichever way either points."""
    samples, (features, _) = made("wide-deep")
    signs = np.sign(samples._weights(features[:, :2]))
    odds = samples.log_odds(features)
    together = signs[:, 0] * signs[:, 1]
    gap = odds[together > 0].mean() - odds[together < 0].mean()
    assert gap == pytest.approx(2 * samples.CROSS, abs=4 * odds.std() * 2 / N**0.5)
