"""The paper's tables: every reported number with the case that reproduces it."""

from __future__ import annotations

from selfish_rnn.analysis.training_flops import PRINTED
from selfish_rnn.reproduce.case import Case, Item, Row

LSTM, RHN, ON_LSTM, ON_LSTM_LONG, MOS = "stacked-lstm", "rhn", "on-lstm", "on-lstm-1300", "awd-lstm-mos"


def _row(label: str, group: str, millions: float, valid: float, test: float, case: Case | None = None) -> Row:
    return Row(label, case, group, {"parameters": millions, "valid": valid, "test": test})


def _main_rows(network: str, groups: tuple[str, str, str], sizes: tuple[float, float, float]) -> tuple[Row, ...]:
    """Return the rows of Table 2 for one network: dense, first sparsity, second sparsity."""
    rows = []
    for (label, part, method, optimizer), (valid, test) in zip(_MAIN_CASES, _MAIN[network], strict=True):
        sparsity = _SPARSITIES[network][2] if part == 2 else None
        case = None if method is None else Case(network, method, optimizer, sparsity)
        rows.append(_row(label, groups[part], sizes[part], valid, test, case))
    return tuple(rows)


_SPARSITIES = {LSTM: (0.0, 0.67, 0.62), RHN: (0.0, 0.528, 0.68)}
"""Sparsities of the three groups of rows: dense, the preset's, and another."""

_MAIN_CASES: tuple[tuple[str, int, str | None, str], ...] = (
    ("Dense (as first published)", 0, None, ""),
    ("Dense (NT-ASGD)", 0, "dense", "nt-asgd"),
    ("Small dense (NT-ASGD)", 1, "small-dense", "nt-asgd"),
    ("Static ER (SNT-ASGD)", 1, "static-er", "snt-asgd"),
    ("Static uniform (SNT-ASGD)", 1, "static", "snt-asgd"),
    ("ISS (as first published)", 1, None, ""),
    ("DSR (Adam)", 1, "dsr", "adam"),
    ("GMP (Adam)", 1, "gmp", "adam"),
    ("SNFS (Adam)", 1, "snfs", "adam"),
    ("RigL (Adam)", 1, "rigl", "adam"),
    ("SET (Adam)", 1, "set", "adam"),
    ("Selfish (Adam)", 1, "selfish", "adam"),
    ("RigL (SNT-ASGD)", 1, "rigl", "snt-asgd"),
    ("GMP (SNT-ASGD)", 1, "gmp", "snt-asgd"),
    ("Selfish (SNT-ASGD)", 1, "selfish", "snt-asgd"),
    ("ISS (as first published)", 2, None, ""),
    ("RigL (SNT-ASGD)", 2, "rigl", "snt-asgd"),
    ("GMP (SNT-ASGD)", 2, "gmp", "snt-asgd"),
    ("Selfish (SNT-ASGD)", 2, "selfish", "snt-asgd"),
)

_MAIN: dict[str, tuple[tuple[float, float], ...]] = {
    LSTM: (
        (82.57, 78.57), (74.51, 72.40),
        (88.67, 86.33), (81.02, 79.30), (80.37, 78.61), (82.59, 78.65), (89.95, 88.16), (89.47, 87.97),
        (88.31, 86.28), (88.39, 85.61), (87.30, 85.49), (85.70, 82.85), (78.31, 75.90), (76.78, 74.84), (73.76, 71.65),
        (80.24, 76.03), (77.16, 74.76), (74.86, 73.03), (73.50, 71.42),
    ),
    RHN: (
        (67.90, 65.40), (63.44, 61.84),
        (70.10, 68.40), (75.74, 73.21), (74.11, 71.83), (68.10, 65.40), (65.38, 63.19), (63.21, 61.55),
        (74.02, 70.99), (67.43, 64.41), (63.66, 61.08), (63.28, 60.75), (64.82, 62.47), (65.63, 63.96), (62.10, 60.35),
        (70.30, 67.70), (69.32, 66.64), (66.61, 64.98), (66.35, 64.03),
    ),
}  # fmt: skip
"""Validation and test perplexity, in the order of the cases."""

STACKED_LSTM = Item(
    name="stacked-lstm",
    title="Stacked LSTM on Penn Treebank",
    source="Table 2, left",
    rows=(
        *_main_rows(LSTM, ("dense", "S = 0.67", "S = 0.62"), (66.0, 21.8, 25.2)),
        Row("Static uniform (SNT-ASGD)", Case(LSTM, "static", sparsity=0.9), "S = 0.9 (not in the paper)"),
        Row("Selfish (SNT-ASGD)", Case(LSTM, sparsity=0.9), "S = 0.9 (not in the paper)"),
    ),
    conclusion="Selfish with SNT-ASGD is the best of all, the dense network included.",
)
RHN_TABLE = Item(
    name="rhn",
    title="Recurrent highway network on Penn Treebank",
    source="Table 2, right",
    rows=_main_rows(RHN, ("dense", "S = 0.53", "S = 0.68"), (23.5, 11.1, 7.6)),
    conclusion="Selfish with SNT-ASGD is the best at either sparsity; methods that grow by gradient are behind.",
)

_OPTIMIZERS: tuple[tuple[str, str, tuple[tuple[str, str, float, float], ...]], ...] = (
    ("adam", "Adam", (
        ("DSR", "dsr", 89.95, 88.16), ("SNFS", "snfs", 88.31, 86.28), ("RigL", "rigl", 88.39, 85.61),
        ("SET", "set", 87.30, 85.49), ("Selfish", "selfish", 85.70, 82.85),
    )),
    ("momentum-sgd", "SGD with momentum", (
        ("SNFS", "snfs", 90.09, 87.98), ("SET", "set", 85.73, 82.52), ("RigL", "rigl", 84.78, 80.81),
        ("DSR", "dsr", 82.89, 80.09), ("Selfish", "selfish", 82.48, 79.69),
    )),
    ("snt-asgd", "SNT-ASGD", (
        ("SNFS", "snfs", 82.11, 79.50), ("RigL", "rigl", 78.31, 75.90), ("SET", "set", 76.78, 74.84),
        ("Selfish", "selfish", 73.76, 71.65), ("DSR", "dsr", 72.30, 70.76),
    )),
)  # fmt: skip

OPTIMIZERS = Item(
    name="optimizers",
    title="Optimizers and methods, stacked LSTM at S = 0.67",
    source="Table 3",
    rows=(
        _row("Dense (as first published)", "", 66.0, 82.57, 78.57),
        *(
            _row(label, heading, 21.8, valid, test, Case(LSTM, method, optimizer))
            for optimizer, heading, rows in _OPTIMIZERS
            for label, method, valid, test in rows
        ),
    ),
    conclusion="SNT-ASGD is better than Adam and momentum SGD for every method.",
)

ABLATIONS = Item(
    name="ablations",
    title="Selfish without one of its two parts (test perplexity)",
    source="Table 5",
    rows=tuple(
        Row(label, Case(network, method, average=average), heading, {"test": test})
        for network, heading, tests in (
            (LSTM, "stacked LSTM", (71.65, 72.89, 73.74)),
            (RHN, "RHN", (60.35, 60.26, 69.70)),
            (ON_LSTM_LONG, "ON-LSTM", (55.68, 57.48, 69.28)),
            (MOS, "AWD-LSTM-MoS", (63.05, 65.27, 71.65)),
        )
        for (label, method, average), test in zip(
            (
                ("Selfish", "selfish", ""),
                ("without gate redistribution", "no-gate-redistribution", ""),
                ("with NT-ASGD for SNT-ASGD", "selfish", "nt"),
            ),
            tests,
            strict=True,
        )
    ),
    conclusion="Both parts help, SNT-ASGD most; gate redistribution does nothing for RHNs, which have two gates.",
)

GATE_RULES = Item(
    name="gate-rules",
    title="Rules of gate redistribution, stacked LSTM",
    source="Table 6",
    rows=(
        _row("by mean magnitude", "", 21.8, 74.04, 72.40, Case(LSTM, "gates-by-magnitude")),
        _row("by mean gradient", "", 21.8, 74.54, 72.31, Case(LSTM, "gates-by-gradient")),
        _row("equal shares (Selfish)", "", 21.8, 73.76, 71.65, Case(LSTM)),
        Row("equal shares, input and recurrent matrices apart", Case(LSTM, "by-matrix")),
    ),
    conclusion="Equal shares are the best of the three.",
)

ON_LSTM_TABLE = Item(
    name="on-lstm",
    title="ON-LSTM on Penn Treebank",
    source="Table 7",
    rows=tuple(
        _row(label, "", millions, valid, test, Case(network, method, optimizer))
        for label, millions, valid, test, network, method, optimizer in (
            ("Dense, 1000 epochs (NT-ASGD)", 25.0, 58.29, 56.17, ON_LSTM, "dense", "nt-asgd"),
            ("Dense, 1300 epochs (NT-ASGD)", 25.0, 58.55, 56.28, ON_LSTM_LONG, "dense", "nt-asgd"),
            ("SET (Adam)", 11.3, 65.90, 63.56, ON_LSTM, "set", "adam"),
            ("DSR (Adam)", 11.3, 65.22, 62.55, ON_LSTM, "dsr", "adam"),
            ("SNFS (Adam)", 11.3, 68.00, 65.52, ON_LSTM, "snfs", "adam"),
            ("RigL (Adam)", 11.3, 64.41, 62.01, ON_LSTM, "rigl", "adam"),
            ("RigL, 1000 epochs (SNT-ASGD)", 11.3, 59.17, 57.23, ON_LSTM, "rigl", "snt-asgd"),
            ("RigL, 1300 epochs (SNT-ASGD)", 11.3, 59.10, 57.44, ON_LSTM_LONG, "rigl", "snt-asgd"),
            ("Selfish, 1000 epochs (SNT-ASGD)", 11.3, 58.17, 56.31, ON_LSTM, "selfish", "snt-asgd"),
            ("Selfish, 1300 epochs (SNT-ASGD)", 11.3, 57.67, 55.82, ON_LSTM_LONG, "selfish", "snt-asgd"),
        )
    ),
    conclusion="A second restart of the averaging helps Selfish and not the dense network.",
)

MOS_TABLE = Item(
    name="mos",
    title="AWD-LSTM-MoS on WikiText-2",
    source="Table 8",
    rows=tuple(
        _row(label, "", millions, valid, test, Case(MOS, method, optimizer))
        for label, millions, valid, test, method, optimizer in (
            ("Dense (NT-ASGD)", 35.0, 66.01, 63.33, "dense", "nt-asgd"),
            ("SET (Adam)", 15.6, 72.82, 69.61, "set", "adam"),
            ("DSR (Adam)", 15.6, 69.95, 66.93, "dsr", "adam"),
            ("SNFS (Adam)", 15.6, 79.97, 76.18, "snfs", "adam"),
            ("RigL (Adam)", 15.6, 71.36, 68.52, "rigl", "adam"),
            ("RigL (SNT-ASGD)", 15.6, 68.84, 65.18, "rigl", "snt-asgd"),
            ("Selfish (SNT-ASGD)", 15.6, 65.96, 63.05, "selfish", "snt-asgd"),
        )
    ),
    conclusion="Selfish reaches the dense network with 45 % of its weights.",
)


def _flops_rows(table: Item, network: str, heading: str) -> tuple[Row, ...]:
    """Return rows with FLOPs relative to the dense network, in the order of Table 2."""
    printed = {(row.model, row.sparsity, row.method, row.optimizer): row for row in PRINTED}
    rows = []
    for row, (_, part, method, optimizer) in zip(table.rows[: len(_MAIN_CASES)], _MAIN_CASES, strict=True):
        if method is None:  # as first published: the dense network, and ISS
            method, optimizer = ("iss", "sgd") if part else ("dense", "nt-asgd")
        entry = printed[network, _SPARSITIES[network][part], method, optimizer]
        numbers = {"train_flops": entry.training, "test_flops": entry.inference}
        rows.append(Row(row.label, row.case, f"{heading}, {row.group}", numbers))
    return tuple(rows)


FLOPS = Item(
    name="flops",
    title="FLOPs of training and of testing, as fractions of the dense network's",
    source="Table 9",
    rows=(*_flops_rows(STACKED_LSTM, LSTM, "stacked LSTM"), *_flops_rows(RHN_TABLE, RHN, "RHN")),
    kind="flops",
    conclusion="Dense networks take 3.1e16 FLOPs to train and 7.2e10 to test (stacked LSTM), 6.5e16 and 3.3e10 (RHN).",
)
