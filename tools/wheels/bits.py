"""Steps every rule and state format without torch, and prints hashes of the results as JSON, by instruction set.

    python bits.py [backend]    with "sycl": on its CPU device, too

Runs where a wheel is tried, with only the interpreter's standard library. Hashes each step's parameters, and a checkpoint after
the last step. Tensors are stand-ins: objects over ctypes memory with the attributes of torch.Tensor that the core reads. They
prove that two builds agree, and nothing about torch.
"""

import ctypes
import hashlib
import json
import random
import sys
import tempfile
import types
from pathlib import Path

STEPS = 5
SHAPES = ((12, 256), (5, 301), (9,))


class Tensor:
    """A contiguous float32 tensor of multiples of 2^-12 in [-8, 8)."""

    layout, dtype, device = "strided", "torch.float32", types.SimpleNamespace(type="cpu")

    def __init__(self, shape: tuple[int, ...], numbers: random.Random) -> None:
        self.shape = shape
        self.grad: Tensor | None = None
        count = 1
        for size in shape:
            count *= size
        self.memory = (ctypes.c_float * count)(*((numbers.getrandbits(16) - 32768) / 4096 for _ in range(count)))

    def stride(self) -> tuple[int, ...]:
        strides, stride = [], 1
        for size in reversed(self.shape):
            strides.append(stride)
            stride *= size
        return tuple(reversed(strides))

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)


def stand_ins() -> dict[str, types.ModuleType]:
    """The parts of torch's modules that the core uses."""
    names = ("torch", "torch.autograd", "torch.autograd.graph")
    modules = {name: types.ModuleType(name) for name in names}
    torch, _, graph = modules.values()
    torch.__dict__.update(Tensor=Tensor, strided=Tensor.layout, nn=types.SimpleNamespace(Parameter=Tensor))
    graph.__dict__.update(increment_version=lambda tensors: None)
    # None of these tensors stands for others.
    functorch = types.SimpleNamespace(is_functorch_wrapped_tensor=lambda tensor: False)
    torch.__dict__.update(_C=types.SimpleNamespace(_functorch=functorch), _is_functional_tensor=lambda tensor: False)
    return modules


def result(core: types.ModuleType, rule: str, state: str, target: str, backend: str = "cpu") -> str:
    numbers = random.Random(f"{rule} {state}")
    optimizer = core.Optimizer(rule, cpu_target=target, threads=2, backend=backend, target="" if backend == "cpu" else "cpu")
    group = optimizer.add_group({**core.default_hyper(rule), "lr": 0.01}, {"state": state, "min_quantized_numel": 0})
    parameters = [Tensor(shape, numbers) for shape in SHAPES]
    try:
        for parameter in parameters:
            optimizer.add_param(group, parameter)
    except ValueError as error:  # rules that refuse 4 bits
        return str(error)
    digest = hashlib.sha256()
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = Tensor(parameter.shape, numbers)
        optimizer.step()
        optimizer.check()  # waits for the device's queued work
        for parameter in parameters:
            digest.update(bytes(parameter.memory))
    with tempfile.TemporaryDirectory() as folder:
        optimizer.save(f"{folder}/checkpoint", "")
        digest.update(Path(f"{folder}/checkpoint").read_bytes())
    return digest.hexdigest()[:32]


def main() -> None:
    sys.modules.update(stand_ins())
    from lowtide import _core as core

    cells = [(rule, state) for rule in core.rule_names() for state in core.codec_names()]
    results = {
        target: {f"{rule} {state}": result(core, rule, state, target) for rule, state in cells} for target in core.cpu_targets()
    }
    for backend in sys.argv[1:]:
        results[backend] = {f"{rule} {state}": result(core, rule, state, "", backend) for rule, state in cells}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
