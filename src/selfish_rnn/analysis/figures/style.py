"""Common style of all figures: colours for colour-blind readers, and text that is legible in a column."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from selfish_rnn.errors import UserError
from selfish_rnn.files import clear_write_errors

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLUMN = 3.3
"""Inches: the width of a column of a two-column paper."""

PAGE = 6.9
"""Inches: the width of both columns."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B5B95", "#000000")
"""Colours of Okabe and Ito, with a violet instead of their yellow, which is too pale for lines on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
GREY = "#777777"
_LEGEND_LINE = 0.15

_PARAMETERS: Any = {  # matplotlib's type for it is a list of every parameter it knows
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "savefig.dpi": 300,
    "svg.hashsalt": "selfish-rnn",
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
}

_INK, _PAPER = "#e6edf3", "#0d1117"
_DARK: Any = {
    "axes.edgecolor": _INK,
    "axes.facecolor": _PAPER,
    "axes.labelcolor": _INK,
    "figure.facecolor": _PAPER,
    "grid.color": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
"""Changes for dark screens. The background is opaque, so that figures are legible on any page."""

Arguments = ParamSpec("Arguments")


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Draw a figure in the style of the package, independent of the user's matplotlib settings.

    A function with a keyword argument ``dark`` gets light lines on a dark background where that is true.
    """

    @functools.wraps(draw)
    def drawing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with _parameters(dark=bool(kwargs.get("dark"))):
            return draw(*args, **kwargs)

    return drawing


def colour(index: int) -> str:
    """Return the colour with an index."""
    return COLOURS[index % len(COLOURS)]


def line_look(index: int) -> dict[str, Any]:
    """Return colour and dashes of the line with an index. Lines of the same colour have different dashes."""
    return {"color": colour(index), "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def new_figure(width: float = COLUMN, height: float = 2.1) -> Figure:
    """Return an empty figure with a size in inches, without opening a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def one_panel(width: float = COLUMN, height: float = 2.1) -> tuple[Figure, Axes]:
    """Return a figure with one panel."""
    figure = new_figure(width, height)
    return figure, figure.subplots()


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """Return the width of a legend in points. Labels fill one column after the other."""
    from matplotlib.textpath import TextPath

    size = float(_PARAMETERS["legend.fontsize"])
    beside = size * (float(_PARAMETERS["legend.handlelength"]) + 2)  # the line and the space around a label
    lines = -(-len(labels) // columns)
    widths = [float(TextPath((0, 0), label, size=size).get_extents().width) + beside for label in labels]
    return sum(max(widths[first : first + lines]) for first in range(0, len(labels), lines))


def legend_below(figure: Figure, axes: Axes, columns: int, last: str = "") -> None:
    """Add a legend below all panels and enlarge the figure by its height. ``last`` is the last label.

    There are fewer ``columns`` if long labels would not fit the figure.
    """
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda index: labels[index] == last)
    columns = min(columns, len(handles))
    while columns > 1 and _legend_width([labels[index] for index in order], columns) > 72 * figure.get_figwidth():
        columns -= 1
    figure.legend(
        [handles[index] for index in order],
        [labels[index] for index in order],
        loc="outside lower center",
        ncols=columns,
        columnspacing=1.2,
    )
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * -(-len(handles) // columns))


def save(figure: Figure, path: str | Path) -> tuple[Path, Path]:
    """Write a figure as SVG and as PNG of 300 dots per inch, and return both paths; a suffix of ``path`` is replaced.

    The same figure gives the same bytes.

    Example::

        save(learning_curves([read_run("results/quickstart")]), "figures/curves")
    """
    base = Path(path)
    pixels = base.with_name(f"{_stem(base)}.png")
    vector = save_svg(figure, base.with_name(f"{_stem(base)}.svg"))
    with _parameters(), clear_write_errors(base):
        figure.savefig(pixels, metadata={"Software": None})
    return vector, pixels


def save_svg(figure: Figure, path: Path, description: str | None = None) -> Path:
    """Write a figure as SVG with a ``description`` in its metadata, and return the path.

    The same figure gives the same bytes.
    """
    with _parameters(), clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Description": description})
    return path


def _stem(path: Path) -> str:
    """Return the name without its suffix; a dot inside, as in sparsity-0.5, stays."""
    return path.stem if path.suffix in (".svg", ".png") else path.name


def _parameters(dark: bool = False) -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UserError(
            "figures need matplotlib, which is not installed: pip install 'selfish-rnn[analysis]'"
        ) from None
    return matplotlib.rc_context({**_PARAMETERS, **(_DARK if dark else {})})
