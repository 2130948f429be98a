"""Finds the layers of a module, and the units of its weights that move together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from lowtide.checks.values import expect
from lowtide.planning.units import Layout, Unit, Weight, takes_turns

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def layers_of(model: nn.Module, given: Iterable[nn.Module] | None) -> list[nn.Module]:
    """The given layers, or the entries of the module list with the most bytes of weights. Raises ValueError if there are none,
    or if they are not separate modules of `model` that are called."""
    if given is None:
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        expect(bool(lists), "model", f"a {type(model).__name__} without an nn.ModuleList", "layers=, a list of its modules")
        layers = [*_called(max(lists, key=lambda each: sum(param.nbytes for param in each.parameters())))]
    else:
        layers = list(given)
    expect(bool(layers), "layers", "none", "modules of the model that compute one after another")
    known, inside = {*map(id, model.modules())}, {id(part) for layer in layers for part in layer.modules() if part is not layer}
    for number, layer in enumerate(layers):
        name = f"layers[{number}]"
        expect(id(layer) in known, name, f"a {type(layer).__name__} of another model", "a module of the model")
        expect(id(layer) not in inside, name, f"a {type(layer).__name__} inside another layer", "layers that are separate")
        expect(not isinstance(layer, _CONTAINERS), name, f"a {type(layer).__name__}, which is never called", "its entries")
    return layers


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The entries of a list, and of lists in it, because containers are never called."""
    if isinstance(module, _CONTAINERS):
        for entry in module.children():
            yield from _called(entry)
    else:
        yield module


def units_of(model: nn.Module, layers: Sequence[nn.Module]) -> Layout:
    """The units in the order of `model.modules()`: layers, and large modules outside them."""
    inside = {id(module): layer for layer in layers for module in layer.modules()}
    users: dict[int, set[int]] = {}
    for module in model.modules():
        for param in module._parameters.values():
            if param is not None:
                users.setdefault(id(param), set()).add(id(inside.get(id(module), module)))
    units: list[Unit] = []
    kept = {id(param): param for param in model.parameters()}
    for name, module in model.named_modules():
        is_layer = any(module is layer for layer in layers)
        if is_layer or id(module) not in inside:
            own = [p for p in (module.parameters() if is_layer else module.parameters(recurse=False)) if len(users[id(p)]) == 1]
            unit = Unit(name, sorted(own, key=lambda param: param.requires_grad), isinstance(module, nn.Embedding))
            if is_layer or takes_turns(unit):
                units.append(unit)
                for param in own:
                    kept.pop(id(param), None)
    return _layout(model, units, [*kept.values()])


def _layout(model: nn.Module, units: list[Unit], kept: list[nn.Parameter]) -> Layout:
    users = Counter(id(param) for module in model.modules() for param in module._parameters.values())
    return Layout(units, Unit("", kept), sum(param.nbytes for param in kept if param.requires_grad and users[id(param)] > 1))


def units_for_device(model: nn.Module, layers: Sequence[nn.Module]) -> Layout:
    """The units that torch can move. Raises ValueError for parameters that it cannot move."""
    for name, param in model.named_parameters():
        expect(type(param) is nn.Parameter, f"stream: {name}", f"a {type(param).__name__}", "a torch.nn.Parameter beside device=")
    moved = []
    for unit in units_of(model, layers).units:
        module = model.get_submodule(unit.name)
        if any(module is layer for layer in layers):
            shared = {*map(id, module.parameters())} - {*map(id, unit.params)}
            expect(not shared, f"stream: {unit.name}", "a parameter that other modules share", "it outside of layers: torch moves whole layers")
        elif not unit.name or any(module.children()):
            continue  # torch would move the children, too
        moved.append(unit)
    found = {id(param) for unit in moved for param in unit.params}
    layout = _layout(model, moved, [param for param in model.parameters() if id(param) not in found])
    for unit in (*moved, layout.kept):
        kinds = {param.dtype for param in unit.params if param.requires_grad}
        got = f"trained weights of {', '.join(sorted(map(str, kinds)))}"
        expect(len(kinds) < 2, f"stream: {unit.name or type(model).__name__}", got, "one type in each layer: torch reduces them together")
    return layout


def planned_layout(model: nn.Module, size: int, device: bool) -> Layout:
    """The units with trained weights of `size` bytes per element. device: for `units_for_device`."""
    found = (units_for_device if device else units_of)(model, layers_of(model, None))

    def planned(unit: Unit) -> Unit:
        sizes = [(param.numel() * size if param.requires_grad else param.nbytes, param.requires_grad) for param in unit.params]
        return unit._replace(params=[Weight(*each) for each in sizes])

    own = max((param.element_size() for param in found.kept.params if param.requires_grad), default=size)
    return Layout([*map(planned, found.units)], planned(found.kept), found.tied * size // own)
