"""The page's files, their headers, and the one-time link, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import http.client
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api_server import TOKEN, ApiServer, api_server
from starlette.types import Receive, Scope, Send

from torchloom.api.codes import CODE_S, Codes
from torchloom.api.page import Page
from torchloom.api.schemas.bodies import Identity


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(tokens_file=tmp_path / "tokens.json") as running:
        yield running


def get(server: ApiServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def test_the_page_needs_no_token_and_may_run_nothing_inline(server: ApiServer) -> None:
    status, headers, body = get(server, "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "frame-ancestors 'none'" in policy and headers["x-content-type-options"] == "nosniff"
    text = body.decode()
    assert "<script>" not in text and "style=" not in text and "://" not in text
    zipped = get(server, "/", Accept_Encoding="gzip")
    assert zipped[1]["content-encoding"] == "gzip" and gzip.decompress(zipped[2]) == body


def test_only_files_of_the_build_are_served(server: ApiServer) -> None:
    for path in ("/assets/../../page.py", "/assets/%2e%2e/index.html", "/assets/", "/assets//etc/passwd"):
        assert get(server, path)[0] == 404, path
    assert get(server, "/jobs")[0] == 401, "the API is not open"


def test_without_a_build_there_is_a_sentence(tmp_path: Path) -> None:
    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("not for the API")

    async def ask() -> bytes:
        transport = httpx.ASGITransport(Page(api, tmp_path))
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            return (await client.get("/")).content

    body = asyncio.run(ask()).decode()
    assert "make setup" in body and "/api/v1" in body


def test_a_link_signs_in_once_as_whoever_asked_for_it(server: ApiServer) -> None:
    reader = server.request("POST", "/tokens", {"name": "wall"})[2]["token"]
    code = server.request("POST", "/login/link", token=reader)[2]["code"]
    status, headers, who = server.request("POST", "/login", {"code": code}, token=None)
    assert status == 200 and who == {"name": "wall", "role": "read"}
    assert "HttpOnly" in headers["set-cookie"]
    assert server.request("POST", "/login", {"code": code}, token=None)[0] == 403, "it works once"
    assert server.request("POST", "/login", {"code": "x" * 32}, token=None)[0] == 403
    assert server.request("POST", "/login", {}, token=None)[0] == 422
    assert server.request("POST", "/login", {"code": code, "token": TOKEN}, token=None)[0] == 422
    assert server.request("POST", "/login/link", token=None)[0] == 401
    code = server.request("POST", "/login/link", token=reader)[2]["code"]
    server.request("DELETE", "/tokens/wall")
    assert server.request("POST", "/login", {"code": code}, token=None)[0] == 403, "it ends with its token"


def test_codes_end_in_time_and_are_bounded() -> None:
    codes, who = Codes(), Identity(name="a", role="read")
    late = codes.make(who, 0.0)
    assert codes.take(late, CODE_S + 1) is None and codes.take(late, 0.0) is None
    first = codes.make(who, 0.0)
    for _ in range(1000):
        codes.make(who, 0.0)
    assert codes.take(first, 1.0) is None
    assert codes.take(codes.make(who, 0.0), 1.0) == who
