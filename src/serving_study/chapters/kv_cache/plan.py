"""Section 7's parameters, and the plan that they come to: the prefix cache with its control, tiers below it, and a
cache of smaller numbers.

Two kinds of arms. Those of the prefix cache have all the memory that the server may use and answer requests with a
shared beginning. Those of the tiers have a small cache (`tier_cache_gib`, or `tier_blocks`), so that working sets above
it can be sent in seconds; the last ones combine two tiers, or a tier and smaller numbers. What can mislead: an arm's
loads are its own (`Plan.only`), and how many prefixes a working set has is settled by each server's start: one with
smaller numbers has twice the cache, and is asked for twice the prefixes. LMCache is inside the engine on a GPU and a
server beside it on a CPU, which the arms' names say."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import pandas
from pydantic import Field, model_validator

from ...analysis import claims
from ...chapters import plans
from ...chapters.parameters import PORT, Above0, Number, Once, Port, Positive, Share, Weights, Whole
from ...engines.lmcache import in_process_variables
from ...engines.process import CACHE_SERVER, Process
from ...environments import Environment
from ...errors import ParameterError
from ...hardware import cgroups
from ...hardware.hosts import Host
from ...loads import Load
from ...loads.prompts import Exact, SharedPrefix, WorkingSet
from ...measure.cell import WARMUP_TOKENS
from ...measure.plan import Plan
from ...models import shapes
from ...models.checkpoints import Model
from ...servers.arm import Arm, again
from .prefixes import CACHED, CONTROL, DEVICE, QUANTISED, TIERS

CHUNK_TOKENS = 256  # LMCache's piece: prefixes of the tiers are whole ones
SERVER_CHUNK_TOKENS = 128  # the same of the LMCache server: a CPU's block
STAGING_GIB = 4  # of memory through which LMCache's disk tier reads and writes
# of tier_gib: the first of the LMCache server's two tiers, so that a working set above the cache needs the second
FIRST_TIER_SHARE = 1 / 8
SERVER_GIB = 0.6  # what the LMCache server takes beside its first tier
# the larger of the engines' blocks: the log's size is of whole requests of max_model_len, so that one of whole blocks
# loses none
BLOCK_TOKENS = 128
WORKSPACE_GIB = 1.6  # what a GPU's server takes beside weights and cache, about


CPU = {
    "model": "smollm2-135m-instruct",
    "sequence_prefix": 1025,
    "prefix_lengths": [256, 1024],
    "shares": [0.0, 0.5, 1.0],
    "concurrency": 2,
    "prompts": 8,
    "output_tokens": 4,
    "repeats": 4,
    "lives": 2,
    "minutes": 15,
    "quantised": False,
    "tiers": [
        "device-only",
        "files",
        "lmcache-server",
        "lmcache-server-disk",
        "cpu-offload",
        "lmcache-cpu",
        "lmcache-disk",
    ],
    "tier_prefix": 512,
    "break_even_lengths": [256, 1024],
    "tier_blocks": 24,
    "tier_gib": 2.0,
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "enforce_eager": True,
}
GPU = {
    "model": "Qwen/Qwen2.5-7B-Instruct",
    "sequence_prefix": 3001,
    "prefix_lengths": [256, 1024, 4096, 16384, 32000],
    "shares": [0.0, 0.5, 0.9, 1.0],
    "concurrency": 8,
    "prompts": 32,
    "output_tokens": 16,
    "repeats": 6,
    "lives": 2,
    "minutes": 60,
    "quantised": True,
    "tiers": ["device-only", "cpu-offload", "lmcache-cpu", "lmcache-disk", "lmcache-cpu-disk", "fp8-cpu-offload"],
    "tier_prefix": 4096,
    "break_even_lengths": [256, 1024, 16384],
    "tier_gib": 24.0,
    "max_model_len": 32768,
    "max_num_seqs": 64,
    "enforce_eager": False,
}


class KvCache(plans.InBlocks):
    """Section 7's parameters."""

    section = 7
    profiles = {"cpu": CPU, "gpu": GPU}
    prefix_caching: ClassVar[bool] = True
    temperature: ClassVar[float] = 0.0

    host: str = Field("auto", description='this machine; "cpu" leaves GPUs aside')
    model: str | None = Field(None, description="a hub id, a folder, or smollm2-135m-instruct")
    weights: Weights = Field("auto", description='"real", "random", or "auto": real where within reach')
    sequence_prefix: Annotated[Whole, Field(ge=32)] | None = Field(
        None, description="tokens that requests one after another have in common"
    )
    sequence_requests: Annotated[Whole, Field(ge=2)] = Field(5, description="so many of them, each for one token")
    own_tokens: Positive = Field(20, description="of each prompt, that no other has")
    prefix_lengths: list[Annotated[Whole, Field(ge=32)]] | None = Field(
        None, description="tokens of a shared prefix, under concurrency"
    )
    shares: Annotated[list[Annotated[Number, Field(ge=0, le=1)]], Once] | None = Field(
        None,
        description="shares of the requests that begin with it, 0 to 1",
        json_schema_extra={"allowed": "shares from 0 to 1, each once"},
    )
    concurrency: Positive | None = Field(None, description="requests in flight")
    prompts: Positive | None = Field(None, description="requests in all")
    output_tokens: Annotated[Whole, Field(ge=4)] | None = Field(
        None, description="length of every answer under concurrency"
    )
    quantised: bool | None = Field(None, description="a cache of 8-bit numbers; None: on a GPU")
    tiers: Annotated[list[Literal[*TIERS]], Once] | None = Field(
        None,
        description="device-only, cpu-offload, lmcache-cpu, lmcache-disk, files, lmcache-server … (above)",
        json_schema_extra={"allowed": f"any of {', '.join(TIERS)}, each once"},
    )
    tier_prefix: Annotated[Whole, Field(ge=CHUNK_TOKENS)] | None = Field(
        None, description="tokens of each prefix of a working set"
    )
    working_sets: Annotated[list[Above0], Once] = Field(
        [0.5, 1.0, 2.0, 4.0],
        description="in multiples of the cache",
        json_schema_extra={"allowed": "multiples of the cache above 0, each once"},
    )
    rounds: Annotated[Whole, Field(ge=2)] = Field(2, description="how often each prefix of a working set is asked for")
    break_even_lengths: list[Annotated[Whole, Field(ge=CHUNK_TOKENS)]] | None = Field(
        None, description="other lengths of prefix, for the smallest working set above the cache"
    )
    tier_cache_gib: Above0 = Field(2.5, description="GPU: the small cache, about")
    tier_blocks: Positive | None = Field(
        None,
        description="the small cache in blocks, in place of it",
        json_schema_extra={"allowed": "1 or more, or None for tier_cache_gib"},
    )
    tier_gib: Above0 | None = Field(None, description="room in the tier below")
    max_model_len: Positive | None = Field(None, description="longest prompt and answer together")
    max_num_seqs: Positive | None = Field(None, description="most requests that the engine runs at once")
    gpu_memory_utilization: Share = Field(0.90, description="share of GPU memory for the whole cache's arms")
    kv_cache_gib: Positive = Field(1, description="CPU: memory for the KV cache")
    enforce_eager: bool | None = Field(None, description="None: compiled on a GPU, eager on a CPU")
    price_per_hour: Above0 | None = Field(
        None,
        description="US dollars; adds what requests cost",
        json_schema_extra={"allowed": "US dollars above 0, or None"},
    )
    arms: list[str] | None = Field(None, description="names of the arms to run; None: all")
    seed: Whole = Field(42, description="prompts, order of cells, sampling")
    port: Port = Field(0, description="0: any free port", json_schema_extra=PORT)
    fresh: bool = Field(False, description="measure again what is measured already")

    @model_validator(mode="after")
    def _prompts_fit_the_server(self) -> Self:
        if None not in (self.prompts, self.concurrency):
            self.require(
                self.prompts >= 4 * self.concurrency,
                "prompts",
                f"four times the concurrency {self.concurrency} or more: a steady window needs them",
            )
        if None in (self.max_model_len, self.output_tokens):
            return self
        longest = self.max_model_len - self.own_tokens - self.output_tokens
        chunks = f"multiples of {CHUNK_TOKENS} up to {longest}"
        for name, allowed, fits in (
            ("sequence_prefix", f"from 32 to {longest}, which max_model_len leaves", lambda length: length <= longest),
            (
                "prefix_lengths",
                f"each value once, from 32 to {longest}, which max_model_len leaves",
                lambda length: length <= longest,
            ),
            (
                "tier_prefix",
                chunks.replace("multiples", "a multiple"),
                lambda length: length % CHUNK_TOKENS == 0 and length <= longest,
            ),
            (
                "break_even_lengths",
                f"{chunks}, each once and none the tier_prefix {self.tier_prefix}",
                lambda length: length % CHUNK_TOKENS == 0 and length <= longest and length != self.tier_prefix,
            ),
        ):
            value = getattr(self, name)
            lengths = [] if value is None else value if isinstance(value, list) else [value]
            self.require(all(map(fits, lengths)) and len(set(lengths)) == len(lengths), name, allowed)
        return self


def model_names(wanted: KvCache, host: Host) -> list[str]:
    """The model that a plan with these parameters is made of."""
    return [wanted.filled(GPU if host.gpus else CPU).model]


def plan(wanted: KvCache, host: Host, *, dry: bool = False, say: Callable[[str], None] = print) -> Plan:
    """What section 7 measures on `host` with these parameters."""
    wanted = wanted.filled(GPU if host.gpus else CPU)
    environment = plans.environment(host, dry, say)
    there = None if dry and not environment.vllm else environment
    models, notes = plans.models([wanted.model], wanted.weights, there, "text is not", say)
    model = models[wanted.model]
    shared, tiered = _loads(wanted, host, model)
    made = [*_prefix_arms(wanted, host, model), *_tier_arms(wanted, host, model, environment)]
    if wanted.arms is not None:
        unknown = [name for name in wanted.arms if name not in {arm.name for arm in made}]
        if unknown:
            raise ParameterError(
                "unknown arm",
                value=", ".join(unknown),
                allowed=", ".join(arm.name for arm in made),
                next="make plan SECTION=7",
            )
        made = [arm for arm in made if arm.name in wanted.arms]
    loads = {arm.name: tiered if arm.name in TIERS else shared[1:] if arm.name == QUANTISED else shared for arm in made}
    used = tuple(load for load in (*shared, *tiered) if any(load in rows for rows in loads.values()))
    only = {name: tuple(load.name for load in rows) for name, rows in loads.items()}
    return Plan(
        7,
        host,
        environment,
        tuple(made),
        used,
        parameters=plans.resolved(wanted, host),
        seed=wanted.seed,
        port=wanted.port,
        notes=(*notes, *plans.notes(environment), *_page_cache(wanted, host, made)),
        only=only,
        **plans.in_blocks(wanted, host, decisions),
    )


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the cells decide about the rate of requests: with and without a prefix cache, and with and without a tier
    below a small one.
    """
    rate, tiers = "request_throughput", frame["arm"].isin(TIERS)
    return pandas.concat([claims.decisions(frame[~tiers], rate, CACHED), claims.decisions(frame[tiers], rate, DEVICE)])


def _page_cache(wanted: KvCache, host: Host, made: list[Arm]) -> list[str]:
    """A note for arms that write files: what fits in the host's free memory is read back from the page cache."""
    names = [arm.name for arm in made if arm.scratch and not arm.unsupported]
    if not names:
        return []
    fits = wanted.tier_gib < host.free_memory_gib
    return [
        f"{', '.join(names)}: files are read back from the page cache {'as' if fits else 'as far as'} they fit in the "
        f"{host.free_memory_gib:.0f} GiB of free memory (tier_gib = {wanted.tier_gib:g}): "
        + ("no disk's speed is measured" if fits else "a disk's speed is measured in part")
    ]


def _loads(wanted: KvCache, host: Host, model: Model) -> tuple[list[Load], list[Load]]:
    """The loads of the prefix cache's arms, of which the first is the sequence, and those of the tiers: working sets of
    one length of prefix, and the smallest above the cache once more with each of the other lengths.
    """

    def load(dataset: Exact, concurrency: int, prompts: int, output_tokens: int) -> Load:
        return Load(concurrency, prompts, dataset, output_tokens, wanted.temperature, True, wanted.seed)

    shared = [
        load(SharedPrefix(wanted.sequence_prefix, wanted.own_tokens, sequence=True), 1, wanted.sequence_requests, 1)
    ]
    shared += [
        load(SharedPrefix(length, wanted.own_tokens, share), wanted.concurrency, wanted.prompts, wanted.output_tokens)
        for length in wanted.prefix_lengths
        for share in wanted.shares
    ]
    shape = shapes.load(model.folder)
    cache_tokens = (
        wanted.tier_blocks * (128 if not host.gpus else 16)
        if wanted.tier_blocks
        else int(wanted.tier_cache_gib * cgroups.GIB / shape.kv_bytes_per_token())
    )
    above = sorted(times for times in wanted.working_sets if times > 1)[:1]
    sets = [(wanted.tier_prefix, times) for times in wanted.working_sets] + [
        (length, times) for times in above for length in wanted.break_even_lengths
    ]
    tiered = [
        load(
            WorkingSet(length, wanted.own_tokens, times, wanted.rounds, about_tokens=cache_tokens), 1, wanted.rounds, 1
        )
        for length, times in sets
    ]
    return shared, tiered


def _with_prefix_cache(name: str, wanted: KvCache, host: Host, model: Model, options: dict) -> Arm:
    variables, gpus = plans.variables(wanted, host), min(1, len(host.gpus))
    return Arm.of(name, model, options=options, environment=variables, gpus=gpus, technique="prefix")


def _prefix_arms(wanted: KvCache, host: Host, model: Model) -> list[Arm]:
    options = plans.options(wanted, host)
    cached = _with_prefix_cache(CACHED, wanted, host, model, options)
    made = [cached, cached.variant(name=CONTROL, options=options | {"enable_prefix_caching": False}, technique="none")]
    if wanted.quantised:
        made.append(cached.variant(name=QUANTISED, options=options | {"kv_cache_dtype": "fp8"}))
    return made + [again(cached, number) for number in range(1, wanted.twins + 1)]


def _tier_arms(wanted: KvCache, host: Host, model: Model, environment: Environment) -> list[Arm]:
    """`device-only`, the control, and a tier each below it.

    On a CPU the «device» is the memory that the server keeps its cache in.
    """
    longest = max([wanted.tier_prefix, *wanted.break_even_lengths]) + wanted.own_tokens + WARMUP_TOKENS
    options = plans.options(wanted, host) | {
        "max_model_len": min(wanted.max_model_len, -(-longest // BLOCK_TOKENS) * BLOCK_TOKENS)
    }
    if wanted.tier_blocks:
        options["num_gpu_blocks_override"] = wanted.tier_blocks
    elif host.gpus:
        options["gpu_memory_utilization"] = min(
            wanted.gpu_memory_utilization,
            round(
                (shapes.load(model.folder).weights_gib() + WORKSPACE_GIB + wanted.tier_cache_gib)
                / host.gpus[0].memory_gib,
                3,
            ),
        )
    device = _with_prefix_cache(DEVICE, wanted, host, model, options)
    below = partial(device.variant, technique="offload", resettable=True)

    def connector(name: str, **extra) -> dict:
        return options | {
            "kv_transfer_config": {"kv_connector": name, "kv_role": "kv_both"}
            | ({"kv_connector_extra_config": extra} if extra else {})
        }

    def in_engine(name: str, **settings) -> Arm:
        """An arm with LMCache inside its engine."""
        return below(
            name=name,
            options=connector("LMCacheConnectorV1"),
            environment=device.environment | in_process_variables(CHUNK_TOKENS, **settings),
            scratch="local_disk" in settings,
            unsupported=missing
            if host.gpus
            else "LMCacheConnectorV1 finds no GPU and goes on without a cache; lmcache-server has LMCache beside the "
            "engine",
        )

    def in_server(name: str, first_gib: float, **settings) -> Arm:
        """An arm with an LMCache server beside its engine."""
        flags = {
            "chunk_size": SERVER_CHUNK_TOKENS,
            "supported_transfer_mode": "engine_driven",
            "l1_size_gb": first_gib,
            "eviction_policy": "LRU",
        } | settings
        place = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": "{message_port}"}
        return below(
            name=name,
            options=connector("LMCacheMPConnector", **place),
            sidecar=Process(
                CACHE_SERVER,
                "lmcache",
                options=flags,
                version=environment.versions.get("lmcache"),
                memory_gib=first_gib + SERVER_GIB,
            ),
            scratch="l2_adapter" in settings,
            unsupported=outside,
        )

    missing = None if "lmcache" in environment.versions else "lmcache is not installed in the engine's environment"
    outside = (
        "tried on a CPU alone; on a GPU LMCache runs inside the engine (lmcache-cpu, lmcache-disk)"
        if host.gpus
        else missing
        if environment.versions
        else None
    )
    cuda = None if host.gpus else "vLLM offloads from CUDA and XPU devices alone"
    offloaded = options | {"kv_offloading_size": wanted.tier_gib, "kv_offloading_backend": "native"}
    disk = {
        "type": "fs_native",
        "base_path": "kv",
        "max_capacity_gb": wanted.tier_gib,
        "eviction": {"eviction_policy": "LRU"},
    }
    on_disk = {"max_local_cpu_size": STAGING_GIB, "local_disk": "kv/", "max_local_disk_size": wanted.tier_gib}
    made = [
        device,
        below(name="cpu-offload", options=offloaded, unsupported=cuda),
        in_engine("lmcache-cpu", local_cpu=True, max_local_cpu_size=wanted.tier_gib),
        in_engine("lmcache-disk", local_cpu=False, **on_disk),
        below(name="files", options=connector("ExampleConnector", shared_storage_path="kv"), scratch=True),
        in_server("lmcache-server", wanted.tier_gib),
        in_server("lmcache-server-disk", wanted.tier_gib * FIRST_TIER_SHARE, l2_adapter=disk),
        in_engine("lmcache-cpu-disk", local_cpu=True, **on_disk),
        below(name="fp8-cpu-offload", options=offloaded | {"kv_cache_dtype": "fp8"}, unsupported=cuda),
    ]
    by_name = {arm.name: arm for arm in made}
    return [by_name[name] for name in TIERS if name in wanted.tiers]
