"""A page to play with in a terminal: a model continues what is typed, dense and packed side by side."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.models import LanguageModel
from selfish_rnn.training.generation import stream

ASK = "> "
ABOUT = "Type a beginning and press Enter; Ctrl-C stops the text, Ctrl-D or quit leaves."


@dataclass
class Voice:
    """One model that continues a prompt: its words so far, and the seconds it took for them."""

    words: Iterator[int]
    found: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def speak(self) -> bool:
        """One more word; false if there is none."""
        start = time.perf_counter()
        word = next(self.words, None)
        if word is None:
            return False
        self.seconds += time.perf_counter() - start
        self.found.append(word)
        return True

    @property
    def speed(self) -> float:
        """Words in a second."""
        return len(self.found) / self.seconds if self.seconds else 0.0


def play(
    console: Console,
    models: Mapping[str, LanguageModel],
    vocabulary: Vocabulary,
    *,
    tokens: int,
    temperature: float,
    seed: int | None,
) -> None:
    """Ask for prompts and continue them, until there are no more."""
    console.print(ABOUT, style="dim")
    while (prompt := _ask(console)) is not None:
        try:
            beginning = vocabulary.encode(prompt)
        except UserError as error:
            console.print(f"error: {error}", markup=False)
            continue
        drawn = random.randrange(2**31) if seed is None else seed  # one for all, so that they say the same
        voices = {
            name: Voice(stream(model, vocabulary, prompt, tokens=tokens, temperature=temperature, seed=drawn))
            for name, model in models.items()
        }
        try:
            _perform(console, voices, vocabulary, beginning)
        except KeyboardInterrupt:
            console.print("stopped", style="dim")


def _ask(console: Console) -> str | None:
    """What is typed; nothing at the end of the input, or when the person wants to leave."""
    try:
        typed = console.input(ASK).strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None
    return None if typed.lower() in ("quit", "exit") else typed


def _perform(console: Console, voices: Mapping[str, Voice], vocabulary: Vocabulary, beginning: list[int]) -> None:
    """Let the voices speak in turn, a word each, and show them as they do; a pipe is shown the end alone."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while sum(voice.speak() for voice in voices.values()):
            if console.is_terminal:
                live.update(_page(voices, vocabulary, beginning), refresh=True)
        live.update(_page(voices, vocabulary, beginning), refresh=True)


def _page(voices: Mapping[str, Voice], vocabulary: Vocabulary, beginning: list[int]) -> Group:
    table = Table(expand=True, box=None, padding=(0, 2, 0, 0))
    for name in voices:
        table.add_column(name, ratio=1)
    table.add_row(*(Text(vocabulary.join(vocabulary.decode([*beginning, *each.found]))) for each in voices.values()))
    table.add_row(*(Text(f"{each.speed:,.0f} tokens/s", style="bold") for each in voices.values()))
    return Group(table, Text(_compared(voices), style="dim"))


def _compared(voices: Mapping[str, Voice]) -> str:
    (first, slow), *others = voices.items()
    ratios = [
        f"{name} is {each.speed / slow.speed:.1f} times as fast as {first}" for name, each in others if slow.speed
    ]
    return ", ".join(ratios)
