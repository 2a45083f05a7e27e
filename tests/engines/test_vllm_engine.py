"""vLLM's command lines word for word, its real startup logs, and why it died."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from serving_study import engines
from serving_study.chapters.speculation_plan import _prescribe
from serving_study.engines import logs, vllm, vllm_logs
from serving_study.errors import HostError, ParameterError
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.models.checkpoints import Model
from serving_study.servers.arm import Arm
from serving_study.servers.server import died

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
CPU = Host("cpu", "x", 2, 8, 8)
GPU = Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, 20, "8.9"),))
PYTHON = Path("/venv/bin/python")
OPTIONS = {
    "max_model_len": 4096,
    "max_num_seqs": 128,
    "seed": 42,
    "enable_prefix_caching": False,
    "gpu_memory_utilization": 0.9,
}
BASELINE = Arm.of("baseline", Model("Qwen/Qwen2.5-7B-Instruct", "/models/7b", Path("/models/7b")), options=OPTIONS)
DRAFT = Model("Qwen/Qwen2.5-0.5B-Instruct", "/models/0.5b", Path("/models/0.5b"))
TRACEBACK = "Traceback (most recent call last):\n"
COMMON = (
    "/venv/bin/python -m vllm.entrypoints.cli.main serve /models/7b --host 127.0.0.1 --port 8000 "
    "--served-model-name Qwen/Qwen2.5-7B-Instruct "
    "{}--max-model-len 4096 --max-num-seqs 128 --seed 42 --no-enable-prefix-caching --gpu-memory-utilization 0.9"
)


def log(name):
    return (LOGS / f"{name}.log").read_text()


def test_baseline():
    assert vllm.command(BASELINE, PYTHON, 8000) == COMMON.format("").split(" ")


def test_ngram():
    arm = BASELINE.variant(
        speculative={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        technique="ngram",
    )
    words = vllm.command(arm, PYTHON, 8000)
    assert words[:-1] == [*COMMON.format("").split(" "), "--speculative-config"]
    assert (
        words[-1] == '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
    )


def test_draft_and_prescribed_with_random_weights():
    arm = BASELINE.variant(
        draft=DRAFT,
        technique="draft",
        acceptance="measured",
        speculative={
            "method": "draft_model",
            "model": DRAFT.source,
            "num_speculative_tokens": 3,
            "use_heterogeneous_vocab": True,
        },
    )
    assert (
        vllm.command(arm, PYTHON, 8000)[-1]
        == '{"method": "draft_model", "model": "/models/0.5b", "num_speculative_tokens": 3, '
        '"use_heterogeneous_vocab": true}'
    )
    random = _prescribe(arm.variant(model=replace(BASELINE.model, weights="random")), 0.53)
    words = vllm.command(random, PYTHON, 8000)
    assert words[:-2] == COMMON.format("--load-format dummy ").split(" ")
    assert json.loads(words[-1]) == arm.speculative | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.59,
    }


def test_the_removed_options_are_not_used():
    arm = BASELINE.variant(speculative={"method": "ngram", "num_speculative_tokens": 3})
    assert not {"--speculative-model", "--num-speculative-tokens"} & set(vllm.command(arm, PYTHON, 1))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enforce_eager": False}, ["--no-enforce-eager"]),
        ({"dtype": None}, []),
        ({"dtype": "float32"}, ["--dtype", "float32"]),
        ({"compilation_config": {"a": [1]}}, ["--compilation-config", '{"a": [1]}']),
    ],
)
def test_options_become_flags(option, words):
    assert vllm.command(BASELINE.variant(options=option), PYTHON, 1)[11:] == words


def test_the_environment_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    python = tmp_path / "bin" / "python"
    arm = BASELINE.variant(
        model=replace(BASELINE.model, source=str(tmp_path)), environment={"VLLM_CPU_KVCACHE_SPACE": 1}
    )
    for mine, bound in (([0, 1], "0-1"), ([2, 3, 4], "2-4"), ([0, 2], "0,2"), ([5], "5-5")):
        monkeypatch.setattr(vllm, "cores", lambda mine=mine: mine)
        assert vllm.environment(arm.server, CPU, python)["VLLM_CPU_OMP_THREADS_BIND"] == bound
    variables = vllm.environment(arm.server, CPU, python)
    assert (
        variables["VLLM_CPU_KVCACHE_SPACE"] == "1"
        and variables["HF_HUB_OFFLINE"] == "1"
        and variables["LD_PRELOAD"] == ""
    )
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert vllm.environment(arm.server, CPU, python)["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")
    monkeypatch.setenv("LD_PRELOAD", "/lib/mine.so")
    assert vllm.environment(arm.server, CPU, python)["LD_PRELOAD"] == f"/lib/mine.so:{tmp_path / 'lib' / 'libiomp5.so'}"
    assert variables["NUMBA_THREADING_LAYER"] == "workqueue"
    monkeypatch.setenv("NUMBA_THREADING_LAYER", "omp")
    assert vllm.environment(arm.server, CPU, python)["NUMBA_THREADING_LAYER"] == "omp"


def test_the_environment_on_a_gpu():
    variables = vllm.environment(
        BASELINE.variant(model=replace(BASELINE.model, source="owner/name")).server, GPU, PYTHON
    )
    assert variables["VLLM_NO_USAGE_STATS"] == "1" and not {
        "LD_PRELOAD",
        "VLLM_CPU_OMP_THREADS_BIND",
        "NUMBA_THREADING_LAYER",
        "HF_HUB_OFFLINE",
    } & set(variables)


@pytest.mark.parametrize("name", ["cpu-baseline", "cpu-ngram-k3"])
def test_a_real_cpu_log(name):
    assert vllm.start_figures(log(name)) == {
        "kv_cache_tokens": 23296,
        "max_concurrency": 11.38,
        "engine_init_s": {"cpu-baseline": 1.44, "cpu-ngram-k3": 2.49}[name],
    }
    assert isinstance(vllm.start_figures(log(name))["kv_cache_tokens"], int)


def test_a_gpu_log():
    assert vllm.start_figures(log("gpu-baseline")) == {
        "weights_gib": 14.29,
        "kv_cache_tokens": 2063088,
        "max_concurrency": 503.68,
        "kv_cache_gib": 110.18,
        "graph_capture_s": 9.0,
        "graph_gib": 0.87,
        "load_s": 5.871023,
        "engine_init_s": 44.21,
    }


def test_a_log_on_one_line_as_the_cpu_build_prints_it():
    line = "CPU KV cache size: 1,023,296 tokens, Maximum concurrency for 2,048 tokens per request: 1,011.38x"
    assert vllm.start_figures(line) == {"kv_cache_tokens": 1023296, "max_concurrency": 1011.38}


def test_what_is_not_printed_is_missing():
    assert vllm.start_figures("") == {} and vllm.start_figures("Model loading took ages") == {}


@pytest.mark.parametrize("name", ["cpu-baseline", "cpu-ngram-k3", "gpu-baseline"])
def test_a_log_without_a_death_has_no_cause(name):
    assert vllm.cause(log(name)) is None


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("gpu-oom", "out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB"),
        ("cpu-fails-unrecognized", "an option that this version does not have: --speculative-model x"),
        ("cpu-fails-blocks", "the KV cache cannot hold one request of max_model_len"),
        (
            "cpu-fails-tp",
            "a configuration that the engine refuses: Total number of attention heads (9) must be divisible "
            "by tensor parallel size (2).",
        ),
    ],
)
def test_the_cause_in_a_whole_log(name, cause):
    assert vllm.cause(log(name)) == cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total "
            "capacity of 139.81 GiB of which 1.31 GiB is free.",
            "out of memory: tried to allocate 2.00 GiB, 1.31 GiB free of 139.81 GiB",
        ),
        ("torch.OutOfMemoryError: HIP out of memory", "out of memory"),
        (
            "ValueError: Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 19.84 GiB). Decrease",
            "too little free GPU memory at start: 19.77/22.05 GiB, 0.9, 19.84 GiB",
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing", "no memory left for the KV cache"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out of host memory"),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 1 bytes",
            "out of host memory",
        ),
        ("OSError: [Errno 98] Address already in use", "the port is taken"),
        (
            "Value error, Target and draft model should have the same vocabulary size. Target 1 Draft 2 "
            "[type=value_error",
            "target and draft vocabularies differ",
        ),
        ("OSError: [Errno 28] No space left on device", "disk full"),
        ("OSError: [Errno 28] No space left on device: '/cache/vllm/x'", "disk full"),
        (f"{TRACEBACK}    os.write(file, data)\nOSError: [Errno 28] No space left on device", "disk full"),
        ("OSError: [Errno 28] No space left on device: '/psm_44d64e2f'", vllm_logs.SHARED_MEMORY_FULL),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", vllm_logs.SHARED_MEMORY_FULL),
        (
            f'{TRACEBACK}  File "/python/multiprocessing/shared_memory.py", line 114, in __init__\n'
            "    self._mmap = mmap.mmap(self._fd, size)\nOSError: [Errno 28] No space left on device",
            vllm_logs.SHARED_MEMORY_FULL,
        ),
        (
            "RuntimeError: unable to write to file </torch_913_1762_0>: No space left on device (28)",
            vllm_logs.SHARED_MEMORY_FULL,
        ),
        (
            "node1:7:7 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-0ZdN1F to 33030532 "
            "bytes, error: No space left on device (28)",
            vllm_logs.SHARED_MEMORY_FULL,
        ),
        (
            f'{TRACEBACK}  File "/python/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device",
            vllm_logs.SHARED_MEMORY_FULL,
        ),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit.",
            vllm_logs.SHARED_MEMORY_FULL,
        ),
        ("Fatal Python error: Bus error", vllm_logs.BUS_ERROR),
        (
            f'{TRACEBACK}  File "/python/multiprocessing/shared_memory.py", line 1\nFileNotFoundError: gone\n'
            f"{TRACEBACK}    file.write(text)\nOSError: [Errno 28] No space left on device",
            "disk full",
        ),
        (
            "(EngineCore pid=1) ERROR 07-14 10:02:38 [core.py:866] RuntimeError: NCCL error: unhandled system error",
            "RuntimeError: NCCL error: unhandled system error",
        ),
        ("nothing went wrong", None),
    ],
)
def test_known_causes(line, cause):
    assert vllm.cause(f"INFO before\n{line}\nINFO after\n") == cause


REFUSED = "a configuration that the engine refuses: Total number of heads (9) must be divisible by 2."
VALUE_ERROR = "  Value error, Total number of heads (9) must be divisible by 2. [type=value_error, input_value=x]"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "(APIServer pid=1) ",
        "(EngineCore_DP0 pid=123) ",
        "(EngineCore_DP1 pid=1) (Worker_TP0_EP0 pid=22) ",
        "(RayWorkerWrapper pid=12, ip=10.0.0.7) ",
        "\x1b[0;36m(EngineCore_DP0 pid=123)\x1b[0;0m ",
        "\x1b[1;36m(APIServer pid=1)\x1b[0;0m ERROR 07-14 10:02:38 [core.py:866] ",
        "ERROR 2026-07-14 10:02:38,123 [v1/core.py:866] ",
    ],
)
def test_neither_colours_nor_a_processs_name_hide_a_cause(before):
    assert vllm.cause(f"INFO\n{before}ValidationError\n{before}{VALUE_ERROR}\n") == REFUSED
    assert vllm.cause(f"INFO\r\n{before}\x1b[31mRuntimeError: NCCL error\x1b[0m\r\n") == "RuntimeError: NCCL error"


@pytest.mark.parametrize("name", ["gpu-oom", "cpu-fails-unrecognized", "cpu-fails-blocks", "cpu-fails-tp"])
def test_the_cause_in_a_whole_log_with_colours(name):
    assert vllm.cause(coloured(log(name))) == vllm.cause(log(name)) is not None


@pytest.mark.parametrize("name", ["cpu-baseline", "cpu-ngram-k3", "gpu-baseline", "cpu-hybrid"])
def test_the_figures_of_a_start_with_colours(name):
    assert vllm.start_figures(coloured(log(name))) == vllm.start_figures(log(name)) != {}
    assert vllm.cause(coloured(log(name))) is None
    assert vllm.phase(coloured(log(name))) == vllm.phase(log(name)) == "other"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("cpu-baseline", {"imports": 1, "weights": 38, "profiling": 52, "other": 55}),
        ("cpu-ngram-k3", {"imports": 1, "weights": 41, "profiling": 56, "other": 59}),
        ("cpu-hybrid", {"imports": 1, "weights": 38, "profiling": 49, "other": 54}),
        ("gpu-baseline", {"imports": 1, "weights": 3, "profiling": 4, "other": 8}),
    ],
)
def test_a_starts_phases_by_the_line_of_the_log_at_which_they_begin(name, lines):
    begun, sofar = {}, ""
    for number, line in enumerate(log(name).splitlines(keepends=True), 1):
        sofar += line
        begun.setdefault(vllm.phase(sofar), number)
    assert begun == lines
    assert vllm.phase("Starting to load model\nModel loading took 1 GiB\nCapturing CUDA graphs:  10%|") == "capture"


def test_a_template_is_for_a_cpu_host_with_intels_openmp_and_no_connector():
    variables = {"LD_PRELOAD": "/venv/lib/libiomp5.so"}
    assert vllm.template(BASELINE.server, CPU, variables) is vllm.TEMPLATE
    assert vllm.template(BASELINE.server, GPU, variables) is None
    assert vllm.template(BASELINE.server, CPU, {"LD_PRELOAD": "/lib/libgomp.so.1"}) is None
    connected = BASELINE.variant(options={**OPTIONS, "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}})
    assert vllm.template(connected.server, CPU, variables) is None


def coloured(text: str) -> str:
    """As the engine writes to a terminal: each line's process and level in colour, numbers too by some programs."""
    text = re.sub(r"^(\([^)]*\))", "\x1b[0;36m\\1\x1b[0;0m", text, flags=re.MULTILINE)
    text = re.sub(r"(ERROR|INFO|WARNING)", "\x1b[32m\\1\x1b[0m", text)
    return re.sub(r"(\d+\.\d+)", "\x1b[1m\\1\x1b[0m", text).replace("\n", "\r\n")


def test_a_library_is_preloaded_from_a_path_without_a_space(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(vllm.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    for place in ("a checkout", "a:checkout", "plain"):
        lib = tmp_path / place / "lib"
        lib.mkdir(parents=True)
        (lib / "libiomp5.so").write_text(place)
        named = vllm.environment(BASELINE.server, CPU, tmp_path / place / "bin" / "python")["LD_PRELOAD"]
        assert not re.search("[ :]", named) and Path(named).read_text() == place
        assert (named == str(lib / "libiomp5.so")) == (place == "plain")
    folder = tmp_path / "tmp" / f"serving-study-{os.getuid()}"
    assert len(list(folder.iterdir())) == 2 and folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_elses_is_not_preloaded_from(tmp_path, monkeypatch):
    library = tmp_path / "a checkout" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(vllm.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir()
    theirs = tmp_path / "runtime" / f"serving-study-{os.getuid()}"
    theirs.mkdir(mode=0o777)
    theirs.chmod(0o777)
    assert Path(vllm.preloadable(library)).parent == tmp_path / f"serving-study-{os.getuid()}"
    assert not list(theirs.iterdir())
    monkeypatch.setattr(vllm.Path, "symlink_to", lambda *_: (_ for _ in ()).throw(OSError("read-only")))
    other = tmp_path / "a checkout" / "other.so"
    with pytest.raises(HostError, match="cannot be preloaded from a path with a space or colon") as caught:
        vllm.preloadable(other)
    assert caught.value.next.startswith("export TMPDIR=")


def test_a_home_that_cannot_be_written_moves_the_caches(tmp_path, cache, monkeypatch, capsys):
    for name in vllm.CACHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert vllm.caches() == {}
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "nobody"))  # also root cannot write there
    moved = vllm.caches()
    own = cache / "engine"
    assert moved == {
        "XDG_CACHE_HOME": f"{own}/xdg_cache_home",
        "XDG_CONFIG_HOME": f"{own}/xdg_config_home",
        "HF_HOME": f"{own}/hf_home",
        "TRITON_HOME": f"{own}/triton_home",
        "FLASHINFER_WORKSPACE_BASE": f"{own}/flashinfer_workspace_base",
        "CUDA_CACHE_PATH": f"{own}/cuda_cache_path",
        "TORCHINDUCTOR_CACHE_DIR": f"{own}/torchinductor",
    }
    assert moved.items() <= vllm.environment(BASELINE.server, CPU, PYTHON).items()
    assert capsys.readouterr().err.startswith(f"{tmp_path}/file/nobody cannot be written: what engines keep ")
    assert capsys.readouterr().err == ""  # it is said once
    # What the caller names himself is left where it is, as long as it can be written.
    for name in moved:
        monkeypatch.setenv(name, str(tmp_path / "there"))
    assert vllm.caches() == {}
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "file" / "x"))
    assert vllm.caches()["VLLM_CACHE_ROOT"] == f"{own}/vllm_cache_root"


def test_a_hub_folder_that_is_there_is_read_though_it_cannot_be_written(tmp_path, cache, monkeypatch):
    for name in vllm.CACHES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(vllm, "_is_writable", lambda place: False)
    moved = vllm.caches()
    assert "HF_HOME" not in moved and "XDG_CACHE_HOME" in moved


def test_a_consequence_is_not_the_cause_where_there_is_another():
    text = (
        "ValueError: the cause\n(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue.\nRuntimeError: Engine core initialization failed. See root cause above."
    )
    assert vllm.cause(text) == "ValueError: the cause"
    assert (
        vllm.cause("RuntimeError: Engine core initialization failed.")
        == "RuntimeError: Engine core initialization failed."
    )


def test_a_dead_server_names_cause_and_end_of_log(tmp_path):
    (tmp_path / "server.log").write_text(log("gpu-oom"))
    error = died(BASELINE, tmp_path / "server.log", 1)
    assert error.reason.startswith("out of memory: tried to allocate 270.00 MiB") and error.exit_code == 1
    assert len(error.last_lines) == 9 and error.last_lines[-1].endswith("Failed core proc(s): {}")
    assert died(BASELINE, LOGS / "cpu-baseline.log", 1).reason == "the log does not say why"
    assert len(died(BASELINE, LOGS / "cpu-baseline.log", 1).last_lines) == 20


def test_a_missing_log_has_no_last_lines(tmp_path):
    assert logs.tail(tmp_path / "none.log") == ()


def test_an_unknown_engine_is_refused():
    with pytest.raises(ParameterError, match="unknown engine: turbo") as caught:
        engines.get("turbo")
    assert caught.value.allowed == ", ".join(engines.ENGINES)
