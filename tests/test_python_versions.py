"""The Python versions that are claimed, in every place that names them, and for every pinned package."""

from __future__ import annotations

import importlib.metadata
import os
import re
import ssl
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
VERSIONS = [match[1] for match in map(CLASSIFIER.match, PROJECT["classifiers"]) if match]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = [Requirement(line) for line in LINES if line and not line.startswith("#")]
REGISTRY = "https://pypi.org/simple"


def oldest_version(text: str) -> str:
    match = re.search(r"Python (3\.\d+) or newer", text)
    assert match is not None
    return match[1]


def test_all_places_name_the_same_versions() -> None:
    first, last = (int(version.split(".")[1]) for version in (VERSIONS[0], VERSIONS[-1]))
    assert [f"3.{minor}" for minor in range(first, last + 1)] == VERSIONS
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["checks"]["strategy"]["matrix"]["python"] == VERSIONS
    for page in ("README.md", "docs/install.md"):
        assert oldest_version((ROOT / page).read_text()) == VERSIONS[0]


@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.name)
def test_a_pinned_package_admits_every_claimed_version(pin: Requirement) -> None:
    assert pin.marker is None, "one pin serves every version"
    try:
        package = importlib.metadata.metadata(pin.name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{pin.name} is not installed")
    if not pin.specifier.contains(package["Version"]):
        pytest.skip(f"{pin.name} {package['Version']} is installed, not {pin.specifier}")
    admitted = SpecifierSet(package.get("Requires-Python") or "")
    assert [version for version in VERSIONS if f"{version}.0" not in admitted] == []


def test_torch_is_made_for_every_claimed_version() -> None:
    classifiers = importlib.metadata.metadata("torch").get_all("Classifier", [])
    versions = {match[1] for match in map(CLASSIFIER.match, classifiers) if match}
    assert versions.issuperset(VERSIONS)


@pytest.fixture(scope="session")
def torch_files() -> str:
    """Page of the package registry that lists the files of torch."""
    trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    try:
        with urllib.request.urlopen(f"{REGISTRY}/torch/", timeout=20, context=trusted) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError) as error:
        pytest.skip(f"the package registry {REGISTRY} cannot be reached: {error}")


def torch_without_libraries(folder: Path) -> None:
    """Write a wheel with the version of torch's pin and no content, because the real one has hundreds of megabytes."""
    pin = next(pin for pin in PINS if pin.name == "torch")
    version = f"{next(iter(pin.specifier)).version}+metadata.only"
    information = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_constraints_resolve(version: str, torch_files: str, tmp_path: Path) -> None:
    pin = next(str(pin.specifier).removeprefix("==") for pin in PINS if pin.name == "torch")
    tag = "cp" + version.replace(".", "")
    if f"torch-{pin}-{tag}-{tag}-" not in torch_files:
        pytest.skip(f"{REGISTRY} has no wheel of torch {pin} for Python {version}")
    torch_without_libraries(tmp_path)
    extras, groups = PROJECT["optional-dependencies"], PYPROJECT["dependency-groups"]
    packages = [
        *PROJECT["dependencies"],
        *(each for name in ("cli", "analysis", "test", "lightning") for each in extras[name]),
        *(each for name in ("dev", "docs") for each in groups[name]),
    ]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input", "--quiet"]
    command += ["--target", str(tmp_path / "target"), "--python-version", version, "--only-binary", ":all:"]
    command += ["--find-links", str(tmp_path), "--constraint", str(ROOT / "constraints.txt")]
    command += [each for each in packages if not each.startswith("selfish-rnn")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode and "Could not fetch URL" in result.stderr:
        pytest.skip(f"the package registry cannot be reached: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr
