"""The result of `Optimizer.report`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from typing_extensions import TypedDict

from lowtide import _core
from lowtide.report.text import seconds_text, size_text, table_text


class CoreReport(TypedDict):
    """The fields of the core's list (include/lowtide/report.def), in its order. The list gives their meanings."""

    params: int
    elements: int
    state_bytes: int
    allocated_bytes: int
    steps: int
    skipped_steps: int
    device_bytes: int
    managed_bytes: int
    disk_bytes: int
    chunks: int
    moved_per_step: int
    read_bytes: int
    written_bytes: int
    offloaded_bytes: int
    kept_bytes: int
    waited_seconds: float
    promotions: int
    demotions: int
    transfer: str
    disk_moved_per_step: int
    disk_read_bytes: int
    disk_written_bytes: int


class Report(CoreReport):
    bytes_per_parameter: float


_FIELDS = [*_core.report_fields(), ("bytes_per_parameter", "bytes per element", "state_bytes per element")]
Report.__doc__ = "What `Optimizer.report` returns, a dict; `str()` gives a table without zeros.\n\n" + "\n".join(
    f"* `{name}` ({unit}): {meaning}" for name, unit, meaning in _FIELDS
)


def _plain(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


_TEXTS: dict[str, Callable[[Any], str]] = {
    "bytes": size_text, "bytes per step": size_text, "bytes per element": "{:.2f} bytes".format, "seconds": seconds_text,
}  # fmt: skip


class ShownReport(dict[str, Any]):
    """A report as `Optimizer.report` returns it."""

    def __str__(self) -> str:
        rows = [(name, _TEXTS.get(unit, _plain)(self[name])) for name, unit, _ in _FIELDS if self.get(name)]
        return "\n".join(table_text(rows)) if rows else "nothing yet"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a type that torch.load reads with weights_only=True."""
        return OrderedDict, (), None, None, iter(self.items())
