"""The next word in one call is what the modules say, for every model and both precisions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from selfish_rnn import Sparsifier, pack
from selfish_rnn.engine import available, quantize
from selfish_rnn.engine.int8.targets import int8_target, int8_targets, use_int8_target
from selfish_rnn.models import LanguageModel, MixtureOfSoftmaxesLSTM, OrderedNeuronsLSTM, RecurrentHighwayNetwork
from selfish_rnn.models.stacked import StackedRNN
from selfish_rnn.runtime import Stream
from selfish_rnn.runtime.next_word import choose

pytestmark = pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")

WORDS = [3, 17, 0, 40, 3, 3, 28]

MODELS = {
    "lstm": lambda: StackedRNN(41, embedding=20, hidden=36),
    "tied": lambda: StackedRNN(41, embedding=36, hidden=36, tied=True),
    "widths": lambda: StackedRNN(41, embedding=20, hidden=(36, 19)),
    "gru": lambda: StackedRNN(41, embedding=20, hidden=36, cell="gru", layers=1),
    "rnn": lambda: StackedRNN(41, embedding=20, hidden=36, cell="rnn"),
    "rhn": lambda: RecurrentHighwayNetwork(41, hidden=30, depth=3),
    "on-lstm": lambda: OrderedNeuronsLSTM(41, embedding=20, hidden=30),
    "mos": lambda: MixtureOfSoftmaxesLSTM(41, embedding=20, hidden=30, hidden_last=24, experts=9),
}


def sparse_model(name: str) -> LanguageModel:
    torch.manual_seed(5)
    model = MODELS[name]()
    Sparsifier(model, sparsity=0.6, rewirings=2, exclude=model.dense_parameters)
    return model.eval()


@torch.no_grad()
def by_modules(model: LanguageModel) -> Tensor:
    return model(torch.tensor(WORDS).view(-1, 1))[0][:, 0]


def by_steps(step: Stream | None) -> Tensor:
    assert step is not None
    return step.run(WORDS)


def centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(-1, keepdim=True)


@pytest.mark.parametrize("name", MODELS)
def test_packed_steps_are_what_the_modules_say(name: str) -> None:
    model = pack(sparse_model(name), strict=True)
    step = model.next_word()
    assert step is not None
    assert {layer.precision for layer in step.layers} == {"float32"}
    torch.testing.assert_close(by_steps(step), by_modules(model), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_int8_steps_are_what_the_modules_say_and_near_to_single_precision(name: str) -> None:
    dense = sparse_model(name)
    model = quantize(copy.deepcopy(dense), strict=True)
    step = model.next_word()
    assert step is not None
    assert "int8" in {layer.precision for layer in step.layers}
    found, expected = by_steps(step), by_modules(model)
    if name in ("lstm", "tied", "widths", "gru", "rnn"):
        assert torch.equal(found, expected)
    else:  # rounding of activations multiplies the last digit
        assert float((found - expected).norm() / expected.norm()) < 0.02
    exact = centred(by_modules(dense))
    assert float((centred(found) - exact).norm() / exact.norm()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_int8_steps_are_bit_equal_on_every_processor_and_for_any_threads(name: str) -> None:
    model = quantize(sparse_model(name))
    expected, before, threads = by_steps(model.next_word()), int8_target(), torch.get_num_threads()
    try:
        for target in int8_targets():
            use_int8_target(target)
            torch.set_num_threads(2)
            assert torch.equal(by_steps(model.next_word()), expected), target
    finally:
        use_int8_target(before)
        torch.set_num_threads(threads)


def test_the_state_can_be_kept_given_back_and_reset() -> None:
    step = quantize(sparse_model("lstm")).next_word()
    assert step is not None
    first = step(3)
    state, second = step.state(), step(4)
    assert not torch.equal(step(4), second)
    step.set_state(state)
    assert torch.equal(step(4), second)
    step.reset()
    assert torch.equal(step(3), first)
    with pytest.raises(IndexError, match="token 41 is out of range"):
        step(41)


def test_a_dense_model_has_no_such_call() -> None:
    assert MODELS["lstm"]().next_word() is None


def test_words_are_drawn_as_often_as_they_are_likely() -> None:
    scores = torch.tensor([0.0, 2.0, 1.0, -1.0])
    numbers = [(n + 0.5) / 1000 for n in range(1000)]

    def shares(**options: float | int) -> list[float]:
        drawn = torch.tensor([choose(scores, number=number, **options) for number in numbers])
        return (torch.bincount(drawn, minlength=4) / 1000).tolist()

    assert shares() == pytest.approx(scores.softmax(0).tolist(), abs=2e-3)
    assert shares(temperature=0.5) == pytest.approx((2 * scores).softmax(0).tolist(), abs=2e-3)
    assert shares(top=2) == pytest.approx([0, *scores[1:3].softmax(0).tolist(), 0], abs=2e-3)
    assert shares(forbidden=1)[1] == 0
    assert choose(scores, temperature=0.0) == 1
    assert choose(scores, temperature=0.0, forbidden=1) == 2


def test_words_are_drawn_alike_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(1))
    options = [{"number": n / 40, "top": n % 3 * 5, "temperature": 0.3 * (n % 4), "forbidden": n} for n in range(40)]
    drawn = [choose(scores, **each) for each in options]  # type: ignore[arg-type]
    monkeypatch.setattr("selfish_rnn.runtime.next_word.library.available", lambda: False)
    assert [choose(scores, **each) for each in options] == drawn  # type: ignore[arg-type]


def test_a_model_that_cannot_be_streamed_has_no_such_call() -> None:
    class Sine(StackedRNN):
        def logits(self, output: Tensor) -> Tensor:
            return super().logits(output).sin()

    model = Sine(20, embedding=8, hidden=8, dropout=0.0)
    Sparsifier(model, sparsity=0.5, rewirings=1, min_side=1)
    assert pack(model).next_word() is None
