"""The hot loop of a step's kernel: its machine code cut into basic blocks and natural loops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sass.cubins import Instruction, Kernel

BRANCH = re.compile(r"^(BRA|BRX|JMP|JMX)\b")


@dataclass
class Block:
    code: list[Instruction]
    to: list[int] = field(default_factory=list)


def blocks_of(code: list[Instruction]) -> list[Block]:
    """Basic blocks in the order of their addresses, and which follow which. Calls return, and end no block."""
    index = {i.address: at for at, i in enumerate(code)}

    def target(i: Instruction) -> int | None:
        found = re.findall(r"0x[0-9a-f]+", i.text) if BRANCH.match(i.text) else []
        return index.get(int(found[-1], 16)) if found else None

    starts = {0}
    for at, i in enumerate(code):
        if BRANCH.match(i.text) or i.name in ("EXIT", "RET.REL.NODEC", "RET.ABS.NODEC"):
            starts.add(at + 1)
            if (to := target(i)) is not None:
                starts.add(to)
    ordered = sorted(s for s in starts if s < len(code))
    number = {s: n for n, s in enumerate(ordered)}
    blocks = []
    for n, start in enumerate(ordered):
        end = ordered[n + 1] if n + 1 < len(ordered) else len(code)
        block = Block(code[start:end])
        last = block.code[-1]
        if BRANCH.match(last.text) and ".DIV" not in last.name and (to := target(last)) is not None:
            block.to.append(number[to])
        ends = (BRANCH.match(last.text) or last.name.startswith(("EXIT", "RET"))) and not conditional(last)
        if not ends and n + 1 < len(ordered):
            block.to.append(n + 1)
        blocks.append(block)
    return blocks


def conditional(i: Instruction) -> bool:
    """A branch may have a second predicate among its operands, and one on divergence in its name."""
    return bool(i.predicate) or bool(re.search(r"\s!?U?P\d", i.text)) or ".DIV" in i.name or ".CONV" in i.name


def reach(begin: set[int], follow: list[list[int]], within: set[int]) -> set[int]:
    seen, todo = set(begin), list(begin)
    while todo:
        for to in follow[todo.pop()]:
            if to in within and to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def dominators(blocks: list[Block], before: list[list[int]]) -> list[set[int]]:
    everything = set(range(len(blocks)))
    reached = reach({0}, [b.to for b in blocks], everything)
    found = [everything for _ in blocks]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for n in sorted(reached - {0}):
            new = {n} | set.intersection(*(found[p] for p in before[n] if p in reached))
            if new != found[n]:
                found[n], changed = new, True
    return found


def hot_loop(kernel: Kernel) -> list[Instruction] | None:
    """The instructions that count; None without a loop that stores 128 bits at a time."""
    blocks = blocks_of(kernel.code)
    before: list[list[int]] = [[] for _ in blocks]
    for n, block in enumerate(blocks):
        for to in block.to:
            before[to].append(n)
    dominated_by = dominators(blocks, before)
    after = [b.to for b in blocks]
    reached = reach({0}, after, set(range(len(blocks))))
    stores = {n for n in reached if any(i.is_store and i.is_wide for i in blocks[n].code)}
    loops: dict[int, set[int]] = {}
    for n in reached:
        for head in after[n]:
            if head in dominated_by[n]:
                loops.setdefault(head, {head}).update(reach({n}, before, reached - {head}))
    holding = [(len(body), head) for head, body in loops.items() if stores & body]
    if not holding:
        return None
    _, head = min(holding)
    body = loops[head]
    of_body = stores & body
    to_store = reach(of_body, before, body - {head}) | {head}
    from_store = reach(of_body, after, body - {head})
    return [i for n in sorted(to_store | from_store) for i in blocks[n].code if i.name != "NOP"]
