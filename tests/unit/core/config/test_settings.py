"""Names, types and bounds of settings, and what a change would change."""

from __future__ import annotations

import json

import pytest

from torchloom.core.config.box_codec import (
    MOST_SETTINGS_BYTES,
    ToldSettings,
    known,
    pack_settings,
    unpack_settings,
)
from torchloom.core.config.overrides import Held
from torchloom.core.config.settings import (
    MAX_STEPS,
    Address,
    Difference,
    KnownSettings,
    Setting,
    Type,
    parse_address,
    resolve,
)
from torchloom.errors import UsageError

DROPOUT = Setting("dropout", Type.FLOAT, minimum=0.0, below=1.0)
MODE = Setting("mode", Type.CHOICE, choices=("fast", "exact"))
CLIP = Setting("clip", Type.FLOAT, optional=True, minimum=0.0)
NOISE = Setting(
    "noise", Type.RECORD, fields=(Setting("scale", Type.FLOAT), Setting("seed", Type.INT, optional=True))
)
LISTED = Setting("transforms", Type.TEXT, choices=("crop", "flip"))
KNOWN = KnownSettings(
    optimizers=(
        [{"lr": 0.1, "betas": [0.9, 0.999], "amsgrad": False}, {"lr": 0.2, "betas": [0.9, 0.999]}],
        [{"lr": 0.3, "momentum": 0}],
    ),
    declared=(
        DROPOUT,
        MODE,
        CLIP,
        NOISE,
        LISTED,
        Setting("steps", Type.INT, minimum=1),
        Setting("flag", Type.BOOL),
    ),
    values={"dropout": 0.5, "mode": "fast", "clip": None},
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dropout", "0.25", 0.25),
        ("dropout", "0", 0.0),
        ("mode", "exact", "exact"),
        ("clip", "none", None),
        ("clip", "1e-3", 0.001),
        ("transforms", "flip, crop", "flip, crop"),
        ("transforms", "", ""),
        ("transforms", '["crop", {"flip": {"p": 1}}]', '["crop", {"flip": {"p": 1}}]'),
        ("steps", "7", 7),
        ("steps", "7.0", 7),
        ("flag", "on", True),
        ("flag", "False", False),
        ("noise", '{"scale": 1}', {"scale": 1.0}),
        ("lr", "3e-4", 3e-4),
        ("betas", "0.8,0.99", [0.8, 0.99]),
        ("betas", "[0.8, 0.99]", [0.8, 0.99]),
    ],
)
def test_texts_become_values(name: str, text: str, value: object) -> None:
    values, _ = resolve({name: text}, KNOWN)
    assert values == {name: value}
    assert type(values[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("dropout", "1.0", "below 1"),
        ("dropout", "-0.1", "at least 0"),
        ("dropout", "nan", "a number"),
        ("dropout", "inf", "a number"),
        ("dropout", True, "a number"),
        ("dropout", "half", "a number"),
        ("dropout", "none", "a number"),
        ("mode", "quick", "fast, exact"),
        ("transforms", "crop,flop", "did you mean flip?"),
        ("transforms", "blur", "there is crop, flip"),
        ("steps", "1.5", "a whole number"),
        ("flag", "maybe", "true or false"),
        ("flag", 1, "true or false"),
        ("noise", '{"scale": 1, "sede": 2}', "did you mean seed?"),
        ("noise", '{"seed": 2}', "a number"),
        ("noise", "7", "an object with scale"),
        ("betas", "0.9", "2 numbers"),
        ("betas", "0.9,1.0", "below 1"),
        ("lr", "-1", "at least 0"),
        ("drpout", "0.1", "did you mean dropout?"),
        ("zzz", "1", "there is betas, clip"),
        ("amsgrad", "true", "betas"),
        ("lr@7", "1", "optimizer0 has 2 groups"),
        ("optimizer5.lr", "1", "there is no optimizer5: the last is optimizer1"),
        ("dropout@1", "0.1", "dropout"),
        ("lr[0]", "1", "write lr, lr@1"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(name: str, given: object, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve({name: given}, KNOWN)
    assert hint in str(refused.value)


@pytest.mark.parametrize("text", ["lr", "lr@1", "optimizer1.lr", "optimizer0.lr@1"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("lr", "optimizer1.lr@0", True),
        ("lr@1", "optimizer0.lr@1", True),
        ("lr@1", "optimizer0.lr", False),
        ("optimizer0.lr", "lr@1", False),
        ("optimizer0.lr", "optimizer1.lr", False),
        ("lr", "momentum", False),
    ],
)
def test_which_address_covers_which(wide: str, narrow: str, covers: bool) -> None:
    assert parse_address(wide).covers(parse_address(narrow)) is covers


def places(name: str) -> list[str]:
    return [difference.address for difference in resolve({name: "0.5"}, KNOWN)[1]]


def test_one_value_goes_to_every_group_it_names() -> None:
    assert places("lr") == ["optimizer0.lr@0", "optimizer0.lr@1", "optimizer1.lr@0"]
    assert places("lr@1") == ["optimizer0.lr@1"]
    assert places("optimizer1.lr") == ["optimizer1.lr@0"]
    assert places("momentum") == ["optimizer1.momentum@0"]


def test_a_change_of_several_values_shows_old_and_new() -> None:
    values, found = resolve({"lr@1": "0.2", "dropout": 0.1}, KNOWN)
    assert values == {"lr@1": 0.2, "dropout": 0.1}
    assert found == (Difference("optimizer0.lr@1", 0.2, 0.2), Difference("dropout", 0.5, 0.1))
    assert [difference.is_one for difference in found] == [False, True]


def test_one_place_is_not_set_twice_in_one_change() -> None:
    with pytest.raises(UsageError, match="set twice"):
        resolve({"lr": "0.1", "lr@1": "0.2"}, KNOWN)
    with pytest.raises(UsageError, match="nothing to set"):
        resolve({}, KNOWN)


def test_two_values_in_the_group_ask_for_two() -> None:
    known = KnownSettings(optimizers=([{"eps": [1e-30, 1e-3]}],))
    assert resolve({"eps": "1e-20,1e-3"}, known)[0] == {"eps": [1e-20, 1e-3]}
    assert Address("eps") == parse_address("eps")


HELD = KnownSettings(
    optimizers=([{"lr": 0.05, "betas": [0.9, 0.999]}],),
    held={"optimizer0.lr@0": Held(0.05, "scale", 0.1, 0.5)},
)


@pytest.mark.parametrize(
    ("given", "sent", "after"),
    [
        ("0.3", 0.3, 0.3),
        ({"scale": 2}, {"scale": 2.0}, 0.2),
        ({"scale": "0.25"}, {"scale": 0.25}, 0.025),
        ("own", {"own": True}, 0.1),
        ({"own": True}, {"own": True}, 0.1),
    ],
)
def test_a_group_may_hold_scale_or_have_its_own(given: object, sent: object, after: float) -> None:
    assert resolve({"lr": given}, HELD) == ({"lr": sent}, (Difference("optimizer0.lr@0", 0.05, after),))


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("betas", {"scale": 0.5}, "cannot be scaled"),
        ("lr", {"scale": -1}, "at least 0"),
        ("lr", {"scale": "nan"}, "at least 0"),
        ("lr", {"own": False}, "a number"),
        ("lr", {"scale": 1, "own": True}, "a number"),
    ],
)
def test_what_cannot_be_scaled(name: str, given: object, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        resolve({name: given}, HELD)


def test_a_setting_of_the_scripts_own_is_never_scaled() -> None:
    record = {"scale": 2.0}
    assert resolve({"noise": record}, KNOWN)[0] == {"noise": record}
    with pytest.raises(UsageError, match="dropout is not a hyperparameter"):
        resolve({"dropout": {"scale": 0.5}}, KNOWN)


def test_settings_come_back_as_they_were_told() -> None:
    told = ToldSettings((*KNOWN.declared, MAX_STEPS), {**KNOWN.values, "max_steps": 7}, HELD.held)
    back = unpack_settings(pack_settings(told))
    assert (back.settings, back.held) == (told.settings, told.held)
    assert {name: value for name, value in back.values.items() if value is not None} == {
        "dropout": 0.5,
        "mode": "fast",
        "max_steps": 7,
    }
    hyper = {"step": 1, "optimizers": [{"name": "SGD", "groups": [{"lr": 0.05, "betas": [0.9, 0.999]}]}]}
    both = known(back, json.dumps(hyper))
    assert resolve({"lr": "own", "max_steps": "9"}, both)[1] == (
        Difference("optimizer0.lr@0", 0.05, 0.1),
        Difference("max_steps", 7, 9),
    )
    assert unpack_settings(b"") == ToldSettings()


def test_settings_that_are_too_many_are_told_as_far_as_there_is_room() -> None:
    many = ToldSettings(
        tuple(Setting(f"s{n}", Type.FLOAT, description="x" * 90) for n in range(400)),
        {},
        {f"optimizer0.lr@{n}": Held(0.1, "hold", 0.2) for n in range(900)},
    )
    text = pack_settings(many)
    assert len(text) <= MOST_SETTINGS_BYTES
    back = unpack_settings(text)
    assert back.settings and back.left_out == 400 + 900 - len(back.settings) - len(back.held)


@pytest.mark.parametrize("text", ["7", "[]", '{"settings": []}', '{"settings": [{}], "held": {}}', "{"])
def test_what_tells_no_settings_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="contains no settings"):
        unpack_settings(text)
