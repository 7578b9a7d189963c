"""The images and the compose files, as far as that can be told without Docker.

What the servers and the router run is started by ``test_router.py``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hive.launch_server import split_args
from hive.server.embedded_model import CACHE_VARIABLE
from tests.router.compose import DOCKER, ROUTER, SERVERS, command, compose

ROOT = DOCKER.parent
FILES = ("compose.yaml", "compose.cuda.yaml")
DOCKERFILES = ("Dockerfile.cpu", "Dockerfile.cuda")


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in FILES:
        yield from compose(name)["services"].items()


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Source and target of the volumes of a service."""
    for volume in service.get("volumes", ()):
        if isinstance(volume, dict):
            yield volume["source"], volume["target"]
        else:
            source, target = volume.split(":")[:2]
            yield source, target


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("service", SERVERS)
def test_flags_of_servers_are_known(service: str, file: str) -> None:
    server_args = pytest.importorskip("sglang.srt.server_args", reason="needs the server extra")
    found = command(service, file)
    assert found.module == "hive.launch_server"
    _, rest = split_args(found.flags)
    # A path or model is asked for by SGLang's parser; without one, Hive fills in the embedded model's.
    model = [] if "--model-path" in rest else ["--model-path", "embedded"]
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    server_args.ServerArgs.add_cli_args(parser)
    parsed, unknown = parser.parse_known_args([*rest, *model])
    assert not unknown
    assert parsed.enable_metrics


def test_flags_of_the_router_are_known() -> None:
    launch_router = pytest.importorskip("sglang_router.launch_router", reason="needs the router extra")
    found = command(ROUTER)
    assert found.module == "sglang_router.launch_router"
    arguments = launch_router.parse_router_args([*found.flags])
    assert arguments.policy == "manual"
    assert arguments.worker_urls == [f"http://{service}:{command(service).port}" for service in SERVERS]
    # A request is still being tried when a dead server has been left out.
    pauses = [
        arguments.retry_initial_backoff_ms / 1000 * arguments.retry_backoff_multiplier**number
        for number in range(arguments.retry_max_retries - 1)
    ]
    least = sum(pauses) * (1 - arguments.retry_jitter_factor)
    assert least > arguments.health_check_interval_secs * arguments.health_failure_threshold


@pytest.mark.parametrize("file", FILES)
def test_the_servers_are_alike(file: str) -> None:
    one, two = (command(service, file) for service in SERVERS)
    assert one == two


def test_everything_is_published_on_loopback_alone() -> None:
    published = [port for _, service in services() for port in service.get("ports", ())]
    assert len(published) == len(set(published)) == 5
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    for service in (*SERVERS, ROUTER):
        (port,) = compose()["services"][service]["ports"]
        assert port.endswith(f":{command(service).port}")


def test_images_are_built_here_or_pinned() -> None:
    built = {f"hive:{file.partition('.')[2]}" for file in DOCKERFILES}
    for name, service in services():
        assert service["image"] in built or re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        if "build" in service:
            dockerfile = service["build"]["dockerfile"]
            assert (ROOT / dockerfile).is_file()
            assert service["image"] == f"hive:{dockerfile.rpartition('.')[2]}"
    # Where a file stands in the context is told from the compose file's folder.
    assert (DOCKER / compose()["services"][SERVERS[0]]["build"]["context"]).resolve() == ROOT


def test_what_is_mounted_is_there() -> None:
    named = compose()["volumes"]
    for name, service in services():
        for source, target in mounts(service):
            if source.startswith("."):
                assert (DOCKER / source).exists(), (name, source)
            else:
                assert source in named or source.startswith("${"), (name, source)
            assert target.startswith("/")


def test_dependencies_are_services() -> None:
    for _, service in services():
        assert set(service.get("depends_on", ())) <= compose()["services"].keys()
    assert compose("compose.cuda.yaml")["services"].keys() <= compose()["services"].keys()


def test_prometheus_asks_all_that_have_metrics() -> None:
    jobs = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for part in job["static_configs"] for target in part["targets"]}
    at = command(ROUTER).flags.index("--prometheus-port") + 1
    of_servers = {f"{service}:{command(service).port}" for service in SERVERS}
    assert targets == of_servers | {f"{ROUTER}:{command(ROUTER).flags[at]}"}


def test_grafana_has_the_dashboard_and_prometheus() -> None:
    targets = dict(mounts(compose()["services"]["grafana"]))
    (provider,) = yaml.safe_load((DOCKER / "grafana/dashboards.yaml").read_text())["providers"]
    folder = next(source for source, target in targets.items() if target == provider["options"]["path"])
    dashboards = [json.loads(path.read_text()) for path in (DOCKER / folder).glob("*.json")]
    assert [dashboard["uid"] for dashboard in dashboards] == ["hive"]
    (source,) = yaml.safe_load((DOCKER / "grafana/datasources.yaml").read_text())["datasources"]
    (port,) = compose()["services"]["prometheus"]["ports"]
    assert source["url"] == f"http://prometheus:{port.rpartition(':')[2]}"


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_are_made_of_what_the_context_has(dockerfile: str) -> None:
    text = (DOCKER / dockerfile).read_text()
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()}
    kept = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "examples"}
    assert packages <= copied
    (run,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    assert json.loads(run) == compose()["services"][SERVERS[0]]["command"][:7]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_model_is_unpacked_into_the_volume(dockerfile: str) -> None:
    (folder,) = re.findall(rf"{CACHE_VARIABLE}=(\S+)", (DOCKER / dockerfile).read_text())
    assert ("cache", folder) in set(mounts(compose()["services"][SERVERS[0]]))


def test_nothing_else_is_in_the_folder() -> None:
    """What is added is looked over here, too."""
    found = {str(path.relative_to(DOCKER)) for path in DOCKER.rglob("*") if path.is_file()}
    known = {*FILES, *DOCKERFILES, "prometheus.yml", "grafana/dashboards.yaml", "grafana/datasources.yaml"}
    assert found == known
