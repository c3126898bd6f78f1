//! Rounding for references, written so that it can be checked by reading: tables and comparisons instead of bit tricks.
//!
//! Independent of `kiln_codegen::formats` on purpose: the VM uses that one, so a reference that used it too could not find a
//! mistake in it. Slow and simple; nothing outside references and tests calls this.

use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;

/// The 127 non-negative finite values of e4m3, at the index of their code.
fn e4m3_values() -> &'static [f64; 127] {
    static TABLE: std::sync::OnceLock<[f64; 127]> = std::sync::OnceLock::new();
    TABLE.get_or_init(|| {
        std::array::from_fn(|code| {
            let (exponent, mantissa) = (code / 8, (code % 8) as f64);
            if exponent == 0 {
                mantissa / 8.0 * 2f64.powi(-6)
            } else {
                (1.0 + mantissa / 8.0) * 2f64.powi(exponent as i32 - 7)
            }
        })
    })
}

/// Code of the e4m3 value nearest to `x`: ties to the even code, saturating at 448, NaN to 0x7f.
pub fn e4m3_code(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let table = e4m3_values();
    let magnitude = x.abs();
    let above = table.partition_point(|&v| v < magnitude);
    let code = if above == table.len() {
        table.len() - 1
    } else if above == 0 {
        0
    } else {
        let (low, high) = (magnitude - table[above - 1], table[above] - magnitude);
        if low < high || (low == high && (above - 1) % 2 == 0) { above - 1 } else { above }
    };
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Value of an e4m3 code; NaN for 0x7f and 0xff.
pub fn e4m3_value(code: u8) -> f64 {
    let magnitude = e4m3_values().get((code & 0x7f) as usize).copied().unwrap_or(f64::NAN);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The eight non-negative values of e2m1, at the index of their code.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Code of the e2m1 value nearest to `x`: ties to the even code, saturating at 6, the sign of zero kept; `x` is no NaN.
pub fn e2m1_code(x: f64) -> u8 {
    let distance = |code: &usize| (E2M1[*code] - x.abs().min(6.0)).abs();
    let nearest = (0..8).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2))));
    nearest.unwrap_or(0) as u8 | if x.is_sign_negative() { 8 } else { 0 }
}

/// Value of an e2m1 code.
pub fn e2m1_value(code: u8) -> f64 {
    let magnitude = E2M1[(code & 7) as usize];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Value of an e5m6 code: a sign, 5 exponent bits of bias 15, 6 mantissa bits.
pub fn e5m6_value(code: u16) -> f64 {
    let (exponent, mantissa) = ((code >> 6 & 31) as i32, (code & 63) as f64);
    let magnitude =
        if exponent == 0 { mantissa * 2f64.powi(-20) } else { (64.0 + mantissa) * 2f64.powi(exponent - 21) };
    if code & 0x800 == 0 { magnitude } else { -magnitude }
}

/// Code of the e5m6 value nearest to `x`: ties to the even code, saturating at 65024; `x` is no NaN.
pub fn e5m6_code(x: f64) -> u16 {
    // Codes of non-negative numbers are ordered like their values; exponent 31 is not used.
    let (mut low, mut high) = (0u16, (31 << 6) - 1);
    let magnitude = x.abs().min(e5m6_value(high));
    while high - low > 1 {
        let middle = (low + high) / 2;
        if e5m6_value(middle) <= magnitude { low = middle } else { high = middle }
    }
    let (down, up) = (magnitude - e5m6_value(low), e5m6_value(high) - magnitude);
    let code = if up < down || (up == down && low % 2 == 1) { high } else { low };
    code | if x.is_sign_negative() { 0x800 } else { 0 }
}

/// The bf16 value nearest to `x`, ties to even; values that round past the largest one become infinite.
pub fn bf16(x: f64) -> f32 {
    if x.is_nan() {
        return f32::NAN;
    }
    let magnitude = x.abs();
    // Codes of non-negative bf16 numbers are ordered like their values, and 0x7f80 is infinity.
    let value = |code: u32| f32::from_bits(code << 16) as f64;
    let (mut low, mut high) = (0u32, 0x7f80u32);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if value(middle) <= magnitude { low = middle } else { high = middle }
    }
    // The step past the largest finite value counts as a normal step, as IEEE 754 rounds overflow.
    let above = if high == 0x7f80 { 2f64.powi(128) } else { value(high) };
    let (down, up) = (magnitude - value(low), above - magnitude);
    let code = if magnitude >= above || up < down || (up == down && low % 2 == 1) { high } else { low };
    let rounded = f32::from_bits(code << 16);
    if x.is_sign_negative() { -rounded } else { rounded }
}

/// Smallest power of two that is at least `x`, for positive `x` in the normal range of f32; 2^-126 below it.
pub fn power_of_two_at_least(x: f32) -> f32 {
    let mut p = 2f32.powi(-126);
    while p < x && p < 2f32.powi(127) {
        p *= 2.0;
    }
    p
}

/// Biased exponent of a power of two.
pub fn ue8m0_code(power: f32) -> u8 {
    (0..=254u8).find(|&e| 2f64.powi(e as i32 - 127) >= power as f64).unwrap_or(254)
}

/// A tensor of f32 from numbers of more precision.
pub fn f32_tensor(shape: &[usize], values: &[f64]) -> HostTensor {
    let data = values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    HostTensor { dtype: DType::F32, shape: shape.to_vec(), data }
}

/// A tensor of i32.
pub fn i32_tensor(shape: &[usize], values: &[i32]) -> HostTensor {
    let data = values.iter().flat_map(|&x| x.to_le_bytes()).collect();
    HostTensor { dtype: DType::I32, shape: shape.to_vec(), data }
}

/// Integers as an i64 tensor.
pub fn i64_tensor(shape: &[usize], values: &[i64]) -> HostTensor {
    HostTensor { dtype: DType::I64, shape: shape.to_vec(), data: values.iter().flat_map(|x| x.to_le_bytes()).collect() }
}

/// A tensor of bytes.
pub fn u8_tensor(shape: &[usize], data: Vec<u8>) -> HostTensor {
    HostTensor { dtype: DType::U8, shape: shape.to_vec(), data }
}

/// A tensor of e4m3 codes.
pub fn e4m3_tensor(shape: &[usize], codes: Vec<u8>) -> HostTensor {
    HostTensor { dtype: DType::E4m3, shape: shape.to_vec(), data: codes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_codegen::formats;

    #[test]
    fn e4m3_agrees_with_the_compilers_encoder() {
        for code in (0..=255u8).filter(|c| c & 0x7f != 0x7f) {
            assert_eq!(e4m3_code(e4m3_value(code)), code);
        }
        // Every midpoint between neighbours, and just beside it.
        for code in 0..126u8 {
            let middle = (e4m3_value(code) + e4m3_value(code + 1)) / 2.0;
            for x in [middle, f32::next_down(middle as f32) as f64, f32::next_up(middle as f32) as f64] {
                for x in [x, -x] {
                    assert_eq!(e4m3_code(x) as u64, formats::encode_f32(DType::E4m3, x as f32), "{x}");
                }
            }
        }
        assert_eq!((e4m3_code(1e9), e4m3_code(-464.0), e4m3_code(f64::INFINITY)), (0x7e, 0xfe, 0x7e));
    }

    #[test]
    fn small_codes_are_the_nearest() {
        for code in 0..16u8 {
            assert_eq!(e2m1_code(e2m1_value(code)), code);
            for x in [-1e-3, 0.0, 1e-3].map(|d| e2m1_value(code) + if code % 2 == 0 { 0.25 } else { -0.25 } + d) {
                assert_eq!(e2m1_code(x) as u64, formats::encode_f32(DType::E2m1, x as f32), "{x}");
            }
        }
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.0].map(e2m1_code);
        assert_eq!(ties, [0, 2, 2, 4, 4, 6, 6, 7, 8]);
        for code in (0..4096u16).filter(|c| c >> 6 & 31 != 31) {
            assert_eq!(e5m6_code(e5m6_value(code)), code);
        }
        assert_eq!((e5m6_value(64), e5m6_value((31 << 6) - 1)), (2f64.powi(-14), 65024.0));
        // Middles go to the even code; a carry out of the mantissa raises the exponent.
        let step = 2f64.powi(-20);
        assert_eq!([0.5, 1.5, 62.5, 63.5, 1e30].map(|k| e5m6_code(k * step)), [0, 2, 62, 64, 1983]);
        assert_eq!((e5m6_code(1.0 + 127.0 / 128.0), e5m6_code(-0.0)), (16 << 6, 0x800));
    }

    #[test]
    fn bf16_agrees_with_the_compilers_encoder() {
        let mut bits = 0x1234_5678u32;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            if x.is_finite() {
                assert_eq!(bf16(x as f64).to_bits() >> 16, formats::bf16_from_f32(x) as u32, "{x:e}");
            }
        }
        for (x, want) in [(1.0 + 2f64.powi(-8), 1.0), (1.0 + 3.0 * 2f64.powi(-8), 1.015625), (3.4e38, f32::INFINITY)] {
            assert_eq!(bf16(x), want);
        }
    }

    #[test]
    fn scales_are_the_next_power_of_two() {
        for (x, want) in [(1.0, 1.0), (1.0000001, 2.0), (0.75, 1.0), (3e-7, 2f32.powi(-21)), (0.0, 2f32.powi(-126))] {
            assert_eq!(power_of_two_at_least(x), want);
        }
        assert_eq!((ue8m0_code(1.0), ue8m0_code(2f32.powi(-126)), ue8m0_code(2f32.powi(5))), (127, 1, 132));
    }
}
