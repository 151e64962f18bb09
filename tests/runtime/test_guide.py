"""The C programs of docs/streaming.md and of the examples compute what Python does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("g++") and shutil.which("gcc")), reason="needs a C and a C++ compiler"),
]


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language on the page."""
    page = (ROOT / "docs" / "streaming.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a reader has followed the page up to the compiled header."""
    path = tmp_path_factory.mktemp("guide")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in (line for block in blocks("sh") for line in block.splitlines()):
        if command.startswith(("selfish-rnn header", "g++")):
            fast = command.replace("-O3", "-O1")
            subprocess.run(fast, shell=True, check=True, cwd=path, env=environment, capture_output=True)
    return path


def test_the_program_of_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent("\n".join(blocks("python")[:3])), "streaming.md", "exec"), names)
    (program,) = blocks("c")
    Path("program.c").write_text(program)
    (command,) = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("gcc")]
    subprocess.run(command, shell=True, check=True)
    printed = subprocess.run("./program", capture_output=True, text=True, check=True).stdout.split()
    stream, x, expected = names["stream"], torch.zeros(24), []
    stream.reset()
    for step in range(3):
        x[step] = 1
        expected.append(float(stream(x)[0]))
    assert [float(number) for number in printed] == pytest.approx(expected, abs=2e-6)


def test_the_denoiser_sounds_alike_from_python_and_c(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import denoiser  # type: ignore[import-not-found]

    monkeypatch.setattr(denoiser, "NETWORKS", denoiser.NETWORKS[:2])
    monkeypatch.setattr(denoiser, "step_time", lambda stream: 0.0)
    rows = denoiser.compare(tmp_path, epochs=2, clips=8, tests=1)
    command = ["gcc", "-O2", "-I.", str(ROOT / "examples" / "c" / "denoiser.c"), "selfish_rnn.o"]
    subprocess.run([*command, "-lstdc++", "-lm", "-o", "denoiser"], cwd=folder, check=True)
    for row in rows:
        name = row["network"]
        files = [tmp_path / f"{name}.srnn", tmp_path / "noisy.wav", tmp_path / "c.wav"]
        subprocess.run([folder / "denoiser", *files], check=True, capture_output=True)
        python, c = (denoiser.read_wave(tmp_path / file) for file in (f"{name}.wav", "c.wav"))
        assert len(python) == len(c)
        assert np.abs(python - c).max() <= 8 / 32768, name  # the Fourier transforms round differently
    wrong = subprocess.run([folder / "denoiser", ROOT / "README.md", *files[1:]], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "README.md" in wrong.stderr
