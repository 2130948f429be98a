"""What `Optimizer.report` returns."""

from __future__ import annotations

from typing_extensions import TypedDict


class CoreReport(TypedDict):
    """Memory in bytes, and counts. Those from device_bytes on are of state under a memory budget or on a device."""

    params: int  # with state
    elements: int  # of these parameters
    state_bytes: int  # what the formats need
    allocated_bytes: int  # of RAM
    steps: int
    skipped_steps: int
    device_bytes: int  # of the memory of the parameters' device
    managed_bytes: int  # of memory that its driver moves
    disk_bytes: int
    offloaded_bytes: int  # put aside by `offload`: part of disk_bytes, or of allocated_bytes for a device
    chunks: int
    moved_per_step: int  # as planned
    read_bytes: int  # so far
    written_bytes: int  # so far
    kept_bytes: int  # in RAM above the budget because the disk failed
    waited_seconds: float  # that steps stood still for the disk
    promotions: int  # times that state was moved to the device because there was room
    demotions: int  # times that it was moved away
    transfer: str  # how state that streams reaches the device (`Memory.transfer`); "" if none does


class Report(CoreReport):
    bytes_per_parameter: float  # state_bytes per element
