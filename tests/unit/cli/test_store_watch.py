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


def test_a_server_that_stops_storing_after_its_disk_was_full_is_restarted_once_there_is_room() -> None:
    """In a cluster the others store meanwhile: that this one does not is noticed later than the full disk."""
    watch = StoreWatch(cluster=True)
    assert not watch.due(0.0, 100.0, 0)
    assert not watch.due(0.0, 105.0, MUCH)
    assert watch.due(6.0, 110.0, MUCH)
    assert not watch.due(6.0, 5.0, MUCH), "it has just been restarted"


def test_a_full_disk_of_long_ago_explains_nothing() -> None:
    watch = StoreWatch(cluster=True)
    assert not watch.due(0.0, 100.0, 0)
    for age in range(105, 200, 5):
        assert not watch.due(0.0, float(age), MUCH)
    assert not watch.due(6.0, 200.0, MUCH) and watch.due(61.0, 255.0, MUCH)
