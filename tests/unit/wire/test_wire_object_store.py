"""Which variables open an object store: ours before the cloud's, and none of this process's own."""

from __future__ import annotations

import pytest

from torchloom.wire.object_store import opening

OURS = {"S3_ENDPOINT": "http://here:1", "S3_ACCESS_KEY": "k", "S3_SECRET_KEY": "s"}


def test_our_variables_win_and_leave_out_what_belongs_to_another_key() -> None:
    found = opening(
        "s3://b/p",
        OURS | {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "eu-central-1"},
    )
    assert found.config == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "eu-central-1",
        "aws_endpoint_url": "http://here:1",
    }
    assert found.allow_http and "secret" not in repr(found) and "'s'" not in repr(found)


def test_the_clouds_own_variables_are_enough() -> None:
    env = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "OTHER": "x"}
    found = opening("s3://b", env | {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_ENDPOINT_URL_S3": "https://far"})
    assert found.config == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "aws_region": "eu-west-1",
        "aws_endpoint_url": "https://far",
    }
    assert not found.allow_http
    assert opening("s3://b", {}).config == {"aws_region": "us-east-1"}
    assert opening("s3://b", {"S3_SESSION_TOKEN": " t "} | OURS).config["aws_session_token"] == "t"


@pytest.mark.parametrize(
    ("url", "env", "config"),
    [
        ("gs://b/p", {"GOOGLE_BEARER_TOKEN": "t"}, {"google_bearer_token": "t"}),
        (
            "az://c/p",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_TOKEN": "t"},
            {"azure_storage_account_name": "a", "azure_storage_token": "t"},
        ),
        ("http://host/data", OURS, {}),
        ("gs://b", OURS | {"AWS_REGION": "r"}, {}),
    ],
)
def test_each_store_takes_its_own(url: str, env: dict[str, str], config: dict[str, str]) -> None:
    found = opening(url, env)
    assert found.config == config and found.allow_http == url.startswith("http://")


def test_the_client_knows_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name the client does not know is refused by it, whatever the value."""
    obstore = pytest.importorskip("obstore")
    from torchloom.wire import object_store

    for scheme, names in (
        ("s3", object_store._AWS),
        ("gs", object_store._GOOGLE),
        ("az", object_store._AZURE),
    ):
        for name in names:
            try:
                obstore.store.from_url(f"{scheme}://b/p", config={name.lower(): "true"})
            except obstore.exceptions.UnknownConfigurationKeyError:
                pytest.fail(f"{name} is not an option of the client")
            except (obstore.exceptions.BaseError, ValueError):
                pass  # the value makes no sense, but the name does
