"""Which cluster a command speaks to, and the private file that names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchloom.cli.access.contexts import Contexts, choose, contexts_file
from torchloom.cli.main import place_behind_verb, run
from torchloom.client import Endpoint
from torchloom.client.endpoint import is_loopback
from torchloom.errors import NotAllowed, NotFound, UsageError
from torchloom.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("LOOM_ADDRESS", "LOOM_TOKEN", "LOOM_CONTEXT"):
        # Set first, so that what `choose` sets is undone too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    return tmp_path


def add(*names: str, current: str = "local") -> None:
    contexts = Contexts.read()
    for name in names:
        contexts.add(name, f"https://{name}.example:8700", f"token-of-{name}")
    contexts.current = current
    contexts.write()


def test_the_file_is_private_and_beside_the_home(home: Path) -> None:
    add("prod")
    assert contexts_file() == home / "contexts.json"
    assert contexts_file().stat().st_mode & 0o777 == 0o600


def test_without_a_home_it_is_among_the_users_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOM_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    add("prod")
    assert contexts_file() == home / "settings" / "torchloom" / "contexts.json"
    assert Contexts.read().named["prod"]["token"] == "token-of-prod"


def test_the_flag_wins_over_everything(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add("prod", "lab", current="lab")
    monkeypatch.setenv("LOOM_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("LOOM_CONTEXT", "lab")
    assert choose("prod") == "prod"
    assert Endpoint.find() == Endpoint("https://prod.example:8700", "token-of-prod")


def test_then_home_then_address_then_context_then_the_current_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("prod", "lab", current="lab")
    assert choose(None, home_given=True) == "local" and "LOOM_ADDRESS" not in os.environ
    with monkeypatch.context() as inner:
        inner.setenv("LOOM_ADDRESS", "http://127.0.0.1:1")
        assert choose(None) == "local" and os.environ["LOOM_ADDRESS"] == "http://127.0.0.1:1"
    with monkeypatch.context() as inner:
        inner.setenv("LOOM_CONTEXT", "prod")
        assert choose(None) == "prod"
    del os.environ["LOOM_ADDRESS"], os.environ["LOOM_TOKEN"]
    assert choose(None) == "lab"


def test_local_forgets_an_address_and_its_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_ADDRESS", "https://far.example")
    monkeypatch.setenv("LOOM_TOKEN", "of-far")
    assert choose("local") == "local"
    assert "LOOM_ADDRESS" not in os.environ and "LOOM_TOKEN" not in os.environ


def test_an_unknown_context_names_the_known_ones(home: Path) -> None:
    add("prod")
    with pytest.raises(NotFound, match="local, prod"):
        choose("nope")


def test_a_damaged_file_is_not_taken_for_an_empty_one(home: Path) -> None:
    contexts_file().write_text('{"current": "prod", "contexts": {"prod"')
    with pytest.raises(UsageError, match="damaged"):
        choose(None)


def test_removing_the_current_one_leaves_the_local_one(home: Path) -> None:
    add("prod", current="prod")
    contexts = Contexts.read()
    contexts.remove("prod")
    contexts.write()
    assert (Contexts.read().current, Contexts.read().named) == ("local", {})


@pytest.mark.parametrize("name", ["local", "Prod", "a/b", "", "-x"])
def test_names_are_checked(home: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Contexts.read().add(name, "https://x", "t")


def test_the_token_of_this_host_never_goes_to_another(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Home(home).token_file.write_text("mine\n")
    monkeypatch.setenv("LOOM_ADDRESS", "far.example:8700")
    with pytest.raises(NotAllowed, match="LOOM_TOKEN"):
        Endpoint.find()
    monkeypatch.setenv("LOOM_ADDRESS", "127.0.0.1:8700")
    assert (Endpoint.find().url, Endpoint.find().token) == ("http://127.0.0.1:8700", "mine")


def test_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(Endpoint("http://127.0.0.1", "secret"))


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost", True),
        ("http://127.0.0.1.evil.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_what_is_loopback(url: str, ours: bool) -> None:
    assert is_loopback(url) is ours


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--context", "prod", "ps"], ["ps", "--context", "prod"]),
        (["--context=prod", "ps", "--json"], ["ps", "--context=prod", "--json"]),
        (["--home", "/x", "token", "list"], ["token", "list", "--home", "/x"]),
        (["ps", "--context", "prod"], ["ps", "--context", "prod"]),
        ([], []),
    ],
)
def test_the_place_may_stand_before_the_verb(typed: list[str], meant: list[str]) -> None:
    assert place_behind_verb(typed) == meant


def test_the_verbs_of_contexts(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = home / "secret"
    secret.write_text("hush\n")
    assert run(["context", "add", "prod", "http://train.example:8700", "--token-file", str(secret)]) == 0
    assert "unencrypted" in capfd.readouterr().err
    assert run(["context", "use", "prod"]) == 0
    assert run(["context", "list"]) == 0
    shown = capfd.readouterr().out
    assert "train.example" in shown and "hush" not in shown
    assert run(["context", "list", "--json"]) == 0
    assert '"hush"' not in capfd.readouterr().out
    assert run(["context", "use", "nope"]) == 3
    assert run(["context", "add", "bad", "ftp://x", "--token-file", str(secret)]) == 2
    assert run(["context", "remove", "prod"]) == 0
    assert Contexts.read().named == {}
