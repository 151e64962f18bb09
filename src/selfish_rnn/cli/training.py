"""The commands ``train`` and ``resume``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfish_rnn.cli.console import UsageError, output
from selfish_rnn.cli.help import Command
from selfish_rnn.errors import UserError, nearest
from selfish_rnn.text import say

if TYPE_CHECKING:  # torch takes a second to import, which --help should not need
    from selfish_rnn.runs.run import Run

DeviceOption = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Device (default: that of the settings).")]

MAX_OPTIONS = 3
"""Settings that an error about one key suggests."""


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets that start with a text, for shell completion."""
    from selfish_rnn.experiment.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRESET] [KEY=VALUE]...",
        help="A preset (default: quickstart) and key=value overrides, as in Hydra: sparsity=0.9 optimizer.lr=20. "
        "`presets` lists the presets, `show` all keys.",
        autocompletion=complete_preset,
    ),
]


class SettingsCommand(Command):
    """Command with key=value overrides, which explains their form to users who write options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            option = getattr(error, "option_name", "")
            if type(error).__name__ != "NoSuchOption" or not option.startswith("--"):
                raise
            raise UserError(_setting_form(option, words)) from None


def _setting_form(option: str, words: list[str]) -> str:
    """Return an error message for an option that is not one, with the override that the user means."""
    from selfish_rnn.experiment.comparison import flat
    from selfish_rnn.experiment.presets import build_experiment, read_preset

    # The value is behind an equals sign or in the next word.
    position = next(index for index, word in enumerate(words) if word.partition("=")[0] == option)
    _, equals, value = words[position].partition("=")
    following = words[position + 1] if position + 1 < len(words) else ""
    if not equals:
        value = following if following and not following.startswith("-") and "=" not in following else "VALUE"
    key = option.removeprefix("--").replace("-", "_")
    settings = build_experiment(read_preset("quickstart")[0], "preset quickstart").model_dump(mode="json")
    known = list(dict.fromkeys([*settings, *flat(settings)]))
    keys = [name for name in known if name == key] or [name for name in known if name.endswith(f".{key}")]
    if not keys:
        hint = nearest(key, known)
        return f"no such option: {option}; settings are key=value overrides, such as sparsity=0.9{hint}"
    forms = " or ".join(f"{name}={value}" for name in keys[:MAX_OPTIONS])
    return f"no such option: {option}; settings are key=value overrides: write {forms}"


def train(
    arguments: SettingsArgument = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with settings that override the preset.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", "-r", metavar="DIR", help="Folder of the run (default: the next free one in runs/)."),
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Train a network.

    Example: selfish-rnn train ptb-stacked-lstm-small sparsity=0.8
    """
    _train(lambda: _start(arguments, config, run, device))


def _start(arguments: list[str] | None, config: Path | None, run: Path | None, device: str | None) -> Run:
    """Start a new run from the arguments and options of ``train``."""
    from selfish_rnn.experiment.presets import (
        build_experiment,
        read_config,
        read_preset,
        with_assignments,
        with_settings,
    )
    from selfish_rnn.runs.folder import RunFolder
    from selfish_rnn.runs.run import Run
    from selfish_rnn.training.ranks import restartable

    preset, overrides = preset_and_overrides(arguments)
    settings, _ = read_preset(preset)
    name, source = preset, f"preset {preset}"
    if config is not None:
        settings = with_settings(settings, read_config(config))
        # The configuration of a run is named after the run.
        name, source = config.resolve().parent.name if config.name == "config.yaml" else config.stem, str(config)
    if device is not None:
        overrides.append(f"device={device}")
    if overrides:
        settings = with_assignments(settings, overrides)
        source = "settings"
    again = restartable()
    if again and run is None:
        raise UserError("torchrun --max-restarts repeats this command for the same folder: name it with --run")
    path = run or RunFolder.free_name(Path("runs"), name)
    return Run.start(build_experiment(settings, source), path, again=again)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    device: DeviceOption = None,
    engine: Annotated[
        Literal["masked", "packed"] | None,
        typer.Option(metavar="masked|packed", help="Engine (default: that of the run)."),
    ] = None,
) -> None:
    """Resume an interrupted run.

    The result is the same as without the interruption.
    """
    from selfish_rnn.runs.run import Run

    _train(lambda: Run.open(run, device, engine))


def preset_and_overrides(arguments: list[str] | None) -> tuple[str, list[str]]:
    """Return the preset (default: quickstart) and the overrides in the arguments of a command."""
    words = list(arguments or [])
    return (words.pop(0) if words and "=" not in words[0] else "quickstart"), words


def _train(open_run: Callable[[], Run]) -> None:
    """Train a run to its end, with other ranks if torchrun started them. Only rank 0 prints."""
    from selfish_rnn.cli.display import listener_for, show_next, show_outcome
    from selfish_rnn.runs.recording import Interrupted
    from selfish_rnn.system import retain_freed_memory
    from selfish_rnn.training.ranks import joined

    console = output()
    retain_freed_memory()
    with joined() as ranks:
        run = ranks.from_main(open_run)
        path = run.folder.path
        try:
            if ranks.is_main:
                with listener_for(console, path) as listener:
                    summary = run.train(listener)
            else:
                run.train()
        except Interrupted:
            if ranks.is_main:
                say(console, f"Stopped; resume with: {run.folder.resume_command}")
            raise typer.Exit(130) from None
    if ranks.is_main:
        show_outcome(console, summary, path)
        show_next(console, run.experiment, path)
