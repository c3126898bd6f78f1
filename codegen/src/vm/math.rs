//! `exp2`, `log2`, `sin`, `cos` and `rsqrt` in f32: polynomials with a fixed sequence of operations, so that every host
//! gives the same bits. No fused multiply-add, no tables, few branches; loops over them vectorise.
//!
//! Not the devices' functions: those approximate in hardware and are compared with a tolerance. Host preludes repeat
//! this text operation by operation. Integer steps are the wrapping ones: checks for overflow would keep loops scalar.
//! Errors, measured in the tests against f64: `exp2` and `log2` below 2 units in the
//! last place; `sin` and `cos` below 2^-22 absolute for `|x| <= 1e5`, bounded by 1.01 beyond.
//! Source of the methods: Cody and Waite, *Software Manual for the Elementary Functions*, 1980; series coefficients are
//! the exact Taylor terms.

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for `|x| < 2^22`.
const ROUND: f32 = 12582912.0;

/// `2^x`. Overflows to infinity, underflows through the subnormals to zero; NaN stays NaN.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let c = if x > 129.0 { 129.0 } else { x };
    let c = if c < -151.0 { -151.0 } else { c };
    let n = (c + ROUND) - ROUND;
    let f = c - n;
    let mut p = 1.525_273_4e-5;
    p = p * f + 1.540_353e-4;
    p = p * f + 1.333_355_8e-3;
    p = p * f + 9.618_129e-3;
    p = p * f + 5.550_411e-2;
    p = p * f + 2.402_265e-1;
    p = p * f + std::f32::consts::LN_2;
    p = p * f + 1.0;
    // The scale is applied in two factors, so that results may be subnormal or overflow.
    let k = ((c + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = k >> 1;
    let rest = k.wrapping_sub(half);
    let a = f32::from_bits((half.wrapping_add(127) << 23) as u32);
    let b = f32::from_bits((rest.wrapping_add(127) << 23) as u32);
    let r = p * a * b;
    if x.is_nan() { x } else { r }
}

/// Base-2 logarithm. Zero gives negative infinity, negative numbers give NaN.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let y = if tiny { x * 8388608.0 } else { x };
    let shift = if tiny { -23i32 } else { 0 };
    let bits = y.to_bits() as i32;
    // The significand is taken in [sqrt(1/2), sqrt(2)), so that logarithms near 1 keep their relative accuracy.
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(e << 23) as u32);
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut p = 2.0 / 9.0;
    p = p * z + 2.0 / 7.0;
    p = p * z + 2.0 / 5.0;
    p = p * z + 2.0 / 3.0;
    let half_square = 0.5 * f * f;
    let r = s * (half_square + p * z);
    // ln(1 + f) = f - f^2/2 + r; its leading bits times the leading bits of 1/ln 2 are exact.
    let hi = f32::from_bits((f - half_square).to_bits() & 0xffff_f000);
    let lo = (f - hi) - half_square + r;
    let inv_hi = 1.442_627_f32;
    let inv_lo = 6.808_776_4e-5_f32;
    let mut v = (lo + hi) * inv_lo + lo * inv_hi;
    let k = e.wrapping_add(shift) as f32;
    let top = hi * inv_hi;
    let sum = k + top;
    // The larger of the two summands first: what the sum lost goes into the small part.
    v += if k == 0.0 { (top - sum) + k } else { (k - sum) + top };
    let v = v + sum;
    let v = if x == 0.0 { f32::NEG_INFINITY } else { v };
    let v = if x < 0.0 { f32::NAN } else { v };
    if x.is_nan() || x == f32::INFINITY { x } else { v }
}

/// `x` minus the nearest multiple of pi/2, clamped to where the polynomials hold, and the multiple.
#[inline(always)]
fn reduce(x: f32) -> (f32, i32) {
    let n = (x * std::f32::consts::FRAC_2_PI + ROUND) - ROUND;
    // pi/2 in parts of eight bits: products with a 16-bit n are exact.
    let r = x - n * 1.5703125;
    let r = r - n * 4.825_592e-4;
    let r = r - n * 1.266_598_7e-6;
    let r = r - n * 9.920_936e-10;
    let r = if r > 0.8 { 0.8 } else { r };
    let r = if r < -0.8 { -0.8 } else { r };
    (r, n as i32)
}

#[inline(always)]
fn sin_poly(r: f32) -> f32 {
    let z = r * r;
    let mut p = 2.755_731_9e-6;
    p = p * z - 1.984_127e-4;
    p = p * z + 8.333_333e-3;
    p = p * z - 1.666_666_7e-1;
    r + r * (z * p)
}

#[inline(always)]
fn cos_poly(r: f32) -> f32 {
    let z = r * r;
    let mut p = -2.755_732e-7;
    p = p * z + 2.480_158_7e-5;
    p = p * z - 1.388_888_9e-3;
    p = p * z + 4.166_666_6e-2;
    1.0 - (0.5 * z - z * z * p)
}

/// Sine. Infinities give NaN.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (r, n) = reduce(x);
    let v = if n & 1 == 0 { sin_poly(r) } else { cos_poly(r) };
    let v = if n & 2 == 0 { v } else { -v };
    if x.is_finite() { v } else { f32::NAN }
}

/// Cosine. Infinities give NaN.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (r, n) = reduce(x);
    let v = if n & 1 == 0 { cos_poly(r) } else { sin_poly(r) };
    let v = if (n.wrapping_add(1)) & 2 == 0 { v } else { -v };
    if x.is_finite() { v } else { f32::NAN }
}

/// `1/sqrt(x)` as two correctly rounded steps.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// Largest integer not above `x`, without a library call so that loops vectorise; keeps the sign of zero.
#[inline(always)]
pub fn floor(x: f32) -> f32 {
    let t = x as i32 as f32;
    large_or(x, if t > x { t - 1.0 } else { t })
}

/// Smallest integer not below `x`.
#[inline(always)]
pub fn ceil(x: f32) -> f32 {
    let t = x as i32 as f32;
    large_or(x, if t < x { t + 1.0 } else { t })
}

/// Numbers of 2^23 and more are integers already; so is NaN, for this purpose.
#[inline(always)]
fn large_or(x: f32, t: f32) -> f32 {
    let t = f32::from_bits((t.to_bits() & 0x7fff_ffff) | (x.to_bits() & 0x8000_0000));
    if x.abs() < 8388608.0 { t } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(got: f32, want: f64) -> f64 {
        let w = want as f32;
        if got == w || (got.is_nan() && want.is_nan()) {
            return 0.0;
        }
        let e = (want.abs().to_bits() >> 52) as i32 - 1023;
        (got as f64 - want).abs() / 2f64.powi(e.max(-126) - 23)
    }

    #[test]
    fn exp2_and_log2_are_within_two_ulps() {
        let (mut worst_exp, mut worst_log) = (0f64, 0f64);
        for i in 0..4_000_000u32 {
            let x = -150.0 + i as f32 * (278.0 / 4e6);
            if (x as f64).exp2() < f32::MAX as f64 {
                worst_exp = worst_exp.max(ulps(exp2(x), (x as f64).exp2()));
            }
            let y = f32::from_bits(1 + i * 535);
            if y.is_finite() {
                worst_log = worst_log.max(ulps(log2(y), (y as f64).log2()));
            }
            let near = f32::from_bits(0x3f00_0000 + i * 4);
            worst_log = worst_log.max(ulps(log2(near), (near as f64).log2()));
        }
        assert!(worst_exp <= 2.0, "exp2 is off by {worst_exp} ulp");
        assert!(worst_log <= 2.0, "log2 is off by {worst_log} ulp");
        assert_eq!(exp2(200.0), f32::INFINITY);
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(0.0), 1.0);
        assert!(exp2(f32::NAN).is_nan() && log2(f32::NAN).is_nan() && log2(-1.0).is_nan());
        assert_eq!(log2(0.0), f32::NEG_INFINITY);
        assert_eq!(log2(f32::INFINITY), f32::INFINITY);
        for k in -149..128 {
            assert_eq!(log2(2f64.powi(k) as f32), k as f32);
            assert_eq!(exp2(k as f32), 2f64.powi(k) as f32);
        }
    }

    #[test]
    fn sin_and_cos_hold_up_to_a_hundred_thousand() {
        let mut worst = 0f64;
        for i in 0..4_000_000u32 {
            let x = (i as f32 - 2e6) * 0.05;
            worst = worst.max((sin(x) as f64 - (x as f64).sin()).abs());
            worst = worst.max((cos(x) as f64 - (x as f64).cos()).abs());
            let y = (i as f32 - 2e6) * 3.3e-6;
            worst = worst.max((sin(y) as f64 - (y as f64).sin()).abs());
            worst = worst.max((cos(y) as f64 - (y as f64).cos()).abs());
        }
        assert!(worst < 2f64.powi(-22), "off by {worst}");
        assert!(sin(f32::INFINITY).is_nan() && cos(f32::NAN).is_nan());
        assert!(sin(3e30).abs() <= 1.01);
    }

    #[test]
    fn floor_and_ceil_match_the_library() {
        for i in 0..2_000_000u32 {
            let x = f32::from_bits(i.wrapping_mul(2147) ^ (i << 31));
            assert_eq!(
                floor(x).to_bits(),
                if x.is_nan() { floor(x).to_bits() } else { x.floor().to_bits() },
                "floor {x}"
            );
            assert_eq!(ceil(x).to_bits(), if x.is_nan() { ceil(x).to_bits() } else { x.ceil().to_bits() }, "ceil {x}");
        }
        for x in [-0.5f32, 0.5, 4194304.5, -4194304.5, 4194305.5, 8388607.5, -8388607.5, 1e10, f32::INFINITY, -0.0] {
            assert_eq!(floor(x).to_bits(), x.floor().to_bits(), "floor {x}");
            assert_eq!(ceil(x).to_bits(), x.ceil().to_bits(), "ceil {x}");
        }
    }
}
