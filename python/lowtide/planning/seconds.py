"""Predicts the seconds of a training step on the CPU from rates: one simulation, whether weights and state are in memory or on a disk."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import expect, number
from lowtide.memory.forecast import path_of
from lowtide.planning.models import TYPES
from lowtide.planning.rates import Rates, family_of, layers_rates, pairs_operations, step_rates, weights_rates
from lowtide.planning.result import Plan
from lowtide.planning.schedule import Together, Work


def measured(of: Any, found: Plan, disk: Any) -> Rates:
    """The rates that a training (`plan.Training`) needs, measured on this machine. disk: the directory, or bytes, whose rates stay unknown."""
    rates = asdict(Rates(step_rates(family_of(of.rule)[0].core_rule, [of.state], dict(of.core_groups[1][0][2]))))
    if of.model.decoder:
        rates |= layers_rates(of.model.decoder, getattr(torch, TYPES[of.weights][0]), of.seq, of.batch)
    if found.total.disk and disk is not None and Path(path := path_of("disk", str(disk))).is_dir():
        state = _core.measure_disk_rates(path)
        rates |= {name: state[name] for name in ("read", "write", "engine", "direct")}
        if of.model.decoder and found.lines["weights"].disk:
            unit = median(each.bytes for each in of.layout.units)
            rates |= weights_rates(path, int(unit), of.model.decoder, getattr(torch, TYPES[of.weights][0]), of.seq * of.batch)
    return Rates(**rates)


def timed(of: Any, found: Plan, rates: Rates) -> Plan:
    """The plan with its seconds, or with the reason why they are unknown."""
    size, tokens, decoder, layout = TYPES[of.weights][1], of.seq * of.batch, of.model.decoder, of.layout
    on_disk, state = found.lines["weights"].disk, [found.lines[name] for name in ("state", "masters") if name in found.lines]
    needed = {"layers": rates.layers, "head": rates.head, f"step of {of.state}": (step := rates.step_of(of.state))}
    io = [rates.read_weights, rates.write_weights, rates.change_weights]
    needed |= dict(zip(("read_weights", "write_weights", "change_weights"), io, strict=True)) if on_disk else {}
    needed |= {"read": rates.read, "write": rates.write} if any(line.disk for line in state) else {}
    beside = {name: getattr(rates, name) for name in ("read_beside", "write_beside", "compute_reading", "compute_writing")}
    for name, rate in {**needed, **beside}.items():
        expect(0 <= number(f"rates: {name}", rate) < math.inf, f"rates: {name}", rate, "a finite number, 0 or more")
    lacks = ", ".join(name for name, rate in needed.items() if not rate)
    for unknown, why in (
        (of.gpu is not None, "a device computes, and only there its rates can be measured"), (not decoder, of.model.unknown),
        (of.model.mixed, "frozen weights have another type"), (of.rule == "muon", "Muon's products of matrices are not counted"),
        (lacks, f"the rates {lacks} are unknown (lowtide.Rates)"),
    ):  # fmt: skip
        if unknown:
            return replace(found, unknown_seconds=why)
    work, ends = [], len(layout.units) > decoder.layers
    for place, unit in enumerate((*layout.units, layout.kept)):
        is_layer = ends <= place < ends + decoder.layers
        operations = 2.0 * tokens * unit.nbytes / size
        if is_layer:
            operations += pairs_operations(decoder, of.seq, of.batch)
        else:  # the head, which may be tied to the table, or too small for a unit
            operations = min(operations * (not unit.looked_up), 2.0 * tokens * decoder.vocabulary * decoder.hidden)
        forward = operations / (rates.layers if is_layer else rates.head)
        work.append((forward, forward * (1 + unit.gradient_bytes / max(unit.nbytes, 1) + of.checkpointing * is_layer)))
    stepping = sum(map(sum, state)) / step
    moving = (found.moved.disk - found.moved_weights) / 2 * (1 / rates.read + 1 / rates.write) if any(line.disk for line in state) else 0.0
    read, write, change = (1 / rate if on_disk else 0.0 for rate in io)
    together = (
        Together(min(rates.read_beside * read, 1.0) or 1.0, min(rates.compute_reading, 1.0) or 1.0),
        Together(min(rates.write_beside * write, 1.0) or 1.0, min(rates.compute_writing, 1.0) or 1.0),
    )
    forward_each, backward_each = zip(*work, strict=True)
    per = max(layout.gradient_bytes, 1)
    whole = layout.step(
        found.lines["weights"].host - layout.kept.nbytes if on_disk else None, of.step_in_backward,
        Work(forward_each[:-1], backward_each[:-1], sum(work[-1]), stepping / per, moving / per, read, write, change, *together),
    )  # fmt: skip
    parts = {"forward and backward": sum(map(sum, work)), "stepping": stepping, "state on the disk": moving,
             "weights on the disk": whole.read * read + whole.written * write}  # fmt: skip
    return replace(found, seconds=whole.seconds, seconds_of={name: value for name, value in parts.items() if value})
