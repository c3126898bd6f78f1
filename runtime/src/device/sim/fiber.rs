//! Fibers: one stack a thread of the emitted text, all on the calling OS thread, chosen by the machine.
//!
//! The machine lives in a [`Run`] that is reached through a thread-local while a launch runs; emitted text calls back
//! into it from fibers (`table.rs`).

use super::table::{TABLE, Table};
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use kiln_codegen::machine::{Config, Global, Machine, Next, SharedBytes, TensorMap};
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
    shared: *mut u8,
    rank: u32,
}

/// Layout of `kiln_thread_t`: what a text keeps for each OS thread.
#[repr(C)]
#[derive(Debug)]
pub struct TextThread {
    lane: *mut *const Lane,
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

/// The unit in which a block's shared memory is allocated, and its alignment.
#[repr(C, align(1024))]
#[derive(Clone, Debug)]
struct Piece([u8; 1024]);

/// Pieces of a block's shared memory, with room for accesses past its end.
const PIECES: usize = 256;

/// Shared memory of a block. The text reaches it through pointers, so there are no references to it.
#[derive(Debug)]
struct TextShared {
    at: *mut [Piece],
}

impl TextShared {
    fn new() -> Self {
        TextShared { at: Box::into_raw(vec![Piece([0; 1024]); PIECES].into_boxed_slice()) }
    }
    fn bytes(&self) -> *mut u8 {
        self.at.cast()
    }
}

impl Drop for TextShared {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::into_raw`, and what runs the text has ended.
        drop(unsafe { Box::from_raw(self.at) });
    }
}

impl SharedBytes for TextShared {
    fn address(&self) -> u64 {
        self.bytes() as u64
    }
    fn capacity(&self) -> usize {
        PIECES * size_of::<Piece>()
    }
    fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.capacity(), "read outside shared memory");
        // SAFETY: the allocation has `capacity` bytes; the range was checked, and no reference to those bytes exists anywhere.
        unsafe { ptr::copy_nonoverlapping(self.bytes().add(offset), out.as_mut_ptr(), out.len()) };
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.capacity(), "write outside shared memory");
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.bytes().add(offset), bytes.len()) };
    }
}

/// Runs all clusters of a launch, with these tensor maps, and gives the machine back.
///
/// # Safety
/// `attach` and `entry` belong to a loaded text that was compiled with the host prelude of this build, and `words` has as
/// many words as its entry has arguments.
pub unsafe fn launch(
    config: Config,
    global: Global,
    maps: Vec<TensorMap>,
    attach: Attach,
    entry: Entry,
    words: &[u64],
) -> std::io::Result<Machine> {
    let mut text = TextThread { lane: ptr::null_mut() };
    // SAFETY: the caller vouches for `attach`, which fills in the structure.
    unsafe { attach(&TABLE, &mut text) };
    let size: usize = config.cluster.iter().map(|&c| c as usize).product();
    let refuse = |text: String| Err(std::io::Error::other(text));
    if config.shared_bytes > PIECES * size_of::<Piece>() {
        return refuse(format!("no block has {} bytes of shared memory", config.shared_bytes));
    }
    if size == 0 || (0..3).any(|i| !config.grid[i].is_multiple_of(config.cluster[i])) {
        return refuse(format!("clusters of {:?} blocks do not divide a grid of {:?}", config.cluster, config.grid));
    }
    if size > 1 && !config.threads.is_multiple_of(config.warp) {
        return refuse(format!("blocks of a cluster have whole warps, not {} threads", config.threads));
    }
    let blocks: Vec<TextShared> = (0..size).map(|_| TextShared::new()).collect();
    let shared: Vec<*mut u8> = blocks.iter().map(TextShared::bytes).collect();
    let boxed = blocks.into_iter().map(|b| Box::new(b) as Box<dyn SharedBytes>).collect();
    let mut machine = Machine::new(config.clone(), global, boxed);
    for map in maps {
        machine.add_map(map);
    }
    let (clusters, count) = (machine.clusters(), machine.cluster_threads());
    let run = Box::into_raw(Box::new(Run { machine, yielder: ptr::null() }));
    let slot = text.lane;
    let before = RUN.replace(run);
    let mut stacks: Vec<DefaultStack> = Vec::new();
    let words = words.as_ptr();
    let mut failed = None;
    'clusters: for cluster in 0..clusters {
        // SAFETY: no fiber runs now, so this is the only reference.
        unsafe { (*run).machine.begin_cluster(cluster as u32) };
        let mut lanes = Vec::with_capacity(count);
        let mut fibers = Vec::with_capacity(count);
        for t in 0..count {
            let stack = match stacks.pop().map_or_else(|| DefaultStack::new(STACK_BYTES), Ok) {
                Ok(stack) => stack,
                Err(e) => {
                    failed = Some(e);
                    break 'clusters;
                }
            };
            let (top, bottom) = (stack.base().get() as u64, stack.limit().get() as u64);
            // SAFETY: no fiber runs now, so this is the only reference.
            let (rank, block) = unsafe { ((*run).machine.rank_of(t), (*run).machine.block_index(t)) };
            lanes.push(Lane {
                thread: [(t % config.threads) as u32, 0, 0],
                block,
                block_dim: [config.threads as u32, 1, 1],
                grid: config.grid,
                stack: bottom,
                stack_bytes: top - bottom,
                shared: shared[rank],
                rank: rank as u32,
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
                    // SAFETY: the slot is a thread-local of the loaded text on this OS thread; `lanes` outlives the cluster.
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
                    break 'clusters;
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
