"""The results of a run as Markdown: the figures to reach, reasons for missing ones, and all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.common import results
from bench.cuda import figures

# Details of rows that tables of cases show, if present: key, heading, factor.
COLUMNS = (("event_s", "device, ms", 1e3), ("wall_s", "until idle, ms", 1e3), ("call_s", "call, us", 1e6),
           ("driver_bytes", "driver's count, MB", 1e-6))  # fmt: skip
VERDICT = {True: "yes", False: "**no**", None: ""}


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for case in result["cases"].values() for row in case["rows"]]


def judged(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for figure in figures.FIGURES for entry in figures.judge(figure, _rows(result))]


def _figures(result: dict[str, Any]) -> list[str]:
    rows = []
    for entry in judged(result):
        got = "not measured" if entry["got"] is None else _number(entry["got"])
        rows.append([entry["what"], entry["must"], got, VERDICT[entry["reached"]], entry["reason"]])
    return results.table(("what", "must", "got", "reached", ""), rows)


def _suites(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, suite in result["suites"].items():
        failed = suite.get("failed", [])
        counts = (
            f"{suite['passed']} passed, {len(failed)} failed, {suite['skipped']} skipped" if "passed" in suite else ""
        )
        why = ", ".join(failed[:5]) or suite.get("reason", "")
        rows.append([name, suite["status"], counts, f"{suite['seconds']:.0f} s", why])
    return results.table(("suite", "", "cases", "time", ""), rows) if rows else ["No suite ran."]


def _times(result: dict[str, Any]) -> list[str]:
    entries = {**result["cases"], **result["suites"]}
    rows = [[name, entry["status"], f"{entry.get('estimate_s', 0):.0f} s", f"{entry['seconds']:.0f} s"]
            for name, entry in entries.items()]  # fmt: skip
    return results.table(("step", "", "estimate", "took"), rows)


def _cases(result: dict[str, Any]) -> list[str]:
    out = []
    for name, case in result["cases"].items():
        measured = [row for row in case["rows"] if "value" in row]
        out += ["", f"### {name}: {case['status']}, {case['seconds']:.0f} s", ""]
        beside = [column for column in COLUMNS if any(column[0] in row.get("detail", {}) for row in measured)]
        rows = [[row["label"], _number(row["value"]), row["unit"],
                 *(f"{row['detail'][key] * scale:.4g}" if key in row.get("detail", {}) else "" for key, _, scale in beside)]
                for row in measured]  # fmt: skip
        out += results.table(("", "got", "", *(head for _, head, _ in beside)), rows) if rows else ["No row."]
    return out


def _unmeasured(result: dict[str, Any]) -> list[str]:
    lines = [f"* {row['label']}: {row['absent']}" for row in _rows(result) if "absent" in row]
    for name, case in result["cases"].items():
        if case["status"] != "ok":
            lines.append(f"* {name}: {case['status']}{': ' + case['reason'] if case.get('reason') else ''}")
    return lines or ["Nothing."]


def markdown(result: dict[str, Any], kept: bool) -> str:
    machine = result["machine"]
    gpu = machine.get("gpu", {})
    text = [f"# CUDA: {result['gpu']}, {result['date']}", "", "How to read this: [gpu-check.md](../project/gpu-check.md).", ""]
    if result["rehearsal"]:
        text += ["**A rehearsal on the CPU: its figures mean nothing.**", ""]
    text += [
        f"* {gpu.get('name', 'no GPU')}, {gpu.get('memory.total', '')}, driver {gpu.get('driver_version', 'none')}, "
        f"PCIe {gpu.get('pcie.link.gen.max', '?')} x{gpu.get('pcie.link.width.max', '?')}",
        f"* torch {machine['torch'].get('torch', 'none')} (CUDA {machine['torch'].get('cuda')}); {machine.get('cpu')}, "
        f"{machine.get('logical_cpus')} logical CPUs, {machine.get('memory')}, kernel {machine.get('kernel')}, "
        f"huge pages {machine.get('huge_pages')}",
        "* " + ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items()),
        f"* revision {result['revision']}; {result['seconds']:.0f} s",
        "", "## Figures", "", *_figures(result), "", "## Tests on the device", "", *_suites(result),
        "", "## Not measured", "", *_unmeasured(result),
    ]  # fmt: skip
    if not kept:
        text += ["", "## Time", "", *_times(result), "", "## All rows", *_cases(result)]
    return "\n".join(text) + "\n"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row without ncu's full list of counters. Some of them are shown."""
    detail = row.get("detail", {})
    return {**row, "detail": {key: value for key, value in detail.items() if key != "all"}} if "all" in detail else row


def write(result: dict[str, Any], stem: Path, kept: bool = False) -> None:
    """Writes STEM.json and STEM.md. If it is killed in between, the old files remain. kept: for the repository, where only the
    JSON has each row."""
    cases = {  # rows repeat the output of successful cases
        name: {key: value for key, value in case.items() if key != "tail" or case["status"] != "ok"} for name, case in result["cases"].items()
    }
    if kept:
        cases = {name: {**case, "rows": [_shown(row) for row in case["rows"]]} for name, case in cases.items()}
    whole = {**result, "cases": cases, "figures": judged(result)}
    contents = {"json": results.text(results.rounded(whole)) + "\n", "md": markdown(result, kept)}
    for suffix, text in contents.items():
        part = stem.with_name(f"{stem.name}.{suffix}.part")
        part.write_text(text)
        part.replace(stem.with_name(f"{stem.name}.{suffix}"))
