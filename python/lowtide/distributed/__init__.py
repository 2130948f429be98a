"""Data-parallel training on slow links: workers exchange one bit per value, and move by the exact majority.

`DistributedLion`, `Signum`: optimizers that vote. `SignVote`, `ErrorFeedbackSign`: communication hooks for
DistributedDataParallel. `ShardVote`: a vote on one tensor, for FSDP2 between nodes. `SignAccumulator`: micro-batches.
docs/votes.md says when which pays.
"""

from lowtide.distributed.accumulator import SignAccumulator
from lowtide.distributed.collective import Collective, Outcome, VoteOptions
from lowtide.distributed.feedback import ErrorFeedbackSign
from lowtide.distributed.groups import broadcast_parameters
from lowtide.distributed.hooks import SignVote
from lowtide.distributed.optimizers import DistributedLion, SignOptimizer
from lowtide.distributed.shard_vote import ShardVote
from lowtide.distributed.signum import Signum

__all__ = [
    "Collective",
    "DistributedLion",
    "ErrorFeedbackSign",
    "Outcome",
    "ShardVote",
    "SignAccumulator",
    "SignOptimizer",
    "SignVote",
    "Signum",
    "VoteOptions",
    "broadcast_parameters",
]
