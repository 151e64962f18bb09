from __future__ import annotations

import dataclasses

import pytest

from selfish_rnn.topology import METHODS, SELFISH, STATIC, Method


def test_the_table_has_the_methods_by_name() -> None:
    assert METHODS["selfish"] is SELFISH
    assert METHODS["static"] is STATIC
    assert (SELFISH.allocation, SELFISH.removal, SELFISH.pool) == ("uniform", "magnitude", "matrix")
    assert (SELFISH.redistribution, SELFISH.growth) == ("gates-equal", "random")
    assert SELFISH.rewires
    assert not STATIC.rewires


@pytest.mark.parametrize("part", ["allocation", "removal", "pool", "redistribution", "growth"])
def test_unknown_part_is_named_with_the_known_ones(part: str) -> None:
    with pytest.raises(ValueError, match=rf"method 'mine': {part} must be one of .*'nonsense'"):
        Method(name="mine", reference="me", **{part: "nonsense"})


def test_replace_makes_a_new_method_and_leaves_the_old_one() -> None:
    ablation = SELFISH.replace(name="per gate", pool="gate", redistribution="gate")
    assert (ablation.name, ablation.pool, ablation.redistribution) == ("per gate", "gate", "gate")
    assert ablation.removal == SELFISH.removal
    assert SELFISH.pool == "matrix"


def test_replace_checks_the_parts() -> None:
    with pytest.raises(ValueError, match="pool must be one of"):
        SELFISH.replace(pool="layer")


def test_a_method_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SELFISH.pool = "gate"  # type: ignore[misc]
