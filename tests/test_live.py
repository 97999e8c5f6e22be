"""The live page: what it answers, to whom, and that it renews itself only when the journal has grown."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import fakes
import pytest
from fakes import Project

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from starlette.testclient import TestClient

from kopt_mcp.__main__ import main
from kopt_mcp.report.live import SCRIPT, application
from kopt_mcp.report.page import policy

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def name(project: Project) -> str:
    return project.diagnosed()


@pytest.fixture
def client(project: Project, name: str) -> TestClient:
    return TestClient(application(project.root), base_url="http://127.0.0.1:8642", raise_server_exceptions=False)


def test_the_list_leads_to_each_experiment(client: TestClient, name: str) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert f'<a href="/{name}">{name}</a>' in answer.text
    assert "Running: diagnosed" in client.get(f"/{name}").text


def test_a_page_renews_itself_only_when_the_journal_has_grown(client: TestClient, name: str, project: Project) -> None:
    whole = client.get(f"/{name}").text
    tag = re.search(r'data-tag="(\w+)"', whole)
    assert tag is not None
    known = {"If-None-Match": f'"{tag[1]}"'}
    same = client.get(f"/{name}/view", headers=known)
    assert (same.status_code, same.content) == (304, b"")
    project.patch(name, fakes.kernel(1.5), hypothesis="half the loads")
    grown = client.get(f"/{name}/view", headers=known)
    assert grown.status_code == 200
    assert "half the loads" in grown.text
    assert grown.headers["ETag"] != known["If-None-Match"]
    assert client.get(f"/{name}/view", headers={"If-None-Match": grown.headers["ETag"]}).status_code == 304


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::1]", ""])
def test_only_our_own_names_are_answered(client: TestClient, name: str, host: str) -> None:
    answer = client.get(f"/{name}", headers={"Host": host})
    assert answer.status_code == 400
    assert name not in answer.text
    assert client.get(f"/{name}", headers={"Host": "localhost:8642"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed_through_it(client: TestClient, name: str, method: str) -> None:
    assert client.request(method, f"/{name}").status_code == 405


@pytest.mark.parametrize("path", ["/nope", "/..", "/%2e%2e", "/%2e%2e%2fsecret", "/nope/view", "/README.md", "/a/b/c"])
def test_what_is_no_experiment_is_not_found(client: TestClient, project: Project, path: str) -> None:
    (project.root / "secret").write_text("secret")
    answer = client.get(path)
    assert answer.status_code == (200 if path == "/.." else 404)  # a client makes `/` of `/..` itself
    assert "secret" not in answer.text.replace("%2fsecret", "").replace("'../secret'", "")


def test_every_answer_lets_only_our_own_script_run_and_nobody_frame_it(client: TestClient, name: str) -> None:
    for path in ("/", f"/{name}", f"/{name}/view", "/nope"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == policy(SCRIPT, "'self'") + "; frame-ancestors 'none'"
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert "unsafe-inline" not in policy(SCRIPT, "'self'").partition("style-src")[0]


def test_a_journal_that_is_damaged_is_said_to_be_and_the_server_goes_on(
    client: TestClient, name: str, project: Project
) -> None:
    journal = project.root / "experiments" / name / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b"{}\n")
    assert client.get(f"/{name}/view").status_code == 500
    assert "does not verify" in client.get(f"/{name}/view").text
    journal.write_bytes(whole)
    assert client.get(f"/{name}/view").status_code == 200


def test_a_port_that_is_taken_is_refused_with_another_one_to_try(
    project: Project, name: str, capsys: pytest.CaptureFixture[str], taken_port: int
) -> None:
    assert main(["--root", str(project.root), "report", name, "--watch", "--port", str(taken_port)]) == 1
    assert f"port {taken_port} of 127.0.0.1 cannot be had" in capsys.readouterr().err


@pytest.fixture
def taken_port() -> object:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_the_command_serves_on_loopback_until_it_is_interrupted(project: Project, name: str) -> None:
    command = [sys.executable, "-m", "kopt_mcp", "--root", str(project.root), "report", name, "--watch", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/{name}", address)
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert name in answer.read().decode()
        server.send_signal(2)
        server.communicate(timeout=30)
    assert server.returncode == 130
