"""Addresses as a person types them, and as programs read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchloom.cli.cluster.ca import renew, retire, rotate
from torchloom.cli.cluster.cluster import init
from torchloom.cli.cluster.fetching import address_of
from torchloom.cli.cluster.host_files import ControlHost
from torchloom.errors import Conflict, UsageError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("10.0.0.1", "https://10.0.0.1:8700"),
        ("control:443", "https://control:443"),
        ("fd00::1", "https://[fd00::1]:8700"),
        ("[fd00::1]", "https://[fd00::1]:8700"),
        ("[fd00::1]:443", "https://[fd00::1]:443"),
        ("https://[fd00::1]:443", "https://[fd00::1]:443"),
    ],
)
def test_an_address_to_join_is_https_with_a_port(given: str, meant: str) -> None:
    assert address_of(given) == meant


@pytest.mark.parametrize("given", ["", "http://a", "a:b", "https://[fd00::1", "fd00::1:x", "a:99999999"])
def test_what_is_no_address_is_one_sentence(given: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        address_of(given)


def test_urls_of_a_host_with_an_ipv6_address_have_brackets() -> None:
    host = ControlHost("a", "fd00::1")
    assert host.server == "tls://[fd00::1]:4222"
    assert host.api == "https://[fd00::1]:8700"
    assert host.route == "nats-route://[fd00::1]:6222"


THREE = ["a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3"]


@pytest.mark.parametrize(
    ("hosts", "ports", "said"),
    [
        (["a=0.0.0.0", *THREE[1:]], {}, "nobody can reach the control host a"),
        (["a=127.0.0.1", *THREE[1:]], {}, "only a itself can reach 127.0.0.1"),
        (["ca=10.0.0.1", *THREE[1:]], {}, "cannot be named ca"),
        (THREE, {"port": 4222}, "three different numbers"),
        (THREE, {"nats_port": 99999}, "three different numbers"),
        (THREE, {"route_port": 0}, "three different numbers"),
        (THREE[:2], {}, "not 2"),
    ],
)
def test_what_would_fail_on_the_hosts_is_refused_before_anything_is_written(
    tmp_path: Path, hosts: list[str], ports: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        init(tmp_path / "prod", hosts, **ports)
    assert not (tmp_path / "prod").exists()


def test_an_authority_is_not_retired_before_the_hosts_have_certificates_of_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "prod"
    init(made, ["a=127.0.0.1"])
    retire(made)
    assert "nothing to retire" in capsys.readouterr().out
    rotate(made)
    both = (made / "ca" / "ca.pem").read_text()
    with pytest.raises(Conflict, match="signed by an authority that would be retired") as refused:
        retire(made)
    assert "loom ca renew" in str(refused.value) and (made / "ca" / "ca.pem").read_text() == both
    renew(made)
    retire(made)
    assert (made / "a" / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 1
