"""Runs the test of a device in a child process, and reports its result: SuperBench on a GPU if it is
installed and can run, else the product's own (torchloom/device_check.py).

One test at a time on a host, so that two do not measure each other. A test that could not run, because torch
does not see the device or the host lacks something, is reported as such and never as a fault of the device.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec

from torchloom.agent.health.child_run import run_child
from torchloom.agent.health.superbench_exec import installed, run_superbench
from torchloom.agent.host import Host
from torchloom.agent.processes.worker_environment import without_secrets
from torchloom.device_check import ENDS_AFTER_S
from torchloom.errors import Conflict, LoomError, NotFound
from torchloom.model.device_wear import TestMetric, TestResult
from torchloom.model.effects import TestDevice
from torchloom.model.events import DeviceTested

SECONDS = 3.0
"""How long it measures; with the import of torch it takes a few seconds more."""
_SLACK_S = 10.0
_HUNG = f"the test did not end within {ENDS_AFTER_S} s"
_MOST_METRICS = 16


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of a test."""

    metrics: dict[str, float] = {}
    wrong: str = ""
    cannot: str = ""


class DeviceTests:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._one_at_a_time = asyncio.Lock()

    async def run(self, effect: TestDevice) -> DeviceTested:
        """Test a device. Raises LoomError if the test could not run."""
        async with self._one_at_a_time:
            result = await self._result(effect)
        return DeviceTested(
            node=self._host.node, effect=effect.id, device=effect.device, result=_bounded(result)
        )

    async def _result(self, effect: TestDevice) -> TestResult:
        devices = self._host.devices
        if effect.device not in {use.device for use in devices.all()}:
            raise NotFound(f"{self._host.node} has no device {effect.device}.")
        if any(use.device == effect.device for worker in self._host.running() for use in worker.devices):
            raise Conflict(f"A worker uses {effect.device}.")
        arguments, env = [effect.kind, str(SECONDS)], without_secrets(os.environ)
        if effect.kind == "gpu":
            env["CUDA_VISIBLE_DEVICES"] = effect.device
            found = await run_superbench(sb, env) if (sb := installed(env)) else None
            if found is not None:
                return found
        else:
            arguments.append(",".join(map(str, devices.cores_of(effect.device))))
        answer = await _ask(arguments, env)
        if answer is None and effect.kind == "gpu":
            return TestResult(source="loom", passed=False, why=_HUNG)
        if answer is None or answer.cannot:
            raise LoomError(_HUNG if answer is None else answer.cannot)
        metrics = tuple(TestMetric(name=name, value=value) for name, value in sorted(answer.metrics.items()))
        return TestResult(
            source="loom", passed=not answer.wrong, why=answer.wrong, metrics=metrics, measured=len(metrics)
        )


async def _ask(arguments: list[str], env: dict[str, str]) -> CheckAnswer | None:
    """The answer of the product's own test; None if it hung."""
    command = (sys.executable, "-m", "torchloom.device_check", *arguments)
    end = await run_child(command, env, ENDS_AFTER_S + _SLACK_S)
    if end.code is None or end.code == -signal.SIGALRM:
        return None
    try:
        return msgspec.json.decode(end.text.strip().rpartition(b"\n")[2], type=CheckAnswer)
    except msgspec.DecodeError:
        return CheckAnswer(cannot=f"the test's process ended with code {end.code}")


def _bounded(result: TestResult) -> TestResult:
    return msgspec.structs.replace(result, metrics=result.metrics[:_MOST_METRICS], why=result.why[:500])
