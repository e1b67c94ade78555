"""What users write, checked by the two type checkers that they use, strictly.

A line with the comment `# expect error` is a mistake that both checkers must find; no other line may have an error.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "tests" / "typing").glob("*.py"))
MARK = "# expect error"

Found = dict[str, dict[int, list[str]]]  # by file and line: what a checker says


def readme_programs() -> dict[str, str]:
    """The programs of README: its first server with the tools that come later, and the rest each for itself."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    first, *rest = blocks
    more = [block for block in rest if "@server.tool" in block]
    main = 'if __name__ == "__main__":'
    whole = first.replace(main, "\n\n".join([*more, main]))
    others = [block for block in rest if block not in more]
    return {"readme_server.py": whole, **{f"readme_{number}.py": block for number, block in enumerate(others, 1)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, away from the settings of this project."""
    folder = tmp_path_factory.mktemp("typing")
    for program in PROGRAMS:
        (folder / program.name).write_text(program.read_text())
    for name, text in readme_programs().items():
        (folder / name).write_text(text)
    return folder


def by_pyright(folder: Path) -> Found:
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["."]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert told["summary"]["filesAnalyzed"] >= len(PROGRAMS)
    found: Found = {}
    for one in told["generalDiagnostics"]:
        if one["severity"] == "error":
            lines = found.setdefault(Path(one["file"]).name, {})
            lines.setdefault(one["range"]["start"]["line"] + 1, []).append(one["message"])
    return found


def by_mypy(folder: Path) -> Found:
    files = sorted(path.name for path in folder.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(folder / ".cache")]
    ended = subprocess.run(
        [*command, "--python-version", "3.11", "--no-error-summary", *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    found: Found = {}
    for file, line, text in re.findall(r"^([\w.]+):(\d+): error: (.*)$", ended.stdout, re.MULTILINE):
        found.setdefault(file, {}).setdefault(int(line), []).append(text)
    return found


@pytest.mark.parametrize("check", [by_pyright, by_mypy])
def test_users_programs(folder: Path, check: object) -> None:
    assert callable(check)
    found: Found = check(folder)
    unexpected: list[str] = []
    missed: list[str] = []
    for file in sorted(folder.glob("*.py")):
        errors = found.get(file.name, {})
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if MARK in line and number not in errors:
                missed.append(f"{file.name}:{number}: {line.strip()}")
            if MARK not in line and number in errors:
                unexpected.append(f"{file.name}:{number}: {line.strip()}\n    {errors[number]}")
    assert unexpected == [], "errors where there should be none:\n" + "\n".join(unexpected)
    assert missed == [], "mistakes that were not found:\n" + "\n".join(missed)


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) >= 10
    assert sum(program.read_text().count(MARK) for program in PROGRAMS) >= 30
