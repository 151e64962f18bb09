"""One function that trains an experiment with a method of your own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfish_rnn.experiment.presets import build_experiment, read_preset, with_settings
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.run import Run
from selfish_rnn.topology import METHODS, Method, register_method
from selfish_rnn.training.metrics import Listener


def train_experiment(
    preset: str = "quickstart",
    *,
    method: Method | str | None = None,
    folder: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    listeners: tuple[Listener, ...] = (),
) -> dict[str, Any]:
    """Train a preset, as ``selfish-rnn train`` does, and return its summary.

    Args:
        preset: name of a preset; ``selfish-rnn presets`` lists them.
        method: a method of your own, or the name of a registered one. Default: that of the preset. A new method is
            registered under its name.
        folder: folder of the run. Default: the next free one in ``runs``.
        settings: changes to the preset, by the names of ``selfish-rnn show``: ``{"sparsity": 0.9, "model":
            {"hidden": 256}}``.
        listeners: objects that are told of every epoch.

    Returns:
        The summary of the run, with ``test_perplexity``, ``valid_perplexity`` and ``active_weights``. The folder has
        everything else, for ``selfish-rnn report``; commands that read it need ``--import`` with your file.

    Raises:
        ValueError: another method is registered under the name, or a setting is invalid.

    Example:
        >>> mine = RIGL.replace(name="mine", removal="signed")
        >>> train_experiment("quickstart", method=mine, settings={"epochs": 5})["test_perplexity"]
    """
    changes = dict(settings or {})
    if isinstance(method, Method):
        if METHODS.get(method.name, method) != method:
            raise ValueError(f"a different method is called {method.name!r} already: give yours another name")
        register_method(method)
    if method is not None:
        changes["method"] = method.name if isinstance(method, Method) else method
    experiment = build_experiment(with_settings(read_preset(preset)[0], changes), "settings")
    path = RunFolder.free_name(Path("runs"), preset) if folder is None else Path(folder)
    return Run.start(experiment, path).train(*listeners)
