"""DTensor parameters: every rank steps its own rows, and all ranks make the same decisions.

The core sees only local tensors. Users see DTensors with the parameter's mesh and placements (`state`, state_dicts): codes in
the parameter's shape or, two per byte, in shape (rows, bytes); scales in shape (rows, blocks).
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from lowtide.checks.values import check_tensor, expect

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

STREAMED = "streamed"  # the dimension of a mesh of one device, to which `lowtide.stream` has torch bring the weights
ROW_MOMENT = "row_moment"  # one float32 for each row of a matrix, beside the core's tensors of a parameter
OK, NONFINITE, FAILED = 0, 1, 2  # a rank's finding before a step; all ranks act on the largest


def rows_of(shape: Sequence[int]) -> tuple[int, int]:
    """The number and the length of rows. Blocks never cross rows."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, math.prod(shape) // max(rows, 1)


def moment_shape(shape: Sequence[int]) -> torch.Size:
    """The shape of row moments: with one column, so that DTensors of them are cut like the parameter. If columns are cut, the first
    part has the moments."""
    return torch.Size((*shape[:-1], 1))


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """True for a DTensor. Imports nothing: while the module is not loaded, no DTensor exists."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_of(value: Any) -> torch.Tensor:
    """The local tensor of a DTensor, not copied; any other value unchanged."""
    local: Any = value
    if is_dtensor(value):
        local = value._local_tensor
        local = local.wait() if hasattr(local, "trigger_wait") else local
    tensor: torch.Tensor = local
    return tensor


class Sharding(NamedTuple):
    """The layout of one parameter on a mesh."""

    spec: Any  # torch's DTensorSpec: mesh, placements, shape
    rows_cut: bool

    @property
    def is_streamed(self) -> bool:
        """True if the local part is a whole streamed parameter, whose state and files look like those of a plain one."""
        return bool(self.spec.mesh.mesh_dim_names == (STREAMED,))

    @property
    def shard(self) -> tuple[list[int], bool, list[int]]:
        """The shape of the whole parameter, which determines the state format in the core, whether rows are cut, and the offset
        of this rank's part, so that the part is rounded like the whole."""
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        spec = self.spec
        _, offsets = compute_local_shape_and_global_offset(spec.shape, spec.mesh, spec.placements)
        return list(spec.shape), self.rows_cut, list(offsets)

    def wrap(self, entry: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The core's (local) tensors of a parameter as DTensors over the same memory; "step" is unchanged."""
        return {name: value if name == "step" else self.whole_of(name, value) for name, value in entry.items()}

    def whole_of(self, name: str, local: torch.Tensor) -> torch.Tensor:
        """The DTensor whose part on this rank is `local`, the core's tensor `name`."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._dtensor_spec import TensorMeta

        shape = self.shape_of(name, local)
        stride = tuple(torch.empty(shape, device="meta").stride())
        spec = replace(self.spec, tensor_meta=TensorMeta(shape, stride, local.dtype))
        # Not DTensor.from_local, which would copy to the mesh's kind of device: parameters may be offloaded from it.
        return DTensor(local, spec, requires_grad=False)

    def unwrap(self, name: str, value: Any, local: torch.Tensor, where: str) -> Any:
        """Takes this rank's part of a saved tensor: a DTensor laid out like the parameter, or a plain tensor of the whole
        shape. local: the live tensor. Raises ValueError for any other DTensor; returns a value that is not a tensor
        unchanged."""
        if name == "step" or not isinstance(value, torch.Tensor):
            return value
        where, shape = f"{where}, {name}", self.shape_of(name, local)
        if is_dtensor(value):
            alike = value.placements == self.spec.placements and value.device_mesh == self.spec.mesh
            got = f"a DTensor with placements {value.placements} on {value.device_mesh}"
            wanted = f"{self.spec.placements} on {self.spec.mesh}: redistribute it, or use torch.distributed.checkpoint"
            expect(alike, where, got, wanted)
            expect(value.shape == shape, where, tuple(value.shape), tuple(shape))
            return local_of(value)
        check_tensor(value, where)
        expect(value.shape == shape, where, tuple(value.shape), f"{tuple(shape)}, the whole of it")
        from torch.distributed.tensor import distribute_tensor

        # Every rank has the whole tensor and cuts its part without communication.
        whole = value.detach().to(self.spec.mesh.device_type)
        return local_of(distribute_tensor(whole, self.spec.mesh, self.spec.placements, src_data_rank=None))

    def shape_of(self, name: str, local: torch.Tensor) -> torch.Size:
        """The whole shape of the core's tensor called `name`."""
        if name == ROW_MOMENT:
            return moment_shape(self.spec.shape)
        rows, length = rows_of(self.spec.shape)  # rows may be cut; a single row is not
        if name.endswith("_scale"):
            return torch.Size((rows, local.shape[1]))
        # Two codes per byte: (rows, bytes of a row). Other tensors have the shape of the parameter.
        packed = local.dtype == torch.uint8 and local.ndim == 2 and length > 0 and local.shape[1] * 2 == length
        return torch.Size((rows, length // 2)) if packed else torch.Size(self.spec.shape)

    def describe(self) -> dict[str, Any]:
        """Describes the parameter as JSON, for this rank's file."""
        mesh = self.spec.mesh
        return {
            "shape": list(self.spec.shape),
            "placements": [str(placement) for placement in self.spec.placements],
            "mesh": list(mesh.mesh.shape),
            "coordinate": list(mesh.get_coordinate() or ()),
        }


def sharding_of(param: torch.Tensor, where: str) -> Sharding | None:
    """The sharding of a DTensor; None for a plain tensor. Raises ValueError for a DTensor that one rank cannot step alone."""
    if not is_dtensor(param):
        return None
    spec: Any = param._spec
    here = spec.mesh.get_coordinate() is not None
    expect(here, where, f"a DTensor on {spec.mesh}", "one on a mesh that this rank is part of")
    cut_dims = []
    for placement in spec.placements:
        if hasattr(placement, "dim"):  # Shard, and FSDP's strided shard on top of tensor parallelism
            cut_dims.append(placement.dim)
        else:
            expect(placement.is_replicate(), where, f"placements {spec.placements}", "only Shard and Replicate")
    found = Sharding(spec, any(dim != 0 or len(spec.shape) < 2 for dim in cut_dims))
    return found._replace(rows_cut=False) if found.is_streamed else found


class Recut(NamedTuple):
    """Converts the core's tensors of a parameter from one sharding to another; None means whole. Each rank cuts its part out of
    a whole. Parts of another sharding are gathered first, so all ranks of the mesh must take part."""

    had: Sharding | None
    has: Sharding | None
    where: str

    def __call__(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
        """tensor: the tensor `name`, on the CPU. like: the live tensor, needed if its sizes differ from the parameter's. Raises
        ValueError if the tensor cannot be converted."""
        had, has = self.had, self.has
        if had is has or (had and has and had.spec.mesh == has.spec.mesh and had.spec.placements == has.spec.placements):
            return tensor
        if had:
            tensor = had.whole_of(name, tensor.to(had.spec.mesh.device_type)).full_tensor()  # type: ignore[attr-defined]
        part = has.unwrap(name, tensor, tensor if like is None else like, self.where) if has else tensor
        made: torch.Tensor = part.cpu().contiguous()
        expect(like is None or made.shape == like.shape, f"{self.where}, {name}", tuple(made.shape), "the live tensor's")
        return made


def meshes_of(shardings: Sequence[Sharding | None]) -> list[DeviceMesh]:
    """The distinct meshes, smaller ones first, so that a verdict on a small mesh reaches all ranks of the largest."""
    meshes: list[DeviceMesh] = []
    for sharding in shardings:
        if sharding and sharding.spec.mesh not in meshes:
            meshes.append(sharding.spec.mesh)
    return sorted(meshes, key=lambda mesh: mesh.mesh.numel())


def agree(
    meshes: Sequence[DeviceMesh], shardings: Sequence[Sharding | None], params: Sequence[torch.Tensor], verdict: int
) -> int:
    """The largest verdict of all ranks, by one small collective per mesh dimension. Raises ValueError on all ranks if a
    parameter has a gradient on some ranks and none on others."""
    differ = False
    for mesh in meshes:
        if mesh.size() == 1:
            continue
        have = bytes(
            param.grad is not None for param, of in zip(params, shardings, strict=True) if of and of.spec.mesh == mesh
        )
        pattern = zlib.crc32(have)
        ballot = torch.tensor([verdict, int(differ), pattern, -pattern], device=mesh.device_type)
        for dim in range(mesh.ndim):
            if mesh.size(dim) > 1:
                torch.distributed.all_reduce(ballot, torch.distributed.ReduceOp.MAX, mesh.get_group(dim))
        verdict, found, most, least = ballot.tolist()
        differ = bool(found) or most != -least
    if differ and verdict != FAILED:
        raise ValueError(
            "got gradients of a DTensor parameter on some ranks and none on others, wanted one on every rank or on "
            "none (zeros where a rank has nothing to add); nothing was changed"
        )
    return verdict
