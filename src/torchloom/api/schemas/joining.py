"""Bodies about hosts that join a cluster."""

from __future__ import annotations

from pydantic import BaseModel, Field


class JoinTokenRequest(BaseModel):
    valid_s: float = Field(default=3600.0, gt=0, description="How long it admits hosts.")
    hosts: int = Field(default=1, ge=1, description="How many hosts it admits.")
    node: str = Field(default="", max_length=128, description="The only name it admits; empty: any.")


class JoinTokenText(BaseModel):
    token: str
    """Shown once; only a digest of it is kept."""
    addresses: list[str]
    """Where hosts can join."""


class JoinRequest(BaseModel):
    token: str = Field(max_length=512)
    node: str = Field(min_length=1, max_length=128)
    key: str = Field(max_length=64, description="Public half of the key that the host made.")


class PodJoinRequest(BaseModel):
    token: str = Field(max_length=16_384, description="Token of the pod's service account, for torchloom.")
    key: str = Field(max_length=64, description="Public half of the key that the pod made.")


class JoinView(BaseModel):
    """What the host needs to be a node."""

    claims: str
    servers: list[str]
    addresses: list[str]
    ca: str
    node: str = ""
    """The name under which it was admitted."""
    api_token: str = ""
    """For a pod: its own token of the API, which ends when the node is revoked."""


class AuthoritiesView(BaseModel):
    ca: str
    """Certificates (PEM) that prove servers of this cluster."""
