"""A bundle in an empty folder, with nothing of this repository on the path: its README is followed."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from certificates.plan.plan import Plan
from checker.reading.bundle import read_bundle
from orchestrator import standalone
from orchestrator.emit import emit

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "checker"


def test_the_licence_is_the_licence() -> None:
    assert standalone.licence() == (ROOT / "LICENSE").read_bytes()


def test_the_checker_is_one_file_with_all_its_source_and_the_same_bytes(tmp_path: Path) -> None:
    """Not the folder, nor when it was written, nor what was compiled there, has a part in it."""
    copy = tmp_path / "elsewhere" / "checker"
    shutil.copytree(CHECKER, copy)
    for path in sorted(copy.rglob("*.py"), reverse=True):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (copy / "notes.txt").write_text("not of it")
    data = standalone.standalone()
    assert standalone.standalone(copy) == data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert set(archive.namelist()) == {
            "__main__.py", "LICENSE", *(str(p.relative_to(ROOT)) for p in CHECKER.rglob("*.py")),
        }  # fmt: skip
        assert archive.read("checker/kernel.py") == (CHECKER / "kernel.py").read_bytes()
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle in a folder that is otherwise empty."""
    from tests.conftest import BUILDERS

    folder = tmp_path_factory.mktemp("auditor")
    emit(BUILDERS["mlp"](), folder / "bundle", jobs=1)
    return folder


def commands(readme: str, heading: str) -> list[str]:
    """The indented commands of a section of the README."""
    section = readme.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip() for line in re.findall("^    (.*)$", section, re.MULTILINE)]


@functools.cache
def auditor() -> Path:
    """Commands of an environment with click and two solvers only: this one may have the repository too."""
    home = Path(tempfile.mkdtemp(prefix="auditor-"))
    atexit.register(shutil.rmtree, home)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in ("click", "z3", "cvc5"):
        for path in Path(next(iter(importlib.import_module(name).__path__))).parent.glob(f"{name}*"):
            (packages / path.name).symlink_to(path)
    return home / "bin"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As the README says, in the bundle's folder, with no variable that leads to this repository."""
    env = {"PATH": f"{auditor()}:{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder.parent)}
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_python_and_two_solvers_reach_the_verdict(alone: Path) -> None:
    readme = (alone / "bundle/data/README.md").read_text()
    (whole,) = commands(readme, "Is it whole?")
    assert shell(whole, alone / "bundle").returncode == 0
    install, check = commands(readme, "Check it: Python and two solvers")
    assert install == "python3 -m pip install click z3-solver cvc5"
    done = shell(check, alone / "bundle")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("VALID: all 5 outputs")
    digest = hashlib.sha256((alone / "bundle/data/tv-check.pyz").read_bytes()).hexdigest()
    (own,) = [line for line in lines if line.startswith("this checker: ")]
    assert own.startswith(
        f"this checker: tv-check.pyz, SHA-256 {digest}. If it came with the bundle, compare"
    )
    assert digest in readme
    loaded = shell("python3 -c 'import orchestrator'", alone / "bundle")
    assert "No module named" in loaded.stderr, "nothing of this repository is on the path"
    assert sorted(p.name for p in alone.iterdir()) == ["bundle"]


def test_a_solver_and_a_shell_call_everything_unsat(alone: Path) -> None:
    """Any solver; yices where it is installed."""
    readme = (alone / "bundle/data/README.md").read_text()
    (line, _) = commands(readme, "Check it: one solver and a shell")
    yices = shutil.which("yices-smt2", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    line = line if yices else line.replace("yices-smt2", "z3")
    done = shell(line, alone / "bundle")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answers = [a for a in (alone / "answers.txt").read_text().splitlines() if not a.startswith("#")]
    files = sorted(p.stem for p in (alone / "bundle/data/obligations").iterdir())
    assert answers == [f"{number} unsat" for number in files] != []
    (alone / "answers.txt").unlink()


def test_answers_of_two_solvers_reach_the_verdict_without_one(alone: Path) -> None:
    """On a machine with Python and click alone."""
    readme = (alone / "bundle/data/README.md").read_text()
    (_, check) = commands(readme, "Check it: one solver and a shell")
    for solver, words in (("z3", "z3"), ("cvc5", "-n cvc5 -v 1 z3")):
        assert shell(f"sh data/run.sh -o ../answers-{solver}.txt {words}", alone / "bundle").returncode == 0
    arguments = check.removeprefix("python3 data/tv-check.pyz ").split()
    script = "import sys; sys.path.insert(0, 'data/tv-check.pyz'); import checker.solvers; "
    script += "checker.solvers.RUNNERS = {}; from checker.cli import main; "
    script += f"sys.argv[1:] = {arguments!r}; main()"
    done = shell(f'python3 -c "{script}"', alone / "bundle")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trusted for the answers of cvc5: whoever made answers-cvc5.txt (of 1)" in done.stdout
    for path in alone.glob("answers-*"):
        path.unlink()


def test_without_click_one_line_says_so(alone: Path) -> None:
    line = "python3 -c \"import sys; sys.modules['click'] = None; import runpy; "
    done = shell(line + "runpy.run_path('data/tv-check.pyz')\"", alone / "bundle")
    assert done.returncode == 6 and done.stderr.startswith("tv-check.pyz: cannot start: ")
    assert done.stderr.endswith("; python3 -m pip install click\n")


def test_the_archive_holds_what_the_folder_holds(alone: Path, mlp: Plan, tmp_path: Path) -> None:
    """Emitted anew, as another user in another place, and read by the checker as one file."""
    emit(mlp, tmp_path / "b.tar", jobs=2)
    assert read_bundle(tmp_path / "b.tar") == read_bundle(alone / "bundle")
    done = shell(f"python3 data/tv-check.pyz {tmp_path}/b.tar", alone / "bundle")
    assert done.returncode == 0, done.stdout + done.stderr
