//! Questions that only texts for compute capability 9.0a ask; the other side of `prelude/host/hopper.h`.
//!
//! As in `table`, each acts for the thread whose fiber is running, none unwinds, and none keeps a reference to the machine
//! while its fiber gives way.

use super::fiber;
use kiln_codegen::ir::DType;
use kiln_codegen::machine::{Code, Flow, IN_FLIGHT, Machine, OperandA, Product, WarpOp};

/// First word of what a tensor map parameter points to; the second is the number of the map.
pub const MAP: u64 = 0x7061_6d20_6e6c_696b;

/// What a tensor map parameter points to.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct MapWords(pub [u64; 16]);

/// Does something with the machine, then lets others run if it or chance wants so.
fn act<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    let (result, flow) = fiber::machine(|m| (f(m), m.preempt()));
    if flow == Flow::Wait {
        fiber::give_way();
    }
    result
}

/// Does something that may have to wait.
fn wait(f: impl FnOnce(&mut Machine) -> Flow) {
    if fiber::machine(f) == Flow::Wait {
        fiber::give_way();
    }
}

fn warp(op: WarpOp, operands: &[u32], place: u32) {
    wait(|m| m.warp(op, u32::MAX, operands, place));
}

/// Answers a question; `words` are its operands.
pub extern "C" fn ask(question: u32, words: *const u64, count: u32, place: u32) -> u64 {
    // SAFETY: the prelude passes an array with at least `count` words, on the running fiber's stack.
    let words = unsafe { std::slice::from_raw_parts(words, count as usize) };
    let w = |i: usize| words.get(i).copied().unwrap_or(0);
    let low = |i: usize| w(i) as u32;
    let pair = |i: usize| [w(i) as u32, (w(i) >> 32) as u32];
    let coordinates = |from: usize| -> Vec<i32> { words.iter().skip(from).map(|&x| x as u32 as i32).collect() };
    match question {
        0 => return u64::from(fiber::machine(|m| m.shared_address(w(0), place))),
        1 => return u64::from(fiber::machine(|m| m.cluster_address(low(0), low(1), place))),
        2 => {
            let v = act(|m| m.shared_load(low(0), low(1) as usize, place));
            // SAFETY: the prelude passes the address of four words on the running fiber's stack.
            unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), w(2) as *mut u32, 4) };
        }
        3 => act(|m| m.shared_store(low(0), &pair(1), place)),
        4 => {
            warp(WarpOp::Elect, &[], place);
            return u64::from(fiber::machine(|m| m.result()[0]));
        }
        5 => act(|m| m.barrier_arrive(low(0), low(1), place)),
        6 => act(|m| m.cluster_arrive(w(0) != 0, place)),
        7 => wait(|m| m.cluster_wait(place)),
        8 => {
            let ([a, b], [c, d]) = (pair(2), pair(3));
            act(|m| m.cluster_send(low(0), low(1), [a, b, c, d], place));
        }
        9 => act(|m| m.mbar_init(low(0), low(1), place)),
        10 => act(|m| m.mbar_init_fence(place)),
        11 => act(|m| m.mbar_arrive(low(0), low(1), place)),
        12 => act(|m| m.mbar_expect(low(0), low(1), place)),
        13 => wait(|m| m.mbar_wait(low(0), low(1), place)),
        14 => act(|m| m.proxy_fence(place)),
        15 => {
            let ranks = (low(3) != u32::MAX).then_some(low(3));
            let at = coordinates(4);
            act(|m| m.tma_load(low(0), w(1), low(2), &at, ranks, place));
        }
        16 => {
            let at = coordinates(2);
            act(|m| m.tma_store(w(0), low(1), &at, place));
        }
        17 => act(|m| m.tma_store_commit(place)),
        18 => act(|m| m.tma_store_wait(low(0), w(1) != 0, place)),
        19 => warp(WarpOp::StoreMatrix(low(0)), &[low(1), low(2), low(3), low(4), low(5)], place),
        20 => warp(WarpOp::WgmmaBegin, &[], place),
        21 => warp(WarpOp::WgmmaCommit, &[], place),
        22 => {
            warp(WarpOp::WgmmaWait(low(0)), &[], place);
            for (at, values) in fiber::machine(Machine::wgmma_results) {
                // SAFETY: the address came with `wgmma` from this fiber: an array of as many floats on its stack. The text
                // waits before the array goes out of scope, or reads what it wrote over another of its own locals.
                unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), at as *mut u32, values.len()) };
            }
        }
        23 => act(|m| m.wgmma_pin(w(0), place)),
        24 => {
            let (count, grow) = (low(0), w(1) != 0);
            warp(WarpOp::Registers { count, grow }, &[], place);
            if grow {
                wait(|m| m.registers_take(count, place));
            }
        }
        _ => {
            let text = format!("question {question} is not modelled");
            fiber::machine(|m| m.report(Code::Unsupported, place, text));
        }
    }
    0
}

/// A matrix instruction on `count` accumulators at `d`. `mode`: the format, 256 for A in registers, 512 for k across the rows of
/// B. `a0` is the descriptor of A, or with `a1` its fragment.
#[allow(clippy::too_many_arguments, reason = "the layout of the table")]
pub extern "C" fn wgmma(d: *mut f32, count: u32, mode: u32, a0: u64, a1: u64, b: u64, add: u32, place: u32) {
    let dtype = match mode & 0xff {
        0 => DType::F16,
        1 => DType::Bf16,
        _ => DType::E4m3,
    };
    let a = if mode & 256 != 0 { OperandA::Registers } else { OperandA::Shared };
    let product = Product { n: 2 * count as usize, dtype, a, across: mode & 512 != 0 };
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let ([b0, b1], [x, y], [z, t]) = (words(b), words(a0), words(a1));
    // SAFETY: the prelude passes the address of an array of `count` floats on the running fiber's stack; while the machine
    // has the slice, no fiber runs.
    let registers = unsafe { std::slice::from_raw_parts(d.cast::<u32>(), count as usize) };
    wait(|m| m.wgmma(product, d as u64, registers, &[add, b0, b1, x, y, z, t], place));
    // SAFETY: as above; the fiber runs again, so the array is still there, and nobody else has a reference to it.
    unsafe { std::slice::from_raw_parts_mut(d.cast::<u32>(), count as usize) }.fill(IN_FLIGHT);
}
