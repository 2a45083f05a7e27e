"""`Process`: one process of an arm: what it runs, with which options, on how many GPUs.

>>> Process(SERVER, "vllm", speculative={"num_speculative_tokens": 3}).k
3
"""

import json
from dataclasses import dataclass, field

from ..models.checkpoints import Model

SERVER, CACHE_SERVER = "server", "cache server"

# A word in a process's options, and the distribution that it needs.
DISTRIBUTIONS = {
    "lmcache": "lmcache",
    "nixl": "nixl",
    "mooncake": "mooncake-transfer-engine",
    '"ray"': "ray",
    "bitsandbytes": "bitsandbytes",
    "gguf": "gguf",
    "runai_streamer": "runai-model-streamer",
    "tensorizer": "tensorizer",
    "fastsafetensors": "fastsafetensors",
    '"suffix"': "arctic-inference",
}


@dataclass(frozen=True)
class Process:
    """One process that an arm starts.

    `role` is its part in the arm (`server`, `prefill`, `decode`, `cache server`), `engine` whose command line it has,
    `name` its arm's. `options` are flags by name without dashes (`max_model_len`; True is a bare flag); `speculative`
    is vLLM's `--speculative-config`. With `resettable` its caches can be emptied over HTTP. `version` and `memory_gib`
    (about) are a cache server's."""

    role: str
    engine: str
    name: str = ""
    model: Model | None = None
    options: dict = field(default_factory=dict)
    speculative: dict | None = None
    draft: Model | None = None
    environment: dict = field(default_factory=dict)
    gpus: int = 0
    resettable: bool = False
    version: str | None = None
    memory_gib: float = 0.0

    @property
    def k(self) -> int:
        """Draft tokens a round; 0 without speculation."""
        return (self.speculative or {}).get("num_speculative_tokens", 0)

    @property
    def split(self) -> int:
        """Ranks that together hold one copy of the model."""
        return self.options.get("tensor_parallel_size", 1) * self.options.get("pipeline_parallel_size", 1)

    @property
    def copies(self) -> int:
        """Copies of the model that share the requests."""
        return self.options.get("data_parallel_size", 1)

    @property
    def ranks(self) -> int:
        """Processes that compute: one a GPU, on a CPU host some cores each; none of a cache server."""
        return 0 if self.role == CACHE_SERVER else self.split * self.copies

    @property
    def weights(self) -> str:
        """`random` where any of its models has random weights, else `real`."""
        return "random" if "random" in (model.weights for model in (self.model, self.draft) if model) else "real"

    @property
    def distributions(self) -> tuple[str, ...]:
        """Distributions that must be installed beside the engine: a KV connector's, a loader's, Ray, a cache server's
        own.
        """
        method = (self.speculative or {}).get("method")
        words = json.dumps([self.options, self.engine, method], default=str).lower()
        return tuple(sorted({name for word, name in DISTRIBUTIONS.items() if word in words}))
