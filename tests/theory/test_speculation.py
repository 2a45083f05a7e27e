"""The arithmetic of speculation: the right rule is not rejected, wrong ones are; formulas; edges; the engine-side run
and its cache.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from serving_study import environments, paths
from serving_study.errors import EngineEnvironmentError, ModelError, ParameterError
from serving_study.hardware import hosts
from serving_study.models import checkpoints
from serving_study.theory import speculation

HOST = hosts.Host("cpu", "a processor", 2, 8.0, 4.0)


def pairs(count=40, vocabulary=500):
    """Pairs of distributions as unlike as a model's: from nearly equal to nearly disjoint."""
    rng = np.random.default_rng(7)
    for closeness in np.linspace(0, 1, count):
        p, noise = (rng.dirichlet(np.full(vocabulary, 0.05)) for _ in range(2))
        yield p, closeness * p + (1 - closeness) * noise


def combined(rule, seed=11, n=4000):
    rng = np.random.default_rng(seed)
    return speculation.combine(
        [speculation.goodness_of_fit(speculation.RULES[rule](p, q, rng, n).tokens, p).p_value for p, q in pairs()]
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rule", ["accept or correct", "match"])
def test_a_right_rule_is_not_rejected(rule, seed):
    tests = combined(rule, seed)
    assert tests["positions"] == 40
    assert tests["fisher"] > 0.01
    assert tests["uniform"] > 0.01


@pytest.mark.parametrize("rule", ["correct from target", "accept all"])
def test_a_wrong_rule_is_rejected(rule):
    tests = combined(rule)
    assert tests["fisher"] < 1e-20
    assert tests["uniform"] < 1e-10


@pytest.mark.parametrize("rule", speculation.RULES)
def test_what_a_rule_emits_is_what_its_algebra_says(rule):
    rng = np.random.default_rng(5)
    tests = speculation.combine(
        [
            speculation.goodness_of_fit(
                speculation.RULES[rule](p, q, rng, 4000).tokens, speculation.emitted(p, q, rule)
            ).p_value
            for p, q in pairs()
        ]
    )
    assert min(tests["fisher"], tests["uniform"]) > 0.001


def test_acceptance_is_one_minus_total_variation_and_so_is_its_simulation():
    rng = np.random.default_rng(3)
    for p, q in pairs(10):
        alpha = speculation.acceptance_probability(p, q)
        assert alpha == pytest.approx(1 - speculation.total_variation(p, q), abs=1e-12)
        simulated = speculation.accept(p, q, rng, 20_000).accepted.mean()
        assert simulated == pytest.approx(alpha, abs=4 * np.sqrt(alpha * (1 - alpha) / 20_000) + 1e-9)


def test_equal_distributions_accept_everything():
    p = np.array([0.5, 0.3, 0.2])
    tokens, accepted = speculation.accept(p, p, np.random.default_rng(0), 5000)
    assert accepted.all()
    assert speculation.acceptance_probability(p, p) == pytest.approx(1)
    assert speculation.goodness_of_fit(tokens, p).p_value > 0.01


def test_disjoint_supports_accept_nothing_and_still_emit_the_target():
    p, q = np.array([0.7, 0.3, 0, 0]), np.array([0, 0, 0.6, 0.4])
    tokens, accepted = speculation.accept(p, q, np.random.default_rng(0), 5000)
    assert not accepted.any()
    assert set(tokens) == {0, 1}
    assert speculation.acceptance_probability(p, q) == 0
    assert speculation.goodness_of_fit(tokens, p).p_value > 0.01
    wrong = speculation.goodness_of_fit(speculation.accept_all(p, q, np.random.default_rng(0), 50).tokens, p)
    assert (wrong.statistic, wrong.p_value) == (float("inf"), 0.0)


def test_small_cells_are_pooled():
    p = np.array(
        [0.5, 0.3, 0.1, 0.06, 0.04]
    )  # of 50 tokens 25, 15, 5, 3 and 2 are expected: three cells and a pool of 5
    fit = speculation.goodness_of_fit(np.repeat([0, 1, 2, 3, 4], [20, 20, 5, 1, 4]), p)
    assert fit.degrees == 3
    assert fit.statistic == pytest.approx(25 / 25 + 25 / 15)
    assert fit.p_value == pytest.approx(0.4459, abs=1e-4)
    p = np.array([0.5, 0.46, 0.04])  # the pool of 2 is too small and joins the smaller cell
    fit = speculation.goodness_of_fit(np.repeat([0, 1, 2], [20, 29, 1]), p)
    assert (fit.degrees, fit.statistic) == (1, pytest.approx(2.0))


def test_one_cell_has_no_p_value_and_is_left_out():
    fit = speculation.goodness_of_fit(np.zeros(100, int), [1.0, 0.0])
    assert fit.degrees == 0 and np.isnan(fit.p_value)
    assert speculation.combine([fit.p_value, 0.5])["positions"] == 1
    with pytest.raises(ParameterError, match="cannot be combined"):
        speculation.combine([fit.p_value])


def test_expected_tokens():
    assert speculation.expected_tokens(0, 3) == 1
    assert speculation.expected_tokens(1, 3) == 4
    assert speculation.expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert speculation.expected_tokens([0.5, 1.0], 2) == pytest.approx([1.75, 3])
    rng = np.random.default_rng(2)
    kept = (rng.random((100_000, 4)) < 0.8).cumprod(axis=1).sum(axis=1)
    assert speculation.expected_tokens(0.8, 4) == pytest.approx(1 + kept.mean(), abs=0.02)
    assert speculation.acceptance_rate(0.8, 4) == pytest.approx(kept.mean() / 4, abs=0.005)


def test_the_acceptance_behind_a_rate():
    for alpha, k in ((0.0, 3), (0.4, 1), (0.75, 5), (1.0, 2)):
        assert speculation.alpha_of(float(speculation.acceptance_rate(alpha, k)), k) == pytest.approx(alpha, abs=1e-6)
    assert np.isnan(speculation.alpha_of(1.2, 3)) and np.isnan(speculation.alpha_of(float("nan"), 3))


def test_speedup_and_break_even():
    assert speculation.speedup(0.5, 2, 0.1) == pytest.approx(1.75 / 1.2)
    assert speculation.speedup(0.5, 2, 0.1, verification=3) == pytest.approx(1.75 / 3.2)
    alpha = speculation.break_even(3, 0.2)
    assert speculation.speedup(alpha, 3, 0.2) == pytest.approx(1)
    assert speculation.break_even(1, 0.25) == pytest.approx(0.25)
    assert np.isnan(speculation.break_even(3, 1.0))


@pytest.mark.parametrize(
    "p, q, error",
    [
        ([0.5, 0.5], [0.5, 0.25, 0.25], ModelError),
        ([0.5, 0.6], [0.5, 0.5], ParameterError),
        ([1.5, -0.5], [0.5, 0.5], ParameterError),
        ([float("nan"), 1.0], [0.5, 0.5], ParameterError),
        ([], [], ParameterError),
        ([[0.5, 0.5]], [[0.5, 0.5]], ParameterError),
    ],
)
def test_what_is_no_pair_of_distributions_is_refused(p, q, error):
    with pytest.raises(error):
        speculation.accept(p, q, np.random.default_rng(0), 1)


def test_bad_input_is_refused():
    for alpha, k in ((1.1, 3), (-0.1, 3), (float("nan"), 3), (0.5, 0), (0.5, 1.5)):
        with pytest.raises(ParameterError, match="no such speculation"):
            speculation.expected_tokens(alpha, k)
    for costs in ({"cost_ratio": -1}, {"cost_ratio": 0.1, "verification": 0}):
        with pytest.raises(ParameterError, match="a cost that cannot be"):
            speculation.speedup(0.5, 3, **costs)
    for tokens in ([], [2], [-1], [0.5]):
        with pytest.raises(ParameterError, match="cannot be tested"):
            speculation.goodness_of_fit(tokens, [0.5, 0.5])
    with pytest.raises(ParameterError, match="accept or correct"):
        speculation.emitted([1.0], [1.0], "hope")


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two models of one vocabulary, and an engine environment whose interpreter is a script of ours."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    made = []
    for name in ("target", "draft"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text('{"vocab_size": 2}')
        (folder / "model.safetensors").write_bytes(b"weights")
        made.append(checkpoints.Model(name, str(folder), folder))

    def engine(body):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{body}\n")
        python.chmod(0o755)
        monkeypatch.setattr(environments, "ensure", lambda name, say: environments.Environment(name, python, "3", {}))

    return made, engine


def test_distributions_are_computed_once(pair, tmp_path):
    (target, draft), engine = pair
    np.savez(
        tmp_path / "stored.npz",
        target=np.float32([[0.5, 0.5]]),
        draft=np.float32([[0.25, 0.75]]),
        names=np.array(["a, token 3"]),
    )
    engine(f'for last; do :; done; cp {tmp_path}/stored.npz "$last"')
    prompts = tmp_path / "prompts.json"
    prompts.write_text("[]")
    for _ in range(2):
        found = speculation.distributions(target, draft, host=HOST, positions=1, prompts=prompts)
        assert found.names == ("a, token 3",)
        assert found.draft.tolist() == [[0.25, 0.75]]
    assert (tmp_path / "runs").read_text() == "run\n"
    prompts.write_text("[1]")
    speculation.distributions(target, draft, host=HOST, positions=1, prompts=prompts)
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_failed_run_says_why_and_leaves_nothing(pair, tmp_path):
    (target, draft), engine = pair
    engine("echo 'no torch here' >&2; exit 3")
    with pytest.raises(EngineEnvironmentError, match="exit code 3(.|\n)*no torch here"):
        speculation.distributions(target, draft, host=HOST, positions=1)
    assert not [path for path in paths.CACHE.rglob("*") if path.is_file()]


def test_models_that_do_not_go_together_are_refused(pair):
    (target, draft), _ = pair
    other = checkpoints.Model("other", "other", checkpoints.SHAPES / "qwen2.5-0.5b-instruct")
    with pytest.raises(ModelError, match="151936"):
        speculation.distributions(target, other, host=HOST, positions=1)
    for positions, drafter in (
        (0, draft),
        (1, checkpoints.Model("random", draft.source, draft.folder, weights="random")),
    ):
        with pytest.raises(ParameterError, match="nothing to compare"):
            speculation.distributions(target, drafter, host=HOST, positions=positions)


def test_the_engine_side_script_compiles_without_torch():
    compile(Path(speculation.SCRIPT).read_text(), speculation.SCRIPT, "exec")
    assert (
        subprocess.run(["grep", "-c", "serving_study", speculation.SCRIPT], capture_output=True, text=True).stdout
        == "0\n"
    )
