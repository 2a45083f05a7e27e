"""The caller's environment variables that reach an engine: which decide a result, which would break a start.

A server inherits the caller's environment. A variable of a family that its libraries read decides a result unless it
is known not to (logs, telemetry, caches, an image's labels). What can mislead: a cluster names variables after its
services, so a service called `vllm` sets `VLLM_PORT=tcp://…`, at which vLLM ends; what the harness sets is part of
the arm, whatever the caller's value.

    >>> from serving_study.environments import variables
    >>> variables.deciding({"VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_LOGGING_LEVEL": "DEBUG", "HOME": "/root"})
    {'VLLM_ATTENTION_BACKEND': 'FLASHINFER'}
"""

import os
import re
from collections.abc import Mapping

from ..errors import HostError

FAMILIES = re.compile(
    # the engine, and what moves its cache
    r"(VLLM|SGLANG|TRTLLM|TLLM|LLAMA|GGML|LMCACHE|NIXL|MOONCAKE|RAY"
    # between GPUs and hosts
    r"|NCCL|UCX|FI|GLOO|NVSHMEM"
    # on the GPU
    r"|CUDA|CUDNN|CUBLAS|CUBLASLT|CUTLASS|FLASHINFER|TRITON|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|NVIDIA"
    # on the processor
    r"|OMP|GOMP|KMP|MKL|NUMBA|OPENBLAS|ONEDNN|DNNL|ATEN|MALLOC|TCMALLOC|MIMALLOC|JEMALLOC)_\w+"
    r"|LD_PRELOAD|GLIBC_TUNABLES|MALLOC_CONF|TOKENIZERS_PARALLELISM|PYTHONOPTIMIZE|PYTHONMALLOC"
)
# Logs, telemetry, places of caches, addresses, what a build or an image says of itself, and which of equal cards is
# seen: a host's identity has the cards.
DECIDES_NOTHING = re.compile(
    r"VLLM_(PYTHON|NO_USAGE_STATS|DO_NOT_TRACK|USAGE_\w+|CONFIGURE_LOGGING|LOGGING_\w+|LOG_STATS_INTERVAL|CACHE_ROOT"
    r"|CONFIG_ROOT|ASSETS_CACHE\w*|XLA_CACHE_PATH|RPC_BASE_PATH|HOST_IP|PORT|LOOPBACK_IP|ENGINE_READY_TIMEOUT_S"
    r"|TARGET_DEVICE|VERSION\w*|BUILD_\w+|MAIN_CUDA_VERSION|DOCKER_\w+|HTTP_TIMEOUT_KEEP_ALIVE|USE_MODELSCOPE"
    r"|SERVER_DEV_MODE|API_KEY)"
    r"|SGLANG_PYTHON|TLLM_LOG_\w+|LLAMA_CPP_\w+|LLAMA_ARG_(LOG_\w+|HOST|PORT)|LLAMA_(API_KEY|CACHE)"
    r"|LMCACHE_(TRACK_USAGE|LOG_LEVEL|LOG_FORMAT|DISABLE_BANNER)"
    r"|NCCL_(DEBUG\w*|VERSION|HOME|ROOT)|UCX_(LOG_\w+|VERSION|HOME|WARN_\w+)|FI_LOG_\w+|RAY_(DEDUP_LOGS|COLOR_PREFIX)"
    r"|RAY_(USAGE_STATS_\w+|LOG_\w+|TMPDIR|ADDRESS)|GLOO_LOG_\w+"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|VERSION\w*|HOME|PATH|ROOT|TOOLKIT_ROOT_DIR|CACHE_PATH|BIN_PATH|INC_PATH"
    r"|LIB_PATH)|CUDA_MPS_(PIPE|LOG)_DIRECTORY|CUDNN_(VERSION|LOG\w*|PATH)|CUBLAS_VERSION|CUTLASS_PATH"
    r"|NVIDIA_(?!TF32_OVERRIDE$)\w+"
    r"|TORCH_(HOME|CUDA_ARCH_LIST|VERSION|LOGS\w*|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES|EXTENSIONS_DIR|DISTRIBUTED_DEBUG)"
    r"|TORCH_TRACE|TORCHINDUCTOR_CACHE_DIR|PYTORCH_(VERSION|BUILD_\w+|KERNEL_CACHE_PATH|HOME)"
    r"|TRITON_(CACHE_DIR|HOME|DUMP_DIR|PTXAS_PATH|PRINT_\w+)|FLASHINFER_(WORKSPACE_BASE|LOG\w*|CACHE_DIR|JIT_DIR)"
    r"|MKL_(VERBOSE|VERSION)|MKLROOT|OMP_DISPLAY_\w+|KMP_(VERSION|SETTINGS|WARNINGS|DUPLICATE_LIB_OK|INIT_AT_FORK)"
    r"|(ONEDNN|DNNL)_VERBOSE|NUMBA_CACHE_DIR"
)
OF_CLUSTER = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")


def deciding(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's variables that decide a result, by name; of preloaded libraries only the file names."""
    environment = os.environ if environment is None else environment
    variables = {
        name: value
        for name, value in sorted(environment.items())
        if FAMILIES.fullmatch(name)
        and not DECIDES_NOTHING.fullmatch(name)
        and not OF_CLUSTER.fullmatch(name)
        and not (name.endswith("_PORT") and ADDRESS.fullmatch(value))
        and value
    }
    if "LD_PRELOAD" in variables:
        variables["LD_PRELOAD"] = ":".join(
            os.path.basename(part) for part in re.split("[: ]+", variables["LD_PRELOAD"]) if part
        )
    return variables


def breaking(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that would end a start or make requests fail, by name, with the reason."""
    environment, reasons = os.environ if environment is None else environment, {}
    port = environment.get("VLLM_PORT", "")
    if ADDRESS.fullmatch(port):
        reasons["VLLM_PORT"] = (
            f"{port} is an address, as Kubernetes sets it for a service named vllm; vLLM wants a number"
        )
    elif port and not (port.isdigit() and 0 < int(port) < 2**16):
        reasons["VLLM_PORT"] = f"{port!r} is no port"
    for name in ("VLLM_API_KEY", "LLAMA_API_KEY"):
        if environment.get(name):
            reasons[name] = "the server would refuse every request of the load, which carries no key"
    return reasons


def check(environment: Mapping[str, str] | None = None) -> None:
    """Raises HostError where a variable of the caller would break a start."""
    if reasons := breaking(environment):
        raise HostError(
            "a variable of this environment would break the server",
            value="; ".join(f"{name}: {why}" for name, why in reasons.items()),
            allowed="none of these set",
            next=f"unset {' '.join(reasons)}, then the same command again; in a pod, enableServiceLinks: false",
        )
