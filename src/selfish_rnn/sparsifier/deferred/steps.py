"""How a matrix starts, as a list of steps that can be run for some of its positions only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGEST_REPLAYED = 2**30
"""Up to so many positions a matrix starts with the numbers that torch would draw for all of them: 4 GiB, with mask and
gradient 12, which a machine may have. That takes the time of drawing them all. For a larger matrix only the numbers of
the weights that exist are drawn."""

BLOCK = 2**16
"""How many numbers are drawn at a time."""

_TOGETHER = 16
"""torch draws normal numbers in groups of so many, and the last group of a tensor anew if it is not full."""


@dataclass(frozen=True)
class Step:
    """One function applied in place to the positions from ``first`` up to ``stop``; ``state`` says what it draws."""

    first: int
    stop: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    overwrites: bool = False
    state: Tensor | None = None

    def run(self, values: Tensor, generator: torch.Generator | None = None) -> None:
        named = {} if generator is None else {"generator": generator}
        self.function(values, *self.arguments, **named)

    def drawing(self) -> torch.Generator:
        """A generator that stands where the step found it."""
        assert self.state is not None
        generator = torch.Generator()
        generator.set_state(self.state)
        return generator


@dataclass
class Start:
    """How a matrix of ``size`` positions starts; ``made`` is the whole of it, once something needed that."""

    size: int
    steps: list[Step] = field(default_factory=list)
    made: Tensor | None = None

    def add(self, step: Step) -> None:
        if step.overwrites and step.first == 0 and step.stop == self.size:
            self.steps.clear()
        self.steps.append(step)

    def draw(
        self,
        first: int,
        stop: int,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        generator: torch.Generator | None,
    ) -> None:
        """Add a step that draws random numbers, and leave the generator as drawing them would."""
        source = torch.default_generator if generator is None else generator
        if self.size > LARGEST_REPLAYED:
            seed = int(torch.randint(2**62, (), generator=source))
            self.add(Step(first, stop, function, arguments, True, torch.Generator().manual_seed(seed).get_state()))
            return
        step = Step(first, stop, function, arguments, True, source.get_state())
        self.add(step)
        for _ in _drawn(step, source):
            pass

    def at(self, positions: Tensor) -> Tensor:
        """What the matrix starts with at these positions, which are sorted."""
        if self.made is not None:
            return self.made[positions]
        values = torch.empty(len(positions))
        for step in self.steps:
            first, stop = np.searchsorted(positions.numpy(), [step.first, step.stop]).tolist()
            chosen = values[first:stop]
            if step.state is None or self.size > LARGEST_REPLAYED:
                step.run(chosen, None if step.state is None else step.drawing())
            else:
                _choose(step, positions[first:stop] - step.first, chosen)
        return values

    def whole(self) -> Tensor:
        """All of it, flat; the matrix takes its memory from here on."""
        if self.made is None:
            self.made = torch.empty(self.size)
            for step in self.steps:
                step.run(self.made[step.first : step.stop], None if step.state is None else step.drawing())
            self.steps.clear()
        return self.made


def _drawn(step: Step, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """What a step draws, block by block: where each begins, and its numbers, valid until the next."""
    size, start = step.stop - step.first, 0
    memory = torch.empty(min(BLOCK + _TOGETHER, size))
    while start < size:
        stop = size if size - start < BLOCK + _TOGETHER else start + BLOCK
        block = memory[: stop - start]
        step.run(block, generator)
        yield start, block
        start = stop


def _choose(step: Step, places: Tensor, values: Tensor) -> None:
    """Of what a step draws, the numbers at some of its places, which are sorted."""
    done = 0
    for start, block in _drawn(step, step.drawing()):
        stop = int(np.searchsorted(places.numpy(), start + len(block)))
        torch.index_select(block, 0, places[done:stop] - start, out=values[done:stop])
        done = stop
