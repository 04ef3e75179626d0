"""DCGM exporter's text with odd labels and with values that mean "no value"."""

from __future__ import annotations

import pytest

from torchloom.core.devices.exposition import readings
from torchloom.core.devices.health_class import DeviceMemory, judge


@pytest.mark.parametrize("odd", ["A}B", 'a\\"b', "{", "},{", "x=1,y", "ü", "", "\\\\"])
def test_a_gpu_with_odd_labels_is_read(odd: str) -> None:
    line = f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",modelName="{odd}",UUID="GPU-a",Hostname="h"}} 87 1700000000000'
    (found,) = readings(line, "n")
    assert (found.device, found.values) == ("GPU-a", {"temperature_celsius": 87.0})


BLANK = (0x7FFFFFF0, 0x7FFFFFF3, 0x7FFFFFFFFFFFFFF0, 140737488355328.0, 140737488355331.0)


@pytest.mark.parametrize("value", [*BLANK, -1])
@pytest.mark.parametrize(
    "name",
    [
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    ],
)
def test_a_value_that_means_no_value_is_no_fault(name: str, value: float) -> None:
    """DCGM writes such numbers for what it could not read; believed, they would fail a healthy device."""
    text = f'{name}{{UUID="GPU-a"}} {value}\nDCGM_FI_DEV_GPU_TEMP{{UUID="GPU-a"}} 60\n'
    (found,) = readings(text, "n")
    assert judge(DeviceMemory(), found, 0.0) is None
    assert judge(DeviceMemory(throttling_since_s=-3600.0), found, 0.0) is None


def test_a_hostile_line_takes_no_time() -> None:
    assert readings("DCGM_FI_DEV_GPU_TEMP{" + 'a="' * 50_000, "n") == []
    assert readings("DCGM_FI_DEV_GPU_TEMP{" + 'a="b",' * 50_000, "n") == []
