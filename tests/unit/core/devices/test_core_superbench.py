"""SuperBench's files as they are, and what they say about which GPU."""

from __future__ import annotations

import json

from torchloom.core.devices.standing import beside, less_is_better
from torchloom.core.devices.superbench import KEPT_METRICS, BenchFile, results


def summary(node: str, gpus: int = 4, **changed: float) -> str:
    line: dict[str, object] = {"node": node, "kernel-launch/return_code": 0}
    for gpu in range(gpus):
        line[f"gemm-flops/FP32:{gpu}"] = 18000.0 + gpu
        line[f"kernel-launch/event_overhead:{gpu}"] = 0.006
    line["nccl-bw/allreduce_8_time:0"] = 37.0
    line["gpt_models/pytorch-gpt2/steptime_train_float32"] = 295.0
    return json.dumps(line | changed)


def read(*lines: str | bytes) -> BenchFile:
    file = BenchFile()
    file.read(lines)
    return file


def test_a_slow_gpu_is_found_among_all_and_named_by_its_number() -> None:
    file = read(summary("n1", **{"gemm-flops/FP32:2": 9000.0}), summary("n2"))
    found = results(file, {"n1": 4, "n2": 4})
    assert set(found) == {(node, gpu) for node in ("n1", "n2") for gpu in range(4)}
    slow = found["n1", 2]
    assert slow.passed and slow.metrics[0].name == "gemm-flops/FP32"
    assert slow.metrics[0].worse == 0.0 and 0.4 < slow.shortfall < 0.6
    assert found["n1", 1].shortfall == 0.0 and found["n2", 2].shortfall == 0.0


def test_a_metric_that_is_not_one_of_each_gpu_is_one_of_the_node() -> None:
    found = results(read(summary("n1", gpus=6)), {"n1": 4})
    names = {metric.name for metric in found["n1", 0].metrics}
    assert "gemm-flops/FP32:5" in names and "nccl-bw/allreduce_8_time:0" in names
    assert results(read(summary("n1")), {})["n1", None].measured == 10


def test_a_benchmark_that_failed() -> None:
    found = results(read(summary("n1", **{"mem-bw/return_code": 1})), {"n1": 4})
    assert not found["n1", 0].passed and found["n1", 0].why == "mem-bw returned 1"


def test_what_the_rules_found_defective_names_the_gpu() -> None:
    details = "kernel-launch/event_overhead:1(B/L: 0.0060 VAL: 0.1000 VAR: 1577.85% Rule:lambda x:x>0.05)"
    line = {"Category": "KernelLaunch", "Defective Details": details, "Index": "n1", "x/y:1": 15.7}
    found = results(read(summary("n1"), json.dumps(line)), {"n1": 4})
    assert not found["n1", 1].passed and found["n1", 1].why.startswith("KernelLaunch: kernel-launch/event")
    assert found["n1", 0].passed and found["n1", 1].measured == found["n1", 0].measured
    whole = {"Category": "FailedTest", "Defective Details": "mem-bw/return_code(VAL: 1.0)", "Index": "n1"}
    assert {place: one.passed for place, one in results(read(json.dumps(whole)), {"n1": 2}).items()} == {
        ("n1", 0): False,
        ("n1", 1): False,
    }


def test_other_lines_and_garbage_are_counted_and_left_out() -> None:
    nested = b"[" * 100_000
    file = read('{"time": "2024-01-01", "gpu_usage:0": 3}', "not json", b"\xff\xfe", "[]", "", nested, "null")
    assert file.left_out == 6 and not file.values
    strange = read('{"node": "n", "a": NaN}', '{"node": "n", "b": "x", "c": true, "d": 1e999, "e": 2}')
    assert set(strange.values.get("n", {})) <= {"e"}


def test_only_the_worst_metrics_are_kept() -> None:
    line = {"node": "n1"} | {f"bench/m{index}:{gpu}": 1.0 for index in range(50) for gpu in range(8)}
    line["bench/m7:3"] = 0.1
    found = results(read(json.dumps(line)), {"n1": 8})["n1", 3]
    assert len(found.metrics) == KEPT_METRICS and found.measured == 50
    assert found.metrics[0].name == "bench/m7"


def test_standing() -> None:
    assert less_is_better("nccl-bw/allreduce_8_time") and less_is_better("ib/write_lat_512")
    assert not less_is_better("mem-bw/H2D_Mem_BW") and not less_is_better("gemm-flops/FP32")
    few = beside("bw", 1.0, [1.0, 5.0])
    assert few.median is None and few.shortfall == 0.0
    times = [10.0, 10.1, 9.9, 10.0, 10.05, 15.0]
    assert beside("step_time", 15.0, times).shortfall > 0.4
    assert beside("step_time", 9.9, times).shortfall == 0.0
    assert beside("bw", 0.0, [0.0] * 6).shortfall == 0.0
