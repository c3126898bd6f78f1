//! Number formats: bit patterns to numbers and back, for every dtype. The VM, literals and host tensors use this one
//! place; GPU text uses the hardware's conversions, which are tested against it.
//!
//! Rounding is to nearest even. E4m3, E5m2 and E2m1 saturate (`cvt.rn.satfinite`); NaN stays NaN where the format has
//! one. Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0; PTX ISA, `cvt`.

use crate::ir::DType;

/// A small float format: exponent bits, mantissa bits, bias.
#[derive(Clone, Copy, Debug)]
struct Small {
    exponent: u32,
    mantissa: u32,
    bias: i32,
}

const E4M3: Small = Small { exponent: 4, mantissa: 3, bias: 7 };
const E5M2: Small = Small { exponent: 5, mantissa: 2, bias: 15 };
const E2M1: Small = Small { exponent: 2, mantissa: 1, bias: 1 };

impl Small {
    /// Nearest code with ties to even, before saturation: magnitude code, possibly above the largest finite one.
    fn round(self, x: f64) -> u32 {
        let a = x.abs();
        if a == 0.0 {
            return 0;
        }
        let min_exp = 1 - self.bias;
        let e = (a.to_bits() >> 52) as i32 - 1023;
        let e = e.max(min_exp);
        // Units of the last place at this exponent; powers of two, so the division is exact.
        let ulp = 2f64.powi(e - self.mantissa as i32);
        let q = (a / ulp).round_ties_even() as u64;
        // q is in [2^m, 2^(m+1)] for normal numbers; a carry moves into the exponent by itself.
        let base = ((e - min_exp) as u64) << self.mantissa;
        (base + q).min(u32::MAX as u64) as u32
    }
    fn decode(self, code: u32) -> f64 {
        let m = code & ((1 << self.mantissa) - 1);
        let e = (code >> self.mantissa) & ((1 << self.exponent) - 1);
        let sign = if code >> (self.mantissa + self.exponent) & 1 == 1 { -1.0 } else { 1.0 };
        let scale = 2f64.powi(e.max(1) as i32 - self.bias - self.mantissa as i32);
        let whole = if e == 0 { m } else { m + (1 << self.mantissa) };
        sign * whole as f64 * scale
    }
}

/// f32 to bf16 bits, nearest even; NaN becomes the canonical quiet NaN with its sign dropped, as the hardware does.
pub fn bf16_from_f32(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let b = x.to_bits();
    ((b + 0x7fff + ((b >> 16) & 1)) >> 16) as u16
}

/// bf16 bits to f32, exact.
pub fn bf16_to_f32(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// Bit pattern of `x` in a float format. Integer dtypes take the value as `Cast` does: towards zero, saturating, NaN 0.
pub fn encode_f32(dtype: DType, x: f32) -> u64 {
    match dtype {
        DType::F32 => x.to_bits() as u64,
        DType::Bf16 => bf16_from_f32(x) as u64,
        DType::F16 => {
            if x.is_nan() {
                0x7fff
            } else {
                half::f16::from_f32(x).to_bits() as u64
            }
        }
        DType::E4m3 => {
            if x.is_nan() {
                return 0x7f;
            }
            let sign = (x.to_bits() >> 31 << 7) as u64;
            sign | E4M3.round(if x.is_infinite() { 1e9 } else { x as f64 }).min(0x7e) as u64
        }
        DType::E5m2 => {
            if x.is_nan() {
                return 0x7f;
            }
            let sign = (x.to_bits() >> 31 << 7) as u64;
            sign | E5M2.round(if x.is_infinite() { 1e9 } else { x as f64 }).min(0x7b) as u64
        }
        DType::E2m1 => {
            if x.is_nan() {
                return 0x7;
            }
            let sign = (x.to_bits() >> 31 << 3) as u64;
            sign | E2M1.round(if x.is_infinite() { 1e9 } else { x as f64 }).min(7) as u64
        }
        // Only the exponent is kept: exact for powers of two, the contract of this format.
        DType::E8m0 => {
            if x.is_nan() || x.is_infinite() {
                255
            } else {
                (x.to_bits() >> 23 & 0xff) as u64
            }
        }
        DType::I8 => x as i8 as u8 as u64,
        DType::U8 => x as u8 as u64,
        DType::I32 => x as i32 as u32 as u64,
        DType::U32 => x as u32 as u64,
        DType::I64 => x as i64 as u64,
        DType::Bool => (x != 0.0) as u64,
    }
}

/// Number of a bit pattern, as f32: exact for every float format, rounded for wide integers.
pub fn decode_f32(dtype: DType, bits: u64) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(bits as u32),
        DType::Bf16 => bf16_to_f32(bits as u16),
        DType::F16 => half::f16::from_bits(bits as u16).to_f32(),
        DType::E4m3 => {
            if bits & 0x7f == 0x7f {
                f32::NAN
            } else {
                E4M3.decode(bits as u32) as f32
            }
        }
        DType::E5m2 => match bits & 0x7f {
            0x7c => {
                if bits & 0x80 == 0 {
                    f32::INFINITY
                } else {
                    f32::NEG_INFINITY
                }
            }
            0x7d..=0x7f => f32::NAN,
            _ => E5M2.decode(bits as u32) as f32,
        },
        DType::E2m1 => E2M1.decode(bits as u32 & 0xf) as f32,
        DType::E8m0 => {
            if bits == 255 {
                f32::NAN
            } else {
                2f64.powi(bits as i32 - 127) as f32
            }
        }
        DType::I8 => bits as u8 as i8 as f32,
        DType::U8 => bits as u8 as f32,
        DType::I32 => bits as u32 as i32 as f32,
        DType::U32 => bits as u32 as f32,
        DType::I64 => bits as i64 as f32,
        DType::Bool => bits as f32,
    }
}

/// As [`decode_f32`] in f64, exact for all but the largest 64-bit integers.
pub fn decode_f64(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::I32 => bits as u32 as i32 as f64,
        DType::U32 => bits as u32 as f64,
        DType::I64 => bits as i64 as f64,
        DType::F32
        | DType::F16
        | DType::Bf16
        | DType::E4m3
        | DType::E5m2
        | DType::E2m1
        | DType::E8m0
        | DType::I8
        | DType::U8
        | DType::Bool => decode_f32(dtype, bits) as f64,
    }
}

/// Bit pattern of a number given in f64: floats go through f32, integers directly.
pub fn encode_f64(dtype: DType, x: f64) -> u64 {
    match dtype {
        DType::I8 => x as i8 as u8 as u64,
        DType::U8 => x as u8 as u64,
        DType::I32 => x as i32 as u32 as u64,
        DType::U32 => x as u32 as u64,
        DType::I64 => x as i64 as u64,
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 | DType::Bool => {
            encode_f32(dtype, x as f32)
        }
    }
}

/// Bit pattern of element `i` in little-endian bytes; E2m1 is packed two to a byte, even index low.
pub fn load_bits(data: &[u8], dtype: DType, i: usize) -> u64 {
    match dtype.bits() {
        4 => (data[i / 2] >> (4 * (i % 2)) & 0xf) as u64,
        8 => data[i] as u64,
        16 => u16::from_le_bytes([data[2 * i], data[2 * i + 1]]) as u64,
        32 => u32::from_le_bytes([data[4 * i], data[4 * i + 1], data[4 * i + 2], data[4 * i + 3]]) as u64,
        _ => {
            let mut b = [0; 8];
            b.copy_from_slice(&data[8 * i..8 * i + 8]);
            u64::from_le_bytes(b)
        }
    }
}

/// Stores a bit pattern as element `i`.
pub fn store_bits(data: &mut [u8], dtype: DType, i: usize, bits: u64) {
    match dtype.bits() {
        4 => {
            let shift = 4 * (i % 2);
            data[i / 2] = data[i / 2] & !(0xf << shift) | ((bits as u8 & 0xf) << shift);
        }
        8 => data[i] = bits as u8,
        16 => data[2 * i..2 * i + 2].copy_from_slice(&(bits as u16).to_le_bytes()),
        32 => data[4 * i..4 * i + 4].copy_from_slice(&(bits as u32).to_le_bytes()),
        _ => data[8 * i..8 * i + 8].copy_from_slice(&bits.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_code_round_trips() {
        for dtype in [DType::E4m3, DType::E5m2, DType::E2m1, DType::F16, DType::Bf16, DType::E8m0] {
            for code in 0..(1u64 << dtype.bits()) {
                let x = decode_f32(dtype, code);
                if x.is_finite() && !(dtype == DType::E8m0 && code == 0) {
                    assert_eq!(encode_f32(dtype, x), code, "{dtype} {code:#x} is {x}");
                }
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_large_values_saturate() {
        for (x, want) in
            [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0), (99.0, 6.0)]
        {
            assert_eq!(decode_f32(DType::E2m1, encode_f32(DType::E2m1, x)), want);
        }
        for (x, want) in [
            (464.0, 448.0),
            (1e30, 448.0),
            (-1e30, -448.0),
            (2f32.powi(-10), 0.0),
            (3.0 * 2f32.powi(-10), 2f32.powi(-8)),
        ] {
            assert_eq!(decode_f32(DType::E4m3, encode_f32(DType::E4m3, x)), want);
        }
        assert!(decode_f32(DType::E4m3, encode_f32(DType::E4m3, f32::NAN)).is_nan());
    }
}
