"""SuperBench's files as they are, and what they say about which GPU."""

from __future__ import annotations

import json

from torchloom.core.devices.standing import beside, less_is_better
from torchloom.core.devices.superbench import KEPT_METRICS, BenchFile, of_executed, results


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
    found = results(read(summary("n1", **{"mem-bw/return_code": 32})), {"n1": 4})
    assert not found["n1", 0].passed and found["n1", 0].why == "mem-bw returned 32"


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
    huge = "1" + "0" * 400
    strange = read(
        f'{{"node": "n", "f": {huge}, "e": 2}}',
        '{"node": "n", "a": NaN}',
        '{"node": "n", "b": "x", "c": true, "d": 1e999, "e": 2}',
    )
    assert set(strange.values["n"]) == {"e"}
    assert (
        of_executed([f'[{{"name": "x", "return_code": {huge}, "result": {{"a": [{huge}]}}}}]'.encode()])
        is None
    )


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


def test_a_return_code_counts_when_it_is_not_there_for_each_gpu() -> None:
    """Model benchmarks have one for each process: `…/pytorch-llama2-7b/return_code:1`."""
    line = {"node": "n1", "model-benchmarks:x/pytorch-llama2-7b/return_code:0": 0}
    line |= {"model-benchmarks:x/pytorch-llama2-7b/return_code:1": 4}
    found = results(read(json.dumps(line)), {"n1": 8})
    assert not found["n1", 0].passed and found["n1", 0].measured == 0
    assert found["n1", 0].why == "model-benchmarks:x/pytorch-llama2-7b returned 4 on GPU 1"
    alone = results(read(json.dumps(line)), {"n1": 2})
    assert alone["n1", 0].passed and not alone["n1", 1].passed


def test_a_benchmark_that_is_not_set_up_says_nothing_about_the_device() -> None:
    """31: its program is missing; 34: not made for this GPU. SuperBench's return_code.py has the list."""
    found = results(read(summary("n1", **{"mem-bw/return_code": 31})), {"n1": 4})
    assert found["n1", 0].passed and found["n1", 0].why == "mem-bw could not run (SuperBench's code 31)"
    assert not results(read(summary("n1", **{"mem-bw/return_code": 32})), {"n1": 4})["n1", 0].passed


def test_which_way_a_metric_is_better_follows_from_the_metric_and_not_from_its_benchmark() -> None:
    less = (
        "cublas-function/name_cublasCgemm_k_32_m_512_n_512_transa_1_transb_0",  # microseconds
        "cudnn-function/name_cudnnConvolutionForward_algo_6",
        "cpu-memory-bw-latency/mem_matrix_latency_numa_0_0_lat",
        "nccl-bw/allreduce_8_time",
        "model-benchmarks:llama2-7b-det/pytorch-llama2-7b/fp32_train_step_time",
    )
    more = (
        "cpu-memory-bw-latency/mem_bandwidth_matrix_numa_0_0_bw",
        "nccl-bw/allreduce_8_busbw",
        "gemm-flops/FP64_TC",
        "gpu-burn/gpu_0_pass",
    )
    assert all(less_is_better(name) for name in less)
    assert not any(less_is_better(name) for name in more)


def test_a_result_that_must_be_the_same_everywhere_and_is_not_is_a_fault() -> None:
    """`deterministic_…` is compared bit for bit: more of a checksum is not better."""
    name = "model-benchmarks:x/pytorch-llama2-7b/deterministic_act_hash"
    line: dict[str, object] = {"node": "n1"} | {f"{name}:{gpu}": 749931980199534315 for gpu in range(4)}
    same = results(read(json.dumps(line)), {"n1": 4})
    assert all(one.passed for one in same.values())
    odd = results(read(json.dumps(line | {f"{name}:2": 749931980199000000})), {"n1": 4})
    assert [gpu for (_, gpu), one in odd.items() if not one.passed] == [2]
    assert odd["n1", 2].why == f"{name} differs from that of all 3 others, which are the same"
    all_differ = {f"{name}:{gpu}": gpu + 1 for gpu in range(4)}
    assert all(one.passed for one in results(read(json.dumps(line | all_differ)), {"n1": 4}).values())


def test_what_its_monitor_measured_is_no_benchmark() -> None:
    monitor = {f"monitor/gpu_temperature:{gpu}": 30.0 + 40 * (gpu == 1) for gpu in range(4)}
    found = results(read(summary("n1", **monitor)), {"n1": 4})
    assert not [one for one in found["n1", 1].metrics if one.name.startswith("monitor/")]


def test_a_diagnosis_as_a_list_with_newer_names() -> None:
    """`sb result diagnosis --output-file-format json`; with --output-all it has the good nodes, too."""
    details = "kernel-launch/event_overhead:1(B/L: 0.0060 VAL: 0.1000 VAR: 1577.85% Rule:lambda x:x>0.05)"
    bad = {"index": "n1", "diagnosis/accept": False, "diagnosis/category": "KernelLaunch"}
    good = {"index": "n2", "diagnosis/accept": True, "diagnosis/category": None, "gemm-flops/FP32:0": 1.0}
    file = BenchFile()
    file.read_file(json.dumps([bad | {"diagnosis/issue_details": details}, good], indent=4).encode())
    found = results(file, {"n1": 2, "n2": 2})
    assert {place: one.passed for place, one in found.items()} == {("n1", 1): False}
    assert found["n1", 1].why.startswith("KernelLaunch: kernel-launch/event_overhead:1")


def test_the_summary_of_one_node_is_named_by_its_directory() -> None:
    """`nodes/n1/results-summary.json`, which SuperBench writes with an indent and without the node."""
    file = BenchFile()
    file.read_file(json.dumps({"gemm-flops/FP32:0": 1.0}, indent=2).encode(), "n1")
    assert set(results(file, {"n1": 1})) == {("n1", 0)}
    lines = BenchFile()
    lines.read_file(f"{summary('n1')}\n\n{summary('n2')}\nnonsense\n".encode(), "outputs")
    assert set(lines.values) == {"n1", "n2"} and lines.left_out == 1
    monitor = BenchFile()
    monitor.read_file(b'{"time": "2021-12-06 04:19:35", "gpu_usage:0": 56}\n', "rank0")
    assert not monitor.values and monitor.left_out == 1


def test_what_sb_exec_wrote_for_one_device() -> None:
    """`benchmarks/NAME/rank0/results.json`: a list; one that could not be made is null."""
    files = [
        [{"name": "gemm-flops", "return_code": 0, "result": {"return_code": [0], "FP32": [18000, 18200.0]}}],
        [{"name": "mem-bw", "return_code": 31, "result": {"return_code": [31]}}],
        [None],
        "nonsense",
    ]
    found = of_executed([json.dumps(one).encode() for one in files] + [b"{"])
    assert found is not None and found.passed and found.source == "superbench"
    assert [(one.name, one.value) for one in found.metrics] == [("gemm-flops/FP32", 18100.0)]
    assert found.why == "mem-bw could not run (SuperBench's code 31)"
    failed = of_executed([json.dumps([{"name": "mem-bw", "return_code": 32, "result": {}}]).encode()])
    assert failed is not None and not failed.passed and failed.why == "mem-bw returned 32"
    assert of_executed([json.dumps(files[1]).encode()]) is None  # nothing ran: nothing is known
    assert of_executed([]) is None
