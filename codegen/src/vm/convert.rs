//! Conversions between number formats, over slices. Agrees with `crate::formats` on every input (the tests compare them)
//! but works in f32 bit arithmetic without branches, so that loops vectorise.
//!
//! Floats of every format are held as f32 numbers that the format can represent exactly; a NaN keeps its payload and
//! sign until arithmetic touches it, so that loads and stores move bits unchanged.

use crate::ir::DType;

/// Canonical NaN results of conversions, as `formats` encodes them.
const NAN: f32 = f32::from_bits(0x7fff_0000);

/// Rounds a magnitude to `MANTISSA` bits, nearest even, with quantum `tiny` below `min_normal`.
#[inline(always)]
fn quantise<const MANTISSA: u32>(a: f32, min_normal: f32, magic: f32) -> f32 {
    let drop = 23 - MANTISSA;
    let b = a.to_bits();
    let r = b.wrapping_add((1 << (drop - 1)) - 1).wrapping_add((b >> drop) & 1) & !((1 << drop) - 1);
    // Adding the constant whose unit is the quantum rounds to it; exact afterwards.
    let small = (a + magic) - magic;
    if a < min_normal { small } else { f32::from_bits(r) }
}

#[inline(always)]
fn with_sign(a: f32, x: f32) -> f32 {
    f32::from_bits(a.to_bits() | (x.to_bits() & 0x8000_0000))
}

/// Nearest bf16 number.
#[inline(always)]
pub fn to_bf16(x: f32) -> f32 {
    let b = x.to_bits();
    let r = f32::from_bits(b.wrapping_add(0x7fff).wrapping_add((b >> 16) & 1) & 0xffff_0000);
    if x.is_nan() { NAN } else { r }
}

/// Nearest f16 number; overflows to infinity.
#[inline(always)]
pub fn to_f16(x: f32) -> f32 {
    let q = quantise::<10>(x.abs(), 6.103_515_6e-5, 0.5);
    let q = if q > 65504.0 { f32::INFINITY } else { q };
    if x.is_nan() { f32::from_bits(0x7fff_e000) } else { with_sign(q, x) }
}

/// Nearest e4m3 number, saturating.
#[inline(always)]
pub fn to_e4m3(x: f32) -> f32 {
    let q = quantise::<3>(x.abs(), 0.015625, 16384.0);
    let q = if q > 448.0 { 448.0 } else { q };
    if x.is_nan() { NAN } else { with_sign(q, x) }
}

/// Nearest e5m2 number, saturating.
#[inline(always)]
pub fn to_e5m2(x: f32) -> f32 {
    let q = quantise::<2>(x.abs(), 6.103_515_6e-5, 128.0);
    let q = if q > 57344.0 { 57344.0 } else { q };
    if x.is_nan() { NAN } else { with_sign(q, x) }
}

/// Nearest e2m1 number, saturating; NaN becomes the largest, for the format has none.
#[inline(always)]
pub fn to_e2m1(x: f32) -> f32 {
    let q = quantise::<1>(x.abs(), 1.0, 4194304.0);
    let q = if q > 6.0 { 6.0 } else { q };
    if x.is_nan() { 6.0 } else { with_sign(q, x) }
}

/// The power of two that `x`'s exponent names.
#[inline(always)]
pub fn to_e8m0(x: f32) -> f32 {
    let e = x.to_bits() & 0x7f80_0000;
    let v = if e == 0 { 0x0040_0000 } else { e };
    if e == 0x7f80_0000 { NAN } else { f32::from_bits(v) }
}

/// Rounds every number to a float format.
#[inline(always)]
pub fn round_slice(dtype: DType, x: &mut [f32]) {
    #[inline(always)]
    fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
        for v in x {
            *v = f(*v);
        }
    }
    match dtype {
        DType::F32 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {}
        DType::Bf16 => each(x, to_bf16),
        DType::F16 => each(x, to_f16),
        DType::E4m3 => each(x, to_e4m3),
        DType::E5m2 => each(x, to_e5m2),
        DType::E2m1 => each(x, to_e2m1),
        DType::E8m0 => each(x, to_e8m0),
    }
}

/// Rounds one number to a float format.
pub fn round_one(dtype: DType, x: f32) -> f32 {
    let mut v = [x];
    round_slice(dtype, &mut v);
    v[0]
}

/// An integer as an f32 that rounds to any narrower format as the integer itself would (round to odd).
#[inline(always)]
pub fn int_to_odd(x: i64) -> f32 {
    let m = x.unsigned_abs();
    let width = 64 - m.leading_zeros();
    let a = if width <= 24 {
        m as f32
    } else {
        let shift = width - 24;
        let kept = (m >> shift) | ((m & ((1 << shift) - 1) != 0) as u64);
        // At most 24 bits times a power of two: exact.
        kept as f32 * 2f64.powi(shift as i32) as f32
    };
    if x < 0 { -a } else { a }
}

/// Bits of a number that its format represents exactly.
#[inline(always)]
fn small_code<const MANTISSA: u32>(x: f32, bias: u32, min_normal: f32, per_quantum: f32, nan: u32) -> u32 {
    let a = x.abs();
    let normal = (a.to_bits() >> (23 - MANTISSA)).wrapping_sub((127 - bias) << MANTISSA);
    let subnormal = (a * per_quantum) as i32 as u32;
    let code = if a < min_normal { subnormal } else { normal };
    if x.is_nan() { nan } else { code }
}

#[inline(always)]
fn code_e4m3(x: f32) -> u8 {
    (small_code::<3>(x, 7, 0.015625, 512.0, 0x7f) | (x.to_bits() >> 31 << 7)) as u8
}

#[inline(always)]
fn code_e5m2(x: f32) -> u8 {
    let c = small_code::<2>(x, 15, 6.103_515_6e-5, 65536.0, 0x7f);
    // Infinity and three NaN are codes of this format; casts produce only one of them, loads all.
    let c = if x.is_finite() { c } else { 0x7c | (x.to_bits() >> 21 & 3) };
    (c | (x.to_bits() >> 31 << 7)) as u8
}

#[inline(always)]
fn code_e2m1(x: f32) -> u8 {
    (small_code::<1>(x, 1, 1.0, 2.0, 7) | (x.to_bits() >> 31 << 3)) as u8
}

#[inline(always)]
fn code_f16(x: f32) -> u16 {
    let b = x.to_bits();
    let a = x.abs();
    let normal = (a.to_bits() >> 13).wrapping_sub(112 << 10);
    let subnormal = (a * 16777216.0) as i32 as u32;
    let code = if a < 6.103_515_6e-5 { subnormal } else { normal };
    let special = 0x7c00 | (b >> 13 & 0x3ff);
    let code = if a < 65520.0 { code } else { special };
    (code | (b >> 31 << 15)) as u16
}

#[inline(always)]
fn decode_f16(h: u16) -> f32 {
    let h = h as u32;
    let sign = (h & 0x8000) << 16;
    let body = h & 0x7fff;
    let normal = (body << 13).wrapping_add(112 << 23);
    let subnormal = (body as i32 as f32 * 5.960_464_5e-8).to_bits();
    let special = 0x7f80_0000 | (body & 0x3ff) << 13;
    let v = if body < 0x400 { subnormal } else { normal };
    let v = if body >= 0x7c00 { special } else { v };
    f32::from_bits(v | sign)
}

/// A code of one byte with `MANTISSA` bits below its exponent, without a table: loops over it vectorise. `nan` are the codes
/// without their sign from which on there is no number; they keep the payload `decoding_agrees_with_formats` asks for.
#[inline(always)]
fn decode_byte<const MANTISSA: u32>(c: u8, bias: u32, quantum: f32, special: u32) -> f32 {
    let body = (c & 0x7f) as u32;
    let sign = ((c & 0x80) as u32) << 24;
    let normal = (body << (23 - MANTISSA)).wrapping_add((127 - bias) << 23);
    let subnormal = (body as i32 as f32 * quantum).to_bits();
    let v = if body < 1 << MANTISSA { subnormal } else { normal };
    let payload = if MANTISSA == 3 { 0x0040_0000 } else { (body & 3) << 21 };
    let v = if body >= special { 0x7f80_0000 | payload } else { v };
    f32::from_bits(v | sign)
}

#[inline(always)]
fn decode_e4m3(c: u8) -> f32 {
    decode_byte::<3>(c, 7, 0.001_953_125, 0x7f)
}

#[inline(always)]
fn decode_e5m2(c: u8) -> f32 {
    decode_byte::<2>(c, 15, 1.525_878_9e-5, 0x7c)
}

const fn small_table(exponent: u32, mantissa: u32, bias: i32, ieee: bool) -> [f32; 256] {
    let mut t = [0f32; 256];
    let total = exponent + mantissa;
    let mut c = 0;
    while c < 256u32 {
        let sign = (c >> total & 1) << 31;
        let e = c >> mantissa & ((1 << exponent) - 1);
        let m = c & ((1 << mantissa) - 1);
        let last = (1 << exponent) - 1;
        let bits = if ieee && e == last {
            0x7f80_0000 | m << (23 - mantissa)
        } else if !ieee && exponent == 4 && e == last && m == (1 << mantissa) - 1 {
            0x7fc0_0000
        } else if e == 0 {
            // Subnormal: shift the leading bit into place.
            if m == 0 {
                0
            } else {
                let top = 31 - m.leading_zeros();
                let exp = 1 - bias - (mantissa - top) as i32 + 127;
                (exp as u32) << 23 | (m ^ (1 << top)) << (23 - top)
            }
        } else {
            ((e as i32 - bias + 127) as u32) << 23 | m << (23 - mantissa)
        };
        t[c as usize] = f32::from_bits(bits | sign);
        c += 1;
    }
    t
}

static E4M3: [f32; 256] = small_table(4, 3, 7, false);
static E5M2: [f32; 256] = small_table(5, 2, 15, true);
static E2M1: [f32; 256] = small_table(2, 1, 1, false);

#[inline(always)]
fn decode_e8m0(c: u8) -> f32 {
    let v = if c == 0 { 0x0040_0000 } else { (c as u32) << 23 };
    f32::from_bits(if c == 255 { 0x7fc0_0000 } else { v })
}

/// Number of a bit pattern, payload of NaN kept.
pub fn float_from_bits(dtype: DType, bits: u64) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(bits as u32),
        DType::Bf16 => f32::from_bits((bits as u32) << 16),
        DType::F16 => decode_f16(bits as u16),
        DType::E4m3 => E4M3[bits as usize & 255],
        DType::E5m2 => E5M2[bits as usize & 255],
        DType::E2m1 => E2M1[bits as usize & 15],
        DType::E8m0 => decode_e8m0(bits as u8),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
    }
}

/// Bit pattern of a number that `dtype` represents exactly.
pub fn float_to_bits(dtype: DType, x: f32) -> u64 {
    match dtype {
        DType::F32 => x.to_bits() as u64,
        DType::Bf16 => (x.to_bits() >> 16) as u64,
        DType::F16 => code_f16(x) as u64,
        DType::E4m3 => code_e4m3(x) as u64,
        DType::E5m2 => code_e5m2(x) as u64,
        DType::E2m1 => code_e2m1(x) as u64,
        DType::E8m0 => (x.to_bits() >> 23 & 255) as u64,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0,
    }
}

/// Decodes whole bytes of a float format; E2m1 goes element by element instead.
#[inline(always)]
pub fn floats_from_bytes(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        DType::Bf16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f32::from_bits((u16::from_le_bytes(*b) as u32) << 16);
            }
        }
        DType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = decode_f16(u16::from_le_bytes(*b));
            }
        }
        DType::E4m3 => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = decode_e4m3(*b)),
        DType::E5m2 => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = decode_e5m2(*b)),
        DType::E8m0 => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = decode_e8m0(*b)),
        DType::E2m1 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {}
    }
}

/// Decodes E2m1, two elements a byte from the low half up; the first is skipped if `odd` is 1.
#[inline(always)]
pub fn floats_from_nibbles(bytes: &[u8], odd: usize, out: &mut [f32]) {
    let mut out = out;
    let mut bytes = bytes;
    if odd == 1
        && let (Some((first, rest)), Some((b, more))) =
            (std::mem::take(&mut out).split_first_mut(), bytes.split_first())
    {
        *first = E2M1[(b >> 4) as usize];
        (out, bytes) = (rest, more);
    }
    let (pairs, last) = out.as_chunks_mut::<2>();
    for (pair, b) in pairs.iter_mut().zip(bytes) {
        *pair = [E2M1[(b & 15) as usize], E2M1[(b >> 4) as usize]];
    }
    if let ([v], Some(b)) = (last, bytes.get(pairs.len())) {
        *v = E2M1[(b & 15) as usize];
    }
}

/// Encodes to whole bytes.
#[inline(always)]
pub fn floats_to_bytes(dtype: DType, x: &[f32], bytes: &mut [u8]) {
    match dtype {
        DType::F32 => {
            for (v, b) in x.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *b = v.to_le_bytes();
            }
        }
        DType::Bf16 => {
            for (v, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = ((v.to_bits() >> 16) as u16).to_le_bytes();
            }
        }
        DType::F16 => {
            for (v, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = code_f16(*v).to_le_bytes();
            }
        }
        DType::E4m3 => x.iter().zip(bytes).for_each(|(v, b)| *b = code_e4m3(*v)),
        DType::E5m2 => x.iter().zip(bytes).for_each(|(v, b)| *b = code_e5m2(*v)),
        DType::E8m0 => x.iter().zip(bytes).for_each(|(v, b)| *b = (v.to_bits() >> 23) as u8),
        DType::E2m1 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {}
    }
}

/// A 32-bit pattern brought into the range of a small integer: sign or zero extended, wrapped.
#[inline(always)]
pub fn wrap(dtype: DType, x: i32) -> i32 {
    match dtype {
        DType::I8 => x as i8 as i32,
        DType::U8 => x & 255,
        DType::Bool => (x != 0) as i32,
        DType::I32
        | DType::U32
        | DType::I64
        | DType::F32
        | DType::F16
        | DType::Bf16
        | DType::E4m3
        | DType::E5m2
        | DType::E2m1
        | DType::E8m0 => x,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats;

    const FLOATS: [DType; 6] = [DType::F16, DType::Bf16, DType::E4m3, DType::E5m2, DType::E2m1, DType::E8m0];

    #[test]
    fn decoding_agrees_with_formats() {
        for d in FLOATS {
            for code in 0..1u64 << d.bits() {
                let (got, want) = (float_from_bits(d, code), formats::decode_f32(d, code));
                assert!(got == want || got.is_nan() && want.is_nan(), "{d} {code:#x}: {got} for {want}");
                assert_eq!(float_to_bits(d, got), code, "{d} {code:#x} is {got}");
            }
        }
    }

    #[test]
    fn arithmetic_decodes_as_the_tables_do() {
        for code in 0..=255u8 {
            assert_eq!(decode_e4m3(code).to_bits(), E4M3[code as usize].to_bits(), "{code:#x}");
            assert_eq!(decode_e5m2(code).to_bits(), E5M2[code as usize].to_bits(), "{code:#x}");
        }
    }

    #[test]
    fn rounding_agrees_with_formats() {
        for d in FLOATS {
            for i in 0..3_000_000u32 {
                let x = f32::from_bits(i.wrapping_mul(1431).wrapping_add(i << 30));
                let (got, want) = (round_one(d, x), formats::decode_f32(d, formats::encode_f32(d, x)));
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{d} {x:e}: {got} for {want}"
                );
            }
            for code in 0..1u64 << d.bits() {
                // Ties and their neighbours.
                let (a, b) = (float_from_bits(d, code), float_from_bits(d, (code + 1) & ((1 << d.bits()) - 1)));
                let mid = (a as f64 * 0.5 + b as f64 * 0.5) as f32;
                for x in
                    [mid, f32::from_bits(mid.to_bits().wrapping_add(1)), f32::from_bits(mid.to_bits().wrapping_sub(1))]
                {
                    let (got, want) = (round_one(d, x), formats::decode_f32(d, formats::encode_f32(d, x)));
                    assert!(
                        got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                        "{d} {x:e}: {got} for {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn integers_round_once() {
        for x in [0i64, 1, -1, 257, 258, 259, 0x1018_0000_0001, -0x1018_0000_0001, i64::MAX, i64::MIN] {
            let got = to_bf16(int_to_odd(x)) as f64;
            // The neighbours of the result are no nearer.
            let err = (got - x as f64).abs();
            let b = (got as f32).to_bits();
            for n in [b.wrapping_add(1 << 16), b.wrapping_sub(1 << 16)] {
                let n = f32::from_bits(n) as f64;
                assert!(!n.is_finite() || (n - x as f64).abs() >= err, "{x} became {got}");
            }
        }
    }
}
