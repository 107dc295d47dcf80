"""Settings by argument and variable, validated from every source, and documented."""

from __future__ import annotations

import base64
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import pytest

import tinker
from tinker import Config
from tinker._basics.config import CONNECTIONS, ConfigSettings, load_config, override
from tinker._http.auth import find_source
from tinker._http.messages import Purpose

NOTHING: Mapping[str, str] = {}


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("TINKER_CONNECTIONS", '{"sample": 64}', "connections", {"sample": 64}),
        ("TINKER_SAMPLE_SUBMISSIONS", "7", "sample_submissions", 7),
        ("TINKER_HEARTBEAT_SECONDS", "2.5", "heartbeat_seconds", 2.5),
        ("TINKER_HEARTBEAT_WARNING_SECONDS", "60", "heartbeat_warning_seconds", 60.0),
        ("TINKER_HEARTBEAT_LOST_SECONDS", "300", "heartbeat_lost_seconds", 300.0),
        ("TINKER_PROXY_HEADERS", '{"X-Team": "a"}', "proxy_headers", {"X-Team": "a"}),
        ("TINKER_TRACE_CONTEXT", "0", "trace_context", False),
        ("TINKER_DUMP_HTTP", "1", "dump_http", "-"),
        ("TINKER_DUMP_HTTP", "no", "dump_http", None),
        ("TINKER_DUMP_HTTP", "/tmp/Dump.jsonl", "dump_http", "/tmp/Dump.jsonl"),
    ],
)
def test_variables(variable: str, text: str, name: str, value: object) -> None:
    """A variable sets its setting, an empty one nothing, and an argument takes precedence."""
    default = getattr(load_config(environ=NOTHING), name)
    assert getattr(load_config(environ={variable: text}), name) == value
    assert getattr(load_config(environ={variable: ""}), name) == default
    given: dict[str, Any] = {name: getattr(Config(), name)}
    if given[name] is not None:
        assert getattr(load_config(environ={variable: text}, **given), name) == given[name]


WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("connections", {"nonsense": 1}, ValueError, "'nonsense' is not one of upload, sample"),
    ("connections", {"sample": 0}, ValueError, r"connections\['sample'\] must be at least 1"),
    ("connections", {"sample": 1.5}, TypeError, "must be an integer, got float"),
    ("sample_submissions", 0, ValueError, "sample_submissions must be at least 1"),
    ("sample_submissions", True, TypeError, "sample_submissions must be an integer, got bool"),
    ("heartbeat_seconds", 0, ValueError, "heartbeat_seconds must be above 0"),
    ("heartbeat_lost_seconds", math.nan, ValueError, "heartbeat_lost_seconds must be above 0"),
    (
        "heartbeat_warning_seconds",
        "soon",
        TypeError,
        "heartbeat_warning_seconds must be a number, got str",
    ),
    ("proxy_headers", {"a": "b\nc"}, ValueError, "header 'a' must not contain a line break"),
    ("proxy_headers", {"a": 1}, TypeError, "header 'a' must be a string"),
    ("wire", "xml", ValueError, "wire must be one of auto, proto, json"),
    ("base_url", 8000, TypeError, "base_url must be a string, got int"),
    *(
        ("patience_seconds", wrong, ValueError, "patience_seconds must be at least 0")
        for wrong in (-1, -0.1, math.nan)
    ),
    *(
        ("patience_seconds", wrong, TypeError, "patience_seconds must be a number")
        for wrong in ("3", True, [1], 1j)
    ),
]


@pytest.mark.parametrize(("name", "value", "error", "match"), WRONG)
def test_invalid_settings(name: str, value: Any, error: type[Exception], match: str) -> None:
    """An invalid setting is refused where it is given, whether loaded, constructed or changed."""
    given = {name: value}
    makers: tuple[Callable[..., Config], ...] = (load_config, Config, partial(override, Config()))
    for make in makers:
        with pytest.raises(error, match=match):
            make(**given)


def test_patience() -> None:
    """Any number from 0 is accepted."""
    for seconds in (None, 0, 2, 2.5, math.inf):
        config = load_config(patience_seconds=seconds, environ=NOTHING)
        assert config.patience_seconds == seconds


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TINKER_CONNECTIONS", "[1]"),
        ("TINKER_CONNECTIONS", '{"sample": "many"}'),
        ("TINKER_SAMPLE_SUBMISSIONS", "many"),
        ("TINKER_SAMPLE_SUBMISSIONS", "0"),
        ("TINKER_HEARTBEAT_SECONDS", "-1"),
        ("TINKER_HEARTBEAT_LOST_SECONDS", "nan"),
        ("TINKER_PROXY_HEADERS", "a: b"),
    ],
)
def test_invalid_variables(variable: str, text: str) -> None:
    """An invalid variable is a ValueError that names it."""
    with pytest.raises(ValueError, match=variable):
        load_config(environ={variable: text})


def test_unknown_settings() -> None:
    """An unknown setting is a TypeError, as is a value that is not settings."""
    with pytest.raises(TypeError, match="nonsense"):
        Config.load(nonsense=1)  # type: ignore[call-arg]
    wrong: Any = {"base_url": "local://toy"}
    with pytest.raises(TypeError, match=r"config must be a Config, got dict"):
        tinker.ServiceClient(config=wrong)


def test_a_client_with_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings replace the environment, and arguments of the client take precedence over both."""
    config = Config.load(
        base_url="http://one", api_key="tml-one", headers={"X-A": "a"}, heartbeat_seconds=3
    )
    monkeypatch.setenv("TINKER_BASE_URL", "http://other")
    service: Any = tinker.ServiceClient(
        config=config, api_key="tml-two", default_headers_overrides={"X-B": "b"}, fail_fast=True
    )
    chosen = service._config()
    assert (chosen.base_url, chosen.api_key, chosen.heartbeat_seconds, chosen.fail_fast) == (
        "http://one",
        "tml-two",
        3,
        True,
    )
    assert {"X-A": "a", "X-B": "b", "User-Agent": config.headers["User-Agent"]} == chosen.headers
    assert tinker.Config is Config


def test_the_repr_hides_secrets() -> None:
    """The repr of settings and of their credential shows no secret."""
    names = ["TINKER_PROXY_HEADERS", "TINKER_DEFAULT_HEADERS", "TINKER_DEFAULT_QUERY"]
    environ = {
        **dict.fromkeys(names, '{"X-A": "secret"}'),
        **dict.fromkeys(["TINKER_PROXY", "all_proxy"], "http://a:secret@b"),
    }
    for source in ({"TINKER_API_KEY": "tml-secret"}, {"TINKER_CREDENTIAL_CMD": "echo secret"}):
        config = load_config(environ={**environ, **source})
        assert "secret" not in f"{config} {find_source(config)}"


def test_every_pool_can_be_set() -> None:
    """Each purpose of a connection has a pool of its name in the settings, and the reverse."""
    assert {purpose.pool_name for purpose in Purpose} == CONNECTIONS.keys()


def test_every_setting_is_a_keyword() -> None:
    """`Config.load` accepts each setting by its name, and editors know it."""
    assert ConfigSettings.__annotations__.keys() - {"proxy"} == {
        field.name for field in attrs.fields(Config)
    }


def test_every_setting_is_documented() -> None:
    """The docstring has each setting, and a variable or an argument sets it."""
    lines = inspect.cleandoc(Config.__doc__ or "").splitlines()
    for field in attrs.fields(Config):
        assert any(line.startswith(f"    {field.name}: ") for line in lines), field.name
        assert field.metadata["variable"] or field.metadata["argument"], field.name


# Addresses and credentials


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://[::1:9/",
        "http://host:port",
        "http://host:99999",
        "http://",
        "https:///path",
        "http://user:hush@",
        "http://ho st",
        "http://host/a b",
        "http://host\n/x",
        "http://host?x=1",
        "http://host/#top",
        "http://user:hush@[::1",
        "ftp://host",
        "ftp://user:hush@host",
        "host:8000",
    ],
)
def test_invalid_addresses(url: str) -> None:
    """An invalid address is a ValueError of the constructor, without its password."""
    with pytest.raises(ValueError, match="base_url") as caught:
        tinker.ServiceClient(base_url=url)
    assert "hush" not in str(caught.value)
    with pytest.raises(ValueError, match="base_url"):
        load_config(environ={"TINKER_BASE_URL": url})


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("http://host", "http://host"),
        ("https://host:8443/a/b/", "https://host:8443/a/b"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("HTTP://host", "http://host"),
        ("Https://Host/A", "https://host/A"),
        ("LOCAL://toy?profile=skyrl", "local://toy?profile=skyrl"),
        ("local://", "local://"),
        ("local://toy?profile=skyrl", "local://toy?profile=skyrl"),
        ("http://user:hush@host:1/x", "http://host:1/x"),
        ("http://user@[::1]:1", "http://[::1]:1"),
        ("https://host:443", "https://host"),
        ("https://HOST/A", "https://host/A"),
        ("http://User@Host:80/", "http://host"),
        ("http://host:443", "http://host:443"),
        ("http://[::1]:80", "http://[::1]"),
        ("https://host:", "https://host"),
    ],
)
def test_addresses(url: str, known: str) -> None:
    """An address has no trailing slash, credentials, default port or upper-case host."""
    assert load_config(base_url=url, environ=NOTHING).base_url == known


@pytest.mark.parametrize(
    ("url", "pair"),
    [
        ("http://user:hush@host", "user:hush"),
        ("http://a%40b:c%3Ad@host", "a@b:c:d"),
        ("http://user@host", "user:"),
    ],
)
def test_a_password_in_the_address(url: str, pair: str) -> None:
    """A password in the address is a header, never shown; a header of the user comes first."""
    config = load_config(base_url=url, environ=NOTHING)
    assert config.headers["Authorization"] == f"Basic {base64.b64encode(pair.encode()).decode()}"
    assert "hush" not in repr(config)
    given = load_config(base_url=url, headers={"authorization": "Bearer b"}, environ=NOTHING)
    assert given.headers["Authorization"] == "Bearer b"


def test_the_password_of_the_environment() -> None:
    """A client of the address without its password takes it from the environment."""
    environ = {"TINKER_BASE_URL": "http://user:hush@host/x/"}
    assert "Authorization" in load_config(base_url="http://host/x", environ=environ).headers
    assert "Authorization" in load_config(environ=environ).headers
    assert "Authorization" not in load_config(base_url="http://other/x", environ=environ).headers
    assert "Authorization" not in load_config(base_url="local://toy", environ=environ).headers


@pytest.mark.parametrize("name", ["TINKER_PROXY", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("scheme", ["HTTP", "Https", "SOCKS5", "Socks5h"])
def test_the_scheme_of_a_proxy_has_no_case(name: str, scheme: str) -> None:
    """The scheme of a proxy has no case; the rest, which may be a password, is kept."""
    config = load_config(base_url="https://host", environ={name: f"{scheme}://Me:Hush@Proxy:1"})
    assert config.proxies.of("https://host") == f"{scheme.lower()}://Me:Hush@Proxy:1"


@pytest.mark.parametrize(
    "key",
    ["tml-hush\nX-Other: 1", "tml-hush\r\n x", "tml-hush\x00", "tml-h\u00fcsh", "tml-hush\u2028x"],
)
def test_keys_that_cannot_be_sent(key: str) -> None:
    """A key that cannot be sent is refused at once, and not shown."""
    for give in (
        lambda: tinker.ServiceClient(base_url="http://host", api_key=key),
        lambda: load_config(base_url="http://host", environ={"TINKER_API_KEY": key}),
    ):
        with pytest.raises(ValueError, match="must be one line of plain ASCII text") as caught:
            give()
        assert "sh" not in str(caught.value).replace("this", "")


@pytest.mark.parametrize("key", ["tml-key\n", " tml-key\r\n", "tml-key"])
def test_keys_from_files(key: str) -> None:
    """The trailing line break of a key file is not part of the key."""
    assert load_config(base_url="http://host", api_key=key, environ=NOTHING).api_key == "tml-key"
    assert load_config(base_url="http://host", environ={"TINKER_API_KEY": key}).api_key == "tml-key"


def test_an_empty_key_counts_as_none() -> None:
    """A blank argument leaves the key to the environment."""
    config = load_config(
        base_url="http://host", api_key=" \n", environ={"TINKER_API_KEY": "tml-key"}
    )
    assert config.api_key == "tml-key"


@pytest.mark.parametrize("header", [{"X-A": "a\nb"}, {"X-A\r\n": "a"}, {"X-A": "a\0"}])
def test_headers_with_a_line_break(header: dict[str, str]) -> None:
    """A header with a line break is refused, by name."""
    with pytest.raises(ValueError, match="must not contain a line break"):
        load_config(base_url="http://host", headers=header, environ=NOTHING)
