//! The function table emitted text calls the machine through; the other side of `prelude/host/machine.h`.
//!
//! Each function acts for the thread whose fiber is running. None of them unwinds, and none keeps a reference to the
//! machine while its fiber gives way.

use super::{fiber, hopper};
use kiln_codegen::formats;
use kiln_codegen::ir::DType;
use kiln_codegen::machine::{Code, Flow, Shuffle, Use, Verdict, Vote, WarpOp};
use kiln_codegen::vm::{lanes, math as vm};

/// Layout of `kiln_table_t`.
#[repr(C)]
pub struct Table {
    version: u64,
    access: extern "C" fn(u64, u32, u32, u32),
    spin: extern "C" fn(u32),
    barrier: extern "C" fn(u32, u32, u32, u32, u32) -> u32,
    warp: extern "C" fn(u32, u32, u32, *const u32, u32, *mut u32, u32),
    copy_async: extern "C" fn(u64, u64, u32, u32, u32),
    copy_commit: extern "C" fn(u32),
    copy_wait: extern "C" fn(u32, u32),
    math: extern "C" fn(u32, f32) -> f32,
    math2: extern "C" fn(u32, f32, f32) -> f32,
    encode: extern "C" fn(u32, f32) -> u32,
    decode: extern "C" fn(u32, u32) -> f32,
    ask: extern "C" fn(u32, *const u64, u32, u32) -> u64,
    wgmma: extern "C" fn(*mut f32, u32, u32, u64, u64, u64, u32, u32),
}

/// The table.
pub static TABLE: Table = Table {
    version: 2,
    access,
    spin,
    barrier,
    warp,
    copy_async,
    copy_commit,
    copy_wait,
    math,
    math2,
    encode,
    decode,
    ask: hopper::ask,
    wgmma: hopper::wgmma,
};

extern "C" fn access(address: u64, bytes: u32, what: u32, place: u32) {
    let what = match what {
        0 => Use::Read,
        1 => Use::Write,
        _ => Use::Atomic,
    };
    let flow = fiber::machine(|m| {
        if m.access(what, address, bytes as usize, place) == Verdict::Wild {
            m.abandon();
        }
        m.preempt()
    });
    // After `abandon` the fiber is never continued, so the access does not happen.
    if flow == Flow::Wait {
        fiber::give_way();
    }
}

extern "C" fn spin(place: u32) {
    let flow = fiber::machine(|m| {
        m.spin(place);
        m.preempt()
    });
    if flow == Flow::Wait {
        fiber::give_way();
    }
}

extern "C" fn barrier(id: u32, count: u32, vote: u32, value: u32, place: u32) -> u32 {
    let vote = match vote {
        1 => Some(Vote::Any),
        2 => Some(Vote::All),
        3 => Some(Vote::Count),
        _ => None,
    };
    if fiber::machine(|m| m.barrier(id, count, vote, value, place)) == Flow::Wait {
        fiber::give_way();
    }
    fiber::machine(|m| m.result()[0])
}

extern "C" fn warp(op: u32, width: u32, mask: u32, operands: *const u32, count: u32, results: *mut u32, place: u32) {
    let op = match op {
        0 => WarpOp::Sync,
        1 => WarpOp::Shuffle { kind: Shuffle::Index, width },
        2 => WarpOp::Shuffle { kind: Shuffle::Up, width },
        3 => WarpOp::Shuffle { kind: Shuffle::Down, width },
        4 => WarpOp::Shuffle { kind: Shuffle::Xor, width },
        5 => WarpOp::Vote(Vote::Any),
        6 => WarpOp::Vote(Vote::All),
        7 => WarpOp::Vote(Vote::Count),
        8 | 9 => WarpOp::Matrix { transposed: op == 9 },
        10 => WarpOp::Multiply(DType::Bf16),
        11 => WarpOp::Multiply(DType::F16),
        _ => {
            let text = format!("warp-wide operation {op} is not modelled");
            fiber::machine(|m| m.report(Code::Unsupported, place, text));
            return;
        }
    };
    // SAFETY: the prelude passes an array of at least `count` words, on the running fiber's stack.
    let words = unsafe { std::slice::from_raw_parts(operands, count as usize) };
    if fiber::machine(|m| m.warp(op, mask, words, place)) == Flow::Wait {
        fiber::give_way();
    }
    let result = fiber::machine(|m| m.result());
    // SAFETY: the prelude passes an array of four words, on the running fiber's stack.
    unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), results, 4) };
}

extern "C" fn copy_async(to: u64, from: u64, bytes: u32, valid: u32, place: u32) {
    let flow = fiber::machine(|m| {
        m.copy_async(to, from, bytes as usize, valid as usize, place);
        m.preempt()
    });
    if flow == Flow::Wait {
        fiber::give_way();
    }
}

extern "C" fn copy_commit(place: u32) {
    fiber::machine(|m| m.copy_commit(place));
}

extern "C" fn copy_wait(pending: u32, place: u32) {
    fiber::machine(|m| m.copy_wait(pending, place));
}

/// The approximate functions are those of the tile VM, to the bit.
extern "C" fn math(function: u32, x: f32) -> f32 {
    match function {
        0 => vm::exp2(x),
        1 => vm::log2(x),
        2 => vm::sin(x),
        3 => vm::cos(x),
        4 => vm::rsqrt(x),
        5 => x.sqrt(),
        6 => vm::floor(x),
        7 => vm::ceil(x),
        _ => f32::NAN,
    }
}

extern "C" fn math2(function: u32, x: f32, y: f32) -> f32 {
    match function {
        0 => lanes::max_f(x, y),
        1 => lanes::min_f(x, y),
        _ => f32::NAN,
    }
}

extern "C" fn encode(format: u32, x: f32) -> u32 {
    dtype(format).map_or(u32::MAX, |d| formats::encode_f32(d, x) as u32)
}

extern "C" fn decode(format: u32, bits: u32) -> f32 {
    dtype(format).map_or(f32::NAN, |d| formats::decode_f32(d, u64::from(bits)))
}

/// Formats by the numbers the prelude uses.
fn dtype(format: u32) -> Option<DType> {
    [DType::F16, DType::Bf16, DType::E4m3, DType::E5m2, DType::E2m1, DType::E8m0].get(format as usize).copied()
}
