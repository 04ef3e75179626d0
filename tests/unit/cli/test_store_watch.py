"""A nats-server that stores nothing: after a full disk it is restarted soon, without a quorum hardly ever."""

from __future__ import annotations

from torchloom.cli.service.store_watch import ROOM_BYTES, StoreWatch

MUCH = 100 * ROOM_BYTES


def restarts(watch: StoreWatch, seconds: int, full_until_s: int = 0) -> list[int]:
    """When a server that never stores is restarted, looked at every 5 s."""
    began, found = 0, []
    for now in range(0, seconds, 5):
        if watch.due(float(now), float(now - began), 0 if now < full_until_s else MUCH):
            found.append(now)
            began = now
    return found


def test_a_lone_server_is_restarted_until_it_stores() -> None:
    assert restarts(StoreWatch(cluster=False), 60) == [15, 30, 45]


def test_a_full_disk_is_waited_for_and_its_server_restarted_once_there_is_room() -> None:
    assert restarts(StoreWatch(cluster=False), 60, full_until_s=35) == [35, 50]
    assert restarts(StoreWatch(cluster=True), 60, full_until_s=35) == [35]


def test_servers_without_a_quorum_are_left_time_to_elect_a_leader() -> None:
    assert restarts(StoreWatch(cluster=True), 1000) == [60, 180, 420, 900]


def test_a_server_that_stores_again_begins_anew() -> None:
    watch = StoreWatch(cluster=True)
    restarts(watch, 500)
    assert not watch.due(0.0, 100.0, MUCH) and watch.restarts == 0
