//! Writing records of quantised key caches: the inverse of what `cache.rs` reads, and the indexer's record beside them.
//!
//! | record | codes | scale of a group | where scales lie |
//! | --- | --- | --- | --- |
//! | `V32` | 512 e4m3 in groups of 128, 64 columns as bf16 | power of two, stored as f32 | behind the codes |
//! | `V32F32` | the same | any f32 | behind the codes |
//! | `Model1` | 448 e4m3 in groups of 64, 64 columns as bf16 | power of two, a byte | after all tokens of the page |
//! | `V41` | 512 e4m3 in groups of 32 | power of two, a byte | behind the codes |
//! | `V41Fp4` | 512 e2m1 in groups of 16, two a byte | e4m3 | behind the codes |
//! | `Indexer` | `d` e4m3 in one group | any f32 | after all tokens of the page |
//!
//! A scale is `max(amax/448, 1e-4)`, rounded up where it is a power of two; for e2m1 `e4m3(max(amax/6, 2⁻⁹))`; the indexer's is
//! `max(amax, 1e-4)/448`. A code is the one nearest to `x/scale`. Not a kernel.

use crate::numeric::round::{bf16, e2m1_code as nearest_e2m1, e2m1_value as value_e2m1, e4m3_code, e4m3_value};
use crate::numeric::round::{power_of_two_at_least, ue8m0_code};
use crate::quant::scale::E4M3_MAX;
use dsl::prelude::*;

/// What a token becomes.
#[derive(KernelConfig, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// 656 bytes, scales that are powers of two.
    V32,
    /// 656 bytes, scales that are any f32.
    V32F32,
    /// 584 bytes, in two planes.
    Model1,
    /// 528 bytes.
    V41,
    /// 288 bytes.
    V41Fp4,
    /// A key of the indexer and its scale, in two planes.
    Indexer,
}

/// Names of the records in problem parameters.
pub const NAMES: [(&str, Record); 7] = [
    ("v32_656", Record::V32),
    ("v32_656_f32scale", Record::V32F32),
    ("model1_584", Record::Model1),
    ("v41_528", Record::V41),
    ("v41fp4_288", Record::V41Fp4),
    ("indexer_fp8", Record::Indexer),
    ("block: [block x D e4m3][block x f32 scale]", Record::Indexer),
];

/// Sizes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Columns with codes.
    pub coded: usize,
    /// Columns that share a scale.
    pub share: usize,
    /// Columns kept as bf16, behind the others.
    pub plain: usize,
    /// Bytes between tokens in the first plane.
    pub step: usize,
}

impl Record {
    /// Columns of a token: those of the record, or `head_dim` where it leaves them free.
    pub fn width(self, head_dim: usize) -> usize {
        match self {
            Record::V32 | Record::V32F32 => 576,
            Record::Model1 | Record::V41 | Record::V41Fp4 => 512,
            Record::Indexer => head_dim,
        }
    }
    /// Sizes for tokens of `width` columns.
    pub fn parts(self, width: usize) -> Parts {
        match self {
            Record::V32 | Record::V32F32 => Parts { coded: 512, share: 128, plain: 64, step: 656 },
            Record::Model1 => Parts { coded: 448, share: 64, plain: 64, step: 576 },
            Record::V41 => Parts { coded: 512, share: 32, plain: 0, step: 528 },
            Record::V41Fp4 => Parts { coded: 512, share: 16, plain: 0, step: 288 },
            Record::Indexer => Parts { coded: width, share: width, plain: 0, step: width },
        }
    }
    /// Bytes of a page of `page` tokens. Pages of two planes of the model are whole strides of the first plane.
    pub fn page_bytes(self, page: usize, width: usize) -> usize {
        match self {
            Record::V32 | Record::V32F32 => 656 * page,
            Record::Model1 => (584 * page).next_multiple_of(576),
            Record::V41 => 528 * page,
            Record::V41Fp4 => 288 * page,
            Record::Indexer => (width + 4) * page,
        }
    }
    /// Bytes of a page that hold no token, at its end.
    pub fn slack(self, page: usize, width: usize) -> usize {
        if self == Record::Model1 { self.page_bytes(page, width) - 584 * page } else { 0 }
    }
    /// True if the record keeps what a reader of the attention kernels decodes.
    pub fn decodes(self) -> bool {
        self != Record::Indexer
    }
}

/// Scale of a group.
#[kernel_fn]
fn scale_of(record: Record, amax: V<F32>) -> V<F32> {
    let plain = max(amax / E4M3_MAX, 1e-4);
    match record {
        Record::V32 | Record::Model1 | Record::V41 => E8m0::ceil_from(plain).to::<F32>(),
        Record::V32F32 => plain,
        Record::V41Fp4 => max(amax / 6.0, 0.001_953_125).to::<E4m3>().to::<F32>(),
        Record::Indexer => max(amax, 1e-4) / E4M3_MAX,
    }
}

/// Writes token `x` as number `t` of page `p`, and what a reader will decode to `back`. A block does one token at a time.
#[kernel_fn]
pub fn encode_token(
    record: Record,
    page: usize,
    x: Gm<Bf16, 1>,
    width: usize,
    cache: Gm<U8, 2, Wr>,
    p: Ix,
    t: Ix,
    back: Option<Gm<Bf16, 1, Wr>>,
) {
    let Parts { coded, share, plain, step } = host!(record.parts(width));
    let (pages, bytes, groups) = (cache.extent(0), cache.extent(1), host!(coded / share));

    let xf = frag::<F32, 2>([groups, share]);
    for (g, j) in parallel([groups, share]) {
        xf[(g, j)] = x[g * share + j].to::<F32>();
    }
    let amax = reduce_absmax(xf, 1);
    let scale = frag::<F32, 1>([groups]);
    for g in parallel([groups]) {
        let s = scale_of(record, amax[g]);
        scale[g] = s;
        match record {
            Record::V32 | Record::V32F32 => {
                let scales: Gm<F32, 3, Wr> = cache.view_as(512, (pages, page, 4), (bytes, step, 4));
                scales[(p, t, g)] = s;
            }
            Record::Model1 => {
                let scales: Gm<U8, 3, Wr> = cache.view_as(step * page, (pages, page, 8), (bytes, 8, 1));
                scales[(p, t, g)] = (s.bits() >> 23).to::<U8>();
            }
            Record::V41 => {
                let scales: Gm<U8, 3, Wr> = cache.view_as(512, (pages, page, 16), (bytes, step, 1));
                scales[(p, t, g)] = (s.bits() >> 23).to::<U8>();
            }
            Record::V41Fp4 => {
                let scales: Gm<E4m3, 3, Wr> = cache.view_as(256, (pages, page, 32), (bytes, step, 1));
                scales[(p, t, g)] = s.to::<E4m3>();
            }
            Record::Indexer => {
                let scales: Gm<F32, 3, Wr> = cache.view_as(step * page, (pages, page, 1), (bytes, 4, 4));
                scales[(p, t, g)] = s;
            }
        }
    }
    if host!(record == Record::Model1) {
        let spare: Gm<U8, 3, Wr> = cache.view_as(step * page + 7, (pages, page, 1), (bytes, 8, 1));
        for one in parallel([1]) {
            spare[(p, t, one)] = 0u8;
        }
    }

    if host!(record == Record::V41Fp4) {
        let codes = shared::<U32, 2>([groups, share]);
        for (g, j) in parallel([groups, share]) {
            let code = e2m1_code(xf[(g, j)] / scale[g]);
            codes[(g, j)] = code;
            if let Some(back) = back {
                back[g * share + j] = (e2m1_value(code) * scale[g]).to::<Bf16>();
            }
        }
        let pairs: Gm<U8, 3, Wr> = cache.view_as(0, (pages, page, coded / 2), (bytes, step, 1));
        for (g, j) in parallel([groups, share / 2]) {
            let pair = codes[(g, 2 * j)] | (codes[(g, 2 * j + 1)] << 4);
            pairs[(p, t, g * (share / 2) + j)] = pair.to::<U8>();
        }
    } else {
        let codes: Gm<E4m3, 3, Wr> = cache.view_as(0, (pages, page, coded), (bytes, step, 1));
        for (g, j) in parallel([groups, share]) {
            // The inverse of a power of two is exact; the indexer's casts multiply by a rounded one.
            let y = if host!(record == Record::V32F32) { xf[(g, j)] / scale[g] } else { xf[(g, j)] * recip(scale[g]) };
            let code = y.to::<E4m3>();
            codes[(p, t, g * share + j)] = code;
            if let Some(back) = back {
                back[g * share + j] = (code.to::<F32>() * scale[g]).to::<Bf16>();
            }
        }
    }
    if host!(plain > 0) {
        let at = host!(if record == Record::Model1 { 448 } else { 528 });
        let rope: Gm<Bf16, 3, Wr> = cache.view_as(at, (pages, page, plain), (bytes, step, 2));
        for j in parallel([plain]) {
            let column = x[j + coded];
            rope[(p, t, j)] = column;
            if let Some(back) = back {
                back[j + coded] = column;
            }
        }
    }
}

/// Writes token `x` as number `t` of a page of `page` tokens in plain Rust; gives what a reader will decode.
pub fn reference(record: Record, bytes: &mut [u8], page: usize, t: usize, x: &[f32]) -> Vec<f64> {
    let Parts { coded, share, step, .. } = record.parts(x.len());
    let mut back = vec![];
    for (g, group) in x[..coded].chunks(share).enumerate() {
        let amax = group.iter().fold(0f32, |m, v| m.max(v.abs()));
        let plain = (amax / E4M3_MAX).max(1e-4);
        let scale = match record {
            Record::V32 | Record::Model1 | Record::V41 => power_of_two_at_least(plain),
            Record::V32F32 => plain,
            Record::V41Fp4 => e4m3_value(e4m3_code((amax / 6.0).max(0.001_953_125) as f64)) as f32,
            Record::Indexer => amax.max(1e-4) / E4M3_MAX,
        };
        let (at, code): (usize, Vec<u8>) = match record {
            Record::V32 | Record::V32F32 => (t * step + 512 + 4 * g, scale.to_le_bytes().to_vec()),
            Record::Model1 => (step * page + 8 * t + g, vec![ue8m0_code(scale)]),
            Record::V41 => (t * step + 512 + g, vec![ue8m0_code(scale)]),
            Record::V41Fp4 => (t * step + 256 + g, vec![e4m3_code(scale as f64)]),
            Record::Indexer => (step * page + 4 * t, scale.to_le_bytes().to_vec()),
        };
        bytes[at..at + code.len()].copy_from_slice(&code);
        for (j, &v) in group.iter().enumerate() {
            let column = g * share + j;
            let value = if record == Record::V41Fp4 {
                let code = nearest_e2m1(v as f64 / scale as f64);
                let byte = &mut bytes[t * step + column / 2];
                *byte = if column % 2 == 0 { *byte & 0xf0 | code } else { *byte & 0x0f | code << 4 };
                value_e2m1(code)
            } else {
                let y = if record == Record::Indexer { v * (1.0 / scale) } else { v / scale };
                let code = e4m3_code(y as f64);
                bytes[t * step + column] = code;
                e4m3_value(code)
            };
            back.push(bf16(value * scale as f64) as f64);
        }
    }
    let at = if record == Record::Model1 { 448 } else { 528 };
    for (j, &v) in x[coded..].iter().enumerate() {
        let place = t * step + at + 2 * j;
        bytes[place..place + 2].copy_from_slice(&((v.to_bits() >> 16) as u16).to_le_bytes());
        back.push(v as f64);
    }
    if record == Record::Model1 {
        bytes[step * page + 8 * t + 7] = 0;
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::cache::{self, Layout};

    /// What is written is what the attention kernels' reference reads, in every place of a page.
    #[test]
    fn readers_decode_what_is_written() {
        let layouts = [
            (Record::V32, Layout::V32),
            (Record::V32F32, Layout::V32),
            (Record::Model1, Layout::Model1),
            (Record::V41, Layout::V41),
            (Record::V41Fp4, Layout::V41Fp4),
        ];
        for (record, layout) in layouts {
            let (page, width) = (3, record.width(0));
            let mut bytes = vec![0xaa; record.page_bytes(page, width)];
            let token = |t: usize| -> Vec<f32> {
                (0..width).map(|c| bf16(((c * 37 + t * 11) % 101) as f64 * 0.07 - 3.0)).collect()
            };
            let written: Vec<_> = (0..page).map(|t| reference(record, &mut bytes, page, t, &token(t))).collect();
            for (t, want) in written.iter().enumerate() {
                assert_eq!(cache::reference(layout, &bytes, page, t), *want, "{record:?} {t}");
                let error = want.iter().zip(token(t)).map(|(a, b)| (a - b as f64).abs()).fold(0.0, f64::max);
                // Half of the widest gap, 4 to 6, times the largest scale: 4/6, and 1/16 more by its own rounding.
                let most = if record == Record::V41Fp4 { 4.0 / 6.0 * (17.0 / 16.0) } else { 0.2 };
                assert!(error > 0.0 && error < most, "{record:?} {error}");
            }
        }
    }
}
