//! Functions that keep f32's relative precision on every target: composed of fused multiply-adds around the approximate ops.
//!
//! `exp` and `log` of `math.rs` are one fast instruction and lose digits for large arguments and near 1. In the tile VM
//! `exp_precise` and `log_precise` stay within 2 units in the last place of the true value, `softplus` within 2.5 (it rounds one
//! sum more), wherever that is a normal number.

use crate::dtype::{F32, I32};
use crate::host;
use crate::loops::unroll;
use crate::math::{abs, exp2, fma, max, select};
use crate::scalar::V;
use crate::tensor::HostIndex;
use kiln_dsl_macros::kernel_fn;
use std::f32::consts::{LN_2, LOG2_E};

/// `log2 e` less its f32 value.
const LOG2_E_REST: f32 = 1.925_963e-8;
/// Coefficients of `2·atanh(s)/s` in `s²` after the leading 2. With `s² <= 1/9` the next one adds 1.4e-8 of the sum.
const ATANH: [f32; 6] = [2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0];
/// `ln 2` with trailing zeros, so that its product with an exponent is exact, and the rest.
const LN_2_PARTS: [f32; 2] = [f32::from_bits(0x3f31_7180), f32::from_bits(0x3717_f7d1)];

/// `e^x`. The exponent of two is kept in two parts, so large arguments lose nothing.
#[kernel_fn]
pub fn exp_precise(x: V<F32>) -> V<F32> {
    // Far below, where the result is 0 already, products would overflow.
    let x = select(x < -110.0, -110.0, x);
    let high = x * LOG2_E;
    let low = fma(x, LOG2_E, -high) + x * LOG2_E_REST;
    let e = exp2(high);
    // Infinity stays as it is.
    select(e < f32::INFINITY, fma(e, low * LN_2, e), e)
}

/// `ln(1 + x)` for `x` in `-1/2 ..= 1`, by the series of the inverse hyperbolic tangent: no digits are lost near 0.
#[kernel_fn]
pub fn log1p_precise(x: V<F32>) -> V<F32> {
    let s = x / (2.0 + x);
    let z = s * s;
    let mut series = host!(V::<F32>::of(f64::from(ATANH[5])));
    for c in unroll(ATANH[..5].iter().rev()) {
        series = fma(series, z, *c);
    }
    fma(s * z, series, 2.0 * s)
}

/// `x = 2^exponent · (1 + f)` for positive normal `x`: `f` and the exponent, with `1 + f` between the roots of 1/2 and 2, so
/// that numbers just below 1 have the exponent 0.
#[kernel_fn]
pub fn log_parts(x: V<F32>) -> (V<F32>, V<F32>) {
    let shifted = x.bits() + (0x3f80_0000 - 0x3f35_04f3);
    let exponent = ((shifted >> 23).to::<I32>() - 127).to::<F32>();
    let mantissa = V::<F32>::from_bits((shifted & 0x007f_ffff) + 0x3f35_04f3);
    (mantissa - 1.0, exponent)
}

/// `ln(2^exponent · (1 + f))` for `f` in `-1/2 ..= 1` and a whole exponent.
#[kernel_fn]
pub fn log_of_parts(f: V<F32>, exponent: V<F32>) -> V<F32> {
    fma(exponent, LN_2_PARTS[0], fma(exponent, LN_2_PARTS[1], log1p_precise(f)))
}

/// `ln x` for positive normal `x`.
#[kernel_fn]
pub fn log_precise(x: V<F32>) -> V<F32> {
    let (f, exponent) = log_parts(x);
    log_of_parts(f, exponent)
}

/// `ln(1 + e^x)`; `x` itself where the rest is below its last place.
#[kernel_fn]
pub fn softplus(x: V<F32>) -> V<F32> {
    max(x, 0.0) + log1p_precise(exp_precise(-abs(x)))
}
