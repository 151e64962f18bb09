"""The command ``compare``: a method of your own against the stored results of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfish_rnn.cli.console import output
from selfish_rnn.cli.many_runs import JobsOption, RayOption, RunsDisplay, finish, workers
from selfish_rnn.cli.reproduce import numbers
from selfish_rnn.errors import UserError
from selfish_rnn.text import say


def compare(
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of your runs that differ from the recipe."),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="Name of the method.")] = "",
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="Size of the network: tiny (a check), small, medium or paper.")
    ] = "small",
    network: Annotated[
        str, typer.Option(metavar="NAME", help="stacked-lstm, rhn, on-lstm or awd-lstm-mos.")
    ] = "stacked-lstm",
    sparsity: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="S", help="Fraction of zeros (default: the recipe's).")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2,...", help="Seeds (default: those of the scale).")] = None,
    jobs: JobsOption = None,
    ray: RayOption = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Parent of the run folders.")] = Path("runs/compare"),
    baselines: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the stored results (default: results).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Destination (default: compare/NAME).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands of the runs and exit.")] = False,
) -> None:
    """Compare a method with the stored results of the others.

    Trains only your method. Finished runs are skipped and interrupted runs resume, so the same command continues.

    Example: selfish-rnn compare --method mine --import my_rule.py
    """
    from selfish_rnn.experiment.extensions import requested_imports
    from selfish_rnn.reproduce.case import Case
    from selfish_rnn.reproduce.comparing import (
        Comparison,
        OwnResults,
        baseline_folder,
        check_method,
        check_rules,
        save_rules,
    )
    from selfish_rnn.reproduce.execution import Executor
    from selfish_rnn.reproduce.plan import seeds_of_scale
    from selfish_rnn.reproduce.rendering.comparison import write_comparison
    from selfish_rnn.reproduce.results import Results
    from selfish_rnn.reproduce.scales import scale_named

    if not method:
        raise UserError("--method NAME is needed: the method to compare")
    check_method(method)
    size = scale_named(scale)
    if network not in size.networks:
        raise UserError(f"scale {size.name} has no network {network!r}; it has {', '.join(size.networks)}")
    case = Case(network, method, sparsity=sparsity, changes=tuple(assignments or ()))
    folder = out or Path("compare") / method
    check_rules(folder, requested_imports())
    results = OwnResults(folder, size, Results(baseline_folder(baselines), size.name))
    chosen = numbers(seeds) or size.seeds or seeds_of_scale(case, size)
    comparison = Comparison(case, size, chosen, results)
    console = output()
    if dry_run:
        for run in comparison.runs:
            state = "finished" if results.get(run) is not None else "to do"
            imports = "".join(f" --import {path}" for path in requested_imports())
            say(console, f"{state:8}  {run.command}{imports}  # {run.name}")
        if comparison.missing:
            say(console, f"no stored results of: {', '.join(opponent.label for opponent in comparison.missing)}")
        return
    save_rules(folder, requested_imports())
    with workers(jobs, ray) as (count, launch), RunsDisplay(console) as display:
        outcomes = Executor(size, runs, results, count, display, launch).train(comparison.runs).outcomes
    for path in write_comparison(comparison, folder):
        say(console, str(path))
    finish(console, outcomes)
