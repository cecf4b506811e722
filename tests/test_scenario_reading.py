"""Scenario files: what reads, and what a bad file is told."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ppharness.scenario import Request, Scenario, ScenarioError, nodes, read_scenario_file

REQUESTS = "requests:\n  - {id: a, prompt_tokens: 5, max_tokens: 3}\n"
FULL = """\
name: preempted-then-resumed         # lower case, digits, dashes; unique
description: What it shows, in a sentence.
source: https://example.org/report
pp_size: 4
max_num_reqs: 8
max_num_batched_tokens: 64
max_model_len: 131072
num_speculative_tokens: 3
schedule: async
mamba_cache_mode: none
mamba_block_size: 16
idx_mapping_dtype: int32
requests:
  - {id: a, prompt_tokens: 50, max_tokens: 8, arrive_at: 0, accept: [2, 0, 3]}
  - {id: b, prompt_tokens: 7, max_tokens: 10, arrive_at: 1}
  - {id: c, prompt_tokens: 1, max_tokens: 1}
events:
  - {step: 5, abort: a}
  - {step: 7, abort: b, in_flight: true}
  - {step: 6, preempt: c}
"""
CALLS = """\
name: scalar-fill-skips-filtered-rows
max_num_reqs: 4
initial: 9
calls:
  - {idx_mapping: [2, -1, 0], num_sampled: 0}
  - {idx_mapping: [1, -1], num_sampled: [3, 5]}
"""


def write(folder: Path, text: str | bytes, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(folder: Path, text: str | bytes) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        read_scenario_file(write(folder, text))
    for problem in caught.value.problems:
        assert "\n" not in str(problem)
        assert str(problem).isprintable()
    return caught.value


def lines(error: ScenarioError, folder: Path) -> list[str]:
    return [str(problem).removeprefix(f"{folder}{os.sep}") for problem in error.problems]


def test_full_scenario(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    (scenario,) = read_scenario_file(path)
    assert scenario.name == "preempted-then-resumed"
    assert scenario.requests[0].accept == (2, 0, 3)
    assert [e.in_flight for e in scenario.events] == [False, True, False]
    assert scenario.idx_mapping_dtype == "int32"
    assert scenario.initial is None
    assert scenario.file == str(path)


def test_calls(tmp_path: Path) -> None:
    (scenario,) = read_scenario_file(write(tmp_path, CALLS))
    assert scenario.initial == 9
    assert scenario.calls[0].idx_mapping == (2, -1, 0)
    assert [call.num_sampled for call in scenario.calls] == [0, (3, 5)]


def test_defaults(tmp_path: Path) -> None:
    text = "name: x\n" + REQUESTS + "---\nname: y\ncalls: [{idx_mapping: [0], num_sampled: 2}]\n"
    first, second = read_scenario_file(write(tmp_path, text))
    assert (first.max_num_reqs, first.max_num_batched_tokens, first.max_model_len) == (
        8,
        64,
        131072,
    )
    assert (first.num_speculative_tokens, first.schedule, first.mamba_cache_mode) == (
        0,
        "async",
        "none",
    )
    assert (first.mamba_block_size, first.idx_mapping_dtype, first.pp_size) == (16, None, None)
    assert first.initial is None and second.initial == 1


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: x\n" + REQUESTS + "---\n",  # an empty document behind
        "\ufeffname: x\n" + REQUESTS,
        ("name: x\n" + REQUESTS).replace("\n", "\r\n"),
        "name: x\nmax_num_reqs: 1_000\n" + REQUESTS,
        "name: &unused x\n" + REQUESTS,
        "name: x\nmamba_block_size: 32\n" + REQUESTS,  # without align
        "name: x\nrequests:\n  - {id: a, prompt_tokens: 5, max_tokens: 3, accept: [0, 0]}\n",
        "name: x\nmax_model_len: 8\n" + REQUESTS,
        "name: x\ndescription: >\n  Two\n  lines.\n" + REQUESTS,
        "name: x\nrequests: [{id: 12:30, prompt_tokens: 5, max_tokens: 3}]\n",
        "name: x\nevents: []\ncalls: [{idx_mapping: [], num_sampled: []}]\n",
        "name: x\npp_size:\nsource: ~\n" + REQUESTS,
    ],
)
def test_reads(tmp_path: Path, text: str) -> None:
    (scenario,) = read_scenario_file(write(tmp_path, text))
    assert scenario.name == "x"


KEYS = "name, description, source, pp_size, max_num_reqs"
# Lines added to a right scenario (from line 4 on), and all that is then said.
BAD_LINES = {
    "below": ("num_speculative_tokens: -1", "4: num_speculative_tokens: found -1, allowed 0 to 64"),
    "above": ("max_num_reqs: 65537", "4: max_num_reqs: found 65537, allowed 1 to 65536"),
    "huge": (
        "pp_size: " + "9" * 5000,
        f"4: pp_size: found {'9' * 57}..., allowed an integer from 1 to 64",
    ),
    "bool": ("pp_size: true", "4: pp_size: found true, allowed an integer from 1 to 64"),
    "bool-word": ("pp_size: no", "4: pp_size: found no, allowed an integer from 1 to 64"),
    "text": ('pp_size: "3"', "4: pp_size: found '3', allowed an integer from 1 to 64"),
    "float": ("pp_size: 2.0", "4: pp_size: found 2.0, allowed an integer from 1 to 64"),
    "octal": ("pp_size: 010", "4: pp_size: found 010, allowed an integer from 1 to 64"),
    "sexagesimal": ("pp_size: 1:30", "4: pp_size: found 1:30, allowed an integer from 1 to 64"),
    "list": ("pp_size: [1]", "4: pp_size: found a list of 1, allowed an integer from 1 to 64"),
    "mapping": ("pp_size:\n  a: 1", "4: pp_size: found a mapping, allowed an integer from 1 to 64"),
    "nothing": ("schedule:", "4: schedule: found nothing, allowed async or sync"),
    "value-below-key": ("schedule:\n  later", "5: schedule: found later, allowed async or sync"),
    "choice": ("schedule: asink", "4: schedule: found asink, allowed async or sync"),
    "dtype": ("idx_mapping_dtype: int16", "4: idx_mapping_dtype: found int16, allowed int32 or"),
    "not-text": ("description: 3", "4: description: found 3, allowed a text"),
    "to-quote": ("source: 1.5", "(a text, so in quotes)"),
    "control": (
        'description: "\\e[31m\\a"',
        "4: description: found '\\x1b[31m\\x07', allowed a text of at most 4000 characters, none",
    ),
    "bidi": ('description: "\\u202e"', "4: description: found '\\u202e', allowed a text"),
    "misspelt": (
        "num_speculativ_tokens: 3",
        "4: unknown key 'num_speculativ_tokens'; did you mean 'num_speculative_tokens'?",
    ),
    "upper-case": ("PP_SIZE: 3", "4: unknown key 'PP_SIZE'; did you mean 'pp_size'?"),
    "unknown": ("zzz: 3", f"4: unknown key 'zzz'; allowed: {KEYS}"),
    "reader-field": ("file: x.yaml", f"4: unknown key 'file'; allowed: {KEYS}"),
    "merge": ("<<: {pp_size: 3}", "4: unknown key '<<'; allowed"),
    "control-key": ('"\\e[0m": 3', "4: unknown key '\\x1b[0m'; allowed"),
    "twice": ("name: y", "4: key 'name' is there twice, first on line 1"),
    "int-key": ("1: y", "4: key 1 is not a text"),
    "list-key": ("? [a]\n: y", "4: key a list of 1 is not a text"),
    "tag": (
        "source: !!python/object/apply:os.system [x]",
        "4: source: found tag tag:yaml.org,2002:python/object/apply:os.system, allowed values",
    ),
    "own-tag": ("source: !env HOME", "4: source: found tag !env, allowed values without a tag"),
    "key-tag": ("!x source: y", "4: found tag !x, allowed values without a tag"),
    "std-tag": ('pp_size: !!int "3"', "4: pp_size: found tag tag:yaml.org,2002:int, allowed"),
    "alias": (
        "description: &d x\nsource: *d",
        "5: source: found alias *d, allowed the value written out",
    ),
    "both": (
        "calls: [{idx_mapping: [0], num_sampled: 1}]",
        "4: calls: found both requests and calls, allowed one of them",
    ),
    "initial": ("initial: 3", "4: initial: found 3, allowed only with calls"),
    "initial-range": (
        "initial: 2147483648",
        "4: initial: found 2147483648, allowed -2147483648 to 2147483647",
    ),
    "never-fits": (
        "max_model_len: 7",
        "3: requests[0].prompt_tokens: found 5 + max_tokens 3 = 8, allowed at most "
        "max_model_len 7: a request that can never fit",
    ),
    "event-id": (
        "events:\n  - {step: 1, abort: aa}",
        "5: events[0].abort: found 'aa', allowed the id of a request: a; did you mean 'a'?",
    ),
    "event-far-id": (
        "events:\n  - {step: 1, preempt: zzz}",
        "5: events[0].preempt: found 'zzz', allowed the id of a request: a",
    ),
    "event-neither": (
        "events:\n  - step: 1",
        "5: events[0]: found neither abort nor preempt, allowed one of them",
    ),
    "event-both": (
        "events:\n  - step: 1\n    abort: a\n    preempt: a",
        "7: events[0].preempt: found both abort and preempt, allowed one of them",
    ),
    "in-flight": (
        "events:\n  - {step: 1, preempt: a, in_flight: true}",
        "5: events[0].in_flight: found true with preempt, allowed true only with abort",
    ),
    "in-flight-int": (
        "events:\n  - {step: 1, abort: a, in_flight: 1}",
        "5: events[0].in_flight: found 1, allowed true or false",
    ),
    "event-no-step": (
        "events:\n  - abort: a",
        "5: events[0].step: found nothing, allowed an integer from 0 to 1000000",
    ),
    "event-misspelt": (
        "events:\n  - {step: 1, abrot: a}",
        "5: unknown key 'abrot' in events[0]; did you mean 'abort'?",
    ),
    "events-not-list": (
        "events: {step: 1}",
        "4: events: found a mapping, allowed a list of mappings with the keys step, abort, preempt",
    ),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_one_bad_line(tmp_path: Path, case: str) -> None:
    text, said = BAD_LINES[case]
    error = refused(tmp_path, "name: x\n" + REQUESTS + text + "\n")
    (line,) = lines(error, tmp_path)
    assert said in line
    if said[0].isdigit():
        assert line.startswith(f"x.yaml:{said}")


# Requests of a scenario with K = 3 (from line 4 on), and all that is then said.
BAD_REQUESTS = {
    "misspelt": (
        "- {id: a, promt_tokens: 5, max_tokens: 3}",
        "4: unknown key 'promt_tokens' in requests[0]; did you mean 'prompt_tokens'?",
    ),
    "missing": (
        "- id: a\n  max_tokens: 3",
        "4: requests[0].prompt_tokens: found nothing, allowed an integer from 1 to 1000000",
    ),
    "zero": (
        "- id: a\n  prompt_tokens: 0\n  max_tokens: 3",
        "5: requests[0].prompt_tokens: found 0, allowed 1 to 1000000",
    ),
    "one-id": (
        "- {id: a, prompt_tokens: 5, max_tokens: 3}\n- {id: a, prompt_tokens: 5, max_tokens: 3}",
        "5: requests[1].id: found 'a', allowed an id of its own (requests[0] has this one)",
    ),
    "int-id": (
        "- {id: 7, prompt_tokens: 5, max_tokens: 3}",
        "4: requests[0].id: found 7, allowed a text of 1 to 64 letters, digits and '._:-' (a text",
    ),
    "bad-id": (
        "- {id: a b, prompt_tokens: 5, max_tokens: 3}",
        "4: requests[0].id: found a b, allowed a text of 1 to 64 letters",
    ),
    "accept-range": (
        "- {id: a, prompt_tokens: 5, max_tokens: 3, accept: [3, 4]}",
        "4: requests[0].accept[1]: found 4, allowed 0 to 3 (num_speculative_tokens)",
    ),
    "accept-negative": (
        "- id: a\n  prompt_tokens: 5\n  max_tokens: 3\n  accept:\n  - 0\n  - -1",
        "9: requests[0].accept[1]: found -1, allowed 0 to 3 (num_speculative_tokens)",
    ),
    "accept-int": (
        "- {id: a, prompt_tokens: 5, max_tokens: 3, accept: 2}",
        "4: requests[0].accept: found 2, allowed a list of integers",
    ),
    "accept-bool": (
        "- {id: a, prompt_tokens: 5, max_tokens: 3, accept: [true]}",
        "4: requests[0].accept[0]: found true, allowed an integer",
    ),
    "not-mapping": (
        "- a",
        "4: requests[0]: found a, allowed a mapping with the keys id, prompt_tokens, max_tokens",
    ),
    "twice": (
        "- id: a\n  prompt_tokens: 5\n  max_tokens: 3\n  id: b",
        "7: key 'id' in requests[0] is there twice, first on line 4",
    ),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_request(tmp_path: Path, case: str) -> None:
    text, said = BAD_REQUESTS[case]
    error = refused(tmp_path, f"name: x\nnum_speculative_tokens: 3\nrequests:\n{text}\n")
    (line,) = lines(error, tmp_path)
    assert line.startswith(f"x.yaml:{said}")


def test_accept_without_drafts(tmp_path: Path) -> None:
    text = "name: x\nrequests: [{id: a, prompt_tokens: 5, max_tokens: 3, accept: [0, 1]}]\n"
    (line,) = lines(refused(tmp_path, text), tmp_path)
    assert line.startswith("x.yaml:2: requests[0].accept[1]: found 1, allowed 0 to 0 (")


# One call in a scenario with 4 slots (on line 4), and all that is then said.
BAD_CALLS = {
    "{idx_mapping: [0, -2], num_sampled: 1}": "idx_mapping[1]: found -2, allowed -1 to 3",
    "{idx_mapping: [4], num_sampled: 1}": "idx_mapping[0]: found 4, allowed -1 to 3",
    "{idx_mapping: [2, -1, -1, 2], num_sampled: 1}": (
        "idx_mapping[3]: found slot 2 again, allowed each slot once in a call"
    ),
    "{idx_mapping: [0, 1], num_sampled: [1]}": (
        "num_sampled: found a list of 1, allowed 2, one for each entry of idx_mapping, or one"
    ),
    "{idx_mapping: [0], num_sampled: -1}": (
        "num_sampled: found -1, allowed 0 to 2147483647 or a list of integers from 0 to 2147483647"
    ),
    "{idx_mapping: [0], num_sampled: [-1]}": ("num_sampled[0]: found -1, allowed 0 to 2147483647"),
    "{idx_mapping: [0], num_sampled: [x]}": (
        "num_sampled[0]: found x, allowed an integer from 0 to 2147483647"
    ),
    "{idx_mapping: [0], num_sampled: {int: 1}}": "num_sampled: found a mapping, allowed an integer",
    "{idx_mapping: [0]}": "num_sampled: found nothing, allowed an integer from 0 to",
    "{idx_mapping: 0, num_sampled: 1}": "idx_mapping: found 0, allowed a list of integers",
    "{idx_mapping: [yes], num_sampled: 1}": "idx_mapping[0]: found yes, allowed an integer",
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_call(tmp_path: Path, call: str) -> None:
    error = refused(tmp_path, f"name: x\nmax_num_reqs: 4\ncalls:\n  - {call}\n")
    (line,) = lines(error, tmp_path)
    assert line.startswith(f"x.yaml:4: calls[0].{BAD_CALLS[call]}")
    assert error.problems[0].key == f"calls[0].{BAD_CALLS[call].partition(': ')[0]}"


def test_events_beside_calls(tmp_path: Path) -> None:
    text = "name: x\ncalls: [{idx_mapping: [0], num_sampled: 1}]\nevents: [{step: 1, abort: a}]\n"
    (line,) = lines(refused(tmp_path, text), tmp_path)
    said = "events: found events beside calls, allowed events only with requests"
    assert line == f"x.yaml:3: {said}"


# Whole files, and what is said, in order.
BAD_FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": (b"", [":1: no scenario in this file"]),
    "comments": (b"# nothing\n---\n# still nothing\n", [":1: no scenario in this file"]),
    "latin-1": (b"name: x\ndescription: \xe9\n", [":2: found byte 0xe9, not UTF-8, allowed UTF-8"]),
    "utf-16": ("name: x\n".encode("utf-16"), [":1: found byte 0xff, not UTF-8, allowed UTF-8"]),
    "binary": (b"\x7fELF\0\0\n", [":1: found control character '\\x7f', allowed text"]),
    "escape": (b"name: x\n#\x1b[31m", [":2: found control character '\\x1b', allowed text"]),
    "list": ("- a\n", [":1: found a list of 1, allowed a mapping with the keys name, desc"]),
    "text": ("hello", [":1: found hello, allowed a mapping with the keys name"]),
    "neither": ("\nname: x\n", [":2: found neither requests nor calls, allowed one of them"]),
    "no-requests": ("name: x\nrequests: []\n", [":1: found neither requests nor calls"]),
    "null-requests": ("name: x\nrequests:\n", [":2: requests: found nothing, allowed a list of"]),
    "misspelt-requests": (
        "name: x\nrequets: [{id: a, prompt_tokens: 5, max_tokens: 3}]\n",
        [":2: unknown key 'requets'; did you mean 'requests'?"],
    ),
    "no-name": (REQUESTS, [":1: name: found nothing, allowed lower-case letters, digits"]),
    "bad-name": ("name: A_b\n" + REQUESTS, [":1: name: found A_b, allowed lower-case letters"]),
    "tag-everywhere": (
        "!!python/name:os.system\nname: x\n",
        [":1: found tag tag:yaml.org,2002:py"],
    ),
    "unclosed": (
        'name: x\ndescription: "y\n' + REQUESTS,
        ["while scanning a quoted scalar from line 2"],
    ),
    "indent": ("name: x\n  pp_size: 3\n", [":2: not YAML: mapping values are not allowed"]),
    "tab": ("name: x\nrequests:\n\t- 3\n", [":3: not YAML: found character "]),
    "no-anchor": (
        "name: *a\n" + REQUESTS,
        [":1: name: found alias *a, allowed the value written out"],
    ),
    "all-before-syntax": (
        "name: x\npp_size: 0\n" + REQUESTS + "---\nname: [",
        [":2: pp_size: found 0, allowed 1 to 64", "not YAML: "],
    ),
    "same-name": (
        f"name: x\n{REQUESTS}---\nname: x\n{REQUESTS}",
        [":5: name: found 'x', allowed a name of its own (line 1 has this one)"],
    ),
    "second-document": (
        f"name: x\n{REQUESTS}---\nname: y\npp_size: 65\n{REQUESTS}",
        [":6: pp_size: found 65, allowed 1 to 64"],
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(tmp_path: Path, case: str) -> None:
    text, said = BAD_FILES[case]
    found = lines(refused(tmp_path, text), tmp_path)
    assert len(found) == len(said)
    for line, part in zip(found, said, strict=True):
        assert part in line
        assert line.startswith("x.yaml:")


def test_all_faults_at_once(tmp_path: Path) -> None:
    text = """\
name: x
num_speculative_tokens: 65
max_model_len: 10
schedule: asink
requests:
  - {id: a, promt_tokens: 5, max_tokens: 3}
  - {id: b, prompt_tokens: 9, max_tokens: 3}
  - {id: b, prompt_tokens: x, max_tokens: 3}
events:
  - {step: -1, abort: c}
  - {step: 1}
"""
    found = [(p.line, p.key, p.found) for p in refused(tmp_path, text).problems]
    assert found == [
        (2, "num_speculative_tokens", "65"),
        (4, "schedule", "asink"),
        (6, "requests[0].promt_tokens", "unknown key 'promt_tokens'"),
        (7, "requests[1].prompt_tokens", "9 + max_tokens 3 = 12"),
        (8, "requests[2].prompt_tokens", "x"),
        (8, "requests[2].id", "'b'"),
        (10, "events[0].step", "-1"),
        (10, "events[0].abort", "'c'"),
        (11, "events[1]", "neither abort nor preempt"),
    ]


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"gone\.yaml: cannot be read: No such file"):
        read_scenario_file(tmp_path / "gone.yaml")
    with pytest.raises(ScenarioError, match="found a folder, allowed a YAML file"):
        read_scenario_file(tmp_path)
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_scenario_file("a\0b.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ScenarioError, match="not a regular file"):
        read_scenario_file(tmp_path / "pipe.yaml")


def test_path_below_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    path = write(tmp_path / "configs", "name: x\nnum_speculative_tokens: -1\n" + REQUESTS)
    with pytest.raises(ScenarioError) as caught:
        read_scenario_file(path)
    said = "configs/x.yaml:2: num_speculative_tokens: found -1, allowed 0 to 64"
    assert str(caught.value) == said


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


def test_error_survives_pickling(tmp_path: Path) -> None:
    error = refused(tmp_path, "name: x\n")
    copy = pickle.loads(pickle.dumps(error))
    assert copy.problems == error.problems and str(copy) == str(error)


def test_scenario_in_python_is_checked_too() -> None:
    scenario = Scenario(name="x", requests=(Request(id="a", prompt_tokens=1, max_tokens=1),))
    assert Scenario.model_validate(scenario.model_dump()) == scenario
    never = Request(id="a", prompt_tokens=1, max_tokens=1, accept=(1,))
    with pytest.raises(ValidationError, match=r"requests\[0\]\.accept\[0\]: found 1"):
        Scenario(name="x", requests=(never,))
    with pytest.raises(ValidationError, match="neither requests nor calls"):
        Scenario(name="x")


def test_imports_no_torch() -> None:
    code = "import sys, ppharness.scenario.catalog, ppharness.scenario.reading as r\n"
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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
