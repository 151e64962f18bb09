"""The commands ``presets``, ``show`` and ``methods``."""

from __future__ import annotations

from selfish_rnn.cli.console import output
from selfish_rnn.cli.training import SettingsArgument, preset_and_overrides
from selfish_rnn.text import plain_table, say

COSTS = {"quickstart": 0.03, "wide": 1.0}
"""Core-hours of presets that no scale of ``reproduce`` trains."""


def presets() -> None:
    """List the presets with their cost."""
    from selfish_rnn.experiment.presets import preset_names, read_preset

    console = output()
    costs = preset_hours()
    names = sorted(preset_names(), key=lambda name: (costs[name], name))
    table = plain_table(("preset",), ("time",))
    table.add_column("description", overflow="fold")
    for name in names:
        table.add_row(name, hours_text(costs[name]), read_preset(name)[1])
    console.print(table)
    console.print("\nTime: estimate for one core of a recent server processor.", soft_wrap=True)
    say(console, "Train one with: selfish-rnn train PRESET [KEY=VALUE]...")


def preset_hours() -> dict[str, float]:
    """Return the estimated core-hours of every preset."""
    from selfish_rnn.reproduce.scales import PAPER, SMALL

    scales = {
        preset: scale.hours[network]
        for scale in (SMALL, PAPER)
        for network, (preset, *_) in reversed(list(scale.networks.items()))
        if network in scale.hours
    }
    return {**scales, **COSTS}


def hours_text(hours: float) -> str:
    """Return hours in the largest unit that fits.

    >>> [hours_text(hours) for hours in (0.03, 0.12, 60, 900, 6000)]
    ['2 min', '7 min', '60 h', '38 days', '8 months']
    """
    if hours < 1:
        return f"{60 * hours:.0f} min"
    if hours < 72:
        return f"{hours:.0f} h"
    return f"{hours / 24:.0f} days" if hours < 24 * 90 else f"{hours / 24 / 30:.0f} months"


def show(arguments: SettingsArgument = None) -> None:
    """Print a preset with all settings, as a configuration file."""
    from selfish_rnn.experiment.presets import build_experiment, explained_yaml, read_preset, with_assignments

    preset, overrides = preset_and_overrides(arguments)
    settings, about = read_preset(preset)
    experiment = build_experiment(with_assignments(settings, overrides), "settings")
    console = output()
    say(console, f"# {about}")
    console.print(explained_yaml(experiment), markup=False, soft_wrap=True, end="")


def methods() -> None:
    """Print the method table: the parts of every method."""
    from selfish_rnn.cli.display import show_methods
    from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS

    show_methods(output(), CONFIGURABLE_METHODS.values())
