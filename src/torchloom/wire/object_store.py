"""The environment variables that lead into an object store, and what the store's client makes of them.

One definition for checkpoints, data and agents that act for a job. Everything is taken from the mapping
that is passed, because an agent opens a job's store with the job's variables and not with its own. Ours
(S3_*) win over the cloud's own. Not supported by the client, and so not here: profiles of ~/.aws, and Azure's
variables without a prefix (IDENTITY_ENDPOINT). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIXES = ("S3_", "AWS_", "GOOGLE_", "AZURE_", "LOOM_STORE_")
"""All of them begin like this."""
REGION = "us-east-1"
"""A region is part of every signature; servers of one's own take any."""

_AWS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"),
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_METADATA_ENDPOINT", "AWS_IMDSV1_FALLBACK"),
    *("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_SKIP_SIGNATURE", "AWS_REQUEST_PAYER", "AWS_S3_EXPRESS"),
    *("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID", "AWS_SSE_BUCKET_KEY_ENABLED"),
    *("AWS_CHECKSUM_ALGORITHM", "AWS_CONDITIONAL_PUT"),
)
_GOOGLE = (
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BASE_URL", "GOOGLE_BEARER_TOKEN", "GOOGLE_SKIP_SIGNATURE"),
)
_AZURE = (
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_ENDPOINT"),
    *("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST"),
    *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT", "AZURE_OBJECT_ID", "AZURE_MSI_RESOURCE_ID"),
    *("AZURE_USE_AZURE_CLI", "AZURE_SKIP_SIGNATURE", "AZURE_STORAGE_USE_EMULATOR"),
)
_KNOWN = {"s3": _AWS, "s3a": _AWS, "gs": _GOOGLE, "az": _AZURE, "azure": _AZURE, "abfs": _AZURE}
_OURS = {
    "S3_ACCESS_KEY": "aws_access_key_id",
    "S3_SECRET_KEY": "aws_secret_access_key",
    "S3_SESSION_TOKEN": "aws_session_token",
    "S3_REGION": "aws_region",
    "S3_ENDPOINT": "aws_endpoint_url",
}
_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True)
class Opening:
    """How the client gets access to the store."""

    config: dict[str, str] = field(default_factory=dict, repr=False)
    """Options of obstore by its names, which are the variables' in small letters. Holds secrets."""
    allow_http: bool = False
    """The place is named with http://, so that nobody expects the connection to be private."""


def opening(url: str, env: Mapping[str, str]) -> Opening:
    """The variables of an environment that give access to the store of a URL."""
    scheme = url.partition("://")[0]
    config = {name.lower(): value for name in _KNOWN.get(scheme, ()) if (value := env.get(name, "").strip())}
    if scheme in ("s3", "s3a"):
        config |= _s3(config, env)
    places = (url, *(value for name, value in config.items() if "endpoint" in name or "base_url" in name))
    plain = any(place.startswith("http://") for place in places)
    return Opening(config, plain or env.get("AWS_ALLOW_HTTP", "").strip().lower() in _TRUE)


def _s3(config: dict[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Ours, and what the cloud has two names for."""
    region = config.get("aws_region") or config.pop("aws_default_region", "") or REGION
    config.pop("aws_default_region", None)
    found = {"aws_region": region}
    if env.get("AWS_ENDPOINT_URL_S3", "").strip():
        found["aws_endpoint_url"] = env["AWS_ENDPOINT_URL_S3"].strip()
    ours = {theirs: value for name, theirs in _OURS.items() if (value := env.get(name, "").strip())}
    if "aws_access_key_id" in ours:
        # A token, or a role to take on, belongs to the key it came with.
        for name in ("aws_session_token", "aws_web_identity_token_file", "aws_role_arn"):
            config.pop(name, None)
    return found | ours
