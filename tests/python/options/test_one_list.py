"""Rules, formats and defaults stand in the core; the classes and docs/rules.md say the same."""

import inspect
import re
from pathlib import Path

import lowtide
import pytest
from lowtide import _core
from lowtide.options.hyper import group_key, hyper_keys
from lowtide.report.fields import CoreReport, Report

from support import CODECS, FOUR_BITS, RULE_OF, RULES, parameter

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "rules.md"
NOT_RULES = (lowtide.Optimizer, lowtide.NAdam, lowtide.Muon)  # NAdam is an option of Adam and AdamW, Muon made of two rules
CLASSES = {
    cls([parameter(2)], lr=1.0).engine.family.rule: cls
    for cls in (getattr(lowtide, name) for name in lowtide.__all__)
    if inspect.isclass(cls) and issubclass(cls, lowtide.Optimizer) and cls not in NOT_RULES
}


def table(first: str) -> list[list[str]]:
    """The rows of the table of docs/rules.md whose first column is headed `first`, without marks."""
    lines = DOCUMENT.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def test_every_rule_has_a_class_and_a_row():
    rows = table("rule")
    assert sorted(CLASSES) == sorted(_core.rule_names()) == sorted(row[0] for row in rows)
    assert {RULE_OF.get(rule, rule) for rule in RULES} == set(_core.rule_names())
    for row in rows:
        assert CLASSES[row[0]].__name__ == row[1]
        assert row[3].split(", ") == _core.state_names(row[0])


def test_every_codec_has_a_row():
    names = list(_core.codec_names())
    assert sorted(names) == sorted(row[0] for row in table("state")) == sorted(CODECS + FOUR_BITS)
    assert lowtide.AdamW([parameter(2)]).param_groups[0]["state"] in names
    for codec in names:
        assert f'"{codec}"' in Path(lowtide.options.options.__file__).read_text(), f"options.Options does not describe {codec}"


@pytest.mark.parametrize("rule", sorted(_core.rule_names()))
def test_defaults_and_options_are_those_of_the_core(rule):
    wanted = _core.default_hyper(rule)
    group = CLASSES[rule]([parameter(2)]).param_groups[0]
    reads = set(re.findall(r"[a-z_0-9]+", re.sub(r"\([^)]*\)", "", next(r[5] for r in table("rule") if r[0] == rule))))
    assert {group_key(name) for name in reads} <= set(group), "docs/rules.md names what the class does not have"
    for name, value in wanted.items():
        key = group_key(name)
        here = name in hyper_keys(rule, group)
        assert here == (name in reads or name == "maximize"), f"{name}: the class and docs/rules.md differ"
        if here:
            got = group[key] if key == name else group[key][int(name[-1]) - 1]
            assert (got or 0) == value, name  # None of a schedule is 0 there
    assert reads <= set(wanted)


def test_the_report_has_the_fields_of_the_cores_list():
    fields = [name for name, unit, meaning in _core.report_fields()]
    assert list(CoreReport.__annotations__) == fields == list(lowtide.AdamW([parameter(2)])._core.report())
    assert all(name in Report.__doc__ and unit and meaning for name, unit, meaning in _core.report_fields())
