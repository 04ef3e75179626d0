"""`loom doctor`: what is concluded from what was found, and real checks of this host under changed limits."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from torchloom.cli.doctor import brief, host, sight, training
from torchloom.cli.doctor.check import Check, as_json, exit_code, summary
from torchloom.cli.doctor.doctor import jobs
from torchloom.home import Home
from torchloom.model.devices import DeviceReading

OK = Check("a", "ok", "there")
NOTE = Check("b", "note", "none, which is fine")
LIMITED = Check("c", "limited", "too few", "some are not seen", "Get more.")
BROKEN = Check("d", "broken", "nothing works")
H100 = {
    "version": "2.9.0",
    "cuda": "12.8",
    "distributed": True,
    "backends": ["gloo", "nccl"],
    "devices": ["NVIDIA H100"] * 8,
    "nccl": "2.27.3",
    "recorder": "native",
}


def test_the_exit_code_says_the_worst() -> None:
    assert exit_code([OK, NOTE]) == 0
    assert exit_code([OK, LIMITED]) == 1
    assert exit_code([LIMITED, BROKEN]) == 7
    assert "d" in summary([OK, LIMITED, BROKEN]) and "c" in summary([OK, LIMITED])


def test_a_fix_is_one_sentence_behind_what_it_means() -> None:
    assert LIMITED.sentence == "too few: some are not seen. Get more."
    assert json.loads(json.dumps(as_json([LIMITED], torchloom="1")))["checks"][0]["fix"] == "Get more."


@pytest.mark.parametrize(
    ("facts", "seen", "state", "word"),
    [
        (H100, 8, "ok", "NCCL 2.27.3"),
        (H100 | {"backends": ["gloo"]}, 8, "broken", "no NCCL"),
        (H100 | {"devices": ["NVIDIA H100"] * 7}, 8, "limited", "NVML lists 8"),
        (H100 | {"devices": [], "cuda": None}, 8, "broken", "without CUDA"),
        (H100 | {"devices": [], "visible": ""}, 8, "limited", "torch sees none"),
        (H100 | {"devices": [], "cuda_error": "The NVIDIA driver is too old"}, 8, "broken", "too old"),
        ({"devices": [], "accelerator": "xpu", "count": 4}, 0, "ok", "4 × xpu"),
        ({"devices": []}, 0, "note", "CPU tensors"),
    ],
)
def test_accelerators(facts: dict[str, Any], seen: int, state: str, word: str) -> None:
    check = training.accelerator(facts, seen)
    assert (check.state, word in check.sentence) == (state, True), check


def test_without_the_native_recorder_ends_are_not_seen() -> None:
    assert training.completion({"recorder": "native"}).state == "ok"
    assert training.completion({"recorder": "python"}).state == "limited"
    assert "LOOM_RECORDER" in training.completion({"recorder": "none"}).sentence


def test_the_self_test_uses_what_there_is() -> None:
    assert jobs(H100, None) == [("cuda", 8)]
    assert jobs(H100 | {"devices": ["one"]}, None) == [("cuda", 1), ("cpu", 2)], "one GPU waits for nobody"
    assert jobs({"devices": [], "accelerator": "xpu", "count": 2}, None) == [("xpu", 2)]
    assert jobs({"devices": [], "accelerator": "mps", "count": 1}, None) == [("cpu", 2)]
    assert jobs(H100, "loomsim") == [("loomsim", 2)]


def test_a_low_limit_of_this_process_is_seen() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        low = host.files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert low.state == "limited" and "256 files" in low.found


def test_a_limit_that_the_user_cannot_raise_alone_is_told_with_where_to_raise_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert "hard limit" in host.files().fix and "nofile=4096" in host.files().fix
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1 << 20))
    assert host.files().fix == "Run `ulimit -n 1048576` before `loom up`."


def test_a_shared_memory_that_is_a_directory_on_disk_is_seen(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n23 22 0:5 / /dev rw - devtmpfs udev rw\n"
        "24 23 0:9 / /dev/shm rw - tmpfs tmpfs rw\nnonsense\n"
    )
    assert host.filesystem(Path("/dev/shm"), mounts) == "tmpfs"
    assert host.filesystem(Path("/home/x"), mounts) == "ext4"
    assert host.filesystem(Path("/dev/shm"), tmp_path / "none") == ""
    mounts.write_text("22 1 0:30 / / rw - overlay overlay rw\n")
    assert host.filesystem(Path("/dev/shm"), mounts) == "overlay"


def test_gpus_that_are_ill_are_named_with_what_nvml_says() -> None:
    well = DeviceReading(device="GPU-11111111-aa", source="nvml", name="H100", index=0)
    assert sight.gpu_health([well]).state == "ok"
    lost = replace(well, device="GPU-22222222-bb", index=1, error="GPU is lost")
    worn = replace(well, device="GPU-33333333-cc", index=2, values={"ecc_uncorrected_errors": 3.0})
    check = sight.gpu_health([well, lost, worn])
    assert check.state == "limited"
    assert "GPU 1 (GPU-22222222…): NVML: GPU is lost" in check.sentence
    assert "GPU 2 (GPU-33333333…): 3 uncorrected ECC errors" in check.sentence
    assert "no worker is placed on a GPU that failed. Drain and reset it" in check.sentence
    assert "no worker is placed" not in sight.gpu_health([worn]).sentence


def test_a_port_that_is_taken_costs_nothing_but_a_flag(tmp_path: Path) -> None:
    check = host.ports(Home(tmp_path))
    assert check.state in ("ok", "note"), "`loom run` takes any port"


def test_up_says_in_a_line_what_is_seen_and_in_one_each_what_is_not() -> None:
    lines = brief.lines([Check("recorder", "ok", "native"), Check("GPUs", "note", "none"), LIMITED])
    assert lines == [
        "sees   collectives and their ends · no GPU",
        "warn   c: too few: some are not seen. Get more.",
    ]
    two = Check("GPUs", "ok", "2 by NVML, driver 535.1: NVIDIA L4")
    assert brief.lines([two]) == ["sees   2 GPUs"]


def test_without_compiler_and_library_the_report_says_so_and_what_to_do(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LOOM_NATIVE_DIR": str(tmp_path),
        "CXX": "no-such-compiler",
        "LOOM_HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "torchloom.cli", "doctor", "--no-test", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    by_name = {check["name"]: check for check in told["checks"]}
    assert by_name["recorder"]["state"] == by_name["ends of collectives"]["state"] == "limited"
    assert "Install g++" in by_name["recorder"]["fix"]
    assert told["exit_code"] == 1 and told["torch"]["recorder"] == "python"
    assert not any(name.startswith("…") for name in by_name), "--no-test starts nothing"
