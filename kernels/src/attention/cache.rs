//! Records of quantised key caches: where the parts of a token lie, and how a tile of chosen tokens is decoded.
//!
//! | layout | a token | width |
//! | --- | --- | --- |
//! | `V32` | 512 e4m3, 4 f32 scales (one for 128 columns), 64 bf16 | 576 |
//! | `Model1` | 448 e4m3 and 64 bf16; after all tokens of the page 7 power-of-two scales (one for 64) and a spare byte | 512 |
//! | `V41` | 512 e4m3, 16 power-of-two scales (one for 32) | 512 |
//! | `V41Fp4` | 256 bytes of e2m1 pairs, low half first, 32 e4m3 scales (one for 16) | 512 |
//!
//! A column is `bf16(code · scale)`, the bf16 columns are taken as they are. Not a kernel.

use crate::numeric::round::{bf16, e4m3_value};
use dsl::prelude::*;

/// Layout of a page.
#[derive(KernelConfig, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 656 bytes a token.
    V32,
    /// 584 bytes a token, in two planes.
    Model1,
    /// 528 bytes a token.
    V41,
    /// 288 bytes a token.
    V41Fp4,
}

impl Layout {
    /// The layout of a name in problem parameters. How scales were chosen does not matter to a reader.
    pub fn named(name: &str) -> Option<Layout> {
        Some(match name {
            "v32_656" | "v32_656_f32scale" => Layout::V32,
            "model1_584" => Layout::Model1,
            "v41_528" => Layout::V41,
            "v41fp4_288" => Layout::V41Fp4,
            _ => return None,
        })
    }
    /// Bytes of a token, all parts together.
    pub fn token_bytes(self) -> usize {
        match self {
            Layout::V32 => 656,
            Layout::Model1 => 584,
            Layout::V41 => 528,
            Layout::V41Fp4 => 288,
        }
    }
    /// Columns of a decoded token.
    pub fn width(self) -> usize {
        if self == Layout::V32 { 576 } else { 512 }
    }
}

/// Decodes the tokens `rows` of a cache into `keys`; a negative entry gives a row of zeros. Nothing is read for it: its
/// address is that of token 0, whose bytes are selected away.
#[kernel_fn]
pub fn decode_tokens(
    layout: Layout,
    page: usize,
    cache: Gm<U8, 2>,
    rows: Tile<I32, Shared, 1>,
    keys: Tile<Bf16, Shared, 2>,
) {
    let n = rows.extent(0);
    let (pages, bytes) = (cache.extent(0), cache.extent(1));
    let last = (pages * page).saturating_sub(1);
    // Bytes between tokens, columns that share a scale, columns with codes and bf16 columns.
    let (step, share, coded, plain) = host!(match layout {
        Layout::V32 => (656, 128, 512, 64),
        Layout::Model1 => (576, 64, 448, 64),
        Layout::V41 => (528, 32, 512, 0),
        Layout::V41Fp4 => (288, 16, 512, 0),
    });
    if host!(layout == Layout::V41Fp4) {
        let codes: Gm<U8, 3> = cache.view_as(0, (pages, page, 256), (bytes, step, 1));
        let scales: Gm<E4m3, 3> = cache.view_as(256, (pages, page, 32), (bytes, step, 1));
        for (j, b) in parallel([n, 256]) {
            let at = rows[j].clamp_index(0, last);
            let (p, t) = (at / page, at % page);
            let pair = codes[(p, t, b)].to::<U32>();
            let scale = scales[(p, t, b / host!(share / 2))].to::<F32>();
            let live = rows[j] >= 0;
            keys[(j, b * 2)] = select(live, e2m1_value(pair & 15) * scale, 0.0).to::<Bf16>();
            keys[(j, b * 2 + 1)] = select(live, e2m1_value(pair >> 4) * scale, 0.0).to::<Bf16>();
        }
    } else {
        let codes: Gm<E4m3, 3> = cache.view_as(0, (pages, page, coded), (bytes, step, 1));
        for (j, c) in parallel([n, coded]) {
            let at = rows[j].clamp_index(0, last);
            let (p, t) = (at / page, at % page);
            let scale = match layout {
                Layout::V32 => {
                    let scales: Gm<F32, 3> = cache.view_as(512, (pages, page, 4), (bytes, step, 4));
                    scales[(p, t, c / share)]
                }
                Layout::Model1 => {
                    let scales: Gm<E8m0, 3> = cache.view_as(step * page, (pages, page, 7), (bytes, 8, 1));
                    scales[(p, t, c / share)].to::<F32>()
                }
                Layout::V41 | Layout::V41Fp4 => {
                    let scales: Gm<E8m0, 3> = cache.view_as(512, (pages, page, 16), (bytes, step, 1));
                    scales[(p, t, c / share)].to::<F32>()
                }
            };
            let x = codes[(p, t, c)].to::<F32>() * scale;
            keys[(j, c)] = select(rows[j] >= 0, x, 0.0).to::<Bf16>();
        }
    }
    if host!(plain > 0) {
        let offset = host!(if layout == Layout::V32 { 528 } else { 448 });
        let rope: Gm<Bf16, 3> = cache.view_as(offset, (pages, page, plain), (bytes, step, 2));
        for (j, c) in parallel([n, plain]) {
            let at = rows[j].clamp_index(0, last);
            let x = rope[(at / page, at % page, c)];
            keys[(j, c + coded)] = select(rows[j] >= 0, x, V::<Bf16>::of(0.0));
        }
    }
}

/// Token `t` of a page, decoded in plain Rust.
pub fn reference(layout: Layout, page: &[u8], tokens: usize, t: usize) -> Vec<f64> {
    let power = |code: u8| if code == 255 { f64::NAN } else { 2f64.powi(code as i32 - 127) };
    let plain = |bytes: &[u8]| -> Vec<f64> {
        bytes.chunks(2).map(|b| f32::from_bits((b[0] as u32) << 16 | (b[1] as u32) << 24) as f64).collect()
    };
    let coded = |codes: &[u8], share: usize, scale: &dyn Fn(usize) -> f64| -> Vec<f64> {
        codes.iter().enumerate().map(|(c, &x)| bf16(e4m3_value(x) * scale(c / share)) as f64).collect()
    };
    match layout {
        Layout::V32 => {
            let token = &page[t * 656..][..656];
            let scale = |g: usize| {
                let b = &token[512 + 4 * g..];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64
            };
            [coded(&token[..512], 128, &scale), plain(&token[528..])].concat()
        }
        Layout::Model1 => {
            let (token, scales) = (&page[t * 576..][..576], &page[tokens * 576 + t * 8..][..7]);
            [coded(&token[..448], 64, &|g| power(scales[g])), plain(&token[448..])].concat()
        }
        Layout::V41 => {
            let token = &page[t * 528..][..528];
            coded(&token[..512], 32, &|g| power(token[512 + g]))
        }
        Layout::V41Fp4 => {
            let token = &page[t * 288..][..288];
            let value = |code: u8| {
                let x = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code as usize & 7];
                if code & 8 == 0 { x } else { -x }
            };
            (0..512)
                .map(|c| {
                    let code = token[c / 2] >> (4 * (c % 2)) & 15;
                    bf16(value(code) * e4m3_value(token[256 + c / 16])) as f64
                })
                .collect()
        }
    }
}
