"""A notebook's header, its parameters, and the values that no plan is made from."""

import sys

import nbformat
import pytest
from papermill import iorw as papermill_iorw
from papermill.parameterize import parameterize_notebook

from serving_study import chapters, environments, paths
from serving_study.chapters import book, sections
from serving_study.chapters import speculation_plan as speculation
from serving_study.chapters.speculation_plan import SpeculativeDecoding
from serving_study.errors import ParameterError
from serving_study.hardware import hosts

HEADER = """\
host: str = "auto"          # cpu or a GPU profile
ks: list = [1, 3, 5]
repeats: int = 2            # at least
temperature = None
ignore_eos = True
prescribed_acceptance = {"draft-k3": 0.5}
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A function that puts a notebook with this header where section 3's lies."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)

    def write(source=HEADER, tags=("parameters",)):
        cells = [
            nbformat.v4.new_markdown_cell("# A question"),
            nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}),
            nbformat.v4.new_code_cell("print(ks)"),
        ]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), sections.get(3).notebook)
        return sections.get(3)

    return write


def test_an_unknown_section_lists_those_there_are():
    with pytest.raises(ParameterError, match="no notebook for section: 13") as caught:
        sections.get(13)
    assert (
        "2 (How speculation works)" in caught.value.allowed
        and "3 (Speculative decoding)" in caught.value.allowed
        and caught.value.next == "make help"
    )


def test_a_chapters_folder_is_all_that_it_takes_to_be_a_section(tmp_path, monkeypatch):
    """Beside it a new chapter has its notebook and its line in the table of contents."""
    folder = tmp_path / "a_new_chapter"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from serving_study.chapters.parameters import Parameters\n"
        "from serving_study.chapters.section import Section\n"
        "SECTION = Section('7-new', '07-new', 'New', Parameters)\n"
    )
    monkeypatch.setattr(chapters, "__path__", [*chapters.__path__, str(tmp_path)])
    try:
        numbers = list(sections.found())
    finally:
        sys.modules.pop("serving_study.chapters.a_new_chapter", None)
        vars(chapters).pop("a_new_chapter", None)
    before = [*sections.SECTIONS]
    after_it = before.index("7-hybrid") + 1
    assert numbers == [*before[:after_it], "7-new", *before[after_it:]]


def test_every_section_is_in_the_table_of_contents():
    listed = {name for name in book.chapters() if name.startswith("book/sections/")}
    assert listed == {f"book/sections/{section.name}" for section in sections.SECTIONS.values()}


def test_the_header_is_read_without_running_it(notebook):
    assert sections.header(notebook()) == {
        "host": "auto",
        "ks": [1, 3, 5],
        "repeats": 2,
        "temperature": None,
        "ignore_eos": True,
        "prescribed_acceptance": {"draft-k3": 0.5},
    }


@pytest.mark.parametrize(
    "line",
    [
        "repeats = 1 + len('a')",
        "repeats = other",
        "repeats = [n for n in (1, 2)]",
        "repeats = __import__('os').getpid()",
        "a = repeats = 3",
        "a, repeats = 1, 3",
        "repeats += 1",
        "repeats: int",
        "if True:\n    repeats = 3",
        "import os",
        "%time repeats = 3",
        "repeats = 3 3",
        "repeats = {[1]: 2}",
    ],
)
def test_a_header_holds_literals_alone(notebook, line):
    with pytest.raises(ParameterError, match="may hold literals only: ") as caught:
        sections.header(notebook(line))
    assert caught.value.what.startswith("the parameters cell of 03-speculative-decoding.ipynb")
    assert caught.value.value.splitlines()[0].startswith(line.splitlines()[0])


def test_given_values_take_the_headers_place(notebook):
    found = sections.parameters(notebook(), {"repeats": 5, "temperature": 0})
    assert found["repeats"] == 5 and found["temperature"] == 0 and found["ks"] == [1, 3, 5]


def test_a_parameter_that_the_notebook_does_not_declare_lists_those_it_does(notebook):
    with pytest.raises(ParameterError, match="unknown parameter: repeat, gpu") as caught:
        sections.parameters(notebook(), {"repeat": 5, "gpu": 1, "ks": [1]})
    assert caught.value.allowed == "host, ks, repeats, temperature, ignore_eos, prescribed_acceptance"


def test_a_parameter_of_the_plan_that_the_notebook_does_not_declare_is_refused_too(notebook):
    with pytest.raises(ParameterError, match="unknown parameter: port"):
        sections.parameters(notebook(), {"port": 8000})


def test_a_header_with_a_parameter_that_no_plan_has(notebook):
    with pytest.raises(ParameterError, match="unknown parameter: colour") as caught:
        sections.parameters(notebook(HEADER + "colour = 'red'\n"), {})
    assert "concurrencies" in caught.value.allowed


WRONG = {
    "host": [1, None],
    "model": [1, ["a"]],
    "ks": [3, "1,3", [1.5], ["1"], [True], {"a": 1}, None],
    "ngram_window": ["2-4", [2, "4"]],
    "prescribed_acceptance": [[0.5], {"draft-k3": "0.5"}, {3: 0.5}, 0.5],
    "heterogeneous_vocabulary": [1, "yes", None],
    "concurrencies": [4, [4, None]],
    "output_tokens": [24.5, "24", True, float("inf"), float("nan")],
    "repeats": ["3", 3.5, True, [1]],
    "temperature": ["0", True, [0]],
    "gpu_memory_utilization": ["0.9", True, None],
    "kv_cache_gib": [1.5, "1"],
    "enforce_eager": ["no", 0, 1.0],
    "arms": ["baseline", [1]],
    "seed": [1.5, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_value_of_the_wrong_type_is_refused(name, value):
    with pytest.raises(ParameterError, match=f"parameter {name} has the wrong type") as caught:
        SpeculativeDecoding(**{name: value})
    assert (
        type(value).__name__ in caught.value.value
        and caught.value.next.startswith(f"-p {name}=VALUE")
        and "<class" not in caught.value.allowed
    )


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("repeats", "a whole number or None"),
        ("ks", "a list of whole numbers"),
        ("arms", "a list of strings or None"),
        ("prescribed_acceptance", "a mapping of strings to numbers or None"),
        ("prefix_caching", "True or False"),
        ("gpu_memory_utilization", "a number"),
    ],
)
def test_what_is_allowed_is_said_in_words(name, allowed):
    with pytest.raises(ParameterError) as caught:
        SpeculativeDecoding(**{name: object()})
    assert caught.value.allowed == allowed


RIGHT = {
    "host": [("cpu", "cpu")],
    "model": [(None, None), ("a/b", "a/b"), ("true", "true")],
    "ks": [([], []), ([1], [1]), ((1, 3), [1, 3]), ([1.0, 3], [1, 3])],
    "prescribed_acceptance": [
        (None, None),
        ({}, {}),
        ({"draft-k3": 1, "draft-k1": 0.5}, {"draft-k3": 1, "draft-k1": 0.5}),
    ],
    "temperature": [(None, None), (0, 0), (0.7, 0.7)],
    "gpu_memory_utilization": [(1, 1), (0.5, 0.5)],
    "repeats": [(3, 3), (3.0, 3), (None, None)],
    "seed": [(1.0, 1)],
    "enforce_eager": [(None, None), (True, True), (False, False)],
    "arms": [(None, None), (["baseline"], ["baseline"])],
}


@pytest.mark.parametrize(("name", "value", "taken"), [(name, *pair) for name, pairs in RIGHT.items() for pair in pairs])
def test_a_value_of_the_right_type_is_taken(name, value, taken):
    made = getattr(SpeculativeDecoding(**{name: value}), name)
    assert made == taken and type(made) is type(taken)
    assert not isinstance(made, list) or [type(item) for item in made] == [type(item) for item in taken]


def test_a_whole_float_is_planned_as_the_whole_number(cpu, cache):
    whole, exact = (sections.plan(3, dry=True, repeats=value, concurrencies=[value], prompts=[4]) for value in (2.0, 2))
    assert whole.parameters == exact.parameters and type(whole.parameters["repeats"]) is int
    assert [cell.key for cell in whole.cells(whole.arms[0])] == [cell.key for cell in exact.cells(exact.arms[0])]


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_yaml_says_true_in_small_letters(notebook, text, value):
    assert sections.parameters(notebook(), {"ignore_eos": text})["ignore_eos"] is value
    assert sections.parameters(notebook(), {"host": text})["host"] == text
    with pytest.raises(ParameterError, match="parameter ignore_eos has the wrong type"):
        sections.parameters(notebook(HEADER.replace("ignore_eos = True", f"ignore_eos = '{text}'")), {})


GIVEN = [
    {},
    {"repeats": 5},
    {"repeats": 3.0, "ks": (1, 3)},
    {"ks": [2.0]},
    {"ignore_eos": "false", "temperature": 0.5},
    {"host": 'a "quoted" = \\ name\n#'},
    {"prescribed_acceptance": {"draft-k3": 0.25}},
    {"temperature": None},
]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_what_is_planned_is_what_papermill_makes_of_the_notebook(notebook, given):
    """The header and papermill's cell run, one after the other, as the kernel runs them."""
    section = notebook(HEADER.replace("ks: list =", "ks: list[int] | None ="))
    planned = sections.parameters(section, given)
    source = papermill_iorw.load_notebook_node(str(section.notebook))
    injected = parameterize_notebook(source, {name: planned[name] for name in given})
    namespace = {}
    for cell in injected.cells:
        if {"parameters", "injected-parameters"} & set(cell.metadata.tags):
            exec(cell.source, namespace)
    found = sections.of_header(3, namespace).values()
    assert {name: found[name] for name in planned} == planned


def test_every_default_has_its_own_type():
    assert SpeculativeDecoding(**SpeculativeDecoding().values()) == SpeculativeDecoding()


def resolved(defaults, **given):
    return SpeculativeDecoding(**(defaults | given))


def test_the_defaults_of_both_kinds_of_host_can_be_used():
    resolved(speculation.CPU)
    resolved(speculation.GPU)


def test_other_concurrencies_have_as_many_waves_of_prompts():
    own = SpeculativeDecoding(concurrencies=[1, 2, 32])
    assert own.filled(speculation.CPU).prompts == [4, 4, 64] and own.filled(speculation.GPU).prompts == [8, 8, 128]
    assert own.replaced(prompts=[1, 2, 32]).filled(speculation.GPU).prompts == [1, 2, 32]
    assert SpeculativeDecoding().filled(speculation.GPU).prompts == [8, 16, 64, 256]


BAD = [
    ("weights", "weights", "fake", "auto, real, random"),
    ("prompts", "prompts", [3, 8], "one number for each of the concurrencies [1, 4, 8]"),
    ("prompts", "prompts", [3, 3, 16], "at least as many prompts as the concurrency"),
    ("prompts", "prompts", [3, 8, 0], "whole numbers of 1 or more"),
    ("concurrencies", "concurrencies", [0, 4, 8], "whole numbers of 1 or more"),
    ("concurrencies", "concurrencies", [4, 4, 8], "each value once"),
    ("ks", "ks", [0], "whole numbers of 1 or more"),
    ("ks", "ks", [3, 3], "each value once"),
    ("ngram_ks", "ngram_ks", [-1], "whole numbers of 1 or more"),
    ("ngram_ks", "ngram_ks", [2, 2], "each value once"),
    ("repeats", "repeats", 0, "1 or more"),
    ("gpu_memory_utilization", "gpu_memory_utilization", 0, "above 0, at most 1"),
    ("gpu_memory_utilization", "gpu_memory_utilization", 1.01, "above 0, at most 1"),
    ("ngram_window", "ngram_window", [4, 2], "[shortest, longest], 1 <= shortest <= longest"),
    ("ngram_window", "ngram_window", [0, 2], "[shortest, longest], 1 <= shortest <= longest"),
    ("ngram_window", "ngram_window", [2], "[shortest, longest], 1 <= shortest <= longest"),
    ("output_tokens", "output_tokens", 3, "4 or more, or None for the dataset's own lengths"),
    ("kv_cache_gib", "kv_cache_gib", 0, "1 or more"),
    ("port", "port", 65536, "0 for any free port, or a port number"),
    ("port", "port", -1, "0 for any free port, or a port number"),
]


@pytest.mark.parametrize(("named", "name", "value", "allowed"), BAD)
def test_a_value_that_cannot_be_used_is_refused(named, name, value, allowed):
    with pytest.raises(ParameterError, match=f"parameter {named} cannot be used") as caught:
        resolved(speculation.CPU, **{name: value})
    assert caught.value.allowed == allowed and caught.value.value == value


def test_no_concurrency_at_all_is_refused():
    with pytest.raises(ParameterError, match="parameter concurrencies cannot be used"):
        resolved(speculation.CPU, concurrencies=[], prompts=[])


def test_no_draft_arms_at_all_is_fine():
    resolved(speculation.CPU, ks=[], ngram_ks=[], port=65535, output_tokens=None)


@pytest.fixture
def cpu(monkeypatch):
    """A CPU host, whatever this machine is, and nothing that may be installed or made."""
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": hosts.Host("cpu", "x", 2, 8, 8))
    monkeypatch.setattr(hosts, "computes_bf16", lambda: False)
    monkeypatch.setattr(environments, "has", lambda name: False)
    monkeypatch.setattr(environments, "ensure", lambda *_: pytest.fail("an environment was installed"))


def test_a_dry_plan_on_a_cpu_makes_nothing(cpu, cache):
    plan = sections.plan(3, dry=True, concurrencies=[1, 2], prompts=[2, 4], ks=[3])
    assert [arm.name for arm in plan.arms] == ["baseline", "ngram-k3", "draft-k3", "baseline-again", "baseline-again-2"]
    assert [(load.concurrency, load.prompts, load.output_tokens, load.temperature) for load in plan.loads] == [
        (1, 2, 16, 0.0),
        (2, 4, 16, 0.0),
    ]
    assert plan.arms[0].options == {
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "seed": 42,
        "enable_prefix_caching": False,
        "dtype": "float32",
        "enforce_eager": True,
    }
    assert plan.arms[0].environment == {"VLLM_CPU_KVCACHE_SPACE": 1}
    assert plan.parameters["host"] == "cpu" and "fresh" not in plan.parameters and "port" not in plan.parameters
    assert plan.environment.vllm is None and "nothing counts as measured" in plan.notes[0]
    assert plan.loads[0].dataset.name == "held-out" and list(cache.iterdir()) == []


def test_a_plan_takes_no_unknown_parameter_and_no_unknown_arm(cpu, cache):
    with pytest.raises(ParameterError, match="unknown parameter: concurrency"):
        sections.plan(3, dry=True, concurrency=[1])
    with pytest.raises(ParameterError, match="unknown arm: eagle"):
        sections.plan(3, dry=True, arms=["eagle"])
    with pytest.raises(ParameterError, match="this section measures nothing: 2"):
        sections.plan(2)


def test_the_key_of_a_cell_is_of_what_decides_it(cpu, cache):
    few = {"ks": [3], "ngram_ks": [], "concurrencies": [2], "prompts": [4], "repeats": 1, "twins": 1}

    def keys(**given):
        plan = sections.plan(3, dry=True, **(few | given))
        return {cell.key for arm in plan.arms for cell in plan.cells(arm)}

    first = keys()
    assert len(first) == 3 and keys(port=8001, fresh=True) == first  # neither the port nor how often decides a result
    for change in (
        {"seed": 1},
        {"output_tokens": 20},
        {"output_spread": 0.25},
        {"temperature": 0.7},
        {"prompts": [5]},
        {"max_model_len": 1024},
        {"kv_cache_gib": 2},
    ):
        assert not keys(**change) & first, change
    assert keys(repeats=2) > first  # more repeats keep those there are
    assert keys(ks=[1, 3]) > first and keys(arms=["baseline"]) < first
