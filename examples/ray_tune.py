"""Search learning rate and prune rate with Ray Tune: what does not look promising is stopped early (ASHA).

    pip install 'selfish-rnn[ray]' 'ray[tune]'
    python examples/ray_tune.py --samples 8 --epochs 8

Every trial is an ordinary run folder below Ray's results; `selfish-rnn evaluate` and `report` work on them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from selfish_rnn.experiment.presets import build_experiment, read_preset, with_settings
from selfish_rnn.runs.run import Run
from selfish_rnn.training.metrics import Listener
from selfish_rnn.training.records import EpochRecord


class Reporter(Listener):
    """Tells Ray Tune how good a trial is after every epoch."""

    def on_epoch(self, record: EpochRecord) -> None:
        tune.report({"epoch": record.epoch, "valid_perplexity": record.valid_perplexity})


def trial(config: dict[str, Any]) -> None:
    """One run with the settings that Ray Tune has chosen."""
    settings = with_settings(read_preset("quickstart")[0], {"threads": 1, **config})
    run = Run.start(build_experiment(settings, "trial"), Path.cwd() / "run")
    run.train(Reporter())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=8, help="how many settings are tried")
    parser.add_argument("--epochs", type=int, default=8, help="how long the best are trained")
    parser.add_argument("--tokens", type=int, default=None, help="how much text is used (all)")
    arguments = parser.parse_args()
    space = {
        "epochs": arguments.epochs,
        "train_tokens": arguments.tokens,
        "prune_rate": tune.uniform(0.2, 0.8),
        "optimizer": {"lr": tune.loguniform(1.0, 40.0)},
    }
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="valid_perplexity",
            mode="min",
            num_samples=arguments.samples,
            scheduler=ASHAScheduler(time_attr="epoch", max_t=arguments.epochs, grace_period=1, reduction_factor=2),
        ),
    )
    found = tuner.fit()
    best = found.get_best_result()
    epochs = [result.metrics["epoch"] for result in found if result.metrics]
    print(f"best valid perplexity {best.metrics['valid_perplexity']:.2f} with prune_rate "
          f"{best.config['prune_rate']:.2f}, lr {best.config['optimizer']['lr']:.1f}")  # fmt: skip
    print(f"{len(epochs)} trials, {sum(epochs)} epochs trained of {arguments.epochs * len(epochs)}")


if __name__ == "__main__":
    main()
