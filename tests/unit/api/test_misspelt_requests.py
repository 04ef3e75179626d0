"""A request with a misspelt field is refused at the door: records themselves skip fields they do not know."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from torchloom.api.schemas.bodies import JobRequest

GOOD: dict[str, Any] = {"world_size": 2}


@pytest.mark.parametrize("wrong", [{"wokers": 4}, {"policy": {"dryrun": True}}, {"replica": {"sett": "x"}}])
def test_a_misspelt_field_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError) as raised:
        JobRequest.model_validate(GOOD | wrong)
    assert any(error["type"] == "extra_forbidden" for error in raised.value.errors()), raised.value
