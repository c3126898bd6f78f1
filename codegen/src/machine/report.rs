//! Findings of a simulated run: stable codes, one entry a defect, and their way back to the source.
//!
//! The machine knows lines of the emitted text; [`Lines`] maps them to the `file.rs:line:column` comments the emitters
//! print. No printing here.

use crate::diag::Diagnostic;
use crate::ir::Span;
use std::collections::HashMap;

/// Kinds of defects. The name is what a report and a test say; the id is the stable diagnostic code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// A read that nothing orders after a write of another thread.
    RaceRead,
    /// A write that nothing orders after another thread's write.
    RaceWrite,
    /// A write that nothing orders after another thread's read of the old value.
    OverwriteBeforeConsumed,
    /// A read of what an asynchronous copy has not been waited for.
    ReadBeforeComplete,
    /// Two blocks touch the same element of global memory, one of them writing.
    BlockRace,
    /// A read of shared memory that nothing has written.
    UninitShared,
    /// A read of an output tensor before this launch wrote it.
    UninitGlobal,
    /// An access outside the block's shared memory.
    SharedRange,
    /// An access outside every tensor, or to a gap between the elements of a strided one.
    GlobalRange,
    /// A write to an input tensor.
    GlobalReadonly,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// Threads of one block at different barriers, or some of them gone.
    DivergentBarrier,
    /// Lanes of one warp at different warp-wide operations, or some of them gone.
    DivergentWarp,
    /// A shuffle that reads from a lane that takes no part in it.
    ShuffleSource,
    /// A barrier whose participants disagree about its count, or an id or count that does not exist.
    BarrierCount,
    /// No thread can continue.
    Deadlock,
    /// A thread went on for longer than any sane kernel.
    SpinLimit,
    /// Two schedules of the same launch gave different bytes.
    ScheduleDependent,
    /// The text uses something this machine does not model.
    Unsupported,
    /// A bulk copy or matrix instruction meets an ordinary write that no proxy fence made visible to it.
    ProxyFence,
    /// Shared memory is read with another swizzle than it was written with.
    Swizzle,
    /// A matrix descriptor that the hardware does not take.
    Descriptor,
    /// A tensor map that cannot be made, or is used with another number of coordinates.
    TensorMap,
    /// Bytes that a copy counts on an mbarrier and the bytes it expects do not agree.
    TxBytes,
    /// An mbarrier that is not set up, set up twice, or used before its set-up is known.
    MbarrierInit,
    /// More arrivals at an mbarrier than its phase needs.
    MbarrierArrivals,
    /// A phase of an mbarrier may end before a thread that waits for the one before sees that it ended.
    MbarrierLapped,
    /// An mbarrier's memory is used as data.
    MbarrierTouched,
    /// Accumulators are used while a matrix instruction has them.
    AccumulatorInFlight,
    /// Registers go from ordinary code to a matrix instruction without a fence.
    WgmmaFence,
    /// The warps of a warpgroup do not execute the same matrix instructions.
    Warpgroup,
    /// A number of registers that cannot be asked for.
    Registers,
    /// A block that the cluster does not have, or an address of the wrong block.
    ClusterRank,
    /// Arrivals and waits at the cluster's barrier do not alternate.
    ClusterBarrier,
    /// A block ends while another one may still reach it.
    ExitedBlock,
    /// A thread leaves while something it started still uses the block's memory or its registers.
    LeftRunning,
    /// A tensor or an access outside an on-chip memory, or outside the tensor an instruction was given.
    LocalRange,
    /// An event that is waited for without a set, set again before its wait, or left set.
    EventBalance,
    /// An event or flag id, or a pipe, that this core does not have.
    EventId,
    /// Cross-core flags that do not come out even, or too many set ahead.
    CrossFlag,
    /// An instruction meets the result of an earlier one of the same pipe without a barrier between.
    PipeBarrier,
    /// An instruction that this kind of core does not have.
    CoreKind,
    /// A field of an instruction outside its range.
    Parameter,
    /// Source and destination of one instruction overlap in part.
    OperandOverlap,
    /// Bytes that nothing has defined reach an output or steer the program.
    Undefined,
    /// Squeezes and unaligned stores that do not alternate, or are not ended.
    UnalignedStore,
}

impl Code {
    /// All codes.
    pub const ALL: [Code; 46] = [
        Code::RaceRead,
        Code::RaceWrite,
        Code::OverwriteBeforeConsumed,
        Code::ReadBeforeComplete,
        Code::BlockRace,
        Code::UninitShared,
        Code::UninitGlobal,
        Code::SharedRange,
        Code::GlobalRange,
        Code::GlobalReadonly,
        Code::Misaligned,
        Code::DivergentBarrier,
        Code::DivergentWarp,
        Code::ShuffleSource,
        Code::BarrierCount,
        Code::Deadlock,
        Code::SpinLimit,
        Code::ScheduleDependent,
        Code::Unsupported,
        Code::ProxyFence,
        Code::Swizzle,
        Code::Descriptor,
        Code::TensorMap,
        Code::TxBytes,
        Code::MbarrierInit,
        Code::MbarrierArrivals,
        Code::MbarrierLapped,
        Code::MbarrierTouched,
        Code::AccumulatorInFlight,
        Code::WgmmaFence,
        Code::Warpgroup,
        Code::Registers,
        Code::ClusterRank,
        Code::ClusterBarrier,
        Code::ExitedBlock,
        Code::LeftRunning,
        Code::LocalRange,
        Code::EventBalance,
        Code::EventId,
        Code::CrossFlag,
        Code::PipeBarrier,
        Code::CoreKind,
        Code::Parameter,
        Code::OperandOverlap,
        Code::Undefined,
        Code::UnalignedStore,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        self.text().1
    }

    /// Stable diagnostic code.
    pub const fn id(self) -> &'static str {
        self.text().0
    }

    /// What is wrong, in one sentence.
    pub const fn meaning(self) -> &'static str {
        self.text().2
    }

    const fn text(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Code::RaceRead => ("S0801", "RACE_READ", "a read that nothing orders after a write of another thread"),
            Code::RaceWrite => ("S0802", "RACE_WRITE", "a write that nothing orders after another thread's write"),
            Code::OverwriteBeforeConsumed => (
                "S0803",
                "OVERWRITE_BEFORE_CONSUMED",
                "a write that nothing orders after another thread's read of the old value",
            ),
            Code::ReadBeforeComplete => {
                ("S0804", "READ_BEFORE_COMPLETE", "a read of what an asynchronous copy has not been waited for")
            }
            Code::BlockRace => {
                ("S0805", "BLOCK_RACE", "two blocks touch the same element of global memory, one of them writing")
            }
            Code::UninitShared => ("S0806", "UNINIT_SHARED", "a read of shared memory that nothing has written"),
            Code::UninitGlobal => ("S0807", "UNINIT_GLOBAL", "a read of an output tensor before this launch wrote it"),
            Code::SharedRange => ("S0808", "SHARED_RANGE", "an access outside the block's shared memory"),
            Code::GlobalRange => (
                "S0809",
                "GLOBAL_RANGE",
                "an access outside every tensor, or to a gap between the elements of a strided one",
            ),
            Code::GlobalReadonly => ("S0810", "GLOBAL_READONLY", "a write to an input tensor"),
            Code::Misaligned => ("S0811", "MISALIGNED", "an address that is not a multiple of the access size"),
            Code::DivergentBarrier => {
                ("S0812", "DIVERGENT_BARRIER", "threads of one block at different barriers, or some of them gone")
            }
            Code::DivergentWarp => {
                ("S0813", "DIVERGENT_WARP", "lanes of one warp at different warp-wide operations, or some of them gone")
            }
            Code::ShuffleSource => {
                ("S0814", "SHUFFLE_SOURCE", "a shuffle that reads from a lane that takes no part in it")
            }
            Code::BarrierCount => (
                "S0815",
                "BARRIER_COUNT",
                "a barrier whose participants disagree about its count, or an id or count that does not exist",
            ),
            Code::Deadlock => ("S0816", "DEADLOCK", "no thread can continue"),
            Code::SpinLimit => ("S0817", "SPIN_LIMIT", "a thread went on for longer than any sane kernel"),
            Code::ScheduleDependent => {
                ("S0818", "SCHEDULE_DEPENDENT", "two schedules of the same launch gave different bytes")
            }
            Code::Unsupported => ("S0819", "UNSUPPORTED", "the text uses something this machine does not model"),
            Code::ProxyFence => (
                "S0820",
                "PROXY_FENCE",
                "a bulk copy or matrix instruction meets an ordinary write that no proxy fence made visible to it",
            ),
            Code::Swizzle => {
                ("S0821", "SWIZZLE", "shared memory is read with another swizzle than it was written with")
            }
            Code::Descriptor => ("S0822", "DESCRIPTOR", "a matrix descriptor that the hardware does not take"),
            Code::TensorMap => (
                "S0823",
                "TENSOR_MAP",
                "a tensor map that cannot be made, or is used with another number of coordinates",
            ),
            Code::TxBytes => {
                ("S0824", "TX_BYTES", "bytes that a copy counts on an mbarrier and the bytes it expects do not agree")
            }
            Code::MbarrierInit => (
                "S0825",
                "MBARRIER_INIT",
                "an mbarrier that is not set up, set up twice, or used before its set-up is known",
            ),
            Code::MbarrierArrivals => {
                ("S0826", "MBARRIER_ARRIVALS", "more arrivals at an mbarrier than its phase needs")
            }
            Code::MbarrierLapped => (
                "S0827",
                "MBARRIER_LAPPED",
                "a phase of an mbarrier may end before a thread that waits for the one before sees that it ended",
            ),
            Code::MbarrierTouched => ("S0828", "MBARRIER_TOUCHED", "an mbarrier's memory is used as data"),
            Code::AccumulatorInFlight => {
                ("S0829", "ACCUMULATOR_IN_FLIGHT", "accumulators are used while a matrix instruction has them")
            }
            Code::WgmmaFence => {
                ("S0830", "WGMMA_FENCE", "registers go from ordinary code to a matrix instruction without a fence")
            }
            Code::Warpgroup => {
                ("S0831", "WARPGROUP", "the warps of a warpgroup do not execute the same matrix instructions")
            }
            Code::Registers => ("S0832", "REGISTERS", "a number of registers that cannot be asked for"),
            Code::ClusterRank => {
                ("S0833", "CLUSTER_RANK", "a block that the cluster does not have, or an address of the wrong block")
            }
            Code::ClusterBarrier => {
                ("S0834", "CLUSTER_BARRIER", "arrivals and waits at the cluster's barrier do not alternate")
            }
            Code::ExitedBlock => ("S0835", "EXITED_BLOCK", "a block ends while another one may still reach it"),
            Code::LeftRunning => (
                "S0836",
                "LEFT_RUNNING",
                "a thread leaves while something it started still uses the block's memory or its registers",
            ),
            Code::LocalRange => (
                "S0837",
                "LOCAL_RANGE",
                "a tensor or an access outside an on-chip memory, or outside the tensor an instruction was given",
            ),
            Code::EventBalance => (
                "S0838",
                "EVENT_BALANCE",
                "an event that is waited for without a set, set again before its wait, or left set",
            ),
            Code::EventId => ("S0839", "EVENT_ID", "an event or flag id, or a pipe, that this core does not have"),
            Code::CrossFlag => {
                ("S0840", "CROSS_FLAG", "cross-core flags that do not come out even, or too many set ahead")
            }
            Code::PipeBarrier => (
                "S0841",
                "PIPE_BARRIER",
                "an instruction meets the result of an earlier one of the same pipe without a barrier between",
            ),
            Code::CoreKind => ("S0842", "CORE_KIND", "an instruction that this kind of core does not have"),
            Code::Parameter => ("S0843", "PARAMETER", "a field of an instruction outside its range"),
            Code::OperandOverlap => {
                ("S0844", "OPERAND_OVERLAP", "source and destination of one instruction overlap in part")
            }
            Code::Undefined => {
                ("S0845", "UNDEFINED", "bytes that nothing has defined reach an output or steer the program")
            }
            Code::UnalignedStore => {
                ("S0846", "UNALIGNED_STORE", "squeezes and unaligned stores that do not alternate, or are not ended")
            }
        }
    }

    /// What usually helps.
    pub const fn help(self) -> Option<&'static str> {
        match self {
            Code::RaceRead | Code::RaceWrite | Code::OverwriteBeforeConsumed => {
                Some("put a barrier between the two accesses")
            }
            Code::ReadBeforeComplete => Some(
                "wait for the copy's group or mbarrier, then put a barrier before threads that did not wait read it",
            ),
            Code::BlockRace => Some("let one block own each output element, or use an atomic operation"),
            Code::ProxyFence => {
                Some("write, `async_proxy_fence` by the writer, a barrier, then the copy or the product")
            }
            Code::Swizzle => Some("the tensor map and the descriptor must name the same swizzle"),
            Code::TxBytes => Some("expect the bytes of whole boxes, of all copies to this barrier"),
            Code::MbarrierInit => Some("set up, `mbar_init_fence`, then a barrier of the block or cluster"),
            Code::MbarrierArrivals => Some("count who arrives in one phase, in all blocks"),
            Code::MbarrierLapped => Some("let the next phase depend on an arrival of the waiting thread"),
            Code::AccumulatorInFlight => Some("`wgmma_commit`, then `wgmma_wait`, before ordinary code uses them"),
            Code::WgmmaFence => Some("call `wgmma_begin` before the first product"),
            Code::ExitedBlock => Some("end with a barrier of the cluster"),
            Code::LeftRunning => Some("wait before the end of the kernel"),
            Code::Descriptor => Some("start the operand at row 0 of its swizzle pattern, k within the row"),
            Code::TensorMap => Some("see the rules of `cuTensorMapEncodeTiled`; pass one coordinate an axis"),
            Code::MbarrierTouched => Some("keep barriers apart from data in the plan of shared memory"),
            Code::Warpgroup => Some("all four warps take the same branches around products"),
            Code::Registers => Some("multiples of 8 from 24 to 256: first shrink, then grow, whole warpgroups"),
            Code::ClusterRank => {
                Some("ranks are below the size of the cluster; data and its mbarrier are in one block")
            }
            Code::ClusterBarrier => Some("each thread arrives, then waits, in turn"),
            Code::DivergentBarrier => Some("every thread of the block must reach the same barrier"),
            Code::LocalRange => Some(
                "plan addresses within the capacity of the memory; a mixed kernel on 2201 leaves 256 bytes of UB and L1",
            ),
            Code::EventBalance => Some(
                "one set, one wait, in turn, on every path; a ring sets \"free\" before its loop and waits for it after",
            ),
            Code::EventId => {
                Some("ids 0 to 7 a pair of pipes; cross-core flags 0 to 15 on a pipe of the executing core")
            }
            Code::CrossFlag => {
                Some("the consumer sets \"free\" first, the producer waits for the last one; at most 15 ahead")
            }
            Code::PipeBarrier => Some("`PipeBarrier` of that pipe, or `LocalMemBar` within a vector function"),
            Code::CoreKind => Some("matrix instructions run on the cube core, vector instructions on vector cores"),
            Code::OperandOverlap => Some("let them be the same or apart"),
            Code::Undefined => Some("write the whole tile, or limit the instruction to its valid part"),
            Code::UnalignedStore => Some("one `StoreUnAlign` after each `Squeeze`, `StoreUnAlignPost` at the end"),
            Code::UninitShared
            | Code::UninitGlobal
            | Code::SharedRange
            | Code::GlobalRange
            | Code::GlobalReadonly
            | Code::Misaligned
            | Code::DivergentWarp
            | Code::ShuffleSource
            | Code::BarrierCount
            | Code::Deadlock
            | Code::SpinLimit
            | Code::ScheduleDependent
            | Code::Unsupported
            | Code::Parameter => None,
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One defect: the same code at the same pair of lines is one finding, however often it happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Kind.
    pub code: Code,
    /// What happened the first time: who, where in memory, after what.
    pub message: String,
    /// Where in the program: whatever number its runner gives its places, a line of the emitted text after
    /// [`Findings::resolve`]; 0 if there is none.
    pub line: u32,
    /// Place of the other access, 0 if there is none.
    pub other: u32,
    /// How often.
    pub count: u64,
}

/// All findings of a run, in order of first appearance.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    index: HashMap<(Code, u32, u32), usize>,
}

impl Findings {
    /// Distinct findings that are kept; one defect may wreck everything after it.
    pub const LIMIT: usize = 20;

    /// Notes a defect; `message` is only formed for the first of its kind.
    pub fn report(&mut self, code: Code, line: u32, other: u32, message: impl FnOnce() -> String) {
        if let Some(&i) = self.index.get(&(code, line, other)) {
            self.list[i].count += 1;
        } else if self.list.len() < Self::LIMIT {
            self.index.insert((code, line, other), self.list.len());
            self.list.push(Finding { code, message: message(), line, other, count: 1 });
        }
    }

    /// Takes over what another run found.
    pub fn merge(&mut self, other: Findings) {
        for f in other.list {
            if let Some(&i) = self.index.get(&(f.code, f.line, f.other)) {
                self.list[i].count += f.count;
            } else if self.list.len() < Self::LIMIT {
                self.index.insert((f.code, f.line, f.other), self.list.len());
                self.list.push(f);
            }
        }
    }

    /// Replaces places by lines of the emitted text (0: unknown). Findings that become the same are joined; a report
    /// of two diverged places is dropped if both are one line, which a compiler has merely duplicated.
    pub fn resolve(&mut self, line_of: &dyn Fn(u32) -> u32) {
        let old = std::mem::take(self);
        for mut f in old.list {
            let places = (f.line, f.other);
            let known = |place: u32| if place == 0 { 0 } else { line_of(place) };
            (f.line, f.other) = (known(places.0), known(places.1));
            let diverged = matches!(f.code, Code::DivergentBarrier | Code::DivergentWarp);
            if diverged && places.1 != 0 && f.line != 0 && f.line == f.other {
                continue;
            }
            f.message = resolve_text(&f.message, line_of);
            let one = Findings { list: vec![f], index: HashMap::new() };
            self.merge(one);
        }
    }

    /// Places of all findings, also those only named in messages.
    pub fn places(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.list.iter().flat_map(|f| [f.line, f.other]).filter(|&p| p != 0).collect();
        for f in &self.list {
            all.extend(f.message.split("line #").skip(1).filter_map(|rest| number(rest).parse::<u32>().ok()));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The findings.
    pub fn list(&self) -> &[Finding] {
        &self.list
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// True if one has this code.
    pub fn has(&self, code: Code) -> bool {
        self.list.iter().any(|f| f.code == code)
    }
}

/// The digits at the start of a text.
fn number(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

/// `line #place` becomes `line N`.
fn resolve_text(text: &str, line_of: &dyn Fn(u32) -> u32) -> String {
    let mut parts = text.split("line #");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        let digits = number(part);
        match digits.parse().map_or(0, line_of) {
            0 => out += "an unknown line",
            line => out += &format!("line {line}"),
        }
        out += &part[digits.len()..];
    }
    out
}

/// Source positions of an emitted text, by its lines.
///
/// A comment `// file.rs:12:5` (more text may follow) belongs to its own line if code stands before it, and otherwise to
/// the lines after it; a line without one has the position of the last comment above.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    positions: Vec<Option<Span>>,
    texts: Vec<String>,
}

impl Lines {
    /// Reads the comments of a text.
    pub fn of(text: &str) -> Lines {
        let (mut positions, mut texts, mut last) = (vec![], vec![], None);
        for line in text.lines() {
            let (code, comment) = match line.split_once("//") {
                Some((code, comment)) => (code, position(comment)),
                None => (line, None),
            };
            if comment.is_some() {
                last = comment;
            }
            positions.push(last.clone());
            texts.push(code.trim().to_string());
        }
        Lines { positions, texts }
    }

    /// Position of a 1-based line.
    pub fn span(&self, line: u32) -> Option<&Span> {
        self.positions.get((line as usize).checked_sub(1)?)?.as_ref()
    }

    /// The emitted line without its comment.
    pub fn text(&self, line: u32) -> Option<&str> {
        self.texts.get((line as usize).checked_sub(1)?).map(String::as_str)
    }

    /// A finding as a diagnostic at the source line, with the emitted lines as notes.
    pub fn diagnostic(&self, finding: &Finding) -> Diagnostic {
        let span = self.span(finding.line).cloned().unwrap_or_else(Span::unknown);
        let mut message = format!("{}: {}", finding.code, finding.message);
        if finding.count > 1 {
            message += &format!(" ({} times)", finding.count);
        }
        let mut d = Diagnostic::error_at(span, finding.code.id(), message);
        for line in [finding.line, finding.other] {
            if let Some(text) = self.text(line).filter(|t| !t.is_empty()) {
                d = d.note(format!("emitted line {line} is `{text}`,"), self.span(line).cloned());
            }
        }
        match finding.code.help() {
            Some(help) => d.help(help),
            None => d,
        }
    }
}

/// Reads `file.rs:12:5` at the start of a comment.
fn position(comment: &str) -> Option<Span> {
    let word = comment.split_whitespace().next()?.trim_end_matches([',', ';', '.', ':']);
    let (rest, column) = word.rsplit_once(':')?;
    let (file, line) = rest.rsplit_once(':')?;
    let (line, column) = (line.parse().ok()?, column.parse().ok()?);
    (!file.is_empty()).then(|| Span { file: file.into(), line, column, frames: vec![], label: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_the_nearest_comment() {
        let lines = Lines::of("a();\n// norm.rs:12:5\nb();  // norm.rs:13:9 store\nc(); // because\n");
        assert_eq!(lines.span(1), None);
        assert_eq!(lines.span(2).map(Span::short).as_deref(), Some("norm.rs:12:5"));
        assert_eq!(lines.span(3).map(Span::short).as_deref(), Some("norm.rs:13:9"));
        assert_eq!(lines.span(4).map(Span::short).as_deref(), Some("norm.rs:13:9"));
        assert_eq!(lines.text(3), Some("b();"));
        assert_eq!(lines.span(9), None);
    }

    #[test]
    fn codes_are_distinct() {
        for (i, a) in Code::ALL.iter().enumerate() {
            assert!(Code::ALL[..i].iter().all(|b| a.name() != b.name() && a.id() != b.id()));
        }
    }

    #[test]
    fn places_become_lines() {
        let mut f = Findings::default();
        f.report(Code::RaceRead, 400, 500, || "after line #500; and line #7.".into());
        f.report(Code::RaceRead, 404, 500, || "again".into());
        f.report(Code::DivergentBarrier, 400, 404, || "a duplicated call".into());
        assert_eq!(f.places(), [7, 400, 404, 500]);
        f.resolve(&|place| if place == 7 { 0 } else { place / 100 });
        assert_eq!(f.list().len(), 1);
        assert_eq!((f.list()[0].line, f.list()[0].other, f.list()[0].count), (4, 5, 2));
        assert_eq!(f.list()[0].message, "after line 5; and an unknown line.");
    }

    #[test]
    fn a_repeated_defect_is_one_finding() {
        let mut f = Findings::default();
        for _ in 0..3 {
            f.report(Code::RaceRead, 4, 7, || "x".into());
        }
        assert_eq!(f.list().len(), 1);
        assert_eq!(f.list()[0].count, 3);
    }
}
