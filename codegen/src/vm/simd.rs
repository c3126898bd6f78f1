//! Vector code of the VM: the one place that knows the host's instruction sets. It holds the matrix micro-kernel and the
//! wide versions of the strip loops, which are the same generic functions compiled a second time. It decides nothing
//! about results: every level gives the same bits, because each element is computed by the same sequence of correctly
//! rounded operations, and NaN results of the matrix kernel are made canonical.
#![allow(unsafe_code, reason = "dispatch to functions whose instructions the processor was asked for")]

use super::lanes::{self, fma_exact};
use super::memory::{self, Global, Lane, Regs, Side, Tile};
use super::program::Reg;
use crate::host_memory::HostMemory;
use crate::ir::{BinaryOp, CmpOp, DType, UnaryOp};
use std::sync::OnceLock;

/// What the host can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The instructions every host of this build has.
    Base,
    /// AVX2 and fused multiply-add.
    Avx2,
    /// AVX-512 besides.
    Avx512,
}

/// The best level of this host.
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        Level::Base
    } else if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
    {
        Level::Avx512
    } else {
        Level::Avx2
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Base
}

/// Functions that are compiled for each level; the body is inlined into all of them.
macro_rules! for_each_level {
    ($($(#[$doc:meta])* $name:ident $(<$t:ident: $bound:path>)? ($($arg:ident: $type:ty),*) = $body:path $(, $base:path, $wide:path)?;)*) => { $(
        $(#[$doc])*
        pub fn $name $(<$t: $bound>)? ($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$t: $bound>)? ($($arg: $type),*) {
                    $body($($arg),* $(, $wide)?)
                }
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
                fn avx512 $(<$t: $bound>)? ($($arg: $type),*) {
                    $body($($arg),* $(, $wide)?)
                }
                match level() {
                    Level::Base => {}
                    // SAFETY: the host has AVX2 and FMA.
                    Level::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: the host has these parts of AVX-512.
                    Level::Avx512 => return unsafe { avx512($($arg),*) },
                }
            }
            $body($($arg),* $(, $base)?)
        }
    )* };
}

for_each_level! {
    /// `dst = op(x)` on `n` lanes.
    unary(r: &mut Regs, n: usize, op: UnaryOp, dtype: DType, dst: Reg, x: Reg) = lanes::unary;
    /// `dst = a op b` on `n` lanes.
    binary(r: &mut Regs, n: usize, op: BinaryOp, dtype: DType, dst: Reg, ab: [Reg; 2]) = lanes::binary;
    /// `dst = a * b + c` with one rounding.
    fma_lanes(r: &mut Regs, n: usize, dst: Reg, abc: [Reg; 3]) = lanes::fma, fma, f32::mul_add;
    /// `dst = a op b`, Bool.
    compare(r: &mut Regs, n: usize, op: CmpOp, dtype: DType, dst: Reg, ab: [Reg; 2]) = lanes::compare;
    /// `out = a op b` for index lanes.
    compare_indices(out: &mut [i32], op: CmpOp, a: &[i64], b: &[i64]) = lanes::compare_indices;
    /// `dst = cond ? a : b`.
    select(r: &mut Regs, n: usize, dst: Reg, cond: Reg, ab: [Reg; 2]) = lanes::select;
    /// `dst = x` converted.
    cast(r: &mut Regs, n: usize, from: DType, to: DType, dst: Reg, x: Reg) = lanes::cast;
    /// Rounds numbers to a float format.
    round<T: Lane>(dtype: DType, x: &mut [T]) = T::round;
    /// Reads elements, `stride` apart. The range has been checked.
    read<T: Lane>(side: &Side, dtype: DType, at: i64, stride: i64, out: &mut [T], bytes: &mut Vec<u8>) = memory::read;
    /// Writes elements to global memory. The range has been checked.
    write_global<T: Lane>(g: &Global, dtype: DType, at: i64, stride: i64, x: &[T], bytes: &mut Vec<u8>) = memory::write_global;
    /// Writes elements to a tile. The range has been checked.
    write_tile<T: Lane>(t: &mut Tile, dtype: DType, at: i64, stride: i64, x: &[T]) = memory::write_tile;
}

/// Decodes bf16 numbers that fill whole 64-bit words from word `first` on; false if this host has no fast way.
pub fn bf16_from_words(memory: &HostMemory, first: usize, out: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::Avx2 {
        let words = memory.words(first, out.len() / 4);
        // SAFETY: the host has AVX2.
        unsafe { x86::bf16_from_words(words, out) };
        return true;
    }
    let _ = (memory, first, out);
    false
}

/// Encodes bf16 numbers into whole 64-bit words from word `first` on; false if this host has no fast way.
pub fn bf16_to_words(memory: &HostMemory, first: usize, x: &[f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::Avx2 {
        let words = memory.words(first, x.len() / 4);
        // SAFETY: the host has AVX2.
        unsafe { x86::bf16_to_words(words, x) };
        return true;
    }
    let _ = (memory, first, x);
    false
}

/// A strided matrix: element `(i, j)` is `data[i * row + j * col]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Elements, from `(0, 0)` on.
    pub data: &'a [f32],
    /// Distance of rows.
    pub row: usize,
    /// Distance of columns.
    pub col: usize,
}

impl Matrix<'_> {
    /// True if a matrix of these extents lies in `data`.
    fn holds(&self, rows: usize, cols: usize) -> bool {
        let reach = |n: usize, step: usize| (n - 1).checked_mul(step);
        rows == 0
            || cols == 0
            || reach(rows, self.row)
                .zip(reach(cols, self.col))
                .and_then(|(r, c)| r.checked_add(c))
                .is_some_and(|last| last < self.data.len())
    }
}

/// Steps of `k` for which one panel of `b` is packed: a panel stays in the first cache.
const DEPTH: usize = 256;
/// Most columns of a panel.
const COLUMNS: usize = 32;
/// The NaN of every result that is one: which payload survives a chain differs between instruction sets.
pub const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// `c = c + a * b`, or `a * b` on +0 if `clear`: for each element one chain of fused multiply-adds in ascending `k`.
/// `c` is dense, `m` rows of `n`. `panel` is scratch.
///
/// # Panics
/// If an operand does not lie in its slice, or `level` is above the host's.
pub fn gemm(
    level: Level,
    [m, n, k]: [usize; 3],
    a: Matrix,
    b: Matrix,
    c: &mut [f32],
    clear: bool,
    panel: &mut Vec<f32>,
) {
    assert!(level <= self::level(), "instructions this host does not have");
    assert!(a.holds(m, k) && b.holds(k, n) && c.len() == m * n, "an operand outside its slice");
    if clear {
        c.fill(0.0);
    }
    let columns = if level == Level::Avx512 { COLUMNS } else { COLUMNS / 2 };
    panel.resize(DEPTH * COLUMNS, 0.0);
    for k0 in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - k0);
        for j0 in (0..n).step_by(columns) {
            let width = columns.min(n - j0);
            pack(level, &b, k0, depth, j0, width, columns, panel);
            let step = Step { a: &a, k0, depth, panel: &panel[..depth * columns], n, j0, width };
            match level {
                Level::Base => step.base(c, m),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => {
                    // SAFETY: `level` is not above the host's, which has AVX2 and FMA then; the asserts above and the
                    // bounds of the loops keep every address of `Step` within its slice.
                    unsafe { x86::avx2(&step, c, m) }
                }
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => {
                    // SAFETY: as above, with AVX-512F.
                    unsafe { x86::avx512(&step, c, m) }
                }
                #[cfg(not(target_arch = "x86_64"))]
                Level::Avx2 | Level::Avx512 => step.base(c, m),
            }
        }
    }
}

/// One panel's work: `width` columns of `c` from `j0` on, over `depth` steps of `k` from `k0` on.
struct Step<'a> {
    a: &'a Matrix<'a>,
    k0: usize,
    depth: usize,
    /// `depth` rows of as many columns as the level takes.
    panel: &'a [f32],
    /// Columns of `c`.
    n: usize,
    j0: usize,
    width: usize,
}

impl Step<'_> {
    fn base(&self, c: &mut [f32], m: usize) {
        const W: usize = COLUMNS / 2;
        let (rows, _) = self.panel.as_chunks::<W>();
        for i in 0..m {
            let out = &mut c[i * self.n + self.j0..][..self.width];
            let mut acc = [0f32; W];
            acc[..self.width].copy_from_slice(out);
            for (p, row) in rows.iter().enumerate() {
                let x = self.a.data[i * self.a.row + (self.k0 + p) * self.a.col];
                for (s, &y) in acc.iter_mut().zip(row) {
                    *s = fma(x, y, *s);
                }
            }
            for (o, s) in out.iter_mut().zip(acc) {
                *o = if s.is_nan() { NAN } else { s };
            }
        }
    }
}

/// A fused multiply-add by whatever this build has without asking.
#[inline(always)]
pub fn fma(x: f32, y: f32, z: f32) -> f32 {
    // On x86 without the instruction `mul_add` is a slow library call.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { x.mul_add(y, z) } else { fma_exact(x, y, z) }
}

/// `acc = row[i] * col[j] * chain + acc` with one rounding after that of `row[i] * col[j]`; on +0 if `clear`.
///
/// # Panics
/// If `level` is above the host's.
pub fn scale(level: Level, rows: &[f32], cols: &[f32], chain: &[f32], acc: &mut [f32], clear: bool) {
    assert!(level <= self::level(), "instructions this host does not have");
    if clear {
        acc.fill(0.0);
    }
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 {
        // SAFETY: the host has AVX2 and FMA.
        return unsafe { x86::scale(rows, cols, chain, acc) };
    }
    scale_with(rows, cols, chain, acc, fma);
}

#[inline(always)]
fn scale_with(rows: &[f32], cols: &[f32], chain: &[f32], acc: &mut [f32], fma: impl Fn(f32, f32, f32) -> f32) {
    let n = cols.len().max(1);
    for ((&r, from), to) in rows.iter().zip(chain.chunks_exact(n)).zip(acc.chunks_exact_mut(n)) {
        for ((o, &x), &c) in to.iter_mut().zip(from).zip(cols) {
            let v = fma(r * c, x, *o);
            *o = if v.is_nan() { NAN } else { v };
        }
    }
}

/// Lays `depth` rows and `width` columns of `b` out as rows of `columns`, zero beyond `width`.
#[expect(clippy::too_many_arguments, reason = "a window of a matrix and its destination")]
fn pack(level: Level, b: &Matrix, k0: usize, depth: usize, j0: usize, width: usize, columns: usize, panel: &mut [f32]) {
    let at = |p: usize, j: usize| (k0 + p) * b.row + (j0 + j) * b.col;
    if b.col == 1 {
        for (p, row) in panel.chunks_exact_mut(columns).take(depth).enumerate() {
            row[..width].copy_from_slice(&b.data[at(p, 0)..][..width]);
            row[width..].fill(0.0);
        }
        return;
    }
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 && b.row == 1 {
        for j in (0..width / 8 * 8).step_by(8) {
            for p in (0..depth / 8 * 8).step_by(8) {
                let (from, to) = (&b.data[at(p, j)..], &mut panel[p * columns + j..]);
                assert!(from.len() > 7 * b.col + 7 && to.len() > 7 * columns + 7, "a block outside its matrix");
                // SAFETY: the host has AVX2; both blocks of eight by eight lie in their slices.
                unsafe { x86::transpose(from.as_ptr(), b.col, to.as_mut_ptr(), columns) };
            }
            for p in depth / 8 * 8..depth {
                for q in j..j + 8 {
                    panel[p * columns + q] = b.data[at(p, q)];
                }
            }
        }
        done = width / 8 * 8;
    }
    let _ = level;
    for p in 0..depth {
        let row = &mut panel[p * columns..][..columns];
        for (j, o) in row[..width].iter_mut().enumerate().skip(done) {
            *o = b.data[at(p, j)];
        }
        row[width..].fill(0.0);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{NAN, Step};
    use std::arch::x86_64::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[target_feature(enable = "avx2")]
    pub fn bf16_from_words(words: &[AtomicU64], out: &mut [f32]) {
        let load = |w: &AtomicU64| w.load(Relaxed) as i64;
        let (pairs, last) = words.as_chunks::<2>();
        let (eights, rest) = out.as_chunks_mut::<8>();
        for ([a, b], to) in pairs.iter().zip(eights) {
            let v = _mm256_cvtepu16_epi32(_mm_set_epi64x(load(b), load(a)));
            let v = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
            // SAFETY: eight numbers.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) };
        }
        if let ([w], [a, b, c, d, ..]) = (last, rest) {
            let w = w.load(Relaxed);
            [*a, *b, *c, *d] = std::array::from_fn(|k| f32::from_bits(((w >> (16 * k)) as u32) << 16));
        }
    }

    #[target_feature(enable = "avx2")]
    pub fn bf16_to_words(words: &[AtomicU64], x: &[f32]) {
        let (pairs, last) = words.as_chunks::<2>();
        let (eights, rest) = x.as_chunks::<8>();
        for ([a, b], from) in pairs.iter().zip(eights) {
            // SAFETY: eight numbers.
            let v = _mm256_castps_si256(unsafe { _mm256_loadu_ps(from.as_ptr()) });
            let high = _mm256_srli_epi32::<16>(v);
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
            a.store(_mm_cvtsi128_si64(packed) as u64, Relaxed);
            b.store(_mm_extract_epi64::<1>(packed) as u64, Relaxed);
        }
        if let ([w], [a, b, c, d, ..]) = (last, rest) {
            let [a, b, c, d] = [a, b, c, d].map(|v| (v.to_bits() >> 16) as u64);
            w.store(a | b << 16 | c << 32 | d << 48, Relaxed);
        }
    }

    /// # Safety
    /// The host has AVX2; blocks of eight rows, `from_row` and `to_row` apart, of eight elements exist at both pointers.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        for half in 0..2 {
            // Row i in the low and row i + 4 in the high lanes, so that no shuffle has to cross them.
            let r: [__m256; 4] = std::array::from_fn(|i| {
                let at = from.wrapping_add(i * from_row + 4 * half);
                // SAFETY: four elements of two rows of the caller's block.
                unsafe {
                    let low = _mm256_castps128_ps256(_mm_loadu_ps(at));
                    _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(at.wrapping_add(4 * from_row)))
                }
            });
            let (a, b) = (_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpackhi_ps(r[0], r[1]));
            let (c, d) = (_mm256_unpacklo_ps(r[2], r[3]), _mm256_unpackhi_ps(r[2], r[3]));
            let columns = [
                _mm256_shuffle_ps::<0x44>(a, c),
                _mm256_shuffle_ps::<0xee>(a, c),
                _mm256_shuffle_ps::<0x44>(b, d),
                _mm256_shuffle_ps::<0xee>(b, d),
            ];
            for (k, column) in columns.into_iter().enumerate() {
                // SAFETY: eight elements of a row of the caller's block.
                unsafe { _mm256_storeu_ps(to.wrapping_add((4 * half + k) * to_row), column) };
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn scale(rows: &[f32], cols: &[f32], chain: &[f32], acc: &mut [f32]) {
        super::scale_with(rows, cols, chain, acc, f32::mul_add);
    }

    /// # Safety
    /// The host has AVX-512F; `m` rows of `a`, the panel of 32 columns and `c` hold what `step` says.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(step: &Step, c: &mut [f32], m: usize) {
        let mut i = 0;
        while i < m {
            // SAFETY: rows `i..i + R` exist.
            i += unsafe {
                match m - i {
                    8.. => rows512::<8>(step, c, i),
                    4.. => rows512::<4>(step, c, i),
                    2.. => rows512::<2>(step, c, i),
                    _ => rows512::<1>(step, c, i),
                }
            };
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn rows512<const R: usize>(step: &Step, c: &mut [f32], i: usize) -> usize {
        let mask = |first: usize| ((1u64 << step.width.saturating_sub(first).min(16)) - 1) as __mmask16;
        let masks = [mask(0), mask(16)];
        let out = c[i * step.n + step.j0..].as_mut_ptr();
        let mut acc = [[_mm512_setzero_ps(); 2]; R];
        for (r, row) in acc.iter_mut().enumerate() {
            for (h, v) in row.iter_mut().enumerate() {
                // SAFETY: masked lanes are columns of the row.
                *v = unsafe { _mm512_maskz_loadu_ps(masks[h], out.wrapping_add(r * step.n + 16 * h)) };
            }
        }
        let mut a = step.a.data[i * step.a.row + step.k0 * step.a.col..].as_ptr();
        let mut b = step.panel.as_ptr();
        for _ in 0..step.depth {
            // SAFETY: one row of the panel, one column of rows `i..i + R` of `a`.
            unsafe {
                let (b0, b1) = (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16)));
                for (r, row) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*a.add(r * step.a.row));
                    row[0] = _mm512_fmadd_ps(x, b0, row[0]);
                    row[1] = _mm512_fmadd_ps(x, b1, row[1]);
                }
            }
            a = a.wrapping_add(step.a.col);
            b = b.wrapping_add(32);
        }
        let nan = _mm512_set1_ps(NAN);
        for (r, row) in acc.iter().enumerate() {
            for (h, v) in row.iter().enumerate() {
                let v = _mm512_mask_mov_ps(*v, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(*v, *v), nan);
                // SAFETY: masked lanes are columns of the row.
                unsafe { _mm512_mask_storeu_ps(out.wrapping_add(r * step.n + 16 * h), masks[h], v) };
            }
        }
        R
    }

    /// # Safety
    /// The host has AVX2 and FMA; `m` rows of `a`, the panel of 16 columns and `c` hold what `step` says.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn avx2(step: &Step, c: &mut [f32], m: usize) {
        let mut i = 0;
        while i < m {
            // SAFETY: rows `i..i + R` exist.
            i += unsafe {
                match m - i {
                    6.. => rows256::<6>(step, c, i),
                    4.. => rows256::<4>(step, c, i),
                    2.. => rows256::<2>(step, c, i),
                    _ => rows256::<1>(step, c, i),
                }
            };
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows256<const R: usize>(step: &Step, c: &mut [f32], i: usize) -> usize {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let mask = |first: usize| {
            let left = step.width.saturating_sub(first).min(8) as i32;
            _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes)
        };
        let masks = [mask(0), mask(8)];
        // Masked stores take tens of cycles on some processors, and most panels are full.
        let full = step.width == 16;
        let out = c[i * step.n + step.j0..].as_mut_ptr();
        let mut acc = [[_mm256_setzero_ps(); 2]; R];
        for (r, row) in acc.iter_mut().enumerate() {
            for (h, v) in row.iter_mut().enumerate() {
                let from = out.wrapping_add(r * step.n + 8 * h);
                // SAFETY: all lanes of a full panel, and masked lanes of another, are columns of the row.
                *v = unsafe { if full { _mm256_loadu_ps(from) } else { _mm256_maskload_ps(from, masks[h]) } };
            }
        }
        let mut a = step.a.data[i * step.a.row + step.k0 * step.a.col..].as_ptr();
        let mut b = step.panel.as_ptr();
        for _ in 0..step.depth {
            // SAFETY: one row of the panel, one column of rows `i..i + R` of `a`.
            unsafe {
                let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                for (r, row) in acc.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*a.add(r * step.a.row));
                    row[0] = _mm256_fmadd_ps(x, b0, row[0]);
                    row[1] = _mm256_fmadd_ps(x, b1, row[1]);
                }
            }
            a = a.wrapping_add(step.a.col);
            b = b.wrapping_add(16);
        }
        let nan = _mm256_set1_ps(NAN);
        for (r, row) in acc.iter().enumerate() {
            for (h, v) in row.iter().enumerate() {
                let v = _mm256_blendv_ps(*v, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(*v, *v));
                let to = out.wrapping_add(r * step.n + 8 * h);
                // SAFETY: all lanes of a full panel, and masked lanes of another, are columns of the row.
                unsafe { if full { _mm256_storeu_ps(to, v) } else { _mm256_maskstore_ps(to, masks[h], v) } };
            }
        }
        R
    }
}
