"""`Arm`: the processes of one configuration.

An arm says everything that decides what its server does. Two arms that differ in nothing but their name are the A/A
pair that gives the noise floor (`repeat_of`)."""

from dataclasses import dataclass

from ..engines.process import CACHE_SERVER, SERVER, Process
from ..errors import ParameterError
from ..models.checkpoints import Model

TRUNCATED = "truncated"  # what sets a draft apart that is a target's first layers
# What an arm is, in the columns of its cells and of its starts.
COLUMNS = ("technique", "k", "tp", "pp", "dp", "ep", "replicas", "model", "draft", "distinction", "repeat_of")


@dataclass(frozen=True)
class Arm:
    """One configuration of servers.

    `processes` are what is started, those that others need first; `front` is what stands before the servers: `none`, or
    `turns`, a port whose connections are handed to one server after another. `technique` is what the certificate
    expects to see happening (`none`, `ngram`, `draft`, `parallel`, `prefix`, `offload`), `acceptance` how drafts are
    accepted: `measured`, `prescribed`, or None without speculation. With `scratch` its processes run in an empty folder
    that goes when they end, for what they write to disk. `unsupported` holds the reason why the arm cannot exist here,
    `distinction` what else sets it apart from the arms of its section (`truncated`, `memory-0.15`).
    """

    name: str
    processes: tuple[Process, ...]
    front: str = "none"
    technique: str = "none"
    acceptance: str | None = None
    distinction: str | None = None
    repeat_of: str | None = None
    scratch: bool = False
    unsupported: str | None = None

    @classmethod
    def of(
        cls,
        name: str,
        model: Model,
        *,
        engine: str = "vllm",
        options: dict | None = None,
        speculative: dict | None = None,
        draft: Model | None = None,
        environment: dict | None = None,
        gpus: int = 1,
        replicas: int = 1,
        sidecar: Process | None = None,
        resettable: bool = False,
        **labels,
    ) -> "Arm":
        """An arm of one server, or of `replicas` alike that take turns and share `gpus`; `sidecar` is a cache server
        that each of them needs, `resettable` whether a server's caches can be emptied over HTTP.

        Raises ParameterError where the GPUs cannot be shared out evenly.
        """
        if gpus % replicas:
            raise ParameterError(
                f"{name}: GPUs do not divide by servers",
                value=f"{gpus} GPUs for {replicas} servers",
                allowed=f"a multiple of {replicas} GPUs",
                next="make doctor, which names this machine's GPUs",
            )
        server = Process(
            SERVER,
            engine,
            name,
            model,
            options or {},
            speculative,
            draft,
            environment or {},
            gpus // replicas,
            resettable,
        )
        before = (sidecar,) if sidecar else ()
        return cls(name, (*before, *[server] * replicas), "turns" if replicas > 1 else "none", **labels)

    def variant(self, **changes) -> "Arm":
        """The same arm but for what `Arm.of` takes by these names, its own name included."""
        server = self.server
        same = {
            "name": self.name,
            "model": server.model,
            "engine": server.engine,
            "options": server.options,
            "speculative": server.speculative,
            "draft": server.draft,
            "environment": server.environment,
            "gpus": self.gpus,
            "replicas": self.replicas,
            "sidecar": self.sidecar,
            "resettable": server.resettable,
            "technique": self.technique,
            "acceptance": self.acceptance,
            "distinction": self.distinction,
            "repeat_of": self.repeat_of,
            "scratch": self.scratch,
            "unsupported": self.unsupported,
        }
        return Arm.of(**same | changes)

    @property
    def servers(self) -> tuple[Process, ...]:
        """The processes that requests are sent to."""
        return tuple(process for process in self.processes if process.role == SERVER)

    @property
    def server(self) -> Process:
        """The server, the first of several that are alike."""
        return self.servers[0]

    @property
    def sidecar(self) -> Process | None:
        """The cache server, where there is one."""
        return next((process for process in self.processes if process.role == CACHE_SERVER), None)

    @property
    def replicas(self) -> int:
        """Servers that take turns."""
        return len(self.servers)

    @property
    def engine(self) -> str:
        return self.server.engine

    @property
    def model(self) -> Model:
        return self.server.model

    @property
    def draft(self) -> Model | None:
        return self.server.draft

    @property
    def options(self) -> dict:
        return self.server.options

    @property
    def speculative(self) -> dict | None:
        return self.server.speculative

    @property
    def environment(self) -> dict:
        return self.server.environment

    @property
    def gpus(self) -> int:
        return sum(process.gpus for process in self.processes)

    @property
    def k(self) -> int:
        """Draft tokens a round; 0 without speculation."""
        return self.server.k

    @property
    def split(self) -> int:
        """Ranks that hold one copy of the model between them."""
        return self.server.split

    @property
    def copies(self) -> int:
        """Copies of the model that requests are shared out to."""
        return sum(process.copies for process in self.servers)

    @property
    def ranks(self) -> int:
        """Processes that compute: a GPU each, or on a CPU host some cores each."""
        return sum(process.ranks for process in self.processes)

    @property
    def distributions(self) -> tuple[str, ...]:
        """What must be installed beside the engine."""
        return tuple(sorted({name for process in self.processes for name in process.distributions}))

    @property
    def weights(self) -> str:
        return self.server.weights

    def columns(self) -> dict:
        """What the arm is, by the names of COLUMNS: names are for people, these are for comparisons."""
        return {
            "technique": self.technique,
            "k": self.k,
            "tp": self.options.get("tensor_parallel_size", 1),
            "pp": self.options.get("pipeline_parallel_size", 1),
            "dp": self.options.get("data_parallel_size", 1),
            "ep": bool(self.options.get("enable_expert_parallel")),
            "replicas": self.replicas,
            "model": self.model.name,
            "draft": self.draft.name if self.draft else None,
            "distinction": self.distinction,
            "repeat_of": self.repeat_of,
        }

    def identity(self) -> dict:
        """What decides a result, free of this machine's paths."""
        server = self.server
        speculative = {key: value for key, value in (server.speculative or {}).items() if key != "model"}
        cache = self.sidecar
        return (
            {
                "name": self.name,
                "engine": server.engine,
                "model": server.model.identity(),
                "draft": server.draft.identity() if server.draft else None,
                "options": server.options,
                "speculative": speculative,
                "environment": server.environment,
                "gpus": self.gpus,
            }
            | ({"replicas": self.replicas} if self.replicas > 1 else {})
            | ({"sidecar": {"kind": cache.engine, "version": cache.version, "options": cache.options}} if cache else {})
        )


def again(arm: Arm) -> Arm:
    """The same arm once more, under another name: the A/A control."""
    return arm.variant(name=f"{arm.name}-again", repeat_of=arm.name)
