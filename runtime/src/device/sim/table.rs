//! The function table emitted text calls the machine through; the other side of `prelude/host/machine.h`.
//!
//! Each function acts for the thread whose fiber is running. None of them unwinds, and none keeps a reference to the
//! machine while its fiber gives way.

use super::fiber;
use kiln_codegen::formats;
use kiln_codegen::ir::{AtomicOp, DType};
use kiln_codegen::machine::{Code, Flow, Shuffle, Vote, WarpOp};

/// Layout of `kiln_table_t`.
#[repr(C)]
pub struct Table {
    version: u64,
    shared_load: extern "C" fn(u32, *mut u8, u32, u32),
    shared_store: extern "C" fn(u32, *const u8, u32, u32),
    shared_atomic: extern "C" fn(u32, u32, u32, u32, u32) -> u32,
    global_load: extern "C" fn(u64, *mut u8, u32, u32),
    global_store: extern "C" fn(u64, *const u8, u32, u32),
    global_atomic: extern "C" fn(u64, u32, u32, u32, u32) -> u32,
    barrier: extern "C" fn(u32, u32, u32, u32, u32) -> u32,
    warp: extern "C" fn(u32, u32, u32, *const u32, u32, *mut u32, u32),
    copy_async: extern "C" fn(u32, u64, u32, u32, u32),
    copy_commit: extern "C" fn(u32),
    copy_wait: extern "C" fn(u32, u32),
    math: extern "C" fn(u32, f32) -> f32,
    encode: extern "C" fn(u32, f32) -> u32,
    decode: extern "C" fn(u32, u32) -> f32,
}

/// The table.
pub static TABLE: Table = Table {
    version: 1,
    shared_load,
    shared_store,
    shared_atomic,
    global_load,
    global_store,
    global_atomic,
    barrier,
    warp,
    copy_async,
    copy_commit,
    copy_wait,
    math,
    encode,
    decode,
};

/// Bytes a caller may write to.
fn out<'a>(p: *mut u8, bytes: u32) -> &'a mut [u8] {
    // SAFETY: the prelude passes the address of a local of `bytes` bytes, on the running fiber's stack.
    unsafe { std::slice::from_raw_parts_mut(p, bytes as usize) }
}

/// Bytes a caller gives.
fn data<'a>(p: *const u8, bytes: u32) -> &'a [u8] {
    // SAFETY: the prelude passes the address of a local of `bytes` bytes, on the running fiber's stack.
    unsafe { std::slice::from_raw_parts(p, bytes as usize) }
}

extern "C" fn shared_load(address: u32, p: *mut u8, bytes: u32, line: u32) {
    fiber::machine(|m| m.load_shared(address, out(p, bytes), line));
    fiber::preempt();
}

extern "C" fn shared_store(address: u32, p: *const u8, bytes: u32, line: u32) {
    fiber::machine(|m| m.store_shared(address, data(p, bytes), line));
    fiber::preempt();
}

extern "C" fn shared_atomic(address: u32, op: u32, signed: u32, value: u32, line: u32) -> u32 {
    let old = fiber::machine(|m| match atomic(op) {
        Some(op) => m.atomic_shared(op, signed != 0, address, value, line),
        None => unsupported(m, "atomic operation", op, line),
    });
    fiber::preempt();
    old
}

extern "C" fn global_load(address: u64, p: *mut u8, bytes: u32, line: u32) {
    fiber::machine(|m| m.load_global(address, out(p, bytes), line));
    fiber::preempt();
}

extern "C" fn global_store(address: u64, p: *const u8, bytes: u32, line: u32) {
    fiber::machine(|m| m.store_global(address, data(p, bytes), line));
    fiber::preempt();
}

extern "C" fn global_atomic(address: u64, op: u32, signed: u32, value: u32, line: u32) -> u32 {
    let old = fiber::machine(|m| match atomic(op) {
        Some(op) => m.atomic_global(op, signed != 0, address, value, line),
        None => unsupported(m, "atomic operation", op, line),
    });
    fiber::preempt();
    old
}

extern "C" fn barrier(id: u32, count: u32, vote: u32, value: u32, line: u32) -> u32 {
    let vote = match vote {
        1 => Some(Vote::Any),
        2 => Some(Vote::All),
        3 => Some(Vote::Count),
        _ => None,
    };
    if fiber::machine(|m| m.barrier(id, count, vote, value, line)) == Flow::Wait {
        fiber::give_way();
    }
    fiber::machine(|m| m.result()[0])
}

extern "C" fn warp(op: u32, width: u32, mask: u32, operands: *const u32, count: u32, results: *mut u32, line: u32) {
    let op = match op {
        0 => WarpOp::Sync,
        1 => WarpOp::Shuffle { kind: Shuffle::Index, width },
        2 => WarpOp::Shuffle { kind: Shuffle::Up, width },
        3 => WarpOp::Shuffle { kind: Shuffle::Down, width },
        4 => WarpOp::Shuffle { kind: Shuffle::Xor, width },
        5 => WarpOp::Vote(Vote::Any),
        6 => WarpOp::Vote(Vote::All),
        7 => WarpOp::Vote(Vote::Count),
        _ => {
            fiber::machine(|m| unsupported(m, "warp-wide operation", op, line));
            return;
        }
    };
    // SAFETY: the prelude passes an array of `count` words, on the running fiber's stack.
    let words = unsafe { std::slice::from_raw_parts(operands, count as usize) };
    if fiber::machine(|m| m.warp(op, mask, words, line)) == Flow::Wait {
        fiber::give_way();
    }
    let result = fiber::machine(|m| m.result());
    // SAFETY: the prelude passes an array of four words, on the running fiber's stack.
    unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), results, 4) };
}

extern "C" fn copy_async(to: u32, from: u64, bytes: u32, valid: u32, line: u32) {
    fiber::machine(|m| m.copy_async(to, from, bytes as usize, valid as usize, line));
    fiber::preempt();
}

extern "C" fn copy_commit(line: u32) {
    fiber::machine(|m| m.copy_commit(line));
}

extern "C" fn copy_wait(pending: u32, line: u32) {
    fiber::machine(|m| m.copy_wait(pending, line));
    fiber::preempt();
}

/// The approximate functions are those of the tile VM, to the bit.
extern "C" fn math(function: u32, x: f32) -> f32 {
    match function {
        0 => x.exp2(),
        1 => x.log2(),
        2 => x.sin(),
        3 => x.cos(),
        4 => 1.0 / x.sqrt(),
        5 => x.sqrt(),
        6 => x.floor(),
        7 => x.ceil(),
        _ => f32::NAN,
    }
}

extern "C" fn encode(format: u32, x: f32) -> u32 {
    dtype(format).map_or(u32::MAX, |d| formats::encode_f32(d, x) as u32)
}

extern "C" fn decode(format: u32, bits: u32) -> f32 {
    dtype(format).map_or(f32::NAN, |d| formats::decode_f32(d, bits as u64))
}

/// Formats in the order of `kiln_format`.
fn dtype(format: u32) -> Option<DType> {
    [DType::F16, DType::Bf16, DType::E4m3, DType::E5m2, DType::E2m1, DType::E8m0].get(format as usize).copied()
}

fn atomic(op: u32) -> Option<AtomicOp> {
    [AtomicOp::Add, AtomicOp::Max, AtomicOp::Min, AtomicOp::Or].get(op as usize).copied()
}

fn unsupported(m: &mut kiln_codegen::machine::Machine, what: &str, number: u32, line: u32) -> u32 {
    m.report(Code::Unsupported, line, format!("{what} {number} is not modelled"));
    u32::MAX
}
