//! Angles of the rotary embedding: `f_i = θ^(−2i/rd)`, with YaRN `f_i ← f_i/factor · ramp_i + f_i · (1 − ramp_i)`.
//!
//! `corr(n) = rd · ln(orig / 2πn) / (2 ln θ)`, `lo = max(⌊corr(beta_fast)⌋, 0)`, `hi = min(⌈corr(beta_slow)⌉, rd − 1)`,
//! `ramp_i = clamp((i − lo) / max(hi − lo, 0.001), 0, 1)`. Frequencies and `position · f_i` are f32, as the published code has
//! them: in more bits positions far out would turn by another angle than the weights were trained with. Tables are made on
//! the host, since they depend on positions alone. Source: Peng et al., YaRN, 2023.

use crate::config::Yarn;
use crate::error::Result;
use crate::operators::{Operators, RopeTable};
use std::f64::consts::TAU;

/// Frequencies of the pairs.
pub fn frequencies(rd: usize, theta: f64, yarn: Option<&Yarn>) -> Vec<f32> {
    let plain = |i: usize| (1.0 / theta.powf(2.0 * i as f64 / rd as f64)) as f32;
    let Some(y) = yarn else { return (0..rd / 2).map(plain).collect() };
    let corr = |turns: f64| rd as f64 * (y.original_max_position_embeddings / (turns * TAU)).ln() / (2.0 * theta.ln());
    let lo = corr(y.beta_fast).floor().max(0.0);
    let hi = corr(y.beta_slow).ceil().min(rd as f64 - 1.0);
    let ramp = |i: usize| (((i as f64 - lo) / (hi - lo).max(0.001)).clamp(0.0, 1.0)) as f32;
    (0..rd / 2).map(|i| plain(i) / y.factor as f32 * ramp(i) + plain(i) * (1.0 - ramp(i))).collect()
}

/// Cosines and sines at some positions, times `factor`.
///
/// # Errors
/// The device's.
pub fn table(ops: &Operators, frequencies: &[f32], positions: &[usize], factor: f32) -> Result<RopeTable> {
    let angles = || positions.iter().flat_map(|&p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
    let shape = [positions.len(), frequencies.len()];
    let cos: Vec<f32> = angles().map(|a| a.cos() as f32 * factor).collect();
    let sin: Vec<f32> = angles().map(|a| a.sin() as f32 * factor).collect();
    Ok(RopeTable { cos: ops.upload(&shape, &cos)?, sin: ops.upload(&shape, &sin)? })
}

/// `0.1 · mscale · ln(factor) + 1`, the growth of attention's temperature with the context.
pub fn magnitude(yarn: &Yarn, mscale: f64) -> f64 {
    if yarn.factor <= 1.0 { 1.0 } else { 0.1 * mscale * yarn.factor.ln() + 1.0 }
}
