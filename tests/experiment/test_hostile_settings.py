"""Settings that are no settings: one clear line of bounded length, before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.errors import UserError, short_repr
from selfish_rnn.experiment.presets import build_experiment, read_config, with_assignments
from tiny_runs import tiny_settings

LONGEST = 3000


def settings_of(*words: str) -> Any:
    return build_experiment(with_assignments(tiny_settings(Path("texts")), list(words)), "settings")


@pytest.mark.parametrize(
    "word",
    [
        "seed=2020-99-99",
        "epochs=0x_",
        "epochs=!!bool x",
        "epochs=!!python/object:os.system x",
        "seed=" + "9" * 5000,
        "seed=0x" + "f" * 5000,
        "epochs=" + "[" * 500,
        "epochs=" + "[" * 3000,
        "epochs=&a [*a]",
        "epochs={a: 1, a: 2}",
        "=3",
        "x" * 10**6,
        "x" * 10**5 + "=1",
    ],
)
def test_any_word_that_is_no_setting_is_one_clear_error(word: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_of(word)
    assert len(str(caught.value)) < LONGEST


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seed=9223372036854775808", "seed: must be at most"),
        ("seed=18446744073709551616", "seed: must be"),
        ("start_seed=-1", "start_seed: must be"),
        ("threads=2147483648", "threads: must be at most 1024"),
        ("threads=40000", "threads: must be at most 1024"),
        ("optimizer.lr=1e308", r"optimizer\.lr: must be at most"),
        ("optimizer.lr=.inf", r"optimizer\.lr: must be"),
        ("optimizer.weight_decay=.nan", r"optimizer\.weight_decay: must be"),
        ("ar=.inf", "ar: must be"),
        ("tar=1e300", "tar: must be"),
        ("clip=.nan", "clip: must be"),
        ("device=cpu:1", "device must be cpu or cuda"),
        ("device=meta", "device must be cpu or cuda"),
        ("model.hidden=100000000", r"model\.hidden: must be at most 1000000"),
        ("model.embedding=10000000000000000000", r"model\.embedding: must be at most 1000000"),
        ("method={name: iss, strength: .inf}", r"method\.strength: must be"),
        ("model.layers=1000000", r"model\.layers: must be at most 1000"),
        ("epochs=10000000000", "epochs: must be"),
    ],
)
def test_settings_beyond_sense_are_refused(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings_of(word)


@pytest.mark.parametrize("betas", ["[1,1]", "[0,1]", "[.nan,0.9]", "[-0.1,0.9]"])
def test_betas_are_below_one(betas: str) -> None:
    with pytest.raises(UserError, match=r"optimizer\.betas"):
        settings_of("optimizer.name=adam", f"optimizer.betas={betas}")


def test_parts_of_models_are_bounded() -> None:
    for words in (["model.name=rhn", "model.depth=1000000000"], ["model.name=awd-lstm-mos", "model.experts=1000000"]):
        with pytest.raises(UserError, match=r"model\.(depth|experts): must be at most 1000"):
            settings_of(*words)


def test_the_first_cpu_is_the_cpu() -> None:
    assert settings_of("device=cpu:0").device == "cpu"


def test_a_key_that_is_there_twice_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("epochs: 3\nseed: 1\nepochs: 4\n")
    with pytest.raises(UserError, match=r"twice\.yaml is not valid YAML: the key 'epochs' is repeated in line 3"):
        read_config(path)
    path.write_text("optimizer:\n  name: sgd\n  lr: 1\n  lr: 2\n")
    with pytest.raises(UserError, match="'lr' is repeated"):
        read_config(path)


@pytest.mark.parametrize(
    "content",
    [
        b"seed: " + b"9" * 5000,
        b"seed: 0x" + b"f" * 5000,
        b"a: " + b"[" * 5000,
        b"- " * 3000 + b"x",
        b"epochs: 2020-99-99",
        b"\xff\xfe\x00",
        b"\x00",
        b"? [a]\n: b",
        b"{[]: 1}",
        b"<<: 3",
        b"<<: [*a]",
        b"a: !!binary x",
        b"x: &x\n  <<: *x\n",
        b"y" * (2**20 + 2),
        pytest.param(b"\n".join(b"key%d: 1" % number for number in range(20_000)), marks=pytest.mark.slow),
    ],
)
def test_any_file_that_is_no_configuration_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        build_experiment(tiny_settings(Path("texts")) | read_config(path), str(path))
    assert len(str(caught.value)) < LONGEST


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(UserError, match="more than 1048576 characters"):
        read_config(Path("/dev/zero"))


def test_values_are_shown_in_bounded_length() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for value in ("x" * 10**7, 10**10_000, nested, {"a": "b" * 1000}):
        assert len(short_repr(value)) <= 81
    assert short_repr("short") == "'short'"


def billion_laughs(levels: int, width: int) -> str:
    lines = ["a0: &a0 [1, 1]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (billion_laughs(15, 9), "its aliases expand to more than 10000 values"),
        (billion_laughs(5, 40), "its aliases expand to more than 10000 values"),
        ("a: &a {b: 1}\n" + "\n".join(f"k{n}: {{<<: *a}}" for n in range(6000)), "its aliases expand to more than"),
        ("a: &a [*a]", "an alias refers to a section that contains it"),
        ("a: &a {b: {c: *a}}", "an alias refers to a section that contains it"),
        ("seed: 0x" + "f" * 5000, "an integer of more than 128 bits"),
    ],
)
def test_aliases_and_numbers_are_bounded(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"config\.yaml is not valid YAML: .*{message}"):
        read_config(tmp_path / "config.yaml")


def test_a_few_aliases_are_welcome(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: &m {name: rhn, depth: 3}\nsame: *m\n")
    settings = read_config(tmp_path / "config.yaml")
    assert settings["same"] == settings["model"] == {"name": "rhn", "depth": 3}
