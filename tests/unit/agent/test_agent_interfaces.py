"""Which network interface workers are told to use."""

from __future__ import annotations

import socket
from collections import namedtuple

import psutil
import pytest

from torchloom.agent.processes import interfaces

Address = namedtuple("Address", "family address")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interfaces.CHOSEN, raising=False)
    found = {
        "lo": [Address(socket.AF_INET, "127.0.0.1"), Address(socket.AF_INET, "10.9.9.9")],
        "eth0": [Address(socket.AF_PACKET, "02:00:00:00:00:01"), Address(socket.AF_INET, "192.168.0.5")],
        "ib0": [
            Address(socket.AF_INET, "10.0.0.5"),
            Address(socket.AF_INET6, "fd00::5"),
            Address(socket.AF_INET6, "fd00::6"),
            Address(socket.AF_INET6, "fe80::1%ib0"),
        ],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


def test_gloo_uses_the_interface_at_which_others_reach_the_host() -> None:
    assert interfaces.settings("10.0.0.5", 2) == {"GLOO_SOCKET_IFNAME": "ib0"}
    assert interfaces.settings("192.168.0.5", 2) == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert interfaces.settings("fd00::5", 2) == {"GLOO_SOCKET_IFNAME": "ib0"}


def test_nothing_is_set_where_it_would_not_help() -> None:
    assert interfaces.settings("10.0.0.5", 1) == {}, "one host needs no network"
    for address in ("127.0.0.1", "10.9.9.9", "8.8.8.8", "a-name", "fe80::1"):
        assert interfaces.settings(address, 2) == {}, address


def test_what_a_person_chose_counts_for_gloo_and_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interfaces.CHOSEN, "bond0")
    both = {"GLOO_SOCKET_IFNAME": "bond0", "NCCL_SOCKET_IFNAME": "bond0"}
    assert interfaces.settings("10.0.0.5", 2) == both


@pytest.mark.parametrize(
    ("named", "chosen"), [("127.0.1.1", "ib0"), ("::1", "ib0"), ("10.0.0.5", ""), ("", "ib0")]
)
def test_a_second_address_of_an_interface_is_better_than_loopback(
    named: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo takes the address of the host's name where no interface is named."""

    def look_up(*_: object) -> list[tuple[object, ...]]:
        if not named:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (named, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert interfaces.interface_of("fd00::6") == chosen
