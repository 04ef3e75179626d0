"""Hosts that join a cluster: the order of the stream decides what a token is worth."""

from __future__ import annotations

from core_story import Story

from torchloom.core.nodes import admission
from torchloom.model.events import JoinTokenMade, NodeAdmitted, NodeRevoked

SECOND = 1_000_000_000


def story_with(hosts: int = 1, valid_s: float = 60.0, node: str = "") -> Story:
    story = Story()
    story.tell(JoinTokenMade(token="t", digest="d", by="ann", valid_s=valid_s, hosts=hosts, node=node))
    return story


def ask(story: Story, node: str, key: str, digest: str = "d") -> str:
    """Why the host was not admitted; empty if it was."""
    known = story.fleet.admissions
    refusal = admission.why_not(known, "t", digest, node, key, story.fleet.now_ns)
    story.tell(NodeAdmitted(node=node, key=key, token="t", digest=digest))
    admitted = known.nodes.get(node)
    assert (admitted is not None and admitted.key == key) == (not refusal)
    return refusal


def test_a_token_admits_as_many_hosts_as_it_says() -> None:
    story = story_with(hosts=2)
    assert ask(story, "a", "KA") == "" and ask(story, "b", "KB") == ""
    assert "used up" in ask(story, "c", "KC")
    story.check_replay()


def test_the_same_host_may_ask_again_and_uses_no_second_place() -> None:
    story = story_with(hosts=2)
    assert ask(story, "a", "KA") == "" and ask(story, "a", "KA") == ""
    assert story.fleet.admissions.tokens["t"].left == 1


def test_a_token_is_no_permission_to_take_over_a_node() -> None:
    story = story_with(hosts=3)
    assert ask(story, "a", "KA") == ""
    assert "admitted before" in admission.why_not(
        story.fleet.admissions, "t", "d", "a", "KX", story.fleet.now_ns
    )
    story.tell(NodeAdmitted(node="a", key="KX", token="t", digest="d"))
    assert story.fleet.admissions.nodes["a"].key == "KA"
    story.tell(NodeRevoked(node="a", by="ann"))
    assert ask(story, "a", "KX") == ""


def test_wrong_secrets_names_and_late_hosts_are_refused() -> None:
    story = story_with(node="a")
    assert "no join token" in ask(story, "a", "KA", digest="other")
    assert "for the node a only" in ask(story, "b", "KB")
    story.tell(NodeRevoked(node="nobody", by="ann"), after_s=61.0)
    assert "expired" in ask(story, "a", "KA")
    assert not story.fleet.admissions.nodes


def test_a_revoked_key_is_never_admitted_again() -> None:
    story = story_with(hosts=5)
    assert ask(story, "a", "KA") == ""
    story.tell(NodeRevoked(node="a", by="ann"))
    revoked = story.fleet.admissions.revoked
    assert list(revoked) == ["KA"] and revoked["KA"] * SECOND > story.fleet.now_ns
    assert "revoked" in ask(story, "a", "KA")
    story.tell(NodeRevoked(node="nobody", by="ann"))
    assert list(revoked) == ["KA"]
    story.check_replay()


def test_a_revoked_node_is_remembered_until_a_token_of_a_person_admits_it_again() -> None:
    """A pod proves its name itself, and may ask as often as it likes."""
    story = story_with(hosts=5)
    known = story.fleet.admissions
    assert ask(story, "a", "KA") == ""
    story.tell(JoinTokenMade(token="own", digest="o", by="pod ml/a", valid_s=60.0, hosts=1, node="a"))
    story.tell(NodeRevoked(node="a", by="ann"))
    assert list(known.revoked_nodes) == ["a"]
    story.tell(NodeAdmitted(node="a", key="KX", token="own", digest="o"))
    assert "a" not in known.nodes, "a token that was on its way for this node alone is void"
    assert ask(story, "a", "KY") == "" and not known.revoked_nodes
    story.check_replay()


def test_tokens_that_are_used_up_make_room_first() -> None:
    story = story_with()
    known = story.fleet.admissions
    for at in range(2 * admission.MOST_TOKENS):
        story.tell(JoinTokenMade(token=f"p{at}", digest="p", by="pod", valid_s=60.0, hosts=1, node=f"n{at}"))
        story.tell(NodeAdmitted(node=f"n{at}", key=f"K{at}", token=f"p{at}", digest="p"))
    assert len(known.tokens) <= admission.MOST_TOKENS and known.tokens["t"].left == 1


def test_what_is_remembered_is_bounded() -> None:
    story = Story()
    for number in range(admission.MOST_TOKENS + 5):
        story.tell(JoinTokenMade(token=f"t{number}", digest="d", by="ann", valid_s=60, hosts=1))
    assert len(story.fleet.admissions.tokens) == admission.MOST_TOKENS
    assert "t0" not in story.fleet.admissions.tokens
