"""Keys among a server's arguments."""

from __future__ import annotations

from dataclasses import dataclass

from hive.secret_args import without_secrets
from sglang_patches.server_args import around_repr


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
