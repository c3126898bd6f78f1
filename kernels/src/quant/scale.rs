//! The scale of a block and its inverse, shared by the casts to e4m3: in the kernel language, and in plain Rust.
//!
//! `amax ← max(amax, floor)`, `scale = amax / 448`, with power-of-two scales rounded up. The inverse is `1/scale`, or
//! `448/amax` where the caller asks for it; both differ by one code now and then, so it is part of the operator's
//! parameters. Not a kernel.

use crate::numeric::round::{e4m3_code, power_of_two_at_least};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::spec::{OpError, Params};

/// How the factor is formed that elements are multiplied by.
#[derive(KernelConfig, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inverse {
    /// `1 / scale`.
    RecipSf,
    /// `448 / amax`, for scales that are not powers of two.
    MaxOverAmax,
}

impl Inverse {
    /// The parameter `inv_mode` of operator `op`.
    pub(crate) fn read(op: &str, params: &Params) -> Result<Inverse, OpError> {
        Ok(match p::word(op, params, "inv_mode", &["recip_sf", "max_over_amax"])? {
            "max_over_amax" => Inverse::MaxOverAmax,
            _ => Inverse::RecipSf,
        })
    }
}

/// Largest magnitude of e4m3.
pub const E4M3_MAX: f32 = 448.0;

/// Scale and inverse of a block whose largest magnitude is `amax`.
#[kernel_fn]
pub fn scale_and_inverse(amax: V<F32>, floor: V<F32>, ue8m0: bool, inverse: Inverse) -> (V<F32>, V<F32>) {
    let amax = max(amax, floor);
    let quotient = amax / E4M3_MAX;
    let scale = if ue8m0 { E8m0::ceil_from(quotient).to::<F32>() } else { quotient };
    let by = if host!(inverse == Inverse::MaxOverAmax && !ue8m0) { E4M3_MAX / amax } else { recip(scale) };
    (scale, by)
}

/// Scale and inverse in plain Rust; `amax` includes the floor.
pub fn reference_scale(amax: f32, ue8m0: bool, inverse: Inverse) -> (f32, f32) {
    let scale = if ue8m0 { power_of_two_at_least(amax / E4M3_MAX) } else { amax / E4M3_MAX };
    let by = if inverse == Inverse::MaxOverAmax && !ue8m0 { E4M3_MAX / amax } else { 1.0 / scale };
    (scale, by)
}

/// A row of blocks, cast by plain loops: codes, and a scale for each block of `group` (the last may be shorter).
pub fn cast_row(row: &[f32], group: usize, floor: f32, ue8m0: bool, inverse: Inverse) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![], vec![]);
    for block in row.chunks(group) {
        let amax = block.iter().fold(floor, |m, x| m.max(x.abs()));
        let (scale, by) = reference_scale(amax, ue8m0, inverse);
        codes.extend(block.iter().map(|x| e4m3_code((x * by) as f64)));
        scales.push(scale);
    }
    (codes, scales)
}
