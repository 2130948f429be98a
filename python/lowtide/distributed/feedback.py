"""A communication hook that sends signs with scales."""

# No `from __future__ import annotations`: torch reads a hook's annotations and expects types.
import math
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import Unpack

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.distributed.collective import Outcome, VoteOptions
from lowtide.distributed.hooks import Arrived, SignHook, votes_of
from lowtide.distributed.layout import digest
from lowtide.distributed.residuals import DeviceShardResidual, Residuals, ShardResidual


class ErrorFeedbackSign(SignHook):
    """Averages gradients through one bit per element in both directions, and adds the remainder to the next gradient. (Error
    feedback: EF-signSGD, Karimireddy et al., arXiv 1901.09847, with one scale per 1024 elements, and a second residual on the
    worker that averages a shard, Zheng et al., arXiv 1905.10936.) Works with any optimizer that takes gradients. residual: the
    format of the remainder: "fp32" (4 bytes per element), "bf16" (2) or "dynamic8" (1.02); the second residual adds 2 / workers
    times as much. loss_scale: returns the scale of the gradients, like `scaler.get_scale`; residuals are stored unscaled. A
    pass with a non-finite gradient changes no residual. If the exchange itself fails, the gradients of this pass are lost.
    `vote`: see `VoteOptions`; "ties" and "algorithm" have no effect."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        residual: str = "bf16",
        loss_scale: Callable[[], float] | None = None,
        **vote: Unpack[VoteOptions],
    ) -> None:
        expect(residual in _core.codec_names(), "residual", repr(residual), f"one of {', '.join(_core.codec_names())}")
        if loss_scale is not None and not callable(loss_scale):
            raise TypeError(f"loss_scale: got {loss_scale!r}, wanted a function such as scaler.get_scale, or None")
        super().__init__(model, vote)
        self._codec, self._loss_scale = residual, loss_scale
        self._buffers = self._collective.buffers(self._layout.count, self._place, scales=True)
        transport = self._collective.transport
        # Refuses formats whose codes are not whole bytes, which a Residual would accept.
        shard = ShardResidual(self._layout.count, transport.rank, transport.size, residual)
        self._shard: ShardResidual | DeviceShardResidual = shard
        if self._buffers.stay:
            self._shard = DeviceShardResidual(shard.first, shard.core.count(), residual, self._place)
        self._residuals = Residuals(self._layout.numels, residual, self._place)

    def _exchange(self, arrived: list[Arrived]) -> Outcome:
        buffers, threads = self._buffers, self._threads
        scale, nonfinite, failure, queue = 1.0, False, None, arrived[-1].queue
        values: dict[str, int] = {}
        try:
            scale = self._scale()
            with arrived[-1].same_stream():
                values = self._values()
            buffers.clear_mark(queue)
            for bucket in arrived:  # only a check: `fill` writes the bits again
                buffers.pack(bucket.items, bucket.dtype, True, threads, bucket.queue)
            nonfinite = buffers.fetch(queue)
        except BaseException as error:  # whatever it is, the others are waiting
            failure = error

        def fill() -> None:
            for bucket in arrived:
                residuals = [self._residuals.addresses[number] for number in bucket.numbers]
                with buffers.using(bucket.queue), self._residuals.using(bucket.queue):
                    _core.feed_back(
                        buffers.signer, bucket.items, bucket.dtype, 1.0 / scale, self._codec, residuals,
                        buffers.there.bits, buffers.there.scales, threads, bucket.queue,
                    )  # fmt: skip
            buffers.fetch(queue)
            assert buffers.scales is not None
            if not bool(buffers.scales.view(torch.bfloat16).isfinite().all()):
                with self._residuals.on_host(changed=True) as parts:
                    for residual in parts:
                        if not bool(residual.values().isfinite().all()):
                            residual.put(torch.zeros(residual.numel))
                raise ValueError("got gradients too large for the float32 sum of 1024 of them, wanted a loss_scale")

        mantissa, exponent = math.frexp(scale)
        with arrived[-1].same_stream():  # the stream on which a device votes
            outcome = self._collective.vote(
                buffers, fill, step=self.votes, residual=self._shard, nonfinite=nonfinite, failure=failure,
                alike={"loss_scale": digest(scale), **values},
            )  # fmt: skip
            if outcome.applied:
                # Scales take the power of two, exactly: float16 gradients may be unable to hold unscaled values.
                assert buffers.scales is not None
                buffers.scales.view(torch.bfloat16).mul_(2.0 ** (exponent - 1))
        if outcome.applied:
            buffers.send(queue)
            for bucket in arrived:
                buffers.unpack(bucket.items, bucket.dtype, threads, bucket.queue)
                if mantissa != 0.5:
                    with bucket.same_stream():
                        bucket.buffer.mul_(2 * mantissa)
        return outcome

    def _scale(self) -> float:
        scale = float(self._loss_scale()) if self._loss_scale else 1.0
        expect(0 < scale < float("inf"), "loss_scale", scale, "a finite number above 0")
        return scale

    def residual_bytes(self) -> int:
        """Bytes of the residuals that this worker keeps."""
        return self._residuals.nbytes + self._shard.nbytes

    @torch.no_grad()
    def average_state(self) -> None:
        """Gives every worker the same residual, whose weighted mean stays as it is, and clears the second residuals (4 bytes
        per element travel). Every worker must call it. Use it before a checkpoint from which a different number of workers
        continues."""
        transport, weight = self._collective.transport, self._collective.weight
        share = weight / int(transport.gather(torch.tensor([weight])).sum())
        first, values = self._shard.first, self._shard.values()
        with self._residuals.on_host(changed=True) as parts:
            for residual, begin in zip(parts, self._layout.offsets, strict=True):
                mean = residual.values() * share
                low, high = max(begin, first), min(begin + residual.numel, first + values.numel())
                if low < high:
                    mean[low - begin : high - begin] += values[low - first : high - first]
                residual.put(transport.sum(mean))
        self._shard.clear()

    def state_dict(self) -> dict[str, Any]:
        """The number of votes, and copies of this worker's residuals by parameter name; "shard" is the second one. It fits the
        same rank among as many workers or, after `average_state()`, any (then every rank loads the same dict)."""
        with self._residuals.on_host() as parts:
            residuals = {
                name: {key: part.clone() for key, part in residual.tensors().items()}
                for name, residual in zip(self._layout.names, parts, strict=True)
            }
        return {
            "votes": self.votes,
            "codec": self._codec,
            "workers": self._workers(),
            "residual": residuals,
            "shard": self._shard.read(),
            "shard_empty": not bool(self._shard.values().any()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError and changes nothing if the dict has other parameters or another residual format, or if it has
        another rank or number of workers and was saved without `average_state()`."""
        missing = {"votes", "codec", "workers", "residual", "shard", "shard_empty"} - set(state_dict)
        expect(not missing, "state_dict", f"no {', '.join(sorted(missing))}", "what state_dict() returns")
        votes = votes_of(state_dict)
        expect(state_dict["codec"] == self._codec, "residual", repr(state_dict["codec"]), repr(self._codec))
        here, there = self._workers(), list(state_dict["workers"])
        if here != there and not state_dict["shard_empty"]:
            raise ValueError(
                f"got residuals of rank {there[0]} of {there[1]}, wanted rank {here[0]} of {here[1]}: call average_state() "
                "before saving to continue with other workers"
            )
        saved = state_dict["residual"]
        if differing := sorted(set(saved) ^ set(self._layout.names)):
            names = ", ".join(differing[:5])
            raise ValueError(f"got residuals of other parameters: {names}; wanted the model's")
        with self._residuals.on_host(changed=True) as parts:
            pairs = []
            for name, residual in zip(self._layout.names, parts, strict=True):
                for key, mine in residual.tensors().items():
                    given = saved[name].get(key)
                    got = "nothing" if given is None else f"{given.dtype} {tuple(given.shape)}"
                    wanted = f"{mine.dtype} {tuple(mine.shape)}"
                    expect(got == wanted, f"{name}, {key}", got, wanted)
                    pairs.append((mine, given))
            if here == there:
                self._shard.replace(state_dict["shard"])  # raises if it does not fit
            else:
                self._shard.clear()
            for mine, given in pairs:
                mine.copy_(given)
        self.votes = votes

    def _workers(self) -> list[int]:
        transport = self._collective.transport
        return [transport.rank, transport.size]
