"""The names of `lowtide.distributed`."""

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
