"""The result of `Optimizer.report`."""

from __future__ import annotations

from typing_extensions import TypedDict

from lowtide import _core


class CoreReport(TypedDict):
    """The fields of the core's list (include/lowtide/report.def), which gives their meanings, in its order."""

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


_FIELDS = [*_core.report_fields(), ("bytes_per_parameter", "bytes", "state_bytes per element")]
Report.__doc__ = "What `Optimizer.report` returns:\n\n" + "\n".join(
    f"* `{name}` ({unit}): {meaning}" for name, unit, meaning in _FIELDS
)
