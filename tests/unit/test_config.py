"""Configuration: invalid settings are refused where they are given, and secrets in them are not
exposed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

import tinker
from tinker._basics import config as _config

NOTHING: Mapping[str, str] = {}


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
        _config.load_config(environ={"TINKER_BASE_URL": url})


def test_an_address_must_be_text() -> None:
    """An address of another type is a TypeError that names the type."""
    wrong: Any = 8000
    with pytest.raises(TypeError, match="base_url must be a string, got int"):
        tinker.ServiceClient(base_url=wrong)


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
    """An address is normalised: no trailing slash, no credentials, no default port, a lower-case
    host.
    """
    assert _config.load_config(base_url=url, environ=NOTHING).base_url == known


@pytest.mark.parametrize(
    ("url", "pair"),
    [
        ("http://user:hush@host", "user:hush"),
        ("http://a%40b:c%3Ad@host", "a@b:c:d"),
        ("http://user@host", "user:"),
    ],
)
def test_a_password_in_the_address(url: str, pair: str) -> None:
    """Name and password in the address are sent as a header, and never shown; a header of the user
    takes precedence.
    """
    config = _config.load_config(base_url=url, environ=NOTHING)
    assert config.headers["Authorization"] == f"Basic {base64.b64encode(pair.encode()).decode()}"
    assert "hush" not in repr(config)
    given = _config.load_config(
        base_url=url, headers={"authorization": "Bearer b"}, environ=NOTHING
    )
    assert given.headers["Authorization"] == "Bearer b"


def test_the_password_of_the_environment() -> None:
    """A client of the address without its password, such as a sampler in another process, takes it
    from the environment.
    """
    environ = {"TINKER_BASE_URL": "http://user:hush@host/x/"}
    assert "Authorization" in _config.load_config(base_url="http://host/x", environ=environ).headers
    assert "Authorization" in _config.load_config(environ=environ).headers
    assert (
        "Authorization"
        not in _config.load_config(base_url="http://other/x", environ=environ).headers
    )
    assert (
        "Authorization" not in _config.load_config(base_url="local://toy", environ=environ).headers
    )


@pytest.mark.parametrize("name", ["TINKER_PROXY", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("scheme", ["HTTP", "Https", "SOCKS5", "Socks5h"])
def test_the_scheme_of_a_proxy_has_no_case(name: str, scheme: str) -> None:
    """The address of a proxy begins with its scheme in capitals or not; the rest, which may be a
    password, is kept.
    """
    config = _config.load_config(
        base_url="https://host", environ={name: f"{scheme}://Me:Hush@Proxy:1"}
    )
    assert config.proxies.of("https://host") == f"{scheme.lower()}://Me:Hush@Proxy:1"


@pytest.mark.parametrize("seconds", ["3", True, [1], 1j])
def test_patience_must_be_a_number(seconds: Any) -> None:
    """Patience of another type is a TypeError of the constructor."""
    with pytest.raises(TypeError, match="patience_seconds must be a number"):
        tinker.ServiceClient(base_url="http://host", patience_seconds=seconds)


@pytest.mark.parametrize("seconds", [-1, float("nan"), -0.1])
def test_invalid_patience(seconds: float) -> None:
    """Patience below 0, or not a number, is a ValueError of the constructor."""
    with pytest.raises(ValueError, match="patience_seconds must be at least 0"):
        tinker.ServiceClient(base_url="http://host", patience_seconds=seconds)


@pytest.mark.parametrize("seconds", [None, 0, 2, 2.5, float("inf")])
def test_patience(seconds: float | None) -> None:
    """Any number from 0 is accepted."""
    assert (
        _config.load_config(
            base_url="http://host", patience_seconds=seconds, environ=NOTHING
        ).patience_seconds
        == seconds
    )


@pytest.mark.parametrize(
    "key",
    ["tml-hush\nX-Other: 1", "tml-hush\r\n x", "tml-hush\x00", "tml-h\u00fcsh", "tml-hush\u2028x"],
)
def test_keys_that_cannot_be_sent(key: str) -> None:
    """A key that cannot be sent is refused at once, and not shown."""
    for give in (
        lambda: tinker.ServiceClient(base_url="http://host", api_key=key),
        lambda: _config.load_config(base_url="http://host", environ={"TINKER_API_KEY": key}),
    ):
        with pytest.raises(ValueError, match="must be one line of plain ASCII text") as caught:
            give()
        assert "sh" not in str(caught.value).replace("this", "")


@pytest.mark.parametrize("key", ["tml-key\n", " tml-key\r\n", "tml-key"])
def test_keys_from_files(key: str) -> None:
    """The trailing line break of a key file is not part of the key."""
    assert (
        _config.load_config(base_url="http://host", api_key=key, environ=NOTHING).api_key
        == "tml-key"
    )
    assert (
        _config.load_config(base_url="http://host", environ={"TINKER_API_KEY": key}).api_key
        == "tml-key"
    )


def test_an_empty_key_counts_as_none() -> None:
    """A blank argument leaves the key to the environment."""
    config = _config.load_config(
        base_url="http://host", api_key=" \n", environ={"TINKER_API_KEY": "tml-key"}
    )
    assert config.api_key == "tml-key"


@pytest.mark.parametrize("header", [{"X-A": "a\nb"}, {"X-A\r\n": "a"}, {"X-A": "a\0"}])
def test_headers_with_a_line_break(header: dict[str, str]) -> None:
    """A header with a line break is refused, by name."""
    with pytest.raises(ValueError, match="must not contain a line break"):
        _config.load_config(base_url="http://host", headers=header, environ=NOTHING)
