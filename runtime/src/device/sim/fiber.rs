//! Fibers: one stack a thread of the emitted text, all on the calling OS thread, chosen by the machine.
//!
//! The machine lives in a [`Run`] that is reached through a thread-local while a launch runs; emitted text calls back
//! into it from fibers (`table.rs`).

use super::table::{TABLE, Table};
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use kiln_codegen::machine::{Config, Global, Machine, Next, SharedBytes};
use std::cell::Cell;
use std::ptr;

/// Bytes of a fiber's stack. A kernel keeps its tiles in locals, so this bounds the registers of a thread generously.
const STACK_BYTES: usize = 256 << 10;

/// Layout of `kiln_lane_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    thread: [u32; 3],
    block: [u32; 3],
    block_dim: [u32; 3],
    grid: [u32; 3],
    stack: u64,
    stack_bytes: u64,
}

/// Layout of `kiln_thread_t`: what a text keeps for each OS thread.
#[repr(C)]
#[derive(Debug)]
pub struct TextThread {
    lane: *mut *const Lane,
    shared: *mut u8,
    shared_bytes: u64,
}

/// `kiln_attach`: takes the table, gives this OS thread's part of the text.
pub type Attach = unsafe extern "C" fn(*const Table, *mut TextThread);
/// `kiln_entry`: runs the kernel for one thread.
pub type Entry = unsafe extern "C" fn(*const u64);

struct Run {
    machine: Machine,
    /// Where the running fiber gives way; set while a fiber runs.
    yielder: *const Yielder<(), ()>,
}

thread_local! {
    static RUN: Cell<*mut Run> = const { Cell::new(ptr::null_mut()) };
}

/// Gives the machine to `f` for the running thread. `f` must not give way.
pub fn machine<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    let run = RUN.get();
    assert!(!run.is_null(), "emitted text calls the machine only while a launch runs");
    // SAFETY: `launch` set the pointer to a `Run` that outlives the launch; everything is on one OS thread, and no other
    // reference to it lives while a fiber runs, since `f` does not give way.
    f(unsafe { &mut (*run).machine })
}

/// Lets the machine run other threads before the running one goes on.
pub fn give_way() {
    let run = RUN.get();
    // SAFETY: as in `machine`; the yielder was set by the fiber that is running, and lives on its stack.
    let yielder = unsafe { &*(*run).yielder };
    yielder.suspend(());
    // SAFETY: as above. Another fiber ran meanwhile, so the running fiber's yielder is put back.
    unsafe { (*run).yielder = yielder };
}

/// The text's array of shared memory on this OS thread.
#[derive(Debug)]
struct TextShared {
    at: *mut u8,
    capacity: usize,
}

impl SharedBytes for TextShared {
    fn address(&self) -> u64 {
        self.at as u64
    }
    fn capacity(&self) -> usize {
        self.capacity
    }
    fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.capacity, "read outside shared memory");
        // SAFETY: the text's array has `capacity` bytes and lives as long as the text and this OS thread; the range was
        // checked, and no reference to those bytes exists anywhere.
        unsafe { ptr::copy_nonoverlapping(self.at.add(offset), out.as_mut_ptr(), out.len()) };
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.capacity, "write outside shared memory");
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(offset), bytes.len()) };
    }
}

/// Runs all blocks of a launch, and gives the machine back.
///
/// # Safety
/// `attach` and `entry` belong to a loaded text that was compiled with the host prelude of this build, and `words` has as
/// many words as its entry has arguments.
pub unsafe fn launch(
    config: Config,
    global: Global,
    attach: Attach,
    entry: Entry,
    words: &[u64],
) -> std::io::Result<Machine> {
    let mut text = TextThread { lane: ptr::null_mut(), shared: ptr::null_mut(), shared_bytes: 0 };
    // SAFETY: the caller vouches for `attach`, which fills in the structure.
    unsafe { attach(&TABLE, &mut text) };
    let shared = TextShared { at: text.shared, capacity: text.shared_bytes as usize };
    if config.shared_bytes > shared.capacity {
        return Err(std::io::Error::other(format!("no block has {} bytes of shared memory", config.shared_bytes)));
    }
    let machine = Machine::new(config.clone(), global, Box::new(shared));
    let blocks: u64 = config.grid.iter().map(|&g| g as u64).product();
    let run = Box::into_raw(Box::new(Run { machine, yielder: ptr::null() }));
    let slot = text.lane;
    let before = RUN.replace(run);
    let mut stacks: Vec<DefaultStack> = Vec::new();
    let words = words.as_ptr();
    let mut failed = None;
    'blocks: for block in 0..blocks {
        // SAFETY: no fiber runs now, so this is the only reference.
        let index = unsafe {
            (*run).machine.begin_block(block as u32);
            (*run).machine.block_index()
        };
        let mut lanes = Vec::with_capacity(config.threads);
        let mut fibers = Vec::with_capacity(config.threads);
        for t in 0..config.threads {
            let stack = match stacks.pop().map_or_else(|| DefaultStack::new(STACK_BYTES), Ok) {
                Ok(stack) => stack,
                Err(e) => {
                    failed = Some(e);
                    break 'blocks;
                }
            };
            let (top, bottom) = (stack.base().get() as u64, stack.limit().get() as u64);
            lanes.push(Lane {
                thread: [t as u32, 0, 0],
                block: index,
                block_dim: [config.threads as u32, 1, 1],
                grid: config.grid,
                stack: bottom,
                stack_bytes: top - bottom,
            });
            fibers.push(Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
                // SAFETY: `run` outlives all fibers of the launch, and no reference to it lives while a fiber runs.
                unsafe { (*run).yielder = yielder };
                // SAFETY: the caller vouches for `entry` and `words`.
                unsafe { entry(words) };
            }));
        }
        loop {
            // SAFETY: no fiber runs now, so this is the only reference.
            match unsafe { (*run).machine.choose_next() } {
                Next::Run(t) => {
                    // SAFETY: the slot is a thread-local of the loaded text on this OS thread; `lanes` outlives the block.
                    unsafe { *slot = &lanes[t] };
                    if let CoroutineResult::Return(()) = fibers[t].resume(()) {
                        // SAFETY: the fiber has ended, so this is the only reference.
                        unsafe { (*run).machine.exit() };
                    }
                }
                Next::BlockDone => break,
                Next::Abandon => {
                    for fiber in &mut fibers {
                        // SAFETY: what is on these stacks is emitted C++ without destructors and table functions that
                        // hold only plain values while they give way, so nothing is lost by not unwinding.
                        unsafe { fiber.force_reset() };
                    }
                    break 'blocks;
                }
            }
        }
        stacks.extend(fibers.into_iter().map(Coroutine::into_stack));
    }
    RUN.set(before);
    // SAFETY: it came from `Box::into_raw`; all fibers are done or reset, so nothing points to it any more.
    let run = unsafe { Box::from_raw(run) };
    match failed {
        Some(e) => Err(e),
        None => Ok(run.machine),
    }
}
