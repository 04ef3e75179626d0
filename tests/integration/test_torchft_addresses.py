"""Replicas on several hosts reach each other at the addresses of their nodes, not by host names."""

from __future__ import annotations

import json

import pytest
from torchft.process_group import ProcessGroupGloo

from torchloom.integrations import torchft


@pytest.mark.parametrize(("address", "found"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]")])
def test_process_groups_meet_at_the_address_of_a_node(
    monkeypatch: pytest.MonkeyPatch, address: str, found: str
) -> None:
    class Group(ProcessGroupGloo):  # of this test alone
        pass

    torchft._name_store(Group)
    monkeypatch.setenv("LOOM_NODE_ADDRESS", address)
    assert json.loads(Group().get_reconfigure_handle())["store"].rpartition(":")[0] == found
    monkeypatch.setenv("LOOM_NODE_ADDRESS", "127.0.0.1")
    assert json.loads(Group().get_reconfigure_handle())["store"].rpartition(":")[0] not in (found, "")
