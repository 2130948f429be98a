"""Data-parallel training on slow links: workers exchange one bit per value and follow the exact majority.

`DistributedLion`, `Signum`: optimizers that vote. `SignVote`, `ErrorFeedbackSign`: communication hooks for
DistributedDataParallel. `ShardVote`: a vote on one tensor, for FSDP2 between nodes. `SignAccumulator`: micro-batches.
docs/distributed.md says when each pays off.
"""

from typing import TYPE_CHECKING

from lowtide.checks.late import names_of

if TYPE_CHECKING:
    from lowtide.distributed.interface import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__)
