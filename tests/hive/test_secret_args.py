"""Keys among a server's arguments."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pytest

from hive.server.flags.secret_args import without_secrets
from sglang_patches.hooks.server_args import around_repr, around_server_args_for_logging


def test_secrets_are_hidden_however_deep_they_are() -> None:
    arguments = {
        "api_key": "k",
        "port": 1,
        "states": [{"admin_api_key": "a", "x": [1, {"ssl_keyfile_password": "p"}]}],
    }
    assert without_secrets(arguments) == {
        "api_key": "***",
        "port": 1,
        "states": [{"admin_api_key": "***", "x": [1, {"ssl_keyfile_password": "***"}]}],
    }
    assert arguments["api_key"] == "k"


@pytest.mark.parametrize(
    "secret", ["plain", "two words", "it's", 'say "no"', "a'b\"c d", "back\\slash", "$HOME;"]
)
@pytest.mark.parametrize("join", [" ", "="])
def test_secrets_are_hidden_in_command_lines(secret: str, join: str) -> None:
    flag = f"--api-key{join}{shlex.quote(secret)}"
    command = f"python -m hive.launch_server {flag} --admin-api-key x --port 1 --api-key-file f"
    shown = without_secrets({"launch_command": command})["launch_command"]
    assert shown == (
        f"python -m hive.launch_server --api-key{join}*** --admin-api-key *** --port 1 --api-key-file f"
    )


def test_it_is_told_whether_there_is_one() -> None:
    assert without_secrets({"api_key": None, "admin_api_key": ""}) == {"api_key": None, "admin_api_key": ""}


def test_the_log_has_no_keys() -> None:
    @dataclass
    class ServerArgs:
        port: int = 1
        api_key: str | None = "it's a key"
        admin_api_key: str | None = "it's a key, too"
        ssl_keyfile_password: str | None = None

    shown = around_repr(ServerArgs.__repr__, ServerArgs())
    assert "key'" not in shown.replace("api_key='***'", "")
    assert shown.endswith("port=1, api_key='***', admin_api_key='***', ssl_keyfile_password=None)")
    fields = {"port": 1, "api_key": "k"}
    assert around_server_args_for_logging(dict, fields) == {"port": 1, "api_key": "***"}
