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
