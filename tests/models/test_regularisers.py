from __future__ import annotations

import pytest
import torch
from torch import nn

from selfish_rnn.engine.functional import drop_factors, drop_keys
from selfish_rnn.models.regularisers import (
    activation_penalty,
    embed,
    locked_dropout,
    temporal_activation_penalty,
    weight_drop,
)


def test_locked_dropout_keeps_its_mask_over_time() -> None:
    dropped = locked_dropout(torch.ones(7, 20, 30), 0.25, training=True)
    assert (dropped == dropped[0]).all()
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert 0.15 < (dropped[0] == 0).double().mean() < 0.35
    # Every sequence of the batch has its own mask.
    assert not torch.equal(dropped[0, 0], dropped[0, 1])


def test_word_dropout_takes_a_word_everywhere() -> None:
    embedding = nn.Embedding(40, 3)
    tokens = torch.randint(40, (30, 10))
    rows = embed(embedding, tokens, 0.5, training=True)
    lost = (rows == 0).all(-1)
    assert 0 < lost.sum() < lost.numel()
    for word in range(40):
        assert lost[tokens == word].unique().numel() <= 1
    torch.testing.assert_close(rows[~lost], 2 * embedding(tokens)[~lost])
    rows.sum().backward()
    assert embedding.weight.grad is not None
    assert not embedding.weight.grad[tokens[lost]].any()


def test_nothing_is_dropped_in_evaluation_or_at_zero() -> None:
    sequence, embedding = torch.randn(4, 3, 5), nn.Embedding(9, 5)
    tokens = torch.randint(9, (4, 3))
    for probability, training in ((0.5, False), (0.0, True)):
        assert locked_dropout(sequence, probability, training) is sequence
        assert torch.equal(embed(embedding, tokens, probability, training), embedding(tokens))
        assert weight_drop(sequence, probability, training, "training") is sequence


def test_drop_connect_conventions() -> None:
    weight = torch.rand(50, 60) + 1
    for rescale, factor in (("training", 4.0), ("evaluation", 1.0)):
        dropped = weight_drop(weight, 0.75, True, rescale)  # type: ignore[arg-type]
        kept = dropped != 0
        assert 0.2 < kept.double().mean() < 0.3
        torch.testing.assert_close(dropped[kept], factor * weight[kept])
    torch.testing.assert_close(weight_drop(weight, 0.75, False, "evaluation"), weight / 4)
    assert not weight_drop(weight, 1.0, True, "training").any()


def test_drop_connect_decides_for_every_position_apart() -> None:
    torch.manual_seed(2)
    shape, probability, windows = (60, 40), 0.3, 400
    kept = torch.stack([drop_factors(shape, probability, False, drop_keys("cpu")) for _ in range(windows)]).double()
    spread = (probability * (1 - probability) / windows) ** 0.5
    assert abs(kept.mean() - (1 - probability)) < 4 * spread / kept[0].numel() ** 0.5
    assert ((kept.mean(0) - (1 - probability)).abs() < 5 * spread).all()
    # What the mean of two positions' products would be off by, if they were decided together.
    centred = (kept - (1 - probability)) / (probability * (1 - probability)) ** 0.5
    for other in (centred.roll(1, 1), centred.roll(1, 2), centred.roll((7, 3), (1, 2)), centred.roll(1, 0)):
        assert abs((centred * other).mean()) < 5 / centred.numel() ** 0.5
        assert ((centred * other).mean(0).abs() < 6 / windows**0.5).all()


def test_penalties() -> None:
    sequence = torch.tensor([[[1.0, 2.0]], [[3.0, -1.0]]])
    torch.testing.assert_close(activation_penalty(sequence, 2.0), torch.tensor(2 * 15 / 4))
    torch.testing.assert_close(temporal_activation_penalty(sequence, 3.0), torch.tensor(3 * 13 / 2))
    assert temporal_activation_penalty(sequence[:1], 3.0) == 0
