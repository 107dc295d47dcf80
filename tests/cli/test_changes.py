"""Commands that change something: checkpoints, and the key that is stored."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Ask, Call

import tinker
from tinker._basics import config as _config


def left(server: str, run: Any) -> set[str]:
    """Return the paths of the checkpoints that a run has."""
    found = tinker.RestClient(base_url=server).list_checkpoints(run.run_id).result(10).checkpoints
    return {checkpoint.tinker_path for checkpoint in found}


def test_publish_and_unpublish(call: Call, ask: Ask, run: Any) -> None:
    """Publish and unpublish confirm on stderr only; a change without effect is an error."""
    for command, public in (("publish", True), ("unpublish", False)):
        result = call("checkpoint", command, run.training)
        told = f"{run.training} is {'public' if public else 'private'}.\n"
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", told)
        assert ask(f"checkpoint info {run.training}")["public"] is public
    assert call(f"checkpoint unpublish {run.training}").exit_code == 1


def test_set_ttl(call: Call, ask: Ask, run: Any) -> None:
    """A time sets the expiry, --remove takes it away, and exactly one of them is given."""
    assert (
        call(f"checkpoint set-ttl {run.training} --ttl 7200").stderr
        == f"{run.training} expires in 7,200 seconds.\n"
    )
    assert ask(f"checkpoint info {run.training}")["expires_at"] is not None
    assert (
        call(f"checkpoint set-ttl {run.training} --remove").stderr
        == f"{run.training} never expires.\n"
    )
    assert ask(f"checkpoint info {run.training}")["expires_at"] is None
    for wrong in ([], ["--ttl", "7200", "--remove"]):
        assert call(f"checkpoint set-ttl {run.training}", *wrong).exit_code == 1


def test_delete_by_path(ask: Ask, call: Call, run: Any, server: str) -> None:
    """With JSON, one line reports the deletion."""
    result = call(f"-f json checkpoint delete -y {run.training} {run.training}")
    assert (result.exit_code, result.stdout) == (0, '{"deleted_count": 1, "failed": []}\n')
    assert left(server, run) == {run.sampler, run.external}
    assert call(f"checkpoint delete -y {run.sampler}").stdout == "Deleted 1 checkpoint\n"


def test_delete_in_part(call: Call, run: Any, server: str) -> None:
    """All deletable checkpoints are deleted; the others are named, and the command exits with 1."""
    result = call(f"-f json checkpoint delete -y {run.training}", f"{run.training}x")
    value = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (value["deleted_count"], [one["tinker_path"] for one in value["failed"]]) == (
        1,
        [f"{run.training}x"],
    )
    assert f"{run.training}x" in result.stderr
    assert run.training not in left(server, run)


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ([], []),
        (["--type", "weights"], ["sampler", "external"]),
        (["--type", "sampler"], ["training", "external"]),
        (["--after", "2020-01-01"], []),
        (["--before", "2020-01-01T08:00:00Z"], ["training", "sampler", "external"]),
    ],
)
def test_delete_of_a_run(
    conditions: list[str], kept: list[str], call: Call, run: Any, server: str
) -> None:
    """Those of a run go that meet every condition."""
    assert call(f"checkpoint delete --run-id {run.run_id}", *conditions, "-y").exit_code == 0
    assert left(server, run) == {getattr(run, name) for name in kept}


def test_delete_of_a_named_run(call: Call, server: str) -> None:
    """The name of a run stands for its ID, as where checkpoints are listed."""
    with tinker.ServiceClient(base_url=server) as service:
        training = service.create_lora_training_client(
            "tinker/toy", rank=4, user_metadata={"name": "to-delete"}
        )
        training.save_state("a").result(10)
    assert call("checkpoint delete --run-id to-delete -y").stdout == "Deleted 1 checkpoint\n"


@pytest.mark.parametrize(
    ("answer", "exit_code", "deleted"),
    [("y\n", 0, True), ("n\n", 0, False), ("\n", 0, False), ("", 1, False)],
)
def test_delete_asks(
    answer: str, exit_code: int, deleted: bool, call: Call, run: Any, server: str
) -> None:
    """Only a yes deletes; the end of the input is an error. The question is not on stdout."""
    result = call(f"checkpoint delete --run-id {run.run_id}", input=answer, code=exit_code)
    assert result.stdout == ("Deleted 3 checkpoints\n" if deleted else "")
    assert run.training in result.stderr
    assert left(server, run) == (set() if deleted else {run.training, run.sampler, run.external})


def test_delete_by_path_asks_about_what_is_there(call: Call, run: Any, server: str) -> None:
    """The question has the size of the checkpoint; nothing is asked about one that is not there."""
    assert re.search(
        rf"{run.training} \([\d.]+ KB, created ",
        call(f"checkpoint delete {run.training}", input="n\n").stderr,
    )
    result = call(f"checkpoint delete {run.training}", f"{run.training}x", input="y\n")
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: Checkpoint not found: {run.training}x\n",
    )
    assert run.training in left(server, run)


def test_delete_of_nothing(call: Call, run: Any) -> None:
    """That nothing meets the conditions is no error."""
    arguments = ("checkpoint", "delete", "--run-id", run.run_id, "--after", "2999-01-01")
    assert (
        call(*arguments).stdout == f"No checkpoints found for run {run.run_id} matching filters\n"
    )
    assert call("-f json", *arguments).stdout == '{"deleted_count": 0, "failed": []}\n'


@pytest.mark.parametrize("kind", ["training", "sampler", "external"])
def test_download(
    kind: str, ask: Ask, call: Call, refuse: Any, run: Any, server: str, tmp_path: Path
) -> None:
    """A checkpoint becomes a folder named after its path, replaced only with --force."""
    path = getattr(run, kind)
    value = ask(f"checkpoint download {path} -o out")
    folder = tmp_path / "out" / path.removeprefix("tinker://").replace("/", "_").replace(":", "_")
    assert value == {
        "checkpoint_path": path,
        "destination": str(folder.relative_to(tmp_path)),
        "file_size_bytes": (folder / "toy_adapter.npz").stat().st_size,
    }
    refuse(1, "already exists", f"checkpoint download {path} -o out", base_url=server)
    table = call(f"checkpoint download {path} -o out --force", code=0)
    assert str(folder.relative_to(tmp_path)) in table.stdout


def test_download_of_nothing(call: Call, run: Any, tmp_path: Path) -> None:
    """A checkpoint that is not there is one sentence about it, and leaves no folder."""
    for path in (f"{run.external}x", f"{run.training}x", f"{run.sampler}x"):
        result = call(f"checkpoint download {path}")
        (line,) = result.stderr.splitlines()[1:]
        assert (result.exit_code, line.startswith("Error: "), line.count(path)) == (1, True, 1)
        assert "request" not in line
    assert call("checkpoint download garbage").exit_code == 1
    assert not list(tmp_path.glob("tinker*"))
    assert not list(tmp_path.glob("*weights*"))


def test_push_without_a_login(
    call: Call, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a login at the hub, the error explains how to log in."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    result = call(f"checkpoint push-hf {run.external}", code=1)
    assert result.stderr.splitlines()[1:] == [
        "Error: not logged in to the Hugging Face Hub; run `hf auth login`, or set HF_TOKEN"
    ]


# Credentials


@pytest.fixture
def hosted(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Our own server as the hosted service; it takes one key, and gives tokens for it."""
    signed = tinker.types.ClientConfigResponse(pjwt_auth_enabled=True)
    url = serve(api_key="tml-key", client_config=signed)
    monkeypatch.setattr(_config, "HOSTED_URL", url)
    return url


def stored(tmp_path: Path) -> Any:
    return json.loads((tmp_path / ".tinker" / "credentials.json").read_text())


def test_login_and_logout(call: Call, ask: Ask, hosted: str, tmp_path: Path) -> None:
    """A key that the server takes is stored for its owner, used by default, and forgotten again."""
    login = call("auth login", base_url=hosted, input="tml-key\n", code=0)
    assert "Logged in as user@localhost (local user)" in login.stdout
    assert "keys?new_key=true&key_name=tinker-cli-" in login.stderr
    assert "tml-key" not in login.output
    file = tmp_path / ".tinker" / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    value = stored(tmp_path)
    (key_id,) = value["keys"]
    assert (value["version"], value["default"]) == (1, key_id)
    assert list(value["keys"][key_id]) == ["key", "type", "name", "note", "details"]
    assert ask("auth status", base_url=hosted) == {
        "credentials_available": True,
        "tinker_accessible": True,
    }
    assert list(ask("auth whoami", base_url=hosted)) == ["user_urn", "org_urn", "email"]
    assert "user@localhost" in call("auth whoami", base_url=hosted).stdout
    twice = call("auth login", base_url=hosted, input="tml-key\n")
    assert (twice.exit_code, "Already logged in" in twice.stderr) == (1, True)
    assert f"/keys/{key_id}" in call("auth logout", base_url=hosted, code=0).stdout
    assert stored(tmp_path) == {"version": 1, "keys": {}}
    assert call("auth logout", base_url=hosted).exit_code == 1


def test_login_with_a_wrong_key(call: Call, hosted: str, tmp_path: Path) -> None:
    """A refused key and an empty key are not stored."""
    refused = call("auth login", base_url=hosted, input="tml-wrong\n", code=1)
    assert "Authentication failed" in refused.stderr
    assert "tml-wrong" not in refused.output
    assert call("auth login", base_url=hosted, input="").exit_code == 1
    assert not (tmp_path / ".tinker").exists()


def test_logout_revokes_a_generated_key(call: Call, hosted: str, tmp_path: Path) -> None:
    """A generated key is removed and revoked, or its refusal reported; other keys stay."""
    file = tmp_path / ".tinker" / "credentials.json"
    file.parent.mkdir()
    other = {"type": "manual", "key": "tml-other", "name": "o", "later": [1]}
    content = {"version": 1, "new": True, "default": "7"}
    generated = {"type": "generated", "key": "tml-key", "name": "g"}
    file.write_text(json.dumps({**content, "keys": {"7": generated, "8": other}}))
    result = call("auth logout", base_url=hosted)
    assert (result.exit_code, result.stdout) == (0, "The key 'g' is removed and revoked.\n")
    assert stored(tmp_path) == {"version": 1, "new": True, "keys": {"8": other}}
    file.write_text(
        json.dumps(
            {**content, "keys": {"7": {**generated, "details": {"org_details": {"name": "Acme"}}}}}
        )
    )
    again = call("auth logout", base_url=hosted)
    assert (again.exit_code, "Its organization: Acme\n" in again.stdout) == (1, True)
    assert "could not be revoked" in again.stderr
    assert stored(tmp_path)["keys"] == {}


def test_stored_keys_are_for_the_hosted_service(refuse: Any, server: str) -> None:
    """Keys of other servers are not stored, as they would be sent to the hosted one."""
    for command in ("login", "logout"):
        refuse(1, "TINKER_API_KEY", "auth", command, base_url=server, input="tml-x\n")


NO_CREDENTIAL = """Error: No credential for the hosted service
Run `tinker auth login`, or set TINKER_API_KEY.
Without an account, use the local server: tinker --base-url local:// ...
"""


@pytest.mark.parametrize(
    "arguments",
    [("run", "list"), ("checkpoint", "download", "tinker://r/weights/a"), ("auth", "whoami")],
)
def test_a_command_without_a_credential(
    call: Call, hosted: str, arguments: tuple[str, ...]
) -> None:
    """Every command that needs a key says how to get one, in the words of ``auth status``."""
    result = call(*arguments, base_url=hosted)
    assert (result.exit_code, result.stderr) == (1, NO_CREDENTIAL)
    assert "local server: tinker --base-url local:// ..." in call("doctor", base_url=hosted).stdout


def test_status(call: Call, hosted: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status prints two lines; it exits with 1 if a needed credential is missing or refused."""
    none = call("auth status", base_url=hosted)
    assert (none.exit_code, none.stdout) == (
        1,
        "Credentials available: no\nTinker accessible: no\n",
    )
    assert none.stderr == NO_CREDENTIAL
    other = call("auth status", base_url=server)
    assert (other.exit_code, other.stdout) == (
        0,
        "Credentials available: no\nTinker accessible: yes\n",
    )
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    wrong = call("auth status", base_url=hosted)
    assert (wrong.exit_code, wrong.stdout) == (
        1,
        "Credentials available: yes\nTinker accessible: no\n",
    )
    assert "Authentication failed" in wrong.stderr


def test_auth_of_the_library(
    hosted: str, server: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``tinker.auth`` finds the credential that clients use, and checks it with one request."""
    assert tinker.auth.get_tinker_token() is None
    assert not tinker.auth.tinker_has_credentials()
    with pytest.raises(tinker.TinkerError, match="tinker auth login"):
        tinker.auth.raise_if_tinker_not_accessible()
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-key")
    assert tinker.auth.get_tinker_token() is None
    assert tinker.auth.tinker_has_credentials()
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD")
    call("auth login", base_url=hosted, input="tml-key\n")
    assert tinker.auth.get_tinker_token() == "tml-key"
    tinker.auth.raise_if_tinker_not_accessible()
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    assert tinker.auth.get_tinker_token() == "tml-wrong"
    with pytest.raises(tinker.AuthenticationError):
        tinker.auth.raise_if_tinker_not_accessible()
    monkeypatch.setenv("TINKER_BASE_URL", "nonsense")
    assert tinker.auth.get_tinker_token() is None
    assert not tinker.auth.tinker_has_credentials()
    with pytest.raises(tinker.TinkerError, match="ValueError"):
        tinker.auth.raise_if_tinker_not_accessible()
