"""Scenario files that nobody means well with: huge ones, any bytes at all, strange names."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenario_files import FULL, lines, refused, write

from ppharness.scenario import Scenario, ScenarioError, nodes, read_scenario_file


def test_strange_file_name_is_escaped(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_scenario_file(write(tmp_path, "", name="\x1b[31m.yaml"))
    assert str(caught.value).isprintable()


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n"
    for old, new in itertools.pairwise("abcdefghi")
)
HUGE = {
    "billion-laughs": (LAUGHS, "found alias *a, allowed the value written out"),
    "flow-depth": ("[" * 200_000, ""),
    "depth": ("{a: " * 17 + "1" + "}" * 17, "found more than 16 levels"),
    "block-depth": ("- " * 200_000, "found more than 16 levels"),
    "size": ("#" * (1 << 20) + "\n", "found a file over 1048576 bytes, allowed at most"),
    "values": ("x: [" + "1," * 300_000 + "]", "found more than 200000 values"),
    "faults": ("".join(f"k{i}: 1\n" for i in range(20_000)), "more faults than these 1000"),
    "long-key": (f"? {'k' * 500_000}\n: 1", "unknown key 'kkk"),
    "ids": (
        "name: x\nrequests:\n"
        + "".join(f"- {{id: r{i}, prompt_tokens: 1, max_tokens: 1}}\n" for i in range(5000))
        + "events:\n"
        + "".join(f"- {{step: 1, abort: s{i}}}\n" for i in range(5000)),
        "more faults than these 1000",
    ),
}


@pytest.mark.parametrize("case", HUGE)
def test_huge_files_are_refused_fast(tmp_path: Path, case: str) -> None:
    text, said = HUGE[case]
    start = time.process_time()
    error = refused(tmp_path, text)
    assert time.process_time() - start < 10
    assert said in str(error)
    assert max(len(str(problem)) for problem in error.problems) < 1000


def test_pure_python_yaml_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "name: x\npp_size:\nschedule: asink\nrequests:\n- {id: '7', max_token: 010}\n"
    with_c = lines(refused(tmp_path, bad), tmp_path)
    monkeypatch.setattr(nodes, "_Loader", yaml.SafeLoader)
    assert lines(refused(tmp_path, bad), tmp_path) == with_c
    assert len(read_scenario_file(write(tmp_path, FULL))) == 1
    refused(tmp_path, "[" * 5000)


KEY = st.sampled_from(
    ["name", "pp_size", "requests", "events", "calls", "initial", "id", "prompt_tokens", "file"]
    + ["max_tokens", "accept", "step", "abort", "preempt", "in_flight", "idx_mapping", "<<"]
    + ["num_sampled", "max_model_len", "num_speculative_tokens", "zzz", "1", "[a]", "!t x", "? k"]
)
SCALAR = st.sampled_from(
    ["1", "-1", "0", "a", "x-y", "'3'", "1.5", ".5e+3", "yes", "~", "", "*a", "&a 1", "!!int 1"]
    + ["1__0", "1e400", ".inf", "-.", "2024-01-01", '"\\e"', "9" * 50, "<<", "=", "0x1F", "1_"]
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(KEY, inner), max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
        ),
    ),
    max_leaves=12,
)
DOCUMENT = st.lists(st.tuples(KEY, VALUE), max_size=6).map(
    lambda pairs: "".join(f"{k}: {v}\n" for k, v in pairs)
)
ANY_FILE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(alphabet="ab:-[]{},&*!|>'\"%@#? \n\t~", max_size=80).map(str.encode),
    st.lists(DOCUMENT, min_size=1, max_size=3).map(lambda docs: "---\n".join(docs).encode()),
    st.tuples(st.integers(0, len(FULL)), st.text(max_size=5)).map(
        lambda cut: (FULL[: cut[0]] + cut[1] + FULL[cut[0] + 1 :]).encode("utf-8", "replace")
    ),
)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ANY_FILE)
def test_any_file_reads_or_is_refused(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, data)
    try:
        scenarios = read_scenario_file(path)
    except ScenarioError as error:
        assert error.problems
        assert all(str(problem).isprintable() for problem in error.problems)
        assert all(0 < (p.line or 1) <= data.count(b"\n") + 99 for p in error.problems)
    else:
        assert all(isinstance(scenario, Scenario) for scenario in scenarios)
