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
"""What a model is called with: one argument, or a tuple of them."""

Data = Tensor | PackedSequence | Iterable[Batch]
"""One batch, or several."""


@dataclass(frozen=True)
class Layer:
    """The groups of units that enter and leave one layer of a module, by name."""

    entering: tuple[str, ...]
    leaving: str


@dataclass
class Activations:
    """The activations of every group of units, samples x units, and which layers they enter and leave.

    A layer is known by the name of its module and what follows ``weight_ih`` in the names of its matrices: ``_l0``,
    ``_l0_reverse``, or nothing for modules of one layer. ``last_linear`` is the linear layer called last.
    """

    units: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[tuple[str, str], Layer] = field(default_factory=dict)
    last_linear: str | None = None


class Observer:
    """Runs a model on data, in evaluation mode, and keeps what its units do, up to a number of samples.

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
        self._found = Activations()
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
        """Run the model on one batch; a language model goes on from the state it was left in."""
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
        used = {group for layer in self._found.layers.values() for group in layer.entering}
        for name in self.readouts:
            if name not in used:
                self._unwanted.add(name)
                self._kept.pop(name, None)

    @property
    def readouts(self) -> Collection[str]:
        """The linear layers whose rows are outputs: those given, or the one called last."""
        if self._given_readouts is not None:
            return self._given_readouts
        return () if self._found.last_linear is None else (self._found.last_linear,)

    def _run_language_model(self, model: LanguageModel, tokens: Batch) -> None:
        """Without its scores of every word, which would take longer than all the rest."""
        if not isinstance(tokens, Tensor):
            raise TypeError(f"a language model takes tokens, time x batch, not a {type(tokens).__name__}")
        if self._state is None or self._state[0].shape[-2] != tokens.shape[1]:
            self._state = model.initial_state(tokens.shape[1])
        encoded = model.encode(tokens, self._state)
        self._state = encoded.state
        for name, module in model.named_children():
            if module is model.decoder:
                self._found.layers[name, ""] = Layer(self._enter(name, encoded.output), "")
            elif isinstance(module, LINEAR):
                module(encoded.output)
        self._found.last_linear = "decoder"

    def activations(self) -> Activations:
        """What was seen."""
        self._found.units = {group: kept[: self._counts[group]] for group, kept in self._kept.items()}
        return self._found

    # What the hooks see

    def _called(self, name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, (nn.RNNBase, PackedRecurrent)):
            given, state = (*arguments, None)[:2]
            self._called_recurrent(name, module, given, state, output[0])
            return
        group = name or type(module).__name__
        self._found.layers[name, ""] = Layer(self._enter(name, arguments[0]), group)
        self._leave((group,), output)
        if isinstance(module, LINEAR):
            self._found.last_linear = name

    def _called_recurrent(self, name: str, module: nn.Module, given: Any, state: Any, output: Any) -> None:
        entering = self._enter(name, given)
        for layer, states in enumerate([*self._lower_outputs(module, given, state), output]):
            suffixes = (
                [f"_l{layer}", f"_l{layer}_reverse"] if getattr(module, "bidirectional", False) else [f"_l{layer}"]
            )
            groups = tuple(f"{name}.{suffix[1:]}" if name else suffix[1:] for suffix in suffixes)
            for suffix, group in zip(suffixes, groups, strict=True):
                self._found.layers[name, suffix] = Layer(entering, group)
            self._leave(groups, states)
            entering = groups

    def _lower_outputs(self, module: Any, given: Any, state: Any) -> Iterator[Any]:
        """What all layers but the last give, of which the module tells nothing."""
        for layer in range(module.num_layers - 1):
            given = _run_layer(module, layer, given, state)
            yield given

    def _enter(self, name: str, given: Any) -> tuple[str, ...]:
        """The groups of units that an input comes from, or a new one for what comes from nowhere known."""
        tensor = first_tensor(given)
        if tensor is None or not tensor.is_floating_point():
            return ()
        for known, groups in self._of_tensors:
            if known is tensor:
                return groups
        group = f"{name}.input" if name else "input"
        self._keep(group, tensor)
        return (group,)

    def _leave(self, groups: tuple[str, ...], output: Any) -> None:
        """What a layer gives: the units of its directions, one after the other."""
        tensor = first_tensor(output)
        if tensor is not None:
            for group, part in zip(groups, tensor.chunk(len(groups), dim=-1), strict=True):
                self._keep(group, part)
            self._of_tensors.append((tensor, groups))

    def _keep(self, group: str, tensor: Tensor) -> None:
        rows = tensor.detach().reshape(-1, tensor.shape[-1])
        kept = self._counts.get(group, 0)
        rows = rows[: self.samples - kept]
        if group not in self._unwanted and len(rows):
            if group not in self._kept:
                self._kept[group] = torch.empty(self.samples, rows.shape[1])
            self._kept[group][kept : kept + len(rows)] = rows
            self._counts[group] = kept + len(rows)


def _run_layer(module: Any, layer: int, given: Any, state: Any) -> Any:
    """One layer by itself, in a module that borrows its weights."""
    directions = 2 if module.bidirectional else 1
    # A subclass may be made in another way.
    kinds: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)
    make = next(kind for kind in kinds if issubclass(getattr(module, "kind", type(module)), kind))
    names = ("bias", "batch_first", "bidirectional", "nonlinearity", "proj_size")
    options = {name: getattr(module, name) for name in names if getattr(module, name, None)}
    inputs = module.input_size if layer == 0 else (module.proj_size or module.hidden_size) * directions
    alone = make(inputs, module.hidden_size, device="meta", **{"bias": False, **options}).eval()
    own = re.compile(rf"_l{layer}(_reverse)?$")
    weights = {
        own.sub(r"_l0\1", name): weight
        for name, weight in [*module.named_parameters(recurse=False), *module.named_children()]
        if own.search(name)
    }
    part = slice(layer * directions, (layer + 1) * directions)
    state = tuple(each[part] for each in state) if isinstance(state, tuple) else state if state is None else state[part]
    if isinstance(module, nn.RNNBase):
        return torch.func.functional_call(alone, weights, (given, state))[0]
    borrowing = type(module).from_dense(alone, **{name: each for name, each in weights.items() if "weight" in name})
    for name, each in weights.items():
        if "bias" in name:
            setattr(borrowing, name, each)
    return borrowing(given, state)[0]
