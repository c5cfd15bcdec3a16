"""The files that docs/containers.md deploys with: they parse, and what they run works."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest
import yaml

from agentstore import Store
from agentstore.settings import variable
from examples.service import service

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
DOCKERFILE = re.search(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)[1]
COMPOSE, KUBERNETES, PROBE = (
    [*yaml.safe_load_all(text)] for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
)
COPIED = [line.split()[1:] for line in DOCKERFILE.splitlines() if line.startswith("COPY")]


def lists_of_commands(found):
    """Give every list that begins a command, wherever it stands in a document."""
    if isinstance(found, dict):
        for each in found.values():
            yield from lists_of_commands(each)
    elif isinstance(found, list):
        words = found[1:] if found[:1] == ["CMD"] else found
        if words[:1] == ["agentstore"]:
            yield words[1:]
        for each in found:
            yield from lists_of_commands(each)
    elif isinstance(found, str) and found.startswith("agentstore "):
        yield shlex.split(found)[1:]


def test_every_command_that_deploys_works_in_its_order(run, empty_url):
    commands = [*lists_of_commands(COMPOSE), *lists_of_commands(KUBERNETES)]
    commands += lists_of_commands(PROBE)
    assert [words[0] for words in commands] == ["upgrade", "health", "upgrade", "current", "health"]
    for words in commands:
        run(*words, AGENTSTORE_URL=empty_url)


def test_the_services_of_compose_wait_for_each_other_and_have_their_settings():
    (document,) = COMPOSE
    services = document["services"]
    for service_ in services.values():
        for name, wanted in service_.get("depends_on", {}).items():
            healthy = wanted["condition"] == "service_healthy"
            assert ("healthcheck" in services[name]) >= healthy
            assert healthy or wanted["condition"] == "service_completed_successfully"
        volumes = [each.partition(":")[0] for each in service_.get("volumes", ())]
        assert set(volumes) <= document["volumes"].keys()
    assert services["migrate"]["environment"] == services["service"]["environment"]
    assert services["service"]["environment"].keys() == {variable("url"), "PGPASSWORD"}
    assert services["database"]["environment"]["POSTGRES_DB"] == "agents"


def test_probes_leave_the_command_more_time_than_it_takes_itself():
    (probe,) = PROBE
    (words,) = lists_of_commands(PROBE)
    assert probe["readinessProbe"]["timeoutSeconds"] > float(words[-1].removesuffix("s"))
    job, deployment = KUBERNETES
    assert (job["kind"], deployment["kind"]) == ("Job", "Deployment")
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    probe = container["readinessProbe"]["httpGet"]
    assert probe["port"] in {port["containerPort"] for port in container["ports"]}


def test_the_image_has_the_files_that_the_package_and_its_start_need():
    copied = {source.rstrip("/") for *sources, _ in COPIED for source in sources}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert needed | {*wheel["packages"], *wheel["force-include"]} <= copied
    assert all((ROOT / source).exists() for source in copied)
    started = json.loads(DOCKERFILE.strip().splitlines()[-1].removeprefix("CMD "))
    assert ["examples/service.py", started[1]] in COPIED


@pytest.mark.packaging
def test_the_package_is_built_from_the_files_of_the_image(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    for *names, place in COPIED:
        for name in names if place.startswith("/src") else ():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name)
            else:
                shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"agentstore/cli/operations.py", "agentstore/_alembic/env.py"} <= set(names)


def test_the_service_saves_reads_and_says_how_it_is(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'agent.db'}") as store, service(store, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(path, body=None):
            address = f"http://127.0.0.1:{server.server_port}{path}"
            try:
                with urllib.request.urlopen(address, body, timeout=20) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        try:
            assert ask("/sessions/s/messages", b'{"role": "user", "content": "hi"}')[1] == {
                "seq": 1
            }
            said = [{"seq": 1, "role": "user", "content": "hi"}]
            assert ask("/sessions/s/messages") == (200, said)
            assert ask("/health") == (200, {"ok": True, "reason": None})
            assert ask("/sessions/s/messages", b"{}")[0] == 400
            assert ask("/sessions/none/messages")[0] == 422
            assert ask("/nothing")[0] == 404
            store.close()
            assert ask("/health")[0] == 503
        finally:
            server.shutdown()
