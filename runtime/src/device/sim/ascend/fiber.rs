//! The cores of a block as fibers, the vector functions they leave to their vector pipes, and the table the text calls; the
//! other side of `prelude/host/machine.h`.
//!
//! The machine is reached through a thread-local while a launch runs. None of the functions of the table unwinds, and none
//! keeps a reference to the machine while its fiber gives way or calls back into the text.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use kiln_codegen::machine::Flow;
use kiln_codegen::machine::ascend::{Elem, Machine, Mask, Next, Operands, Register};
use std::cell::Cell;
use std::collections::HashMap;
use std::ptr;

/// Bytes of a stack, of which the system gives what is touched. The text keeps registers of 288 bytes in locals, and unrolled
/// loops have thousands of them, each with a place of its own.
const STACK_BYTES: usize = 8 << 20;

/// Layout of `kiln_core_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    core: u32,
    block: u32,
    blocks: u32,
    mixed: u32,
}

/// Layout of `kiln_thread_t`.
#[repr(C)]
#[derive(Debug)]
pub struct TextThread {
    lane: *mut *const Lane,
}

/// Layout of `kiln_operands_t`.
#[repr(C)]
pub struct RawOperands {
    a: *const Register,
    b: *const Register,
    mask: *const Mask,
    word: u64,
    more: u64,
}

/// Runs a vector function with its arguments.
type Body = unsafe extern "C" fn(*const u8);

/// Layout of `kiln_table_t`.
#[repr(C)]
pub struct Table {
    version: u64,
    op: extern "C" fn(u32, *const u64, u32, u32) -> u64,
    function: extern "C" fn(Body, *const u8, u32, u32),
    reg: extern "C" fn(u32, u32, *mut Register, *const RawOperands, u32),
    compare: extern "C" fn(u32, u32, *mut Mask, *const RawOperands, u32),
    encode: extern "C" fn(u32, f32) -> u32,
    decode: extern "C" fn(u32, u32) -> f32,
}

static TABLE: Table = Table { version: 1, op, function, reg, compare, encode, decode };

/// `kiln_attach`: takes the table, gives this OS thread's part of the text.
pub type Attach = unsafe extern "C" fn(*const Table, *mut TextThread);
/// `kiln_entry`: runs the kernel for one core.
pub type Entry = unsafe extern "C" fn(*const u64);

/// A vector function and its arguments, aligned for anything the text may pass.
struct Call {
    body: Body,
    arguments: Box<[u128]>,
}

struct Run {
    machine: Machine,
    /// Where the running fiber gives way; set while one runs.
    yielder: *const Yielder<(), ()>,
    calls: HashMap<u64, Call>,
    next: u64,
}

thread_local! {
    static RUN: Cell<*mut Run> = const { Cell::new(ptr::null_mut()) };
}

/// Gives the machine's run to `f`, which must not give way.
fn with<R>(f: impl FnOnce(&mut Run) -> R) -> R {
    let run = RUN.get();
    assert!(!run.is_null(), "emitted text calls the machine only while a launch runs");
    // SAFETY: `launch` set the pointer to a `Run` that outlives the launch; everything is on one OS thread, and no other
    // reference to it lives while text runs, since `f` neither gives way nor calls into the text.
    f(unsafe { &mut *run })
}

/// Lets others run before the running fiber goes on; never returns once the run was given up.
fn give_way() {
    let run = RUN.get();
    // SAFETY: as in `with`; the yielder was set by the fiber that is running, and lives on its stack.
    let yielder = unsafe { &*(*run).yielder };
    yielder.suspend(());
    // SAFETY: as above. Another fiber ran meanwhile, so the running fiber's yielder is put back.
    unsafe { (*run).yielder = yielder };
}

extern "C" fn op(code: u32, words: *const u64, count: u32, line: u32) -> u64 {
    let words = match words.is_null() {
        true => &[],
        // SAFETY: the prelude passes an array with at least `count` words, on the running fiber's stack.
        false => unsafe { std::slice::from_raw_parts(words, count as usize) },
    };
    let flow = with(|r| match r.machine.abandoned() {
        true => Flow::Wait,
        false => r.machine.call(code, words, line),
    });
    if flow == Flow::Wait {
        give_way();
    }
    with(|r| r.machine.result())
}

extern "C" fn function(body: Body, arguments: *const u8, bytes: u32, line: u32) {
    let mut own = vec![0u128; (bytes as usize).div_ceil(16)].into_boxed_slice();
    // SAFETY: the prelude passes the address of `bytes` bytes that may be copied; the box has at least as many.
    unsafe { ptr::copy_nonoverlapping(arguments, own.as_mut_ptr().cast::<u8>(), bytes as usize) };
    let (now, flow) = with(|r| {
        let token = r.next;
        r.next += 1;
        r.calls.insert(token, Call { body, arguments: own });
        let (now, flow) = r.machine.issue_function(token, line);
        (now.then(|| r.calls.remove(&token)).flatten(), flow)
    });
    if let Some(call) = now {
        // SAFETY: the prelude passed the function with these arguments; no reference to the machine lives.
        unsafe { (call.body)(call.arguments.as_ptr().cast()) };
        with(|r| r.machine.end_function());
    }
    if flow == Flow::Wait {
        give_way();
    }
}

/// Copies of a register instruction's operands; what it does not have is empty.
fn operands(x: *const RawOperands) -> (Register, Register, Mask, u64, u64) {
    const NOTHING: Register = Register { bytes: [0; 256], defined: [0xff; 32] };
    // SAFETY: the prelude passes the address of a structure on the running fiber's stack.
    let x = unsafe { &*x };
    // SAFETY: the prelude passes null or the address of a register; it is copied.
    let register = |p: *const Register| if p.is_null() { NOTHING } else { unsafe { *p } };
    let mask = match x.mask.is_null() {
        true => Mask { bits: [0xff; 32], set: 1 },
        // SAFETY: the prelude passes null or the address of a mask; it is copied.
        false => unsafe { *x.mask },
    };
    (register(x.a), register(x.b), mask, x.word, x.more)
}

extern "C" fn reg(code: u32, elem: u32, d: *mut Register, x: *const RawOperands, line: u32) {
    let (a, b, mask, word, more) = operands(x);
    // SAFETY: the prelude passes null or the address of a register; it is copied.
    let mut out = if d.is_null() { Register { bytes: [0; 256], defined: [0; 32] } } else { unsafe { *d } };
    let x = Operands { a: &a, b: &b, mask: &mask, word, more };
    let over = with(|r| {
        r.machine.register(code, elem, &mut out, x, line);
        r.machine.abandoned()
    });
    if !d.is_null() {
        // SAFETY: as above; nothing else refers to it.
        unsafe { *d = out };
    }
    if over {
        give_way();
    }
}

extern "C" fn compare(code: u32, elem: u32, d: *mut Mask, x: *const RawOperands, line: u32) {
    let (a, b, mask, word, more) = operands(x);
    let mut out = mask;
    let x = Operands { a: &a, b: &b, mask: &mask, word, more };
    with(|r| r.machine.register_compare(code, elem, &mut out, x, line));
    // SAFETY: the prelude passes the address of a mask; nothing else refers to it.
    unsafe { *d = out };
}

extern "C" fn encode(elem: u32, x: f32) -> u32 {
    Elem::from_number(u64::from(elem)).map_or(0, |e| e.bits(x) as u32)
}

extern "C" fn decode(elem: u32, bits: u32) -> f32 {
    Elem::from_number(u64::from(elem)).map_or(f32::NAN, |e| e.number(u64::from(bits)))
}

/// Stacks that no fiber uses.
#[derive(Default)]
struct Stacks(Vec<DefaultStack>);

impl Stacks {
    fn take(&mut self) -> std::io::Result<DefaultStack> {
        self.0.pop().map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)
    }
}

/// Runs all blocks of a launch and gives the machine back.
///
/// # Safety
/// `attach` and `entry` belong to a loaded text that was compiled with the host prelude of this build, and `words` has as
/// many words as its entry has arguments.
pub unsafe fn launch(machine: Machine, attach: Attach, entry: Entry, words: &[u64]) -> std::io::Result<Machine> {
    let mut text = TextThread { lane: ptr::null_mut() };
    // SAFETY: the caller vouches for `attach`, which fills in the structure.
    unsafe { attach(&TABLE, &mut text) };
    let (blocks, cores) = (machine.config().blocks, machine.cores());
    let mixed = u32::from(machine.config().mixed);
    let run = Box::into_raw(Box::new(Run { machine, yielder: ptr::null(), calls: HashMap::new(), next: 0 }));
    let slot = text.lane;
    let before = RUN.replace(run);
    let mut stacks = Stacks::default();
    let words = words.as_ptr();
    let mut failed = None;
    'blocks: for block in 0..blocks {
        // SAFETY: no fiber runs now, so this is the only reference.
        unsafe {
            (*run).machine.begin_block(block);
            (*run).calls.clear();
        }
        let lanes: Vec<Lane> = (0..3).map(|core| Lane { core, block, blocks, mixed }).collect();
        let mut fibers = Vec::new();
        for _ in cores.clone() {
            let stack = match stacks.take() {
                Ok(stack) => stack,
                Err(e) => {
                    failed = Some(e);
                    break 'blocks;
                }
            };
            fibers.push(Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
                // SAFETY: `run` outlives all fibers of the launch, and no reference to it lives while a fiber runs.
                unsafe { (*run).yielder = yielder };
                // SAFETY: the caller vouches for `entry` and `words`.
                unsafe { entry(words) };
            }));
        }
        let over = loop {
            // SAFETY: no fiber runs now, so this is the only reference.
            match unsafe { (*run).machine.choose_next() } {
                Next::Run(core) => {
                    // SAFETY: the slot is a thread-local of the loaded text on this OS thread; `lanes` outlives the block.
                    unsafe { *slot = &lanes[core] };
                    if let CoroutineResult::Return(()) = fibers[core - cores.start].resume(()) {
                        // SAFETY: the fiber has ended, so this is the only reference.
                        unsafe { (*run).machine.exit(core) };
                    }
                }
                Next::Function(token) => {
                    // SAFETY: no fiber runs now, so this is the only reference.
                    let Some(call) = (unsafe { (*run).calls.remove(&token) }) else { continue };
                    let stack = match stacks.take() {
                        Ok(stack) => stack,
                        Err(e) => {
                            failed = Some(e);
                            break true;
                        }
                    };
                    let mut fiber = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
                        // SAFETY: as for the fibers of cores.
                        unsafe { (*run).yielder = yielder };
                        // SAFETY: the prelude passed the function with these arguments.
                        unsafe { (call.body)(call.arguments.as_ptr().cast()) };
                    });
                    // It gives way only if the run was given up.
                    if let CoroutineResult::Yield(()) = fiber.resume(()) {
                        // SAFETY: on its stack is emitted C++ without destructors, table functions with plain values, and
                        // the arguments, which are lost.
                        unsafe { fiber.force_reset() };
                    }
                    stacks.0.push(fiber.into_stack());
                    // SAFETY: the fiber has ended, so this is the only reference.
                    unsafe { (*run).machine.end_function() };
                }
                Next::BlockDone => break false,
                Next::Abandon => break true,
            }
        };
        if over {
            for fiber in &mut fibers {
                // SAFETY: what is on these stacks is emitted C++ without destructors and table functions that hold only
                // plain values while they give way, so nothing is lost by not unwinding.
                unsafe { fiber.force_reset() };
            }
            break 'blocks;
        }
        stacks.0.extend(fibers.into_iter().map(Coroutine::into_stack));
    }
    RUN.set(before);
    // SAFETY: it came from `Box::into_raw`; all fibers are done or reset, so nothing points to it any more.
    let run = unsafe { Box::from_raw(run) };
    match failed {
        Some(e) => Err(e),
        None => Ok(run.machine),
    }
}
