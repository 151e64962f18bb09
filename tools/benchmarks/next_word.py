"""Time of the next word: one call in int8 and in float32, compared with torch's dense int8 (``quantize_dynamic``).

    python tools/benchmarks/next_word.py --hidden 1500 --out results/int8/next-word-1500.txt

A language model of 10,000 words with two LSTM layers (or RHN, ON-LSTM), batch 1, sparse matrices drawn at random. In
every round each contender, in an order drawn anew, reads some words, timed one by one; its time in the round is the
best of them, because a word during which a thread had to wait for a processor says nothing. Reported: the median over
the rounds, the ratio over torch's dense int8 round by round (median and quartiles), bytes for each weight that exists.
Of RHN and ON-LSTM torch quantises the output layer only: their cells are none it knows.

Dense int8 as it is on a processor without AVX-512 (torch multiplies with FBGEMM, which is told so by a function):

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python tools/benchmarks/next_word.py --dense-avx2 --kernels avx2
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import random
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from selfish_rnn import pack, quantize
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.engine.int8.targets import int8_targets, use_int8_target
from selfish_rnn.models import LanguageModel, OrderedNeuronsLSTM, RecurrentHighwayNetwork, StackedRNN
from selfish_rnn.system import processor

WORDS = 10_000
DENSE = "torch dense int8"

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["lstm", "rhn", "on-lstm"], default="lstm")
parser.add_argument("--hidden", type=int, default=1500)
parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 0.67, 0.8, 0.9, 0.95])
parser.add_argument("--kernels", nargs="+", choices=int8_targets(), default=[int8_targets()[-1], "avx2"])
parser.add_argument("--dense-avx2", action="store_true", help="dense int8 without AVX-512")
parser.add_argument("--float32", action="store_true", help="the packed float32 model, too")
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--out", type=Path)
options = parser.parse_args()


def without_avx512() -> None:
    """Have FBGEMM take the instructions of AVX2: ``fbgemm::fbgemmForceIsa(inst_set_t::avx2)``."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    torch_cpu._ZN6fbgemm14fbgemmForceIsaENS_10inst_set_tE(1)
    assert torch_cpu._ZN6fbgemm20fbgemmInstructionSetEv() == 1


def make() -> LanguageModel:
    if options.model == "rhn":
        return RecurrentHighwayNetwork(WORDS, hidden=options.hidden).eval()
    if options.model == "on-lstm":
        return OrderedNeuronsLSTM(WORDS, hidden=options.hidden // 10 * 10).eval()
    return StackedRNN(WORDS, embedding=options.hidden, hidden=options.hidden).eval()


def sparse(sparsity: float) -> LanguageModel:
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(torch.rand_like(parameter) >= sparsity)
    return model


def by_modules(model: LanguageModel, dense_int8: bool = False) -> Callable[[], object]:
    state, word = model.initial_state(1), torch.tensor([[1]])
    if dense_int8:
        model = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    return lambda: model(word, state)


def by_steps(model: LanguageModel) -> Callable[[], object]:
    step = model.next_word()
    assert step is not None
    return lambda: step(1)


def best(run: Callable[[], object], words: int = 24) -> float:
    """Milliseconds."""
    times = []
    for _ in range(words + 2):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[2:])


warnings.filterwarnings("ignore")
torch.set_num_threads(options.threads)
torch.manual_seed(0)
random.seed(0)
if options.dense_avx2:
    without_avx512()
contenders = {DENSE: by_modules(make(), dense_int8=True)}
kernels_of: dict[str, str] = {}
bytes_per_weight: dict[str, float] = {}
for sparsity in options.sparsity:
    packed = pack(sparse(sparsity))
    if options.float32:
        contenders[f"S = {sparsity} packed float32, modules"] = by_modules(packed)
        contenders[f"S = {sparsity} packed float32, one call"] = by_steps(packed)
    for target in options.kernels:
        use_int8_target(target)
        small, name = quantize(copy.deepcopy(packed)), f"S = {sparsity} packed int8, one call, {target}"
        contenders[name], kernels_of[name] = by_steps(small), target
        weights = quantized_weights(small).values()
        bytes_per_weight[name] = sum(weight.bytes for weight in weights) / sum(weight.count for weight in weights)

with torch.no_grad():
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name in random.sample(sorted(contenders), len(contenders)):
            use_int8_target(kernels_of.get(name, options.kernels[0]))  # that its matrices are laid out for
            rounds[name].append(best(contenders[name]))

lines = [
    f"next word, {options.model}, {options.hidden} units, {WORDS} words, {options.threads} threads, {options.rounds} "
    f"rounds; {processor()}; torch {torch.__version__}{', dense int8 by AVX2' if options.dense_avx2 else ''}; "
    f"{time.strftime('%Y-%m-%d')}",
    f"{'':48} {'ms':>8} {'best':>8}   over {DENSE}   bytes/weight",
]
for name, times in rounds.items():
    low, middle, high = statistics.quantiles([a / b for a, b in zip(rounds[DENSE], times, strict=True)], n=4)
    size = f"{bytes_per_weight[name]:.2f}" if name in bytes_per_weight else ""
    lines.append(
        f"{name:48} {statistics.median(times):8.3f} {min(times):8.3f}   {middle:5.2f} [{low:.2f}, {high:.2f}]   {size}"
    )
text = "\n".join(lines)
print(text)
if options.out is not None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n")
