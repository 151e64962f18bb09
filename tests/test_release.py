"""What a release says of itself agrees with itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import selfish_rnn

ROOT = Path(__file__).parents[1]


def test_there_is_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == selfish_rnn.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == selfish_rnn.__version__
    assert not re.search(r'^version = "', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("form", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_what_the_forge_reads_is_yaml(form: Path) -> None:
    read = yaml.safe_load(form.read_text())
    if form.parent.name == "ISSUE_TEMPLATE" and form.name != "config.yml":
        assert {"name", "description", "body"} <= read.keys()
    if form.parent.name == "workflows":
        assert read["jobs"]


PUBLISHING = {"id-token": "write", "attestations": "write", "contents": "read"}
"""Permissions of the job that publishes a release; no other job has any of its own."""


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_workflows_have_least_permissions_and_pinned_actions(workflow: Path) -> None:
    text = workflow.read_text()
    content = yaml.safe_load(text)
    assert content["permissions"] == {"contents": "read"}
    permissions = {name: job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    assert permissions in ({}, {"publish": PUBLISHING})
    actions = re.findall(r"uses: (.*)", text)
    assert actions
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [action for action in actions if not pinned.fullmatch(action)] == []


def test_the_package_index_gets_a_readme_with_absolute_links(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    text = (tmp_path / "selfish_rnn.egg-info" / "PKG-INFO").read_text()
    description = text.partition("\n\n")[2]
    assert description.startswith("# selfish-rnn")
    targets = re.findall(r"\]\(([^)]+)\)", description) + re.findall(r'src(?:set)?="([^"]+)"', description)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_scripts_of_the_forge_are_shell() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    for script in (ROOT / ".ci").iterdir():
        subprocess.run([bash, "-n", str(script)], check=True)
        assert os.access(script, os.X_OK)


@pytest.mark.slow
def test_a_wheel_without_the_library_is_for_any_machine(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    told = {**os.environ, "CC": "/nonexistent", "CXX": "/nonexistent"}
    command = [sys.executable, "setup.py", "-q", "bdist_wheel"]
    done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == f"selfish_rnn-{selfish_rnn.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert "selfish_rnn/py.typed" in names
    assert not [name for name in names if name.endswith(".so")]


def test_pre_commit_and_constraints_pin_the_same_versions() -> None:
    pins = set((ROOT / "constraints.txt").read_text().splitlines())
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {pin for hook in hooks for pin in hook.get("additional_dependencies", [])} <= pins
