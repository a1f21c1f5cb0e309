"""Warp-wide instructions, mbarriers and arrivals: everything that talks to other threads."""

from __future__ import annotations

from ..ptx.syntax import Address, Instruction, Pair
from .emitter import KIND, Emitter
from .handlers import handles


@handles("elect")
def _elect(emitter: Emitter, instruction: Instruction) -> None:
    target = instruction.operands[0]
    if not isinstance(target, Pair):
        raise emitter.unsupported("destination of elect.sync")
    leader = emitter.temporary(f"elect(w,{emitter.mask})")
    if target.first is not None:
        emitter.write(target.first, f"lane_of_leader({leader})", "u")
    emitter.write(target.second, leader, "p")


@handles("shfl")
def _shfl(emitter: Emitter, instruction: Instruction) -> None:
    target, value, lane, clamp = instruction.operands[:4]
    mode = instruction.parts[2]
    moved, valid = emitter.temporary("None"), None
    valid = f"{moved}v"
    emitter.emit(
        f"{moved},{valid}=shuffle({mode!r},{emitter.read(value, 'u')},{emitter.read(lane, 'u')},"
        f"{emitter.read(clamp, 'u')})"
    )
    if isinstance(target, Pair):
        emitter.write(target.first, moved, "u")
        return emitter.write(target.second, valid, "p")
    return emitter.write(target, moved, "u")


@handles("vote")
def _vote(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands[:2]
    mode = instruction.parts[2]
    result = "u" if mode == "ballot" else "p"
    value = f"vote({mode!r},{emitter.read(source, 'p')},{emitter.mask})"
    emitter.write(target, value, result)


@handles("activemask")
def _activemask(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write(instruction.operands[0], f"vote('ballot',{emitter.active()},None)", "u")


@handles("match")
def _match(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands[:2]
    kind = KIND[instruction.parts[-1]]
    mode = instruction.parts[1]
    found = emitter.temporary(f"match({mode!r},{emitter.read(source, kind)},{emitter.active()})")
    if isinstance(target, Pair):
        emitter.write(target.first, f"{found}[0]", "u")
        return emitter.write(target.second, f"{found}[1]", "p")
    return emitter.write(target, f"{found}[0]", "u")


@handles("redux")
def _redux(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.operands[:2]
    operation, kind = instruction.parts[2], KIND[instruction.parts[-1]]
    keep_nan = "NaN" in instruction.parts
    absolute = "abs" in instruction.parts
    value = emitter.read(source, kind)
    if absolute:
        value = f"np.abs({value})"
    emitter.write(target, f"redux({operation!r},{value},{emitter.mask},{keep_nan})", kind)


@handles("mapa")
def _mapa(emitter: Emitter, instruction: Instruction) -> None:
    target, place, rank = instruction.operands
    wide = instruction.parts[-1] == "u64"
    if wide and "shared::cluster" not in instruction.parts:
        raise emitter.unsupported("mapa of a generic address")
    address = f"map_shared(w,{emitter.read(place, 'u')},{emitter.read(rank, 'u')})"
    emitter.write(target, address, "u")


@handles("getctarank")
def _getctarank(emitter: Emitter, instruction: Instruction) -> None:
    target, place = instruction.operands
    emitter.write(target, f"({emitter.read(place, 'u')}>>U4(24))", "u")


@handles("mbarrier")
def _mbarrier(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    action = parts[1]
    first = 0 if isinstance(operands[0], Address) else 1
    target = operands[0] if first else None
    if action == "pending_count":
        raise emitter.unsupported()
    place = emitter.address(operands[first], "u")
    rest = operands[first + 1 :]
    mask = emitter.mask
    if action == "init":
        return emitter.emit(f"mbarrier_init(w,{place},{emitter.read(rest[0], 'u')},{mask})")
    if action == "inval":
        return emitter.emit(f"mbarrier_inval(w,{place},{mask})")
    if action in ("expect_tx", "complete_tx"):
        value = emitter.read(rest[0], "u")
        return emitter.emit(f"mbarrier_{action}(w,{place},{value},{mask})")
    if action in ("arrive", "arrive_drop"):
        if "noComplete" in parts:
            raise emitter.unsupported("noComplete")
        expect = count = "None"
        if "expect_tx" in parts:
            expect = emitter.read(rest[0], "u")
        elif rest:
            count = emitter.read(rest[0], "u")
        drop = action == "arrive_drop"
        call = f"mbarrier_arrive(w,{place},{count},{expect},{drop},{mask})"
        return emitter.write(target, call, "l")
    raise emitter.unsupported()


@handles("bar", "barrier")
def _arrive(emitter: Emitter, instruction: Instruction) -> None:
    """Arrivals that do not wait; the waiting forms end a block."""
    parts, operands = instruction.parts, instruction.operands
    if "warp" in parts:
        return None  # a block with bar.warp.sync already waits for the warp's other lanes
    if "cluster" in parts:
        return emitter.emit(f"cluster_arrive(w,{emitter.active()})")
    barrier, count = (emitter.read(o, "u") for o in operands[:2])
    return emitter.emit(f"named_arrive(w,{barrier},{count},{emitter.active()})")


@handles("clusterlaunchcontrol")
def _cluster_launch_control(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    if "try_cancel" in parts:
        everywhere = "multicast::cluster::all" in parts
        return emitter.emit(
            f"try_cancel(w,{emitter.address(operands[0], 'u')},{emitter.address(operands[1], 'u')},"
            f"{everywhere},{emitter.mask})"
        )
    slot = emitter.registers.slot[operands[-1].name]
    low, high = emitter.local(slot), emitter.local(slot + 1)
    if "is_canceled" in parts:
        return emitter.write(operands[0], f"(({high}>>U8(32))!=0)", "p")
    axes = [f"{low}.astype(U4)", f"({low}>>U8(32)).astype(U4)", f"{high}.astype(U4)"]
    axis = next(p for p in parts if p.startswith("get_first_ctaid")).split("::")[1:]
    if axis and axis[0] in "xyz":
        return emitter.write(operands[0], axes["xyz".index(axis[0])], "u")
    for item, value in zip(emitter.vector(operands[0]), axes, strict=False):
        emitter.write(item, value, "u")
    return None


@handles("createpolicy")
def _createpolicy(emitter: Emitter, instruction: Instruction) -> None:
    """A cache policy is only a hint."""
    emitter.write(instruction.operands[0], emitter.constant(0, "l"), "l")
