"""Activations of a network's units on data, recorded by hooks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.analysis.networks import first_tensor, watched
from selfish_rnn.engine import PackedLinear
from selfish_rnn.engine.modules.recurrent import PackedRecurrent
from selfish_rnn.models import LanguageModel, State

LINEAR = (nn.Linear, PackedLinear)

Batch = Tensor | PackedSequence | tuple[Any, ...]
"""Arguments of a model: one value, or a tuple."""

Data = Tensor | PackedSequence | Iterable[Batch]
"""One batch, or an iterable of batches."""


@dataclass(frozen=True)
class Layer:
    """Groups of input and output units of a layer, by name."""

    entering: tuple[str, ...]
    leaving: str


@dataclass
class Activations:
    """Activations of every group of units (samples x units), and the groups of every layer.

    A layer is known by the name of its module and what follows ``weight_ih`` in the names of its matrices: ``_l0``,
    ``_l0_reverse``, or nothing for modules of one layer. ``last_linear`` is the linear layer called last.
    """

    units: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[tuple[str, str], Layer] = field(default_factory=dict)
    last_linear: str | None = None


class Observer:
    """Recorder of the activations of a model in evaluation mode, up to a number of samples.

    ::

        with Observer(model, samples=10_000) as observer:
            for batch in data:
                observer.run(batch)
        observer.activations().units["rnn.l0"]      # samples x units
    """

    def __init__(self, model: nn.Module, samples: int, readouts: Collection[str] | None = None) -> None:
        self.model = model
        self.samples = samples
        self._given_readouts = readouts
        self._recorded = Activations()
        self._kept: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._unwanted: set[str] = set()
        self._of_tensors: list[tuple[Tensor, tuple[str, ...]]] = []
        self._state: State | None = None

    def __enter__(self) -> Observer:
        self._watching = watched(self.model, self._called)
        self._watching.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._watching.__exit__(*failure)

    @property
    def enough(self) -> bool:
        return max(self._counts.values(), default=0) >= self.samples

    @torch.no_grad()
    def run(self, batch: Batch) -> None:
        """Run the model on one batch. A language model continues from its last state."""
        self._of_tensors.clear()
        if isinstance(self.model, LanguageModel):
            self._run_language_model(self.model, batch)
        elif isinstance(batch, (Tensor, PackedSequence)):
            self.model(batch)
        elif isinstance(batch, tuple):
            self.model(*batch)
        else:
            raise TypeError(
                "a batch is a tensor, or a tuple of what the model is called with, not a "
                f"{type(batch).__name__}; of a loader of inputs and targets take the inputs"
            )
        self._of_tensors.clear()
        # Outputs mean the same in both networks, and a vocabulary of them would take all the memory there is.
        used = {group for layer in self._recorded.layers.values() for group in layer.entering}
        for name in self.readouts:
            if name not in used:
                self._unwanted.add(name)
                self._kept.pop(name, None)

    @property
    def readouts(self) -> Collection[str]:
        """Return the linear layers whose rows are outputs: the named ones, or the last one called."""
        if self._given_readouts is not None:
            return self._given_readouts
        return () if self._recorded.last_linear is None else (self._recorded.last_linear,)

    def _run_language_model(self, model: LanguageModel, tokens: Batch) -> None:
        """Run a language model without its decoder, which would take longer than all other layers."""
        if not isinstance(tokens, Tensor):
            raise TypeError(f"a language model takes tokens, time x batch, not a {type(tokens).__name__}")
        if self._state is None or self._state[0].shape[-2] != tokens.shape[1]:
            self._state = model.initial_state(tokens.shape[1])
        encoded = model.encode(tokens, self._state)
        self._state = encoded.state
        for name, module in model.named_children():
            if module is model.decoder:
                self._recorded.layers[name, ""] = Layer(self._enter(name, encoded.output), "")
            elif isinstance(module, LINEAR):
                module(encoded.output)
        self._recorded.last_linear = "decoder"

    def activations(self) -> Activations:
        """Return the recorded activations."""
        self._recorded.units = {group: values[: self._counts[group]] for group, values in self._kept.items()}
        return self._recorded

    # Callbacks of the hooks.

    def _called(self, name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, (nn.RNNBase, PackedRecurrent)):
            inputs, state = (*arguments, None)[:2]
            self._called_recurrent(name, module, inputs, state, output[0])
            return
        group = name or type(module).__name__
        self._recorded.layers[name, ""] = Layer(self._enter(name, arguments[0]), group)
        self._leave((group,), output)
        if isinstance(module, LINEAR):
            self._recorded.last_linear = name

    def _called_recurrent(self, name: str, module: nn.Module, inputs: Any, state: Any, output: Any) -> None:
        entering = self._enter(name, inputs)
        for layer, states in enumerate([*self._lower_outputs(module, inputs, state), output]):
            suffixes = (
                [f"_l{layer}", f"_l{layer}_reverse"] if getattr(module, "bidirectional", False) else [f"_l{layer}"]
            )
            groups = tuple(f"{name}.{suffix[1:]}" if name else suffix[1:] for suffix in suffixes)
            for suffix, group in zip(suffixes, groups, strict=True):
                self._recorded.layers[name, suffix] = Layer(entering, group)
            self._leave(groups, states)
            entering = groups

    def _lower_outputs(self, module: Any, inputs: Any, state: Any) -> Iterator[Any]:
        """Return the outputs of all layers but the last, which the module does not return."""
        for layer in range(module.num_layers - 1):
            inputs = _run_layer(module, layer, inputs, state)
            yield inputs

    def _enter(self, name: str, inputs: Any) -> tuple[str, ...]:
        """Return the groups of units that an input comes from, or a new group for an unknown input."""
        tensor = first_tensor(inputs)
        if tensor is None or not tensor.is_floating_point():
            return ()
        for known, groups in self._of_tensors:
            if known is tensor:
                return groups
        group = f"{name}.input" if name else "input"
        self._keep(group, tensor)
        return (group,)

    def _leave(self, groups: tuple[str, ...], output: Any) -> None:
        """Return the output of a layer: the units of its directions, concatenated."""
        tensor = first_tensor(output)
        if tensor is not None:
            for group, part in zip(groups, tensor.chunk(len(groups), dim=-1), strict=True):
                self._keep(group, part)
            self._of_tensors.append((tensor, groups))

    def _keep(self, group: str, tensor: Tensor) -> None:
        rows = tensor.detach().reshape(-1, tensor.shape[-1])
        count = self._counts.get(group, 0)
        rows = rows[: self.samples - count]
        if group not in self._unwanted and len(rows):
            if group not in self._kept:
                self._kept[group] = torch.empty(self.samples, rows.shape[1])
            self._kept[group][count : count + len(rows)] = rows
            self._counts[group] = count + len(rows)


def _run_layer(module: Any, layer: int, inputs: Any, state: Any) -> Any:
    """Return one layer as a module that shares its weights."""
    directions = 2 if module.bidirectional else 1
    # The constructor of a subclass may differ.
    kinds: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)
    make = next(kind for kind in kinds if issubclass(getattr(module, "kind", type(module)), kind))
    names = ("bias", "batch_first", "bidirectional", "nonlinearity", "proj_size")
    options = {name: getattr(module, name) for name in names if getattr(module, name, None)}
    input_size = module.input_size if layer == 0 else (module.proj_size or module.hidden_size) * directions
    single = make(input_size, module.hidden_size, device="meta", **{"bias": False, **options}).eval()
    suffix = re.compile(rf"_l{layer}(_reverse)?$")
    weights = {
        suffix.sub(r"_l0\1", name): weight
        for name, weight in [*module.named_parameters(recurse=False), *module.named_children()]
        if suffix.search(name)
    }
    part = slice(layer * directions, (layer + 1) * directions)
    state = (
        tuple(tensor[part] for tensor in state) if isinstance(state, tuple) else state if state is None else state[part]
    )
    if isinstance(module, nn.RNNBase):
        return torch.func.functional_call(single, weights, (inputs, state))[0]
    packed = type(module).from_dense(single, **{name: weight for name, weight in weights.items() if "weight" in name})
    for name, bias in weights.items():
        if "bias" in name:
            setattr(packed, name, bias)
    return packed(inputs, state)[0]
