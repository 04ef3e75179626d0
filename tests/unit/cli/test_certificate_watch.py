"""When a nats-server is told to read its certificate again."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import cast

import pytest
import trustme

from torchloom.bus.cluster_nats import ClusterNats
from torchloom.cli.service.certificate_watch import CertificateWatch


class Host:
    """The files of a host, and a server that reads them when it starts and when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.ca, self.pem, self.key = (directory / name for name in ("ca.pem", "host.pem", "host.key"))
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(self.ca)
        self.renew()
        self.used: bytes | None = None
        self.runs = True
        self.watch = CertificateWatch(self.pem, self.key, self.ca)

    def renew(self) -> None:
        made = self.authority.issue_cert("localhost")
        made.private_key_pem.write_to_path(self.key)
        made.cert_chain_pems[0].write_to_path(self.pem)

    def read(self) -> None:
        self.used = ssl.PEM_cert_to_DER_cert(self.pem.read_text())

    def start(self) -> None:
        self.watch.starts()
        self.read()

    def look(self) -> bool:
        """Whether the server was told to read its files; it does."""
        return self.watch.look(cast(ClusterNats, self))

    def certificate(self) -> bytes | None:
        return self.used

    def reload(self) -> bool:
        if self.runs:
            self.read()
        return self.runs


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_server_is_told_once_for_each_replacement(host: Host) -> None:
    host.start()
    assert [host.look() for _ in range(3)] == [False] * 3
    host.renew()
    assert [host.look() for _ in range(3)] == [True, False, False]


def test_files_that_were_replaced_before_the_first_look_count(host: Host) -> None:
    host.start()
    host.renew()
    assert host.look()


def test_half_of_a_pair_is_waited_out_in_either_order(host: Host, tmp_path: Path) -> None:
    host.start()
    made = host.authority.issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(host.pem)  # as `scp {ca.pem,host.pem,host.key}` does
    assert not host.look() and not host.look()
    made.private_key_pem.write_to_path(host.key)
    assert host.look() and not host.look()


def test_a_file_with_an_older_date_counts(host: Host) -> None:
    host.start()
    assert not host.look()
    host.renew()
    for file in (host.pem, host.key):
        os.utime(file, (1, 1))
    assert host.look()


def test_an_adopted_server_may_have_read_anything(host: Host) -> None:
    host.read()
    host.renew()
    host.watch.adopted()
    assert host.look() and not host.look()


def test_a_server_that_did_not_take_it_is_told_again(host: Host) -> None:
    host.start()
    host.renew()
    before = host.used
    assert host.look()
    host.used = before
    assert host.look(), "it still proves itself with the old one"
    host.used = None
    host.renew()
    assert host.look()
    host.used = None
    assert not host.look(), "it does not answer now"


def test_a_server_that_is_away_is_told_when_it_is_back(host: Host) -> None:
    host.start()
    host.renew()
    host.runs = False
    assert not host.look()
    host.runs = True
    assert host.look() and not host.look()
