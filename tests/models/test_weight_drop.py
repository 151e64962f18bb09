"""The LSTM that drops recurrent weights."""

from __future__ import annotations

import torch
from torch import nn

from selfish_rnn.engine.functional import drop_factors, drop_keys
from selfish_rnn.models.cells.weight_drop import WeightDropLSTM


def test_only_the_recurrent_matrix_is_dropped_and_only_in_passing() -> None:
    lstm = WeightDropLSTM(4, 5, 0.4).double()
    before = {name: tensor.clone() for name, tensor in lstm.state_dict().items()}
    inputs = torch.randn(6, 3, 4, dtype=torch.float64)
    state = (torch.randn(1, 3, 5, dtype=torch.float64), torch.randn(1, 3, 5, dtype=torch.float64))

    torch.manual_seed(1)
    output, after = lstm(inputs, state)
    output.sum().backward()
    assert dict.fromkeys(before, True) == {
        name: torch.equal(before[name], tensor) for name, tensor in lstm.state_dict().items()
    }

    dropped, plain = nn.LSTM(4, 5).double(), nn.LSTM(4, 5).double()
    dropped.load_state_dict(before)
    plain.load_state_dict(before)
    torch.manual_seed(1)
    mask = drop_factors((20, 5), 0.4, True, drop_keys("cpu")).double()
    with torch.no_grad():
        dropped.weight_hh_l0.mul_(mask)
    expected, expected_after = dropped(inputs, state)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(after, expected_after)
    expected.sum().backward()
    assert lstm.weight_hh_l0.grad is not None
    torch.testing.assert_close(lstm.weight_hh_l0.grad, dropped.weight_hh_l0.grad * mask)
    torch.testing.assert_close(lstm.weight_ih_l0.grad, dropped.weight_ih_l0.grad)

    torch.testing.assert_close(lstm.eval()(inputs, state), plain(inputs, state))
    lstm.weight_drop = 0.0
    torch.testing.assert_close(lstm.train()(inputs, state), plain(inputs, state))


def test_a_sparsity_mask_stays() -> None:
    lstm = WeightDropLSTM(4, 5, 0.4)
    mask = torch.rand(20, 5) < 0.5
    with torch.no_grad():
        lstm.weight_hh_l0.mul_(mask)
    lstm.weight_hh_l0.register_hook(lambda grad: grad * mask)
    output, _ = lstm(torch.randn(6, 3, 4), (torch.ones(1, 3, 5), torch.ones(1, 3, 5)))
    output.sum().backward()
    assert lstm.weight_hh_l0.grad is not None
    assert lstm.weight_hh_l0.grad[mask].any()
    assert not lstm.weight_hh_l0.grad[~mask].any()
