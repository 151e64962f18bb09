from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from selfish_rnn.topology import (
    DENSE,
    DSR,
    GMP,
    GROWTHS,
    METHODS,
    POOLS,
    SELFISH,
    SET,
    SNFS,
    STATIC,
    Growth,
    Method,
    Pool,
    Removal,
    Signal,
    register,
    register_method,
)
from selfish_rnn.topology.growth import at_random, by_score
from selfish_rnn.topology.removal import by_magnitude, sparing_rates

pytestmark = pytest.mark.usefixtures("tables_as_before")


def test_the_table_has_the_methods_by_name() -> None:
    compared = ["selfish", "set", "dsr", "snfs", "rigl", "gmp", "static", "static-er", "dense"]
    assert [*METHODS] == [*compared, "chts", "chtss", "srigl", "granet", "mest", "gse"]
    assert METHODS["selfish"] is SELFISH
    assert SELFISH.part_names() == {
        "allocation": "uniform",
        "removal": "magnitude",
        "pool": "layer",
        "redistribution": "gates-equal",
        "growth": "random",
        "pruning": None,
    }


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_what_a_method_does_is_what_its_parts_say(method: Method) -> None:
    kinds = {"rewires": method.rewires, "prunes": method.prunes, "stays dense": method.stays_dense}
    expected: dict[str, list[str]] = {
        **{"gmp": ["prunes"], "dense": ["stays dense"], "static": [], "static-er": []},
        **{"granet": ["rewires", "prunes"], "chtss": ["rewires", "prunes"]},
    }
    assert [kind for kind, is_so in kinds.items() if is_so] == expected.get(method.name, ["rewires"])
    signals = {"rigl": "gradient", "snfs": "momentum", "srigl": "gradient", "granet": "gradient"}
    assert method.signal == {**signals, "gse": "sampled-gradient"}.get(method.name)
    assert method.sparse_backward == (method.name not in (*signals, "gmp", "dense"))
    assert method.first_state() == ({"removal": 1e-3} if method is DSR else {})


@pytest.mark.parametrize("part", ["allocation", "removal", "pool", "redistribution", "growth", "pruning"])
@pytest.mark.parametrize("value", ["nonsense", 3, ["random"]])
def test_unknown_part_is_named_with_the_known_ones(part: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"method 'mine': unknown {part} .*; known are "):
        Method(name="mine", reference="me", **{part: value})


def test_a_name_with_a_typing_mistake_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"unknown growth 'gradent' \(did you mean 'gradient'\?\)"):
        SELFISH.replace(growth="gradent")


@pytest.mark.parametrize("part", ["allocation", "pool", "redistribution"])
def test_no_method_is_without_these_parts(part: str) -> None:
    with pytest.raises(ValueError, match=f"unknown {part} None"):
        SELFISH.replace(**{part: None})


def test_replace_makes_a_new_method_and_leaves_the_old_one() -> None:
    ablation = SELFISH.replace(name="per gate", pool="gate", redistribution="gate")
    assert (ablation.name, ablation.pool.name, ablation.redistribution.name) == ("per gate", "gate", "gate")
    assert ablation.removal == SELFISH.removal
    assert SELFISH.pool is POOLS["layer"]


def test_a_part_is_given_as_an_object_or_by_name() -> None:
    assert SELFISH.replace(growth="gradient") == SELFISH.replace(growth=GROWTHS["gradient"])
    assert Method(name="mine", reference="me", allocation="er").allocation.name == "er"  # type: ignore[arg-type]
    mine = Growth("mine", at_random, random=True)
    assert SELFISH.replace(growth=mine).growth is mine
    with pytest.raises(ValueError, match="unknown growth 'mine'"):
        SELFISH.replace(growth="mine")


def test_a_registered_part_has_a_name() -> None:
    mine = register(Growth("mine", by_score, signal="gradient"))
    assert SELFISH.replace(growth="mine").growth is mine
    with pytest.raises(TypeError, match="a part is an Allocation, Removal"):
        register(SELFISH)  # type: ignore[type-var]


def test_a_pool_of_ones_own_is_registered_as_other_parts_are() -> None:
    whole = register(Pool("whole", lambda topology: [topology.whole]))
    assert SELFISH.replace(pool="whole").pool is whole
    with pytest.raises(ValueError, match="pool must be matrix"):
        SNFS.replace(pool="whole")


def test_a_part_may_name_its_signal_or_give_it() -> None:
    for signal in (Signal.MOMENTUM, "momentum"):
        assert SELFISH.replace(growth=Growth("mine", by_score, signal=signal)).signal is Signal.MOMENTUM
    with pytest.raises(ValueError, match="'mood' is not a valid Signal"):
        SELFISH.replace(growth=Growth("mine", by_score, signal="mood"))


def test_a_registered_method_brings_its_parts() -> None:
    mine = Growth("mine", at_random, random=True)
    method = register_method(SELFISH.replace(name="own", growth=mine))
    assert METHODS["own"] is method
    assert GROWTHS["mine"] is mine
    assert SELFISH.replace(growth="mine").growth is mine


def test_a_method_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SELFISH.pool = POOLS["gate"]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("method", "parts", "message"),
    [
        (SELFISH, {"growth": None}, "only prunes: allocation must be dense"),
        (GMP, {"allocation": "uniform"}, "only prunes: allocation must be dense"),
        (GMP, {"removal": "magnitude-sparing-dense"}, "removal must be one of magnitude, signed"),
        (GMP, {"pool": "gate"}, "pool matrix"),
        (GMP, {"pool": "layer"}, "pool matrix"),
        (SNFS, {"pool": "layer"}, "pool must be matrix"),
        (GMP, {"pruning": None}, "pruning one of gradual"),
        (STATIC, {"pruning": "gradual"}, "removal must not be none"),
        (SET, {"pruning": "gradual"}, "allocation must be uniform or dense"),
        (DSR, {"pruning": "gradual"}, "removal must be one of magnitude, signed"),
        (SELFISH, {"pruning": "gradual", "pool": "network"}, "redistribution within a matrix or layer"),
        (DSR, {"pool": "gate"}, "removal threshold does not support pool gate: pool must be network"),
        (SNFS, {"pool": "gate"}, "pool must be matrix"),
        (SNFS, {"growth": "gradient"}, r"removal by momentum, redistribution by momentum, growth by gradient\)"),
        (
            SELFISH,
            {
                "removal": Removal("own", by_magnitude, ("matrix",), rates=sparing_rates, signal="momentum"),
                "pool": "matrix",
                "growth": "gradient",
            },
            "use parts that share one",
        ),
        (
            SELFISH,
            {"removal": Removal("own", by_magnitude, rates=sparing_rates, signal="momentum"), "pool": "network"},
            "rates for every matrix need a pool within a matrix",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(method: Method, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method.replace(**parts)


def test_a_static_method_may_have_any_growth_because_it_has_none() -> None:
    assert DENSE.replace(growth="gradient").signal is None


@pytest.mark.parametrize(
    ("changes", "looks"),
    [
        ({}, False),
        ({"redistribution": "gates-by-magnitude"}, False),
        ({"redistribution": "gates-by-gradient"}, True),
        ({"growth": "gradient"}, True),
        ({"redistribution": "gates-by-gradient", "removal": None}, False),
    ],
)
def test_a_method_says_whether_it_uses_gradients(changes: dict[str, Any], looks: bool) -> None:
    assert SELFISH.replace(**changes).uses_gradients is looks
