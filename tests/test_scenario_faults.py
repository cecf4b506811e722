"""Scenario files: what a bad one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_files import REQUESTS, lines, refused

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
