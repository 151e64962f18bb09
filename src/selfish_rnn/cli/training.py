"""The commands that train: a new run, or one that was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfish_rnn.cli.console import output
from selfish_rnn.errors import UserError
from selfish_rnn.text import say

if TYPE_CHECKING:  # torch takes a second to import, which --help should not
    from selfish_rnn.runs.run import Run

DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda (default: what the settings say).")]


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PRESET|KEY=VALUE", help="A preset (default: quickstart) and changes to it."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file laid over the preset.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", "-r", help="Folder of the run (default: the next free one in runs/).")
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Train a network.

    For example: selfish-rnn train ptb-stacked-lstm-small sparsity=0.8
    """
    _train(lambda: _start(words, config, run, device))


def _start(words: list[str] | None, config: Path | None, run: Path | None, device: str | None) -> Run:
    """A new run, as the words and options of ``train`` say."""
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

    preset, assignments = preset_and_assignments(words)
    settings, _ = read_preset(preset)
    name, source = preset, f"preset {preset}"
    if config is not None:
        settings = with_settings(settings, read_config(config))
        # The configuration of a run is named after the run.
        name, source = config.resolve().parent.name if config.name == "config.yaml" else config.stem, str(config)
    if device is not None:
        assignments.append(f"device={device}")
    if assignments:
        settings = with_assignments(settings, assignments)
        source = "settings"
    again = restartable()
    if again and run is None:
        raise UserError("torchrun --max-restarts gives this command again, for the same folder: name it with --run")
    path = run or RunFolder.free_name(Path("runs"), name)
    return Run.start(build_experiment(settings, source), path, again=again)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    device: DeviceOption = None,
    engine: Annotated[
        str | None, typer.Option(help="masked or packed (default: what the run was started with).")
    ] = None,
) -> None:
    """Continue a run that was interrupted.

    The result is the same as if it had not been.
    """
    from selfish_rnn.runs.run import Run

    _train(lambda: Run.open(run, device, engine))


def preset_and_assignments(words: list[str] | None) -> tuple[str, list[str]]:
    """What the words of a command say: a preset, quickstart if none, and changes to it."""
    given = list(words or [])
    return (given.pop(0) if given and "=" not in given[0] else "quickstart"), given


def _train(open_run: Callable[[], Run]) -> None:
    """Train a run to its end, together with other ranks if torchrun started them; the first one speaks."""
    from selfish_rnn.cli.display import listener_for, show_next, show_outcome
    from selfish_rnn.runs.recording import Interrupted
    from selfish_rnn.system import keep_freed_memory
    from selfish_rnn.training.ranks import joined

    console = output()
    keep_freed_memory()
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
                say(console, f"Stopped; continue with: {run.folder.resume_command}")
            raise typer.Exit(130) from None
    if ranks.is_main:
        show_outcome(console, summary, path)
        show_next(console, run.experiment, path)
