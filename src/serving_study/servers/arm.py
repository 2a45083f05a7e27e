"""`Arm`: the processes of one configuration.

An arm holds everything that decides what its server does. Two arms that differ only in name are the A/A pair that gives
the noise floor (`repeat_of`).
"""

from dataclasses import dataclass

from ..engines.process import CACHE_SERVER, SERVER, Process
from ..errors import ParameterError
from ..models.checkpoints import Model

TRUNCATED = "truncated"  # distinction of a draft that is the target's first layers
# Columns of cells and starts that say what their arm is.
COLUMNS = ("technique", "k", "tp", "pp", "dp", "ep", "replicas", "model", "draft", "distinction", "repeat_of")


@dataclass(frozen=True)
class Arm:
    """One configuration of servers.

    `processes` are started in their order, first those that others need. `front` stands before the servers: `none`, or
    `turns`, a port that hands connections to one server after another. `technique` is what the certificate expects
    (`none`, `ngram`, `suffix`, `draft`, `dynamic`, `parallel`, `prefix`, `offload`), `acceptance` how drafts are
    accepted (`measured`, `prescribed`, None without speculation). With `scratch` the processes run in an empty folder
    that is removed at their end. `unsupported` is why the arm cannot exist here, `distinction` what else sets it apart
    in its section (`truncated`, `memory-0.15`)."""

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
        """An arm of one server, or of equal `replicas` that take turns and share `gpus`; `sidecar` is a cache server
        that each needs; a `resettable` server's caches can be emptied over HTTP.

        Raises ParameterError where the GPUs cannot be shared out evenly."""
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
        """The arm with other values for parameters of `Arm.of`, its name included."""
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
        """The processes that take requests."""
        return tuple(process for process in self.processes if process.role == SERVER)

    @property
    def server(self) -> Process:
        """The server, or the first of several equal ones."""
        return self.servers[0]

    @property
    def sidecar(self) -> Process | None:
        """The cache server; None without one."""
        return next((process for process in self.processes if process.role == CACHE_SERVER), None)

    @property
    def replicas(self) -> int:
        """The number of servers that take turns."""
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
        """Ranks that together hold one copy of the model."""
        return self.server.split

    @property
    def copies(self) -> int:
        """Copies of the model that share the requests."""
        return sum(process.copies for process in self.servers)

    @property
    def ranks(self) -> int:
        """Processes that compute: one a GPU, on a CPU host some cores each."""
        return sum(process.ranks for process in self.processes)

    @property
    def distributions(self) -> tuple[str, ...]:
        """Distributions that must be installed beside the engine."""
        return tuple(sorted({name for process in self.processes for name in process.distributions}))

    @property
    def weights(self) -> str:
        return self.server.weights

    def columns(self) -> dict:
        """COLUMNS of the arm, for comparisons; its name is for people."""
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
        """What decides a result, without this machine's paths."""
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


def again(arm: Arm, number: int = 1) -> Arm:
    """`arm` under another name, the A/A control: `baseline-again`, and `baseline-again-2` for a second one."""
    name = f"{arm.name}-again" if number == 1 else f"{arm.name}-again-{number}"
    return arm.variant(name=name, repeat_of=arm.name)
