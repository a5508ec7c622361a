"""The commands from outside: killed, interrupted, on a full disk, in a race, with hostile files.

Nothing of the user's is lost, every exit code is as documented, no child and no temporary folder stays.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import documents
from certificates.plan.writing import dump
from tests.conftest import build_mlp, build_uneven

#: Starts a command line; further options are those of ``Popen``.
Start = Callable[..., subprocess.Popen[str]]
README = (documents.ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return documents.environment(tmp_path_factory.mktemp("bin"))


@pytest.fixture
def here(tmp_path: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Starts commands in a folder with ``plan.json`` and ``other.json``; temporary folders go to ``tmp``."""
    dump(build_mlp(), tmp_path / "plan.json")
    dump(build_uneven(), tmp_path / "other.json")
    (tmp_path / "tmp").mkdir()
    variables = environment | {"TMPDIR": str(tmp_path / "tmp")}
    running: list[subprocess.Popen[str]] = []

    def start(command: str, **options: object) -> subprocess.Popen[str]:
        settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen(
            shlex.split(command), cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL,
            start_new_session=True, **(settings | options),
        )  # type: ignore[call-overload]  # fmt: skip
        running.append(child)
        return child  # type: ignore[no-any-return]

    yield start
    for child in running:
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import trainverify as tv

    out = tmp_path_factory.mktemp("bundle") / "b"
    tv.emit(build_mlp(), out)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=300)
    return child.returncode, out, err


def until(condition: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    """Wait for something that the command does; an end of the command is one too."""
    while not condition() and child.poll() is None:
        time.sleep(0.02)


# Exit codes and versions are documented -------------------------------------------------------------------


@pytest.mark.parametrize("name", documents.scripts())
def test_every_command_says_its_version(here: Start, name: str) -> None:
    version = re.search(r'^version = "(.*)"', (documents.ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert version
    assert ended(here(f"{name} --version")) == (0, f"{name}, TrainVerify {version[1]}\n", "")


# Stopped --------------------------------------------------------------------------------------------------

STOPS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]


@pytest.mark.parametrize(("number", "code", "word"), STOPS)
def test_a_check_that_is_stopped_takes_its_solvers_and_folders_with_it(
    here: Start,
    bundle: Path,
    tmp_path: Path,
    number: int,
    code: int,
    word: str,
) -> None:
    """Ctrl-C used to end with 1, *refuted*, and every file was still given to new solvers."""
    solver, started = tmp_path / "slow.py", tmp_path / "started"
    started.mkdir()
    solver.write_text(f"import os, time; open({str(started)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(600)")
    child = here(f"tv-check {bundle} --solver '{sys.executable} {solver} {{file}}'")
    until(lambda: any(started.iterdir()), child)
    os.killpg(child.pid, number)
    assert ended(child) == (code, "", f"tv-check: {word}: no verdict\n")
    for process in started.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(process.name), 0)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("number", "code", "word"), STOPS)
def test_a_verification_that_is_stopped_has_no_verdict_and_leaves_no_folder(
    here: Start, tmp_path: Path, number: int, code: int, word: str
) -> None:
    child = here("tv-verify plan.json --quiet")
    until(lambda: any(p.is_dir() for p in (tmp_path / "tmp").iterdir()), child)  # no probe of tempfile's
    os.killpg(child.pid, number)
    returned, out, err = ended(child)
    assert (
        (returned, err) == (code, "")
        and out.startswith(f"{word.upper()}: no verdict")
        and "\n" not in out[:-1]
    )
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_stopped_emission_leaves_the_bundle_that_was_there_and_continues(
    here: Start, bundle: Path, tmp_path: Path
) -> None:
    child = here("tv-emit plan.json --out b")
    until((tmp_path / "b.journal").exists, child)
    os.killpg(child.pid, signal.SIGINT)
    code, out, _ = ended(child)
    assert code == 130 and out.startswith("INTERRUPTED") and not (tmp_path / "b").exists()
    assert ended(here("tv-emit plan.json --out b --quiet"))[0] == 0
    assert contents(tmp_path / "b") == contents(bundle)
    assert {p.name for p in tmp_path.iterdir()} == {"b", "plan.json", "other.json", "tmp"}


# Every row of the table -----------------------------------------------------------------------------------

#: Of each exit code that needs no signal and no closed pipe (these are tests of their own) a command for it.
ENDINGS = {
    0: "tv-check {bundle} --quiet",
    1: "tv-check {bundle} --quiet --plan other.json",
    2: "tv-emit plan.json --out plan.json",
    3: "tv-verify wrong.json --quiet --witness-seconds 0",
    4: "tv-emit plan.json --out b --core-solver no-such-solver",
    5: "tv-show missing.json",
    6: "tv-show plan.json > /dev/full",
}


def test_the_readme_has_every_exit_code() -> None:
    """Also those that no verdict has, and no other."""
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", README, re.M))
    assert [int(code) for code in rows] == sorted([*ENDINGS, 141, *(code for _, code, _ in STOPS)])
    assert "Ctrl-C" in rows["130"] and "SIGTERM" in rows["143"]


@pytest.mark.parametrize("code", ENDINGS)
def test_every_exit_code_is_as_documented(here: Start, bundle: Path, tmp_path: Path, code: int) -> None:
    """The table of README row by row. Each comes with a line that says why."""
    if code == 3:
        plan = build_mlp()
        cls = plan.classes[0]
        ops = [replace(op, name="sine") if op.name == "tanh" else op for op in cls.program.ops]
        wrong = replace(cls, program=replace(cls.program, ops=tuple(ops)))
        dump(replace(plan, classes=(wrong, *plan.classes[1:])), tmp_path / "wrong.json")
    command = f"{ENDINGS[code].format(bundle=bundle)}; echo $? > code"
    _, out, err = ended(here(f"sh -c {shlex.quote(command)}"))
    said = f"{out}{err}".strip().splitlines()
    assert (tmp_path / "code").read_text() == f"{code}\n", said
    assert said and "Traceback" not in out + err


# Little memory --------------------------------------------------------------------------------------------


def within(mib: int) -> Callable[[], None]:
    """A limit of the address space of a command and of its children."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))


@pytest.mark.parametrize(
    "command", ["tv-show plan.json", "tv-check {bundle} --quiet", "tv-emit plan.json --out b --quiet"]
)
def test_half_a_gibibyte_is_enough(here: Start, bundle: Path, command: str) -> None:
    """The cap of a file's size was asked for as memory: with less than a GiB no plan was read."""
    code, out, err = ended(here(command.format(bundle=bundle), preexec_fn=within(512)))
    assert code == 0, out + err


@pytest.mark.slow
@pytest.mark.parametrize("mib", [20, 40, 60, 100, 120, 130, 140, 180, 260])
@pytest.mark.parametrize(
    "command",
    ["tv-show plan.json", "tv-check {bundle}", "tv-emit plan.json --out b --force", "tv-verify plan.json"],
)
def test_without_memory_nothing_is_judged_and_nothing_lost(
    here: Start, bundle: Path, tmp_path: Path, command: str, mib: int
) -> None:
    """A plan is neither refuted nor a bundle invalid because a solver or the command itself had no memory."""
    shutil.copytree(bundle, tmp_path / "b")
    code, out, err = ended(here(command.format(bundle=bundle) + " --quiet" * ("show" not in command),
                                preexec_fn=within(mib)))  # fmt: skip
    # CPython itself can crash while it compiles a module without memory: it has said nothing.
    assert code in (0, 3, 4, 6) or (code, out) == (-signal.SIGSEGV, ""), out + err
    assert "Traceback" not in err
    assert not re.search("REFUTED|INVALID", out)
    assert contents(tmp_path / "b") == contents(bundle)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("mib", [120, 150, 180, 210, 250, 300, 360])
def test_without_memory_only_inputs_refute(here: Start, tmp_path: Path, mib: int) -> None:
    """OpenBLAS ended the process with 1, *refuted*, while numpy was imported to look for a witness."""
    plan = (tmp_path / "plan.json").read_text("utf-8")
    (tmp_path / "plan.json").write_text(plan.replace('"tanh"', '"exponential"', 1), "utf-8")
    code, out, err = ended(here("tv-verify plan.json --quiet", preexec_fn=within(mib)))
    assert code in (3, 4, 6) or (code == 1 and "REFUTED" in out), out + err


# Full disks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["tv-show plan.json", "tv-check {bundle} --quiet", "tv-emit plan.json --out b --no-solve --quiet"],
)
def test_output_that_cannot_be_written_is_6(here: Start, bundle: Path, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = ended(here(command.format(bundle=bundle), stdout=full))
    name = command.partition(" ")[0]
    assert code == 6 and err.splitlines()[-1].startswith(f"{name}: ") and "No space left on device" in err
    assert "Traceback" not in err and "Exception ignored" not in err


def test_who_closes_the_pipe_is_told_nothing(here: Start) -> None:
    """``tv-show plan.json | head -1`` used to end with 1."""
    reading, writing = os.pipe()
    os.close(reading)
    child = here("tv-show plan.json", stdout=writing)
    os.close(writing)
    assert ended(child)[0::2] == (141, "")


def test_a_disk_that_fills_up_while_a_bundle_is_written(here: Start, bundle: Path, tmp_path: Path) -> None:
    """What was there stays, and the next run has all answers that were found."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    code, out, err = ended(here("tv-emit plan.json --out b --quiet", preexec_fn=small_files))
    assert code == 6 and out.startswith("FAILED: ") and "File too large" in out and err == ""
    assert not (tmp_path / "b").exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"b.journal", "plan.json", "other.json", "tmp"}
    assert ended(here("tv-emit plan.json --out b --quiet"))[0] == 0
    assert contents(tmp_path / "b") == contents(bundle)


@pytest.mark.parametrize("name", ["report.txt", "report.html"])
def test_a_report_that_cannot_be_written_is_6(here: Start, bundle: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to("/dev/full")
    code, out, err = ended(here(f"tv-report {bundle} --out out --force"))
    assert (code, out) == (6, "") and err.startswith("tv-report: ") and err.count("\n") == 1


# Files of others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("notes.txt", "tv-emit plan.json --out b --answers notes.txt"),
        ("b.journal", "tv-emit plan.json --out b"),
    ],
)
def test_a_text_is_no_file_of_answers(here: Start, tmp_path: Path, name: str, command: str) -> None:
    (tmp_path / name).write_text("precious")
    code, _, err = ended(here(command))
    assert code == 2 and f"{name} exists and is no file of answers" in " ".join(err.split())
    assert (tmp_path / name).read_text() == "precious" and not (tmp_path / "b").exists()


@pytest.mark.parametrize("command", ["tv-emit {} --out b --no-solve", "tv-verify {} --out b"])
def test_the_bundle_of_another_plan_is_replaced_by_force_only(
    here: Start, tmp_path: Path, command: str
) -> None:
    assert ended(here("tv-emit plan.json --out b --no-solve --quiet"))[0] == 0
    before = contents(tmp_path / "b")
    code, _, err = ended(here(command.format("other.json")))
    assert code == 2 and "is the bundle of another plan" in " ".join(err.split())
    assert contents(tmp_path / "b") == before
    assert ended(here(f"{command.format('other.json')} --force --quiet"))[0] == 0
    assert contents(tmp_path / "b") != before


def test_folders_beside_a_bundle_are_nobodys_scratch(here: Start, tmp_path: Path) -> None:
    for name in (".b.old", ".b.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("precious")
    for _ in range(2):
        assert ended(here("tv-emit plan.json --out b --no-solve --quiet"))[0] == 0
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == {".b.old", ".b.partial"}
    assert (tmp_path / ".b.old" / "thesis.tex").read_text() == "precious"


# Hostile plans --------------------------------------------------------------------------------------------

COMMANDS = ["tv-emit {} --out b", "tv-verify {}", "tv-show {}", "tv-check {bundle} --plan {}"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("plan", ["pipe", "/dev/zero", "/dev/stdin", "huge"])
def test_pipes_devices_and_huge_files_are_no_plans(
    here: Start, bundle: Path, tmp_path: Path, command: str, plan: str
) -> None:
    """Who opens a pipe would wait for ever; a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as sparse:
        sparse.truncate(1 << 40)
    code, out, err = ended(here(command.format(plan, bundle=bundle)))
    assert code == 5 and "Traceback" not in err
    assert re.search(
        "no regular file|no plain file|over 1073741824 bytes|larger than|cannot be read", out + err
    )


# Races ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_emissions_side_by_side_share_their_answers(here: Start, bundle: Path, tmp_path: Path) -> None:
    """Two plans, one file of answers; a third run finds all of both."""
    racing = [
        here(f"tv-emit {plan}.json --out {plan} --answers answers --quiet --json")
        for plan in ("plan", "other")
    ]
    assert [ended(child)[0] for child in racing] == [0, 0]
    assert contents(tmp_path / "plan") == contents(bundle)
    for plan in ("plan", "other"):
        code, out, _ = ended(here(f"tv-emit {plan}.json --out again-{plan} --answers answers --quiet --json"))
        assert code == 0 and '"solver_answers": 0' in out


@pytest.mark.slow
def test_two_emissions_of_one_bundle_leave_one_bundle(here: Start, bundle: Path, tmp_path: Path) -> None:
    """Who is second finds the first one's answers or its bundle; neither leaves half of one."""
    racing = [here("tv-emit plan.json --out b --quiet") for _ in range(2)]
    codes = [ended(child)[0] for child in racing]
    assert set(codes) <= {0, 6} and 0 in codes
    assert contents(tmp_path / "b") == contents(bundle)
    assert {p.name for p in tmp_path.iterdir()} <= {"b", "b.journal", "plan.json", "other.json", "tmp"}
    assert ended(here("tv-emit plan.json --out b --quiet"))[0] == 0
    assert {p.name for p in tmp_path.iterdir()} == {"b", "plan.json", "other.json", "tmp"}
