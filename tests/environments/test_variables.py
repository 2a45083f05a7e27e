"""Which of the caller's variables are part of a key, which are not, and which are refused."""

import pytest

from serving_study.doctor import checks
from serving_study.doctor.findings import FAIL, OK
from serving_study.environments import variables
from serving_study.errors import HostError
from serving_study.servers import fleet

KUBERNETES = {  # what a pod gets beside a service named vllm
    "VLLM_SERVICE_HOST": "10.0.0.1",
    "VLLM_SERVICE_PORT": "8000",
    "VLLM_SERVICE_PORT_HTTP": "8000",
    "VLLM_PORT": "tcp://10.0.0.1:8000",
    "VLLM_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "VLLM_PORT_8000_TCP_PROTO": "tcp",
    "VLLM_PORT_8000_TCP_PORT": "8000",
    "VLLM_PORT_8000_TCP_ADDR": "10.0.0.1",
    "VLLM_ROUTER_PORT": "tcp://10.0.0.2:80",
}


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_ATTENTION_BACKEND",
        "VLLM_USE_V1",
        "VLLM_CPU_KVCACHE_SPACE",
        "NCCL_P2P_DISABLE",
        "NCCL_ALGO",
        "OMP_NUM_THREADS",
        "KMP_BLOCKTIME",
        "GOMP_CPU_AFFINITY",
        "MKL_NUM_THREADS",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "UCX_TLS",
        "FI_PROVIDER",
        "LMCACHE_CHUNK_SIZE",
        "TORCH_NCCL_BLOCKING_WAIT",
        "TORCHDYNAMO_DISABLE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "NVIDIA_TF32_OVERRIDE",
        "TOKENIZERS_PARALLELISM",
    ],
)
def test_what_a_library_reads_decides_a_result(name):
    assert variables.deciding({name: "1", "HOME": "/root"}) == {name: "1"} and variables.deciding({name: ""}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_PYTHON",
        "VLLM_NO_USAGE_STATS",
        "VLLM_LOGGING_LEVEL",
        "VLLM_LOGGING_COLOR",
        "VLLM_CACHE_ROOT",
        "VLLM_HOST_IP",
        "NCCL_DEBUG",
        "NCCL_VERSION",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_VERSION",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_REQUIRE_CUDA",
        "TORCH_CUDA_ARCH_LIST",
        "PYTORCH_VERSION",
        "LMCACHE_TRACK_USAGE",
        "UCX_LOG_LEVEL",
        "HF_TOKEN",
        "PATH",
        "SERVING_STUDY_RESULTS",
        "MYVLLM_THING",
    ],
)
def test_logs_places_and_images_decide_nothing(name):
    assert variables.deciding({name: "1"}) == {}


def test_what_a_cluster_names_after_its_services_decides_nothing():
    assert variables.deciding(KUBERNETES) == {}


def test_libraries_that_are_loaded_first_are_told_by_name():
    given = {"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4:/opt/libother.so"}
    assert variables.deciding(given) == {"LD_PRELOAD": "libtcmalloc.so.4:libother.so"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (KUBERNETES, "VLLM_PORT: tcp://10.0.0.1:8000 is an address, as Kubernetes sets it"),
        ({"VLLM_PORT": "http"}, "VLLM_PORT: 'http' is no port"),
        ({"VLLM_PORT": "70000"}, "VLLM_PORT: '70000' is no port"),
        ({"VLLM_API_KEY": "secret"}, "VLLM_API_KEY: the server would refuse every request"),
    ],
)
def test_what_would_break_a_start_is_refused_and_said(given, said):
    with pytest.raises(HostError) as caught:
        variables.check(given)
    assert said in str(caught.value) and "secret" not in str(caught.value)
    assert f"unset {next(name for name in variables.breaking(given))}" in caught.value.next


def test_a_port_that_is_one_is_left_alone():
    variables.check({"VLLM_PORT": "29500"})
    assert variables.deciding({"VLLM_PORT": "29500"}) == {}


def test_nothing_starts_and_the_doctor_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_PORT", KUBERNETES["VLLM_PORT"])
    with pytest.raises(HostError, match="would break the server"):
        fleet.launch(None, None, None, tmp_path / "never")
    assert not (tmp_path / "never").exists()
    finding = checks.caller_variables()
    assert finding.outcome == FAIL and "VLLM_PORT" in finding.found and "unset VLLM_PORT" in finding.fix
    monkeypatch.setenv("VLLM_PORT", "29500")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    finding = checks.caller_variables()
    assert finding.outcome == OK and "OMP_NUM_THREADS=1" in finding.found
