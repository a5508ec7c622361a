"""README: its commands run, its fragments of output are what they print, its help is the help."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench import documents
from bench.documents import shell

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def block(name: str) -> str:
    """The content of the fenced block after ``<!-- name -->``."""
    match = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```\n<!-- end -->", README, re.DOTALL)
    assert match, f"README.md has no block {name!r}"
    return match.group(1)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return documents.environment(tmp_path_factory.mktemp("bin"))


# --- help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", documents.scripts())
def test_the_help_is_the_help(name: str, environment: dict[str, str]) -> None:
    printed = shell(f"{name} --help", environment, ROOT)
    assert f"```\n$ {name} --help\n{printed}```\n" in README, "python bench/documents.py rewrites it"


# --- commands ----------------------------------------------------------------------------------------------


def test_examples_run(environment: dict[str, str], tmp_path: Path) -> None:
    """The block of everyday commands, in a folder that has the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = next(b for b in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if b.startswith("tv-verify"))
    printed = [shell(line, environment, tmp_path) for line in commands.splitlines()]
    assert len(printed) == 5
    assert printed[0].splitlines()[-1].startswith("VALID: all 33 outputs")
    assert "input relation {" in printed[1] and "params." in printed[1]
    assert printed[2].splitlines()[-1].startswith("PROVED: 33 of 33")
    assert "trusted: " in printed[4]


def test_the_python_example_runs(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0


def test_the_main_command_prints_what_readme_shows(environment: dict[str, str], tmp_path: Path) -> None:
    """Without the installation, which test_the_main_command_in_an_empty_folder makes."""
    command = block("main command").strip()
    _, _, rest = command.partition(" && tv/bin/pip ")
    _, _, rest = rest.partition(" && ")
    printed = shell(rest.replace("tv/bin/", ""), environment | {"REPO": str(ROOT)}, tmp_path)
    assert printed.endswith(block("output of the main command"))


@pytest.mark.slow
def test_the_main_command_in_an_empty_folder(tmp_path: Path) -> None:
    """A fresh environment, an installation, and the verdict."""
    command = block("main command").strip()
    assert "\n" not in command, "one line"
    environment = {"REPO": str(ROOT), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    printed = shell(command, environment, tmp_path)
    assert printed.endswith(block("output of the main command"))


def test_ci_runs_the_test_commands_of_readme() -> None:
    """It reads them from README: with ``sh`` replaced by ``echo`` it names them one by one."""
    commands = block("test commands").splitlines()
    assert len(commands) == 2 and all("pytest" in line for line in commands)
    assert "[sign,torch,yices]" in commands[0] and "-m 'not slow'" in commands[0] and "-m slow" in commands[1]
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK) and script.startswith("#!/bin/sh\n")
    assert 'sh -c "$line"' in script
    dry = script.replace('sh -c "$line"', "true").replace('"$0"', shlex.quote(str(ROOT / ".ci" / "run")))
    done = subprocess.run(["sh", "-c", dry], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"+ {line}" for line in commands]


def test_ci_fails_if_a_command_fails() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    wrong = script.replace('sh -c "$line"', 'sh -c "true && false && true"')
    wrong = wrong.replace('"$0"', shlex.quote(str(ROOT / ".ci" / "run")))
    assert subprocess.run(["sh", "-c", wrong], capture_output=True, check=False).returncode != 0


def test_the_test_group_and_the_extras_exist() -> None:
    assert {"torch", "yices"} <= set(PYPROJECT["project"]["optional-dependencies"])
    assert any(p.startswith("pytest") for p in PYPROJECT["dependency-groups"]["test"])


# --- the tour ----------------------------------------------------------------------------------------------


def settled(text: str) -> str:
    """Without the numbers that move when the engine learns something."""
    text = re.sub(r"\b(stage|fact|obligations/)( ?)\d+", r"\1\2N", text)
    return re.sub(r"\d+( of \d+)?(?= (obligations|stages|of them|of all|rest on))", "N", text)


def test_the_tour_shows_what_its_commands_print(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "docs" / "tour.md").read_text("utf-8")
    blocks = documents.replayed(text, environment, tmp_path)
    assert len(blocks) >= 12
    for command, shown, printed in blocks:
        assert settled(printed) == settled(shown), f"{command}\n(python bench/documents.py rewrites the tour)"


# --- texts -------------------------------------------------------------------------------------------------

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", document.read_text("utf-8"), flags=re.DOTALL)
    links = [t for t in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in t]
    assert [t for t in links if not (document.parent / t).exists()] == []


def test_the_policy_is_the_default() -> None:
    from checker.cli import Policy, read_policy

    assert read_policy(ROOT / "policy.json") == Policy()


def test_adrs_have_one_number_each_and_a_title() -> None:
    files = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [f.name[:4] for f in files]
    assert len(set(numbers)) == len(numbers) and all(n.isdigit() for n in numbers)
    for f in files:
        text = f.read_text("utf-8")
        assert text.startswith("# ") and "**Decision.**" in text and "**Context.**" in text, f.name
