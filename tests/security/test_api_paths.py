"""Many ways to write one path: whichever reaches an operation, the operation's role decides."""

from __future__ import annotations

import http.client
import itertools
from collections.abc import Iterator

import pytest
from api_routes import ROUTES, filled
from api_server import TOKEN, ApiServer, api_server

from torchloom.api.access_guard import OPEN_PATHS
from torchloom.api.app import create_app
from torchloom.api.roles import ADMINS_ONLY, OPEN, PROBES, READERS_MAY
from torchloom.api.tokens import Tokens
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.weaver.service import Weaver

SUFFIXES = (
    "",
    "/",
    "%0A",
    "%0a",
    "%0D%0A",
    "%00",
    "%09",
    "%20",
    "%2F",
    "//",
    "/.",
    "/..",
    ";a",
    "%3B",
    "?x",
    "%85",
)
PREFIXES = ("", "/", "/.", "/x/..", "/%2e", "%0A")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tokens_file=tmp_path_factory.mktemp("home") / "tokens.json") as made:
        yield made


def raw(server: ApiServer, method: str, path: str, token: str, body: bytes = b"{}", host: str = "") -> int:
    """One request whose path is sent exactly as given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.port}")
        connection.putheader("Authorization", f"Bearer {token}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_an_operator_cannot_make_an_admin_however_the_path_is_written(server: ApiServer) -> None:
    made = server.request("POST", "/tokens", {"name": "oper", "role": "operator"})[2]["token"]
    body = b'{"name": "mine", "role": "admin"}'
    http.client._contains_disallowed_url_pchar_re = http.client._contains_disallowed_method_pchar_re  # type: ignore[attr-defined]
    for stem in ("/tokens", "/api/v1/tokens", "/%74okens", "/TOKENS"):
        for prefix, suffix in itertools.product(PREFIXES, SUFFIXES):
            status = raw(server, "POST", prefix + stem + suffix, made, body)
            assert status in (400, 403, 404, 405, 307), f"{prefix + stem + suffix}: {status}"
    names = {token["name"] for token in server.request("GET", "/tokens")[2]}
    assert "mine" not in names


def test_no_way_to_write_a_route_lets_a_reader_change_or_anybody_in(server: ApiServer) -> None:
    reader = server.request("POST", "/tokens", {"name": "eye", "role": "read"})[2]["token"]
    for method, path in ROUTES:
        bare = path.removeprefix("/api/v1")
        if bare in OPEN_PATHS | {"/login/link", "/logout"}:
            continue
        for suffix in SUFFIXES:
            written = filled(path) + suffix
            if method not in ("GET", "HEAD"):
                status = raw(server, method, written, reader)
                assert status >= 400 or status == 307, f"{method} {written}: {status}"
            assert raw(server, method, written, "wrong") in (400, 401), f"{method} {written}"


@pytest.mark.parametrize("path", ["/health/ready", "/health/live", "/api/v1/health/ready"])
def test_probes_need_no_token(server: ApiServer, path: str) -> None:
    assert raw(server, "GET", path, "wrong", b"") == 200


def test_every_operation_has_a_name_that_its_role_hangs_on() -> None:
    app = create_app(Weaver(MemoryBus(MemoryHub())), Tokens("x"), "0")
    document = app.openapi()
    ids = {op["operationId"] for path in document["paths"].values() for op in path.values()}
    assert ids | PROBES >= ADMINS_ONLY | OPEN | READERS_MAY, (
        "no role is about an operation that does not exist"
    )
    tokens = {
        op["operationId"] for p, ops in document["paths"].items() if "/tokens" in p for op in ops.values()
    }
    assert tokens <= ADMINS_ONLY


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil",
        "[::1].evil:80",
        "127.0.0.1.evil",
        "localhost.evil",
        "[::1",
        "::1]",
        "127.0.0.1:80:90",
        "evil@127.0.0.1",
        "127.0.0.1:x",
        " ",
        "127.0.0.1/evil",
    ],
)
def test_a_host_that_only_looks_like_ours_is_refused(server: ApiServer, host: str) -> None:
    assert raw(server, "GET", "/jobs", TOKEN, host=host) in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]", "[::1]:8700", "LOCALHOST"])
def test_our_own_names_are_ours(server: ApiServer, host: str) -> None:
    assert raw(server, "GET", "/jobs", TOKEN, host=host) == 200
