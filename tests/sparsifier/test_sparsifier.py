"""Binding a sparsifier to a model: what becomes sparse, and that it stays so."""

from __future__ import annotations

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, backward, masks, same, sgd, train
from torch import nn

from selfish_rnn import GateLayout, Sparsifier, register_cell
from selfish_rnn.sparsifier.weights import MaskedWeight


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.67, 0.99])
def test_exactly_the_promised_number_of_weights(sparsity: float) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=sparsity, method="static")
    total = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    assert sparsifier.total_weights == total
    assert sparsifier.active_weights == max(round((1 - sparsity) * total), 6)  # one per matrix
    assert sum(int(weight.parameter.count_nonzero()) for weight in sparsifier.weights) == sparsifier.active_weights
    assert_inside_masks(sparsifier)


def test_biases_and_surviving_weights_are_untouched() -> None:
    model, dense = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.5, method="static", rescale=False)
    kept = {weight.name: weight.mask for weight in sparsifier.weights}
    for (name, sparse), original in zip(model.named_parameters(), dense.parameters(), strict=True):
        assert torch.equal(sparse, original * kept.get(name, 1))
        assert (name in kept) == ("bias" not in name)


def test_rescale_restores_the_variance_of_a_sum_of_inputs() -> None:
    model = nn.Linear(400, 300)
    before = model.weight.square().sum().item()
    Sparsifier(model, sparsity=0.75, method="static", rescale=True)
    assert model.weight.square().sum().item() == pytest.approx(before, rel=0.02)


def test_seed_decides_the_topology() -> None:
    first, again, other = (Sparsifier(Classifier(), sparsity=0.5, method="static", seed=seed) for seed in (1, 1, 2))
    assert same(masks(first), masks(again))
    assert not same(masks(first), masks(other))


def test_the_seed_follows_torch_s() -> None:
    first, again, other = (Sparsifier(Classifier(seed), sparsity=0.5, method="static") for seed in (1, 1, 2))
    assert same(masks(first), masks(again))
    assert not same(masks(first), masks(other))


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(6, 5, num_layers=2, bidirectional=True, proj_size=3),
        nn.LSTM(6, 5, num_layers=3),
        nn.GRU(6, 5, num_layers=2, bidirectional=True),
        nn.RNN(6, 5, num_layers=2, nonlinearity="relu"),
        nn.LSTMCell(6, 5),
        nn.GRUCell(6, 5),
        nn.RNNCell(6, 5),
        nn.Linear(6, 5),
        nn.Embedding(8, 6),
    ],
    ids=str,
)
def test_every_known_module_trains_sparse(module: nn.Module) -> None:
    weights = [parameter for name, parameter in module.named_parameters() if name.startswith("weight")]
    sparsifier = Sparsifier(module, sparsity=0.6, rewirings=10)
    budget = round(0.4 * sum(weight.numel() for weight in weights))
    assert [weight.parameter for weight in sparsifier.weights] == weights
    optimizer = sgd(module)
    for _ in range(3):
        inputs = torch.randint(8, (2,)) if isinstance(module, nn.Embedding) else torch.randn(4, 6)
        output = module(inputs)
        while isinstance(output, tuple):
            output = output[0]
        optimizer.zero_grad()
        output.pow(2).sum().backward()
        optimizer.step()
        assert_inside_masks(sparsifier)
        sparsifier.rewire()
        assert sparsifier.active_weights == budget
        assert_inside_masks(sparsifier)


class MasterCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.randn(8, 5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.mixing.t()


def test_a_registered_cell_is_sparsified_with_its_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(MasterCell(), nn.Linear(8, 2))
    assert len(Sparsifier(model, sparsity=0.5, method="static").weights) == 1
    monkeypatch.setattr("selfish_rnn.sparsifier.selection._known_cells", {})
    register_cell(MasterCell, lambda cell: {"mixing": GateLayout(("a", "b"), (2, 6))})
    register_cell(nn.Linear, lambda layer: {"weight": GateLayout.single(2)})
    sparsifier = Sparsifier(nn.Sequential(MasterCell(), nn.Linear(8, 2)), sparsity=0.5, method="static")
    assert [weight.name for weight in sparsifier.weights] == ["0.mixing", "1.weight"]
    assert "a " in sparsifier.summary()
    assert "b " in sparsifier.summary()


def test_tied_weights_are_one_weight() -> None:
    model = Classifier()
    model.rnn = nn.LSTM(6, 6)
    model.decoder = nn.Linear(6, 10)
    model.decoder.weight = model.embedding.weight
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=4)
    assert [weight.name for weight in sparsifier.weights] == [
        "embedding.weight",
        "rnn.weight_ih_l0",
        "rnn.weight_hh_l0",
    ]
    train(model, sgd(model))
    sparsifier.rewire()
    assert_inside_masks(sparsifier)
    assert model.decoder.weight is model.embedding.weight


def test_clipping_counts_existing_weights_only() -> None:
    model, dense = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method="static")
    dense.load_state_dict(model.state_dict())
    backward(model)
    backward(dense)
    kept = {weight.name: weight.mask for weight in sparsifier.weights}
    gradients = [parameter.grad * kept.get(name, 1) for name, parameter in dense.named_parameters()]
    expected = torch.stack([gradient.norm() for gradient in gradients]).norm()
    dense_norm = nn.utils.clip_grad_norm_(dense.parameters(), 1e9)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    torch.testing.assert_close(norm, expected)
    assert norm < 0.99 * dense_norm
    for (_, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_accumulated_gradients_are_masked_sums() -> None:
    model, reference = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method="static")
    reference.load_state_dict(model.state_dict())
    for seed in range(3):
        backward(model, seed)
        backward(reference, seed)
    for weight in sparsifier.weights:
        dense = dict(reference.named_parameters())[weight.name].grad
        torch.testing.assert_close(weight.parameter.grad, dense * weight.mask)


def test_sparse_training_is_dense_training_of_the_masked_weights() -> None:
    """With everything existing nothing differs, to the bit, from training without a sparsifier."""
    model, dense = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.0, method="static")
    train(model, torch.optim.Adam(model.parameters()))
    train(dense, torch.optim.Adam(dense.parameters()))
    sparsifier.rewire()
    assert same(list(model.state_dict().values()), list(dense.state_dict().values()))


def test_state_dict_keys_of_the_model_are_unchanged() -> None:
    model = Classifier()
    keys = list(model.state_dict())
    Sparsifier(model, sparsity=0.5, method="static")
    assert list(model.state_dict()) == keys
    Classifier(seed=1).load_state_dict(model.state_dict())


def test_two_sparsifiers_on_disjoint_parts() -> None:
    model = Classifier()
    recurrent = Sparsifier(model, sparsity=0.8, method="selfish", rewirings=5, include=[nn.LSTM])
    others = Sparsifier(model, sparsity=0.5, method="static", exclude=[nn.LSTM])
    before = masks(others)
    optimizer = sgd(model)
    for _ in range(2):
        train(model, optimizer)
        recurrent.rewire()
    assert_inside_masks(recurrent)
    assert_inside_masks(others)
    assert same(masks(others), before)
    assert recurrent.active_weights == round(0.2 * recurrent.total_weights)


def test_two_sparsifiers_on_the_same_weight_are_refused() -> None:
    """Their masks would multiply, and neither would have its number of weights."""
    model = Classifier()
    first = Sparsifier(model, sparsity=0.5, method="static")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"embedding\.weight .*already"):
        Sparsifier(model, sparsity=0.9, method="static", exclude=[nn.LSTM])
    assert same(list(model.state_dict().values()), list(before.values()))
    first.detach()
    Sparsifier(model, sparsity=0.9, method="static")


def test_frozen_layers_stay_dense() -> None:
    model = Classifier()
    model.embedding.weight.requires_grad_(False)
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=3)
    train(model, sgd(model))
    sparsifier.rewire()
    assert model.embedding.weight.all()


def test_repr_and_summary_can_be_read() -> None:
    sparsifier = Sparsifier(Classifier(), sparsity=0.5, rewirings=10, include=[nn.LSTM, "decoder.weight"])
    assert repr(sparsifier) == (
        "Sparsifier(method='selfish', sparsity=0.5, matrices=5, weights=235 of 470, rewirings_done=0)"
    )
    header, *rows, total, dense = sparsifier.summary().splitlines()
    assert header.split() == ["matrix", "shape", "weights", "density", "gates"]
    assert [row.split()[0] for row in rows] == [weight.name for weight in sparsifier.weights]
    assert "20 x 6" in rows[0]
    assert all(gate in rows[0] for gate in ("input", "forget", "candidate", "output"))
    assert rows[-1].endswith("%")  # no gates, and no blanks in their place
    assert total.split() == ["all", "235", "50.0", "%"]
    assert dense == "left dense: embedding.weight (60)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, "sparsity is the fraction of zeros"),
        ({"sparsity": -0.1}, "sparsity is the fraction of zeros"),
        ({"sparsity": 67}, "sparsity is the fraction of zeros.*got 67"),
        ({"prune_rate": 1.5}, "prune_rate is the fraction"),
        ({"rewirings": 0}, "rewirings is the number of rewirings"),
        ({"rewire_every": 0}, "rewire_every is a number of optimizer steps"),
        (
            {"schedule": "cosin"},
            r"unknown schedule 'cosin' \(did you mean 'cosine'\?\); known are cosine, linear, steps, constant",
        ),
        ({"method": "selfsh"}, r"unknown method 'selfsh' \(did you mean 'selfish'\?\); known are selfish, set"),
        ({"rewirings": None}, "needs rewirings="),
        ({"include": ["rnm.*"]}, r"matches rnm\.\*"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_touched(settings: dict[str, object], message: str) -> None:
    model = Classifier()
    with pytest.raises(ValueError, match=message):
        Sparsifier(model, **{"sparsity": 0.5, "rewirings": 10, **settings})
    assert all(parameter.all() for parameter in model.parameters())


def test_a_dense_network_has_no_memory_for_masks() -> None:
    sparsifier = Sparsifier(nn.LSTM(6, 5), sparsity=0.5, method="dense")
    for weight in sparsifier.weights:
        assert isinstance(weight, MaskedWeight)
        assert weight.mask.shape == weight.parameter.shape
        assert weight.mask.untyped_storage().nbytes() == 4
        assert weight.count == weight.size
