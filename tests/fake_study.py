"""A plan with a fake engine, for tests in this process and, as a program, for a harness that can be killed.

python fake_study.py SPECIFICATION.json     # runs the sweep that the file describes
"""

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fake_engine
import pytest
from other_engine import OtherEngine

from serving_study import engines, files, loads
from serving_study.engines import base, lmcache, vllm
from serving_study.engines.process import CACHE_SERVER, Process
from serving_study.environments import Environment
from serving_study.environments.templates import Template
from serving_study.hardware.hosts import Host
from serving_study.loads import Load, datasets, prompts
from serving_study.measure import sweep
from serving_study.measure.plan import Plan
from serving_study.models.checkpoints import Model
from serving_study.results import certificates
from serving_study.servers import server
from serving_study.servers.arm import Arm

HERE = Path(__file__).parent
SERVER = HERE / "fake_engine.py"
SIDE = HERE / "fake_side"
SIDECAR = HERE / "fake_sidecar.py"
HOST = Host("cpu", "Fake CPU", 2, 8.0, 8.0)
TIMED = {
    "client",
    "steady window",
    "clocks",
    "TTFT",
}  # checks of a real load that a busy machine may fail: tests ask nothing of them


class FakeEngine:
    """An engine with vLLM's log lines, counters and process titles; an arm's options are fake_engine.py's."""

    def __init__(self, variables: dict | None = None):
        self.variables = variables or {}

    def command(self, arm, python, port):
        words = [
            str(python),
            str(SERVER),
            "--port",
            str(port),
            "--model",
            arm.model.name,
        ]
        for name, value in arm.options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        words += ["--k", str(arm.k)] if arm.k else []
        return words

    def environment_name(self, host):
        return "fake"

    def environment(self, arm, host, python):
        return {"PYTHONUNBUFFERED": "1", "JOURNAL": os.environ.get("JOURNAL", ""), "ARM": arm.name, **self.variables}

    def template(self, arm, host, variables):
        """Only where a test asks for one, by the modules that it is to import."""
        modules = os.environ.get("FAKE_TEMPLATE", "").split()
        return Template(tuple(modules), frozenset({"ARM", "LATE"})) if modules else None

    def problems(self, arm, accepted, versions):
        return []

    def __getattr__(self, name):
        return getattr(vllm, name)


class FakeCacheServer:
    """What `serving_study.engines.CACHE_SERVERS` wants of a module; a process's options are fake_sidecar.py's."""

    HEALTH, SETTINGS = lmcache.HEALTH, lmcache.SETTINGS

    def command(self, process, python):
        ports = ["--port", "{message_port}", "--http-port", "{http_port}"]
        return [str(python), str(SIDECAR), *ports, *base.flags(process.options)]

    def ineffective(self, process, settings):
        return lmcache.ineffective(process, settings)


@dataclass(frozen=True)
class Fake:
    """An engine of the tests, and what of it a test has to know beside the harness's protocol.

    `versions` are what its interpreter has, `environment` what its servers are given, `unheeded` a setting that they do
    not take. `words` are what is said of it where of vLLM something else is said."""

    engine: base.Engine
    dialect: fake_engine.Dialect
    versions: dict
    environment: dict = field(default_factory=dict)
    unheeded: dict = field(default_factory=dict)
    words: dict = field(default_factory=dict)

    def said(self, words: str) -> str:
        return self.words.get(words, words)


OUT_OF_MEMORY = "out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB"
CRASHED = "RuntimeError: Worker failed with error 'illegal memory access'"
UNHEEDED = "LMCache did not print its configuration"
FAKES = {
    "fake": Fake(
        FakeEngine(),
        fake_engine.VLLM,
        {"vllm": "0.32.0"},
        {"VLLM_CPU_KVCACHE_SPACE": 0},
        {"LMCACHE_CHUNK_SIZE": 256},
    ),
    "other": Fake(
        OtherEngine(),
        fake_engine.OTHER,
        {"other": "1.2"},
        unheeded={"OTHER_TIER": "below"},
        words={
            OUT_OF_MEMORY: "other: device memory exhausted: wanted 2.00 GiB, 0.50 GiB left",
            CRASHED: "other: a shard is lost: access to memory that is not its own",
            UNHEEDED: "other did not take OTHER_TIER",
        },
    ),
}
# A test of both, `study` being of each in its turn.
both = pytest.mark.parametrize("engine", FAKES, indirect=True)


def model(folder: Path, name: str = "fake") -> Model:
    """A model that is a folder with a config.json; it says that its weights are real, so that texts are judged."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 100}))
    return Model(name, str(place), place)


def tokenizer(folder: Path) -> None:
    """Give a model a tokenizer whose tokens are words, as the fake engine's are."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(
        models.WordLevel({"?": 0} | {word: index + 1 for index, word in enumerate(prompts.WORDS)}, unk_token="?")
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))


def arm(
    folder: Path,
    name: str,
    *,
    engine: str = "fake",
    k: int = 0,
    fault: str | None = None,
    replicas: int = 1,
    sidecar: dict | None = None,
    **options,
) -> Arm:
    """An arm of a fake engine; `k` above 0 makes it a draft arm, `tensor_parallel_size` one whose ranks are
    processes, `sidecar` are fake_sidecar.py's options.
    """
    options = {key: value for key, value in ({"fault": fault} | options).items() if value is not None}
    speculative = {"method": "draft_model", "num_speculative_tokens": k} if k else None
    return Arm.of(
        name,
        model(folder),
        engine=engine,
        options=options,
        speculative=speculative,
        environment=FAKES[engine].environment,
        gpus=0,
        replicas=replicas,
        sidecar=Process(CACHE_SERVER, "lmcache", options=sidecar) if sidecar is not None else None,
        technique="draft" if k else "parallel" if "tensor_parallel_size" in options else "none",
        acceptance="measured" if k else None,
    )


def plan(
    arms, *, concurrencies=(2,), prompts: int = 8, output_tokens: int = 12, repeats: int = 1, port: int = 0
) -> Plan:
    arms, dataset = tuple(arms), datasets.load(datasets.OWN, "own")
    engine = arms[0].engine
    made = tuple(Load(concurrency, prompts, dataset, output_tokens, 0.0) for concurrency in concurrencies)
    return Plan(
        3,
        HOST,
        Environment(engine, Path(sys.executable), "3.11", FAKES[engine].versions),
        arms,
        made,
        repeats,
        {"a": 1},
        port=port,
    )


def register(setattr_, setitem) -> None:
    """Put the fakes in place, through pytest's monkeypatch or plainly."""
    for name, fake in FAKES.items():
        setitem(engines.ENGINES, name, fake.engine)
    setitem(engines.CACHE_SERVERS, "lmcache", FakeCacheServer())
    setattr_(loads, "ENGINE_SIDE", SIDE)
    setattr_(server, "GRACE_S", 1.0)
    # What the machine's other guests take is not under test here; test_certificates plants it.
    setattr_(certificates, "STEAL_SHARE", 1.0)


@contextmanager
def foreign(engine: str, **about):
    """Another job's server, an `engine` that answers for the same model; yields its port. `about` are other values for
    fake_engine.py's options.
    """
    options = type(
        "Options",
        (),
        {
            "model": "fake",
            "k": 0,
            "fault": None,
            "lives": None,
            "after": 0,
            "token_s": 0.0,
            "caching": 0,
            "tier": 0,
            "block": 16,
            "kv_blocks": 768,
            "tensor_parallel_size": None,
            "context": 2048,
        }
        | about,
    )
    server = fake_engine.Quiet(("127.0.0.1", 0), fake_engine.handler(fake_engine.State(options, FAKES[engine].dialect)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def starts(results) -> dict[str, dict]:
    """Start records by arm, of all runs."""
    return {record["arm"]: record for record in map(files.read, results.store.folder.glob("*/arms/*/start.json"))}


def cells(results) -> dict[tuple, dict]:
    """Cells by arm, concurrency and repeat, of all runs."""
    return {
        (cell["arm"], cell["concurrency"], cell["repeat"]): cell for cell in map(files.read, results.store.cell_files())
    }


def failed(cell: dict) -> list[str]:
    """The names of the checks that failed."""
    return [check["name"] for check in cell["certificate"]["checks"] if check["outcome"] == certificates.FAIL]


def wait_for(what, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.05)


def main() -> None:
    wanted = json.loads(Path(sys.argv[1]).read_text())
    register(setattr, lambda mapping, key, value: mapping.__setitem__(key, value))
    arms = [arm(Path(wanted["models"]), **about) for about in wanted["arms"]]
    sweep.run(plan(arms, **wanted["plan"]))


if __name__ == "__main__":
    main()
