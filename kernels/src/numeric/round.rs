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
