"""The user's interpreter is found in the order that the README says, and a refusal names the line to run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kopt_mcp.evaluator.client import TOO_OLD, unusable
from kopt_mcp.interpreter import OWN, Interpreter, find, install_line


def environment_at(folder: Path, *, pip: bool = True) -> Path:
    """A virtual environment as far as it can be told from its files; its interpreter."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "lib" / "python3.12" / "site-packages" / ("pip" if pip else "torch")).mkdir(parents=True)
    return python


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_each_place_wins_over_those_after_it(root: Path, tmp_path: Path) -> None:
    project, active = environment_at(root / ".venv"), environment_at(tmp_path / "active")
    conda = environment_at(tmp_path / "conda")
    environment = {
        "KOPT_PYTHON": "python3.13",
        "VIRTUAL_ENV": str(tmp_path / "active"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
    }
    assert find(root, "/opt/torch/bin/python", environment).path == "/opt/torch/bin/python"
    assert find(root, None, environment) == Interpreter("python3.13", "KOPT_PYTHON")
    del environment["KOPT_PYTHON"]
    assert find(root, None, environment) == Interpreter(str(project), "the project's .venv")
    project.unlink()
    assert find(root, None, environment) == Interpreter(str(active), "VIRTUAL_ENV")
    del environment["VIRTUAL_ENV"]
    assert find(root, None, environment) == Interpreter(str(conda), "CONDA_PREFIX")
    assert find(root, None, {}).origin == OWN


def test_an_interpreter_that_cannot_run_is_passed_over(root: Path) -> None:
    link = root / ".venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to("/gone/python3.9")
    assert find(root, None, {}).origin == OWN


def test_a_server_without_torch_takes_the_systems_python(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    system = root / "usr"
    environment_at(system).rename(system / "bin" / "python3")
    path = f"relative:{sys.prefix}/bin:{system}/bin"
    assert find(root, None, {"PATH": path}) == Interpreter(str(system / "bin" / "python3"), "python3 on PATH")
    assert find(root, None, {"PATH": f"{sys.prefix}/bin"}).origin == OWN


@pytest.mark.parametrize("given", ["env", "./env", "env/bin/python"])
def test_a_virtual_environment_stands_for_its_interpreter(root: Path, given: str) -> None:
    python = environment_at(root / "env")
    assert Path(find(root, given, {}).path) == python
    assert Path(find(root, None, {"KOPT_PYTHON": given}).path) == python


def test_a_home_is_expanded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find(root, "~/venv/bin/python", {}).path == f"{tmp_path}/venv/bin/python"


def test_the_line_to_run_fits_how_the_environment_was_made(tmp_path: Path) -> None:
    with_pip, of_uv = environment_at(tmp_path / "a"), environment_at(tmp_path / "b", pip=False)
    assert install_line(str(with_pip)) == f"`{with_pip} -m pip install torch`"
    assert install_line(str(with_pip), again=True) == f"`{with_pip} -m pip install --force-reinstall torch`"
    assert install_line(str(of_uv), "triton") == f"`uv pip install --python {of_uv} triton`"
    own = "`python3 -m venv .venv && .venv/bin/python -m pip install torch` in the project's folder"
    assert install_line("/usr/bin/python3") == own
    assert install_line("python3") == own


def test_an_environment_made_for_the_server_alone_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_uvx = environment_at(tmp_path, pip=False)
    monkeypatch.setattr(sys, "executable", str(of_uvx))
    assert install_line(str(of_uvx)).startswith("`python3 -m venv .venv && ")


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ("Traceback\nModuleNotFoundError: No module named 'torch'\n", "has no torch; run `python3 -m venv"),
        (f"{TOO_OLD}Python 3.8, and 3.10 or newer is needed\n", "is Python 3.8, and 3.10 or newer is needed; set `py"),
        (
            '  File "harness.py", line 25\n    import torch\n  File "x"\nImportError: libcudart.so.13: cannot open\n',
            "torch does not import in the interpreter '/usr/bin/python3' (ImportError: libcudart.so.13: cannot open); ",
        ),
    ],
)
def test_what_an_interpreter_lacks_is_said_with_the_next_step(said: str, refusal: str) -> None:
    error = unusable("/usr/bin/python3", said)
    assert error is not None
    assert refusal in str(error)
    assert str(error).endswith("set `python:` in kopt.yaml or KOPT_PYTHON to the one that has your torch.")


def test_other_last_words_are_not_the_interpreters_fault() -> None:
    assert unusable("/usr/bin/python3", "") is None
    assert unusable("/usr/bin/python3", "    import torch\nKilled\n") is None
