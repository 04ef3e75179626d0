"""Who may do what: every route with wrong, missing and read-only tokens; sessions; named tokens."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_routes import ROUTES, filled
from api_server import TOKEN, ApiServer, api_server

from torchloom.api.access_guard import COOKIE, OPEN_PATHS, PREFIX
from torchloom.api.tokens import Tokens
from torchloom.cli.service.weaver import main as weaver_main
from torchloom.errors import UsageError

BARE = {path.removeprefix(PREFIX) for _, path in ROUTES}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tokens_file=tmp_path_factory.mktemp("home") / "tokens.json") as made:
        yield made


@pytest.fixture(scope="module")
def reader(server: ApiServer) -> str:
    status, _, made = server.request("POST", "/tokens", {"name": "looker", "role": "read"})
    assert status == 201
    return str(made["token"])


def test_the_table_is_whole() -> None:
    classic = {
        ("GET", "/health"),
        ("POST", "/jobs"),
        ("GET", "/jobs"),
        ("GET", "/jobs/summaries"),
        ("GET", "/jobs/{job}"),
        ("GET", "/jobs/{job}/summary"),
        ("GET", "/jobs/{job}/logs"),
        ("GET", "/jobs/{job}/logs/stream"),
        ("POST", "/jobs/{job}/stop"),
        ("DELETE", "/jobs/{job}"),
        ("POST", "/jobs/purge"),
        ("GET", "/jobs/{job}/config"),
        ("GET", "/jobs/{job}/config/history"),
        ("PATCH", "/jobs/{job}/config"),
        ("POST", "/jobs/{job}/config/revert"),
        ("POST", "/jobs/{job}/pause"),
        ("POST", "/jobs/{job}/resume"),
        ("POST", "/jobs/{job}/checkpoint"),
        ("POST", "/jobs/{job}/restore"),
        ("GET", "/jobs/{job}/operations"),
        ("GET", "/jobs/{job}/operations/{operation}"),
        ("DELETE", "/jobs/{job}/operations/{operation}"),
    }
    assert classic <= set(ROUTES) and {(m, PREFIX + p) for m, p in classic} <= set(ROUTES)
    assert ("GET", "/openapi.json") in ROUTES and len(ROUTES) > 40


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], "\u00e9"])
def test_no_route_answers_without_a_valid_token(server: ApiServer, token: str | None) -> None:
    for method, path in ROUTES:
        if path.removeprefix(PREFIX) in OPEN_PATHS:
            continue
        status, headers, body = server.request(method, filled(path), token=token)
        assert status == 401, f"{method} {path}: {status}"
        assert headers["content-type"] == "application/problem+json"
        assert method == "HEAD" or body["type"] == "urn:torchloom:not-allowed"


def test_a_reader_may_read_everything_but_tokens_and_change_nothing(server: ApiServer, reader: str) -> None:
    for method, path in ROUTES:
        bare = path.removeprefix(PREFIX)
        if bare in OPEN_PATHS | {"/logout", "/login/link"}:
            continue
        status, _, body = server.request(method, filled(path), token=reader)
        forbidden = method not in ("GET", "HEAD") or bare.startswith("/tokens")
        assert (status == 403) == forbidden, f"{method} {path}: {status} {body}"


def test_other_ways_to_write_a_path_lead_nowhere(server: ApiServer, reader: str) -> None:
    for path in ("//tokens", "/api/v1//tokens", "/TOKENS", "/tokens/", "/api/v1/api/v1/tokens", "/%74okens"):
        assert server.request("GET", path, token=reader)[0] in (403, 404, 307), path
        assert server.request("GET", path, token="wrong")[0] == 401


def test_tokens_are_kept_as_hashes_in_a_private_file(server: ApiServer, reader: str) -> None:
    path = server._tokens_file
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and reader not in path.read_text()
    names = [token["name"] for token in server.request("GET", "/tokens")[2]]
    assert names[:2] == ["admin", "looker"]
    assert "token" not in server.request("GET", "/tokens")[2][0]
    assert server.request("POST", "/tokens", {"name": "looker"})[0] == 409
    assert server.request("GET", "/whoami", token=reader)[2] == {"name": "looker", "role": "read"}


def test_the_audit_names_the_token_and_a_removed_one_is_out(server: ApiServer) -> None:
    bob = server.request("POST", "/tokens", {"name": "bob", "role": "admin"})[2]["token"]
    job = server.request("POST", "/jobs", {"command": ["true"]}, token=bob, User_Agent="root")[2]["job"]
    assert server.request("GET", f"/jobs/{job}")[2]["by"] == "bob"
    assert server.request("DELETE", "/tokens/bob")[0] == 204
    assert server.request("GET", "/jobs", token=bob)[0] == 401
    assert server.request("DELETE", "/tokens/bob")[0] == 404
    assert server.request("DELETE", "/tokens/admin")[0] == 409


def test_a_damaged_file_of_tokens_opens_no_door(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens("first", path)
    made = tokens.add("bob", "admin").token
    assert tokens.who(made)
    path.write_text("[{")
    with pytest.raises(Exception, match="cannot be read"):
        tokens.who(made)
    assert tokens.who(made) is None and tokens.who("first")


def login(server: ApiServer, token: str) -> str:
    status, headers, who = server.request("POST", "/login", {"token": token}, token=None)
    assert status == 200 and who["role"]
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and token not in cookie
    return cookie.partition(";")[0]


def test_a_session_reads_and_changes_only_from_our_own_page(server: ApiServer) -> None:
    cookie = login(server, TOKEN)
    ours = f"http://127.0.0.1:{server.port}"
    assert server.request("GET", "/jobs", token=None, Cookie=cookie)[0] == 200

    def post(**headers: str) -> int:
        return server.request("POST", "/jobs", {"command": ["true"]}, token=None, Cookie=cookie, **headers)[0]

    assert post() == 403
    assert post(Origin="http://evil.example") == 403
    assert post(Origin=f"http://127.0.0.1:{server.port + 1}") == 403, "another port is another origin"
    assert post(Sec_Fetch_Site="same-site") == 403
    assert post(Sec_Fetch_Site="cross-site", Origin=ours) == 403
    assert post(Sec_Fetch_Site="same-origin", Origin="http://evil.example") == 403
    assert post(Sec_Fetch_Site="same-origin", Origin=ours) == 201
    assert post(Origin=ours) == 201


def test_a_session_ends_survives_a_restart_and_cannot_be_made_up(server: ApiServer, reader: str) -> None:
    cookie = login(server, reader)
    assert server.request("GET", "/jobs", token=None, Cookie=cookie)[0] == 200
    for wrong in (cookie[:-1], cookie.replace("looker", "admin"), f"{COOKIE}=", f"{COOKIE}=a.b.c", "x=\x01"):
        assert server.request("GET", "/jobs", token=None, Cookie=wrong)[0] == 401
    ours = f"http://127.0.0.1:{server.port}"
    body = {"command": ["true"]}
    assert server.request("POST", "/jobs", body, token=None, Cookie=cookie, Origin=ours)[0] == 403
    assert server.request("GET", "/jobs", token="wrong", Cookie=cookie)[0] == 401, "a wrong token is wrong"
    tokens = Tokens(TOKEN, server._tokens_file)
    who = tokens.who(reader)
    assert who is not None
    old = tokens.new_session(who, 0.0)
    assert tokens.session(old, 10.0) and tokens.session(old, 1e6) is None
    assert "Max-Age=0" in server.request("POST", "/logout", token=reader)[1]["set-cookie"]


def test_login_refuses_wrong_tokens_and_other_sites(server: ApiServer) -> None:
    assert server.request("POST", "/login", {"token": "wrong"}, token=None)[0] == 403
    evil = {"Origin": "http://evil.example"}
    assert server.request("POST", "/login", {"token": TOKEN}, token=None, **evil)[0] == 403


@pytest.mark.parametrize(
    "flags",
    [
        ["--host", "0.0.0.0"],
        ["--host", "192.0.2.7"],
        ["--host", "::"],
        ["--host", "0.0.0.0", "--tls-cert", "/nowhere.pem"],
        ["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.key"],
    ],
)
def test_binding_elsewhere_needs_tls_or_a_word(flags: list[str]) -> None:
    with pytest.raises(UsageError):
        weaver_main(flags)
