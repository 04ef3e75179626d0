"""`loom ca` and `loom cluster init` with wrong arguments and damaged files: one sentence, all or nothing."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.cli.cluster.authority import Authority, ends_at
from torchloom.cli.cluster.ca import issue, make, renew, retire, rotate, show
from torchloom.cli.cluster.cluster import init
from torchloom.errors import Conflict, HomeUnusable, LoomError, NotFound, UsageError

HOSTS = ["a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3"]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    init(tmp_path / "prod", HOSTS)
    return tmp_path / "prod"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), float("inf"), 1e9, 0.5])
def test_a_certificate_that_is_not_valid_for_any_day_is_not_made(cluster: Path, days: float) -> None:
    before = contents(cluster)
    verbs = (lambda: renew(cluster, days), lambda: issue(cluster, ["h"], days), lambda: rotate(cluster, days))
    for ask in verbs:
        with pytest.raises(UsageError, match="--days is a number from 1 to 3650"):
            ask()
    assert contents(cluster) == before


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "ü.example", "a\nb", "../x", "/x", ".", "-a", "a..b", "x" * 300]
)
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_name_gets_no_certificate(cluster: Path, name: str, place: int) -> None:
    before = contents(cluster)
    names = ["good.example"]
    names.insert(place, name)
    with pytest.raises(UsageError, match="neither an address nor the name of a host"):
        issue(cluster, names)
    assert contents(cluster) == before


@pytest.mark.parametrize(
    "name", ["h", "h.example", "*.h.example", "10.0.0.9", "fd00::1", "node_1", "xn--4ca.x"]
)
def test_what_is_a_name_does(cluster: Path, name: str) -> None:
    issue(cluster, [name])
    assert ends_at(cluster / name / "host.pem") > datetime.datetime.now(datetime.UTC)


def test_certificates_of_control_hosts_are_renewed_and_not_replaced_by_others(cluster: Path) -> None:
    before = contents(cluster)
    with pytest.raises(Conflict, match="loom ca renew"):
        issue(cluster, ["a"])
    assert contents(cluster) == before


def test_a_new_authority_is_valid_for_as_long_as_was_asked(cluster: Path) -> None:
    rotate(cluster, 10)
    left = ends_at(cluster / "ca" / "ca.pem") - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=8) < left < datetime.timedelta(days=11)


def test_where_there_is_no_authority_nothing_is_made(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    verbs: tuple[Callable[[], None], ...] = (
        lambda: issue(gone, ["a"]),
        lambda: renew(gone),
        lambda: rotate(gone),
        lambda: retire(gone),
        lambda: show(gone),
    )
    for verb in verbs:
        with pytest.raises(NotFound, match="no certificate authority"):
            verb()
    assert not gone.exists()
    make(tmp_path / "own")
    with pytest.raises(NotFound, match="no control hosts"):
        renew(tmp_path / "own")


@pytest.mark.parametrize("damage", ["ca.pem", "ca.key", "another key"])
def test_damaged_files_are_one_sentence(cluster: Path, tmp_path: Path, damage: str) -> None:
    if damage == "another key":
        make(tmp_path / "own")
        shutil.copy(tmp_path / "own/ca/ca.key", cluster / "ca/ca.key")
    else:
        (cluster / "ca" / damage).write_text("garbage")
    before = contents(cluster)
    verbs: list[Callable[[], None]] = [lambda: issue(cluster, ["h"]), lambda: renew(cluster)]
    if damage == "ca.pem":
        verbs += [lambda: rotate(cluster), lambda: retire(cluster), lambda: show(cluster)]
    for verb in verbs:
        with pytest.raises(HomeUnusable, match="from a copy"):
            verb()
    assert contents(cluster) == before


def test_all_control_hosts_get_new_certificates_or_none(cluster: Path) -> None:
    (cluster / "b/cluster.json").write_text("{}")
    before = contents(cluster)
    with pytest.raises(LoomError):
        renew(cluster)
    assert contents(cluster) == before


def test_a_damaged_certificate_is_shown_as_such_and_renewed(cluster: Path) -> None:
    (cluster / "a/host.pem").write_text("garbage")
    with pytest.raises(HomeUnusable, match=r"a/host\.pem holds no certificate"):
        show(cluster)
    renew(cluster)
    show(cluster)


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], existed: bool
) -> None:
    where = tmp_path / "prod"
    if existed:
        where.mkdir()
    real, made = Authority.issue, []

    def issue_two(self: Authority, names: list[str], days: float = 397) -> tuple[str, str]:
        made.append(names)
        if len(made) == 2:
            raise error
        return real(self, names, days)

    monkeypatch.setattr(Authority, "issue", issue_two)
    with pytest.raises(error):
        init(where, HOSTS)
    assert list(tmp_path.rglob("*")) == ([where] if existed else [])
    monkeypatch.undo()
    init(where, HOSTS)
    assert (where / "c/host.pem").exists()


def test_the_printed_commands_work_on_a_new_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """scp copies a directory only into one that is there."""
    init(tmp_path / "two words", HOSTS[:1])
    said = capsys.readouterr().out.splitlines()
    commands = [line.strip() for line in said if line.startswith("  ")]
    assert commands[0] == "ssh 10.0.0.1 mkdir -p -m 700 .torchloom"
    assert commands[1] == f"scp -r '{tmp_path}/two words/a' 10.0.0.1:.torchloom/cluster"
