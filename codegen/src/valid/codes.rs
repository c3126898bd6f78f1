//! The verifier's codes with one sentence each; `docs/diagnostics.md` is generated from this table.

/// A code and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// `V0412`.
    pub code: &'static str,
    /// What is wrong.
    pub meaning: &'static str,
    /// What to do.
    pub advice: &'static str,
}

const fn code(code: &'static str, meaning: &'static str, advice: &'static str) -> Code {
    Code { code, meaning, advice }
}

/// All codes of the verifier, in order.
pub const CODES: &[Code] = &[
    code("V0101", "an id points outside of its arena", "build the kernel with `Builder`; this is a defect of a pass"),
    code(
        "V0102",
        "a value, index, view or tile is used where it is not visible",
        "define it before its use, in the same or an enclosing block",
    ),
    code("V0103", "a value, index or tile is defined twice", "give each definition its own id"),
    code(
        "V0104",
        "a block has two parents, or contains itself",
        "give each op its own block; this is a defect of a pass",
    ),
    code("V0105", "a tile op stands inside an element body", "move it before or after the `parallel` or `spread`"),
    code("V0106", "`break` or `continue` outside of a loop", "use it inside `for`, `while` or `loop`"),
    code("V0107", "a scheduled op or layout in a plain kernel, or the reverse", "lower the kernel first"),
    code(
        "V0108",
        "the kernel declares no grid, or more than three axes",
        "call `grid(..)` once with one to three extents",
    ),
    code("V0109", "an op stands behind `break` or `continue` and never runs", "remove it"),
    code("V0110", "`grid_sync` where not every block passes it", "put it at the top level of the kernel"),
    code("V0111", "`grid_sync` in a kernel that is not cooperative", "declare the kernel `#[kernel(cooperative)]`"),
    code(
        "V0112",
        "a `claim` that does not stand once, directly in a `spread`, before all that changes memory",
        "claim at the top of the body, and store under the number afterwards",
    ),
    code("V0201", "an operand has the wrong dtype", "convert with `.to::<T>()`"),
    code("V0202", "the number of indices or axes does not fit", "give one index an axis"),
    code("V0203", "extents do not fit, or a view leaves its tile", "make the extents equal"),
    code("V0204", "an axis that the tile does not have", "axes count from 0"),
    code(
        "V0205",
        "a buffer of the wrong memory space",
        "use a tile where a tile is expected and a variable where a variable is",
    ),
    code("V0206", "an index divides by a number that is not positive", "divide by a positive number"),
    code(
        "V0207",
        "an atomic on a dtype other than I32 and U32",
        "use an integer counter; sums of floats use `tile_sum`",
    ),
    code("V0208", "unbounded data is used as an index", "bound it with `clamp_index`, or use `get_or` or `put`"),
    code("V0209", "an element body that must not store stores", "store in a `parallel` body"),
    code(
        "V0211",
        "no matrix instruction multiplies these types",
        "cast one operand; an 8-bit float meets a 4-bit one in `gemm_scaled` only",
    ),
    code(
        "V0301",
        "a value that differs between elements is used where all threads must agree",
        "reduce it first, for example with `tile_any` or `tile_max`",
    ),
    code(
        "V0302",
        "an element body sets a variable that all elements share",
        "declare the variable inside the body, or reduce",
    ),
    code("V0401", "an input is written", "declare the parameter `Out` or `InOut`"),
    code("V0402", "an output is read before it is written", "declare the parameter `InOut`"),
    code("V0403", "a tile may be read before it is written", "fill it first"),
    code(
        "V0412",
        "an element is written twice in one phase",
        "make the index differ between iterations, or reduce first",
    ),
    code(
        "V0413",
        "an element is read by one iteration and written by another of the same phase",
        "split the body into two phases, or write to a second tile",
    ),
    code(
        "V0414",
        "it cannot be shown that iterations of a phase touch different elements (warning)",
        "derive the index from the element index, or make sure the data holds no duplicates",
    ),
    code(
        "V0415",
        "an element is updated atomically by one iteration and accessed plainly by another",
        "use atomics for all accesses of the phase, or split it",
    ),
    code("V0421", "every block of the grid writes the same elements (warning)", "add the block index to the store"),
    code("V0431", "a distribution does not fit the block", "threads are 32 times the warps and lanes divide them"),
    code(
        "V0432",
        "two phases touch the same memory without a barrier between them",
        "insert a barrier; this is a defect of a pass",
    ),
    code("V0433", "a tile's layout leaves the block's shared memory", "plan memory again; this is a defect of a pass"),
    code(
        "V0501",
        "a role uses a ring that it neither fills nor reads",
        "name the role among the ring's producer and consumers, or use another ring",
    ),
    code(
        "V0502",
        "a part of a ring is filled or published without being acquired, or acquired twice",
        "acquire, fill, publish, advance, once an item",
    ),
    code(
        "V0503",
        "a part of a ring is released without being taken, or taken or released twice",
        "take, read, release, advance, once an item",
    ),
    code(
        "V0504",
        "a role goes on to another item of a ring before it has handed this one over",
        "publish or release every part before `advance`",
    ),
    code("V0505", "paths of a role leave a ring in different states", "give every path the same ops on every part"),
    code(
        "V0506",
        "the roles of a ring walk over different numbers of items",
        "use the same loops with the same bounds around `advance`",
    ),
    code(
        "V0507",
        "the bytes that copies bring into a part are not those that are expected",
        "choose boxes that divide the tile, the same each time",
    ),
    code(
        "V0508",
        "a copy is shared with the cluster, but its ring is not",
        "declare the ring `multicast`, in a cluster of two or more blocks",
    ),
    code(
        "V0509",
        "a tile of a ring is touched by a role that does not hold it, or in another slot",
        "take or acquire the part first, and use the slot that this gives",
    ),
    code(
        "V0510",
        "roles wait for each other for ever",
        "let every part that is waited for be handed over by a role that can get there",
    ),
    code(
        "V0511",
        "a slot is filled before it was released, or a wait meets another phase than its own",
        "count all arrivals of an item, and move positions by one",
    ),
    code("V0512", "a block may end while others of its cluster still reach it", "end with a barrier of the cluster"),
    code(
        "V0513",
        "memory is touched before the kernel that ran before has ended",
        "put `grid_wait` at the start of every role that touches memory",
    ),
    code(
        "V0514",
        "all who have a part of a sum store its tile",
        "store where the number of the block and the turn of the instance are 0",
    ),
    code(
        "V0521",
        "an engine reads shared memory that threads wrote, without a fence and a meeting between",
        "write, `async_fence`, `role_barrier`, then the engine",
    ),
    code(
        "V0522",
        "a tile is written again while a store of the engine may read it",
        "`tma_store_wait`, then `role_barrier`",
    ),
    code("V0523", "an accumulator or operand is used while a product has it", "wait for the product first"),
    code("V0524", "a role ends while a store of the engine reads its tile", "`tma_store_wait` at the end of the role"),
    code(
        "V0525",
        "threads of several roles or instances touch a shared tile without meeting",
        "hand it over through a ring, or put a barrier between",
    ),
    code("V0531", "registers of roles do not fit", "lower a budget, use more instances or a smaller tile"),
    code("V0532", "warps of roles do not fit the block", "give each role warps of its own"),
    code(
        "V0533",
        "shared memory of tiles and rings does not fit, or tiles overlap",
        "use fewer slots or smaller tiles, and place them apart",
    ),
    code("V0534", "more barriers than a block has", "use fewer instances or roles"),
    code("V0535", "a cluster that does not exist", "1 to 8 blocks along an axis of the grid"),
    code(
        "V0536",
        "roles or rings are declared in a form that does not exist",
        "one program a role, one part a tile, one slot axis a tile",
    ),
    code(
        "V0541",
        "an op of warp groups, engines or clusters where not all threads it needs come by",
        "use it in a role of its shape, outside of conditions",
    ),
    code("V0542", "tiles, maps and matrix operands disagree about their layout", "use the same swizzle in all of them"),
    code(
        "V0543",
        "a sum of parts, or a walk over rows of groups, in a form that does not exist",
        "add up once a tile, in a shared tile for the other parts; walk by a dense I32 input of counts",
    ),
    code(
        "V0550",
        "a schedule is rejected; the kernel has the portable form (warning)",
        "change the schedule as the reason says, or remove it",
    ),
    code(
        "V0601",
        "a deterministic kernel uses the result of an atomic",
        "the order of atomics changes from run to run: derive the value from a scan",
    ),
    code(
        "V0602",
        "a deterministic kernel reads a tensor that its blocks update",
        "read it in a kernel that runs afterwards",
    ),
    code(
        "V0611",
        "work along a batch-invariant dimension depends on its extent",
        "derive loop bounds and splits from the row's own data or from the config",
    ),
    code(
        "V0612",
        "`batch_invariant` names a dimension the kernel does not have",
        "name one of the kernel's dimensions",
    ),
    code(
        "V0613",
        "a row of an output depends on the extent, on its position or on other rows along a batch-invariant dimension",
        "compute a row from its own data and the config",
    ),
];
