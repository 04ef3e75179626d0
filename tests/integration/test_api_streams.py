"""Streams that resume: events and logs through a proxy that cuts, and across restarts of the service."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from api_server import TOKEN, ApiServer, api_server
from cutting_proxy import CuttingProxy

from torchloom.model.worker import WorkerRef
from torchloom.weaver import feed


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server(slots=512) as made:
        yield made


def read_stream(port: int, path: str, last: str = "") -> Iterator[tuple[str, str, Any]]:
    """Whole events only, as a browser would take them; ends when the connection does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Last-Event-ID": last} if last else {})
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(answer.status)
        fields: dict[str, str] = {}
        for raw in answer:
            line = raw.decode().rstrip("\n")
            if not line:
                if "data" in fields:
                    yield fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            if not raw.endswith(b"\n"):
                return
    finally:
        connection.close()


def follow(port: int, path: str, last: str, enough: Any) -> list[tuple[str, str, Any]]:
    """Come back with the last id for as long as it takes."""
    found: list[tuple[str, str, Any]] = []
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            for event in read_stream(port, path, last):
                found.append(event)
                last = event[1] or last
                if enough(event):
                    return found
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.02)
    raise AssertionError(f"not within minutes; {len(found)} events came, the last is {found[-1:]}")


def test_events_tell_who_did_what_and_what_became_of_it(server: ApiServer) -> None:
    job = server.submit(name="told", world_size=1)
    server.wait(lambda: str(server.weaver.fleet.jobs[job].state) == "running")
    ref = server.weaver.fleet.jobs[job].workers[0].ref
    server.call(lambda: server.agents[0].exit(ref, 1))
    server.wait(lambda: server.weaver.fleet.jobs[job].restarts == 1)
    events = list(read_stream(server.port, "/events?after=0&follow=false"))
    kinds = [body["kind"] for _, _, body in events]
    assert kinds[:2] == ["node-joined", "job-submitted"] and "decided" not in kinds
    assert [int(id) for _, id, _ in events] == sorted({body["seq"] for _, _, body in events})
    submitted = events[1][2]
    assert submitted["by"] == "admin" and submitted["jobs"][0]["state"] == "starting"
    incidents = list(read_stream(server.port, "/api/v1/events?after=0&follow=false&topic=incident"))
    assert incidents[0][2]["incidents"][0]["job"] == job and incidents[0][2]["kind"] == "worker-exited"
    only = list(read_stream(server.port, "/events?after=0&follow=false&kind=node-joined&topic=node"))
    assert [body["node"] for _, _, body in only] == ["n1"]
    assert list(read_stream(server.port, "/events?after=0&follow=false&job=other")) == []


def test_no_event_is_lost_or_doubled_through_cuts_and_restarts(server: ApiServer) -> None:
    proxy = CuttingProxy(server.port, seed=7, most_bytes=6000)
    found: list[tuple[str, str, Any]] = []

    def watch() -> None:
        path = "/events?after=0&topic=job"
        found.extend(follow(proxy.port, path, "", lambda event: event[2]["job"] == "the-last"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(40):
        server.submit(name=f"many-{number}", world_size=1)
        if number % 15 == 10:
            server.restart()
    server.submit(name="the-last", world_size=1)
    watcher.join(250)
    proxy.close()
    ids = [int(id) for _, id, _ in found]
    assert ids == sorted(set(ids)) and proxy.cuts > 3
    submitted = [body["job"] for _, _, body in found if body["kind"] == "job-submitted"]
    assert submitted == [f"many-{number}" for number in range(40)] + ["the-last"]
    assert not [kind for kind, _, _ in found if kind == "reset"]


def test_what_cannot_be_told_is_a_reset(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.submit(name="early")
    server.restart()
    monkeypatch.setattr(feed, "MOST_RETOLD", 0)
    stream = read_stream(server.port, "/events?follow=false", last="1")
    kind, id, body = next(stream)
    assert kind == "reset" and int(id) == body["seq"] > 1 and body["reason"]
    kind, _, body = next(read_stream(server.port, "/events?follow=false", last="999999"))
    assert kind == "reset", "that place is in the stream of another installation"


def test_no_log_line_is_lost_or_doubled_through_cuts_and_restarts(server: ApiServer) -> None:
    job = server.submit(name="talker", world_size=2)
    server.wait(lambda: str(server.weaver.fleet.jobs[job].state) == "running")
    agent, lines = server.agents[0], 3000
    stop = threading.Event()

    def talk() -> None:
        for number in range(lines):
            for rank in (0, 1):
                agent.logs[(job, rank)] += f"line {number} of {rank} \u00e4\n".encode()
            if number % 100 == 0:
                time.sleep(0.02)
            if number in (1000, 2000):
                server.restart()
        refs: list[WorkerRef] = [worker.ref for worker in server.weaver.fleet.jobs[job].workers]
        for ref in refs:
            server.call(lambda ref=ref: agent.exit(ref, 0))
        stop.set()

    proxy = CuttingProxy(server.port, seed=11, most_bytes=20_000)
    talker = threading.Thread(target=talk)
    talker.start()
    found = follow(proxy.port, f"/jobs/{job}/logs/stream", "", lambda event: event[0] == "end")
    talker.join(240)
    proxy.close()
    assert proxy.cuts > 3 and found[-1][2]["state"] == "completed"
    for rank in (0, 1):
        text = "".join(body["text"] for kind, _, body in found if kind == "log" and body["rank"] == rank)
        assert text == "".join(f"line {number} of {rank} \u00e4\n" for number in range(lines))


def test_a_long_log_comes_whole_through_connections_that_are_short(server: ApiServer) -> None:
    """A client that is cut off all the time, or far behind, must still get ahead."""
    job = server.submit(name="behind", world_size=2)
    server.wait(lambda: str(server.weaver.fleet.jobs[job].state) == "running")
    agent = server.agents[0]
    texts = {
        rank: "".join(f"line {number} of {rank} \u00e4\n" for number in range(20_000)) for rank in (0, 1)
    }
    texts[1] += "\u00e4" * 60_000  # one endless line
    for rank, text in texts.items():
        agent.logs[(job, rank)] = text.encode()
    for worker in list(server.weaver.fleet.jobs[job].workers):
        server.call(lambda ref=worker.ref: agent.exit(ref, 0))
    proxy = CuttingProxy(server.port, seed=5, most_bytes=40_000)
    found = follow(proxy.port, f"/jobs/{job}/logs/stream", "", lambda event: event[0] == "end")
    proxy.close()
    assert proxy.cuts > 10
    for rank, text in texts.items():
        assert (
            "".join(body["text"] for kind, _, body in found if kind == "log" and body["rank"] == rank) == text
        )


def test_lines_of_several_ranks_come_in_the_order_of_their_times(server: ApiServer) -> None:
    """Through connections that break, from a log that needs several reads, and in one answer."""
    job = server.submit(name="ordered", world_size=3)
    server.wait(lambda: str(server.weaver.fleet.jobs[job].state) == "running")
    agent, chance, since_ns = server.agents[0], random.Random(7), time.time_ns() - 10**10
    printed: list[tuple[int, int, str]] = []
    logs = [bytearray() for _ in range(3)]
    for number in range(2500):
        rank = chance.choice((0, 0, 0, 1, 2))
        line = f"<{number:04d}> {'x' * chance.choice((0, 50, 3000))}\n"
        logs[rank] += line.encode()
        agent.printed.setdefault((job, rank), []).append((len(logs[rank]), since_ns + number * 1000))
        printed.append((rank, since_ns + number * 1000, line))
    agent.logs |= {(job, rank): bytes(log) for rank, log in enumerate(logs)}
    for worker in list(server.weaver.fleet.jobs[job].workers):
        server.call(lambda ref=worker.ref: agent.exit(ref, 0))
    proxy = CuttingProxy(server.port, seed=3, most_bytes=600_000)
    found = follow(proxy.port, f"/jobs/{job}/logs/stream", "", lambda event: event[0] == "end")
    proxy.close()
    sent = [body for kind, _, body in found if kind == "log"]
    assert "".join(body["text"] for body in sent) == "".join(line for _, _, line in printed)
    assert all(body["at_ns"] for body in sent)
    status, _, answer = server.request("GET", f"/jobs/{job}/logs?tail=300&interleaved=true")
    assert status == 200 and all(one["text"] == "" for one in answer["logs"])
    newest = [sum(rank == one for one, _, _ in printed) - 300 for rank in range(3)]
    wanted, seen = [], [0, 0, 0]
    for rank, at_ns, line in printed:
        seen[rank] += 1
        if seen[rank] > newest[rank]:
            wanted.append((rank, at_ns, line))
    lines = [(one["rank"], one["at_ns"], one["text"]) for one in answer["lines"]]
    assert [line for _, _, line in lines] == [line for _, _, line in wanted]
    status, _, answer = server.request("GET", f"/jobs/{job}/logs?grep=<12&interleaved=true")
    assert [one["text"][:6] for one in answer["lines"]] == [f"<12{n:02d}>" for n in range(100)]


def test_a_line_without_an_end_is_sent_on_request_and_comes_again_when_it_has_one(server: ApiServer) -> None:
    job = server.submit(name="bars", world_size=1)
    server.wait(lambda: str(server.weaver.fleet.jobs[job].state) == "running")
    agent, place = server.agents[0], (job, 0)
    agent.unfinished[place] = b"10%"
    stream = read_stream(server.port, f"/jobs/{job}/logs/stream?unfinished=true")
    kind, _, body = next(stream)
    assert (kind, body) == ("unfinished", {"rank": 0, "text": "10%"})
    status, _, answer = server.request("GET", f"/jobs/{job}/logs?interleaved=true&unfinished=true")
    assert status == 200 and [line["text"] for line in answer["lines"]] == ["10%"]
    assert answer["logs"][0]["next_offset"] == 0, "it is not read: it comes again"
    agent.unfinished[place] = b"10%\r20%"
    kind, id, body = next(stream)
    assert (kind, body["text"]) == ("unfinished", "10%\r20%")
    assert id == "0:0", "who comes back with this id misses nothing"
    agent.unfinished[place], agent.logs[place] = b"", b"10%\r20%\r100%\n"
    while kind != "log":  # the look between the two may find neither
        kind, id, body = next(stream)
    assert body["text"] == "10%\r20%\r100%\n" and id == "0:13"
    stream.close()  # type: ignore[attr-defined]


def test_logs_are_searched_for_a_text_and_paged(server: ApiServer) -> None:
    job = server.submit(name="found", world_size=1)
    server.wait(lambda: str(server.weaver.fleet.jobs[job].state) == "running")
    server.agents[0].logs[(job, 0)] = b"".join(b"n %d (a+)+$\n" % i for i in range(100_000))
    view = server.request("GET", f"/jobs/{job}/logs?grep=99&tail=3")[2]["logs"][0]
    assert view["text"].splitlines() == ["n 99997 (a+)+$", "n 99998 (a+)+$", "n 99999 (a+)+$"]
    assert server.request("GET", f"/jobs/{job}/logs?grep=(a%2B)%2B%24&tail=1")[2]["logs"][0]["text"]
    first = server.request("GET", f"/jobs/{job}/logs?offset=0")[2]["logs"][0]
    after = server.request("GET", f"/jobs/{job}/logs?offset={first['next_offset']}")[2]["logs"][0]
    assert first["text"].startswith("n 0 ") and after["text"].startswith(f"n {first['text'].count(chr(10))} ")


def test_a_follower_that_does_not_read_holds_up_nobody(server: ApiServer) -> None:
    asleep = http.client.HTTPConnection("127.0.0.1", server.port)
    asleep.request("GET", "/events?after=0", headers={"Authorization": f"Bearer {TOKEN}"})
    for number in range(30):
        server.submit(name=f"busy-{number}", world_size=64, queue=True, labels={"x": "y" * 200})
    awake = list(read_stream(server.port, "/events?after=0&follow=false&kind=job-submitted"))
    assert len(awake) == 30
    asleep.close()
