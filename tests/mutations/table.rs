//! The mutations: which kernel, what is broken, and how. Not a test; `mutations.rs` runs them.
//!
//! `Plain` rows change the text of the plain kernel, `Source` rows the kernel's part of the emitted CUDA text. `from` is
//! found once or more; its first occurrence behind `after` is replaced.

/// What is mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The plain kernel, as text.
    Plain,
    /// The emitted text for `sm_80`.
    Source,
}

/// One mutation.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    pub layer: Layer,
    pub op: &'static str,
    pub case: &'static str,
    /// What went wrong, in words.
    pub what: &'static str,
    /// Text the replaced one stands behind; empty for the start.
    pub after: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

const fn row(
    layer: Layer,
    (op, case): (&'static str, &'static str),
    what: &'static str,
    after: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutation {
    Mutation { layer, op, case, what, after, from, to }
}

const fn plain(at: (&'static str, &'static str), what: &'static str, from: &'static str, to: &'static str) -> Mutation {
    row(Layer::Plain, at, what, "", from, to)
}

const fn source(
    at: (&'static str, &'static str),
    what: &'static str,
    after: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutation {
    row(Layer::Source, at, what, after, from, to)
}

const NORM: (&str, &str) = ("rmsnorm", "t7_h448_no_weight");
/// Rows in f32, where the order of a sum shows.
const NORM_F32: (&str, &str) = ("rmsnorm", "t9_h128_f32");
const TURN: (&str, &str) = ("transpose", "b3_m37_n50");
/// Whole tiles, and more of them along one axis than along the other.
const TURN_TILES: (&str, &str) = ("transpose", "b2_m129_n72");
const GEMM: (&str, &str) = ("gemm_bf16", "m70_n136_k192");
const FP8: (&str, &str) = ("gemm_fp8", "m70_n136_k272");
const MERGE: (&str, &str) = ("mla_combine", "s7_h5_d40_sink_f32");
const WINDOW: (&str, &str) = ("attention_sliding_window", "n150_w33");
const CAST: (&str, &str) = ("quant_per_token_fp8", "m7_n256_max_over_amax");
const TOPK: (&str, &str) = ("topk_select", "ends_offsets");

/// All of them, by kernel.
pub const TABLE: &[Mutation] = &[
    plain(NORM, "missing initialisation: the row is never loaded", "copy $x[bx, 0] -> $xf[0, 0] extents [1, 448]", ""),
    plain(NORM, "short copy: the last element is missing", "extents [1, 448]\n", "extents [1, 447]\n"),
    plain(NORM, "wrong row is loaded", "copy $x[bx, 0]", "copy $x[bx + 1, 0]"),
    plain(NORM, "reduction along the wrong axis", "reduce sum $squares axis 1", "reduce sum $squares axis 0"),
    plain(NORM, "wrong reduction", "reduce sum", "reduce max"),
    plain(NORM_F32, "wrong reduction order", "order(lanes 16 per_lane 8)", "order(lanes 4 per_lane 8)"),
    plain(NORM, "lost scale: the mean is a sum", "%5: f32 = mul %3, %4", "%5: f32 = mul %3, %3"),
    plain(NORM, "every block writes the same row", "store $y[bx + i.1, j.1]", "store $y[i.1, j.1]"),
    plain(NORM, "race: all elements go to one place", "store $squares[i, j]", "store $squares[i, 0]"),
    plain(NORM, "the input is written", "store $y[bx + i.1, j.1] = %10", "store $x[bx + i.1, j.1] = %10"),
    plain(NORM, "lost conversion", "%10: bf16 = cast %9", "%10: f32 = cast %9"),
    plain(TURN, "swapped indices on one side", "$part[i, j]", "$part[j, i]"),
    plain(TURN, "off by one: a column is not written", "parallel (i in 64, j in 64)", "parallel (i in 64, j in 63)"),
    plain(TURN, "tile too small", "@part: shared u8[64, 68]", "@part: shared u8[64, 60]"),
    plain(TURN_TILES, "grid of the wrong axis", "bx in (m + 63) / 64", "bx in (n + 63) / 64"),
    plain(TURN, "off by one in the grid: no block for the tail", "bx in (m + 63) / 64", "bx in m / 64"),
    plain(TURN, "wrong batch", "offset bz * (m * n)", "offset 0 * (m * n)"),
    plain(GEMM, "missing initialisation of the accumulator", "fill $acc = %0", ""),
    plain(GEMM, "wrong accumulate flag", "gemm $a_s, $b_s.1", "gemm.set $a_s, $b_s.1"),
    plain(GEMM, "lost transposition", "gemm $a_s, $b_s.1", "gemm $a_s, $b_s"),
    plain(GEMM, "off by one: a step of K too few", "in 0..(k + 63) / 64", "in 0..(k + 63) / 64 - 1"),
    plain(GEMM, "wrong block of B", "copy $b[by * 64, ki * 64]", "copy $b[bx * 64, ki * 64]"),
    plain(GEMM, "steps of K overlap", "copy $a[bx * 64, ki * 64]", "copy $a[bx * 64, ki * 32]"),
    plain(FP8, "wrong scale of a row", "load $sa[by * 64 + j,", "load $sa[by * 64,"),
    plain(FP8, "wrong scale of a column", "load $sb[(bx * 64 + i) / 128,", "load $sb[(bx * 64 + i) / 64,"),
    plain(MERGE, "wrong mask: empty splits count", "%24: bool = compare gt", "%24: bool = compare lt"),
    plain(MERGE, "off by one: the first split is left out", "for s.1 in 0..splits", "for s.1 in 1..splits"),
    plain(
        MERGE,
        "a shared variable set by all elements",
        "%27: f32 = load $acc[d]",
        "%27: f32 = load $acc[d]\n set @norm = %27",
    ),
    plain(
        WINDOW,
        "wrong mask: the window is one key too long",
        "compare_index gt step * 64 + j + reach",
        "compare_index ge step * 64 + j + reach",
    ),
    plain(WINDOW, "the running maximum is not kept", "store $max[i.1] = %13", "store $max[i.1] = %11"),
    plain(WINDOW, "the accumulator is not rescaled", "%30: f32 = mul %28, %29", "%30: f32 = add %28, %29"),
    plain(CAST, "maximum of the signed values", "reduce absmax", "reduce max"),
    plain(CAST, "quotient turned round", "div %7, %4", "div %4, %7"),
    source(NORM, "dropped barrier between warps", "", "__syncthreads();", ";"),
    source(
        NORM,
        "dropped tail guard of the load",
        "",
        "ld_global_if<16>(x_v, x_at + j, ok)",
        "ld_global_if<16>(x_v, x_at + j, true)",
    ),
    source(NORM, "dropped tail guard of the store", "", "if (ok) st<16>", "st<16>"),
    source(
        NORM,
        "wrong lane: another lane gives the warp's sum",
        "",
        "if (lane == 0) partials",
        "if (lane == 33) partials",
    ),
    source(NORM, "race on a shared element", "", "if (lane == 0) partials[warp]", "if (lane == 0) partials[warp / 2]"),
    source(NORM, "barrier under a divergent condition", "", "__syncthreads();", "if (lane < 16) __syncthreads();"),
    source(NORM, "reduction over half of the lanes", "", "reduce_lanes<Sum, 32>", "reduce_lanes<Sum, 16>"),
    source(NORM, "reduction over the first warp only", "", "reduce_warps<Sum, 8>", "reduce_warps<Sum, 1>"),
    source(NORM, "missing initialisation of a sum", "", "float acc = -0.0f;", "float acc;"),
    source(TURN, "dropped barrier", "", "__syncthreads();", ";"),
    source(TURN, "swapped strides on one side", "st<4>", "part[i * 72 + j]", "part[j * 72 + i]"),
    source(TURN, "different padding on one side", "", "st<4>(part + i * 72 + j", "st<4>(part + i * 68 + j"),
    source(TURN, "dropped tail guard", "", "if (by * 64 + j < n && bx * 64 + i < m) y_at", "if (by * 64 + j < n) y_at"),
    source(TURN_TILES, "off by one: one step too few", "", "s < 32; ++s", "s < 31; ++s"),
    source(GEMM, "wrong count of outstanding copies", "", "cp_async_wait<1>();", "cp_async_wait<2>();"),
    source(GEMM, "dropped wait", "", "cp_async_wait<1>();", ""),
    source(GEMM, "dropped barrier after the wait", "", "__syncthreads();", ";"),
    source(GEMM, "early reuse of a slot", "", "const int version = (ki + 2) % 3;", "const int version = (ki + 0) % 3;"),
    source(GEMM, "wrong slot is read", "", "const int version = (ki) % 3;", "const int version = (ki + 1) % 3;"),
    source(
        GEMM,
        "missing zero fill past the end",
        "load_a: parallel",
        "ki_ahead * 64 + j < k ? 16 : 0",
        "ki_ahead * 64 + j < k ? 16 : 16",
    ),
    source(GEMM, "wrong row of the fragment", "", "lane % 16) * 72", "lane % 8) * 72"),
    source(GEMM, "wrong half of K in the fragment", "", "k2 + lane / 16 * 8", "k2 + lane / 16 * 0"),
    source(
        GEMM,
        "fragments of B exchanged",
        "",
        "y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]",
        "y[j / 2][j % 2 * 2 + 1], y[j / 2][j % 2 * 2]",
    ),
    source(GEMM, "lost transposition of B", "", "ldmatrix_x4(y[j]", "ldmatrix_x4_trans(y[j]"),
    source(GEMM, "wrong element of the accumulator", "", "acc[(i * 4 + j) * 4]", "acc[(j * 2 + i) * 4]"),
    source(
        GEMM,
        "missing initialisation of the accumulator",
        "",
        "acc[(r * 8 + s) * 2 + v] = 0.0f",
        "acc[(r * 8 + 0) * 2 + v] = 0.0f",
    ),
    source(
        GEMM,
        "dropped tail guard of the store",
        "",
        "if (bx * 64 + i < m && by * 64 + j < n) st<4>",
        "if (by * 64 + j < n) st<4>",
    ),
    source(GEMM, "a copy that is not committed", "for (int ki = 0;", "cp_async_commit();", ""),
    source(MERGE, "all threads write", "", "if (tid == 0) lse", "lse"),
    source(MERGE, "the next block's rows", "", "bx * (h * 40 * q)", "(bx + 1) * (h * 40 * q)"),
    source(TOPK, "an atomic becomes an addition", "", "atomicAdd(&counts[at], 1u)", "counts[at] += 1u"),
    source(TOPK, "dropped barrier after clearing", "", "__syncthreads();", ";"),
    source(TOPK, "dropped barrier after counting", "spread", "__syncthreads();", ";"),
    source(TOPK, "missing zero fill: half of the counters", "", "const bool ok = i < 256;", "const bool ok = i < 128;"),
];

/// Mutations that nothing can notice, with the reason. Keyed by kernel and what they are in `TABLE`.
pub const HARMLESS: &[(&str, &str, &str)] = &[];
