//! Scalar operations over strips of lanes: one plain loop an operation, so that LLVM vectorises it. They are inlined into
//! `simd`, which compiles them for each instruction set; callers go through there.
//!
//! Floats of narrow formats are computed in f32 and rounded once, which for `+ - * /` and square root equals rounding the
//! exact result. Integers wrap. Nothing is contracted or reassociated.

use super::convert::{self, int_to_odd, round_slice, wrap};
use super::math;
use super::memory::{Class, Regs, class_of};
use super::program::Reg;
use crate::ir::{BinaryOp, CmpOp, DType, UnaryOp};

#[inline(always)]
fn map1<A: Copy, B>(out: &mut [B], x: &[A], f: impl Fn(A) -> B) {
    for (o, &a) in out.iter_mut().zip(x) {
        *o = f(a);
    }
}

#[inline(always)]
fn map2<A: Copy, B: Copy, C>(out: &mut [C], a: &[A], b: &[B], f: impl Fn(A, B) -> C) {
    for ((o, &x), &y) in out.iter_mut().zip(a).zip(b) {
        *o = f(x, y);
    }
}

/// Larger number; of a number and NaN, the number; +0 above -0.
#[inline(always)]
pub fn max_f(a: f32, b: f32) -> f32 {
    let same = f32::from_bits(a.to_bits() & b.to_bits());
    let r = if a < b { b } else { same };
    let r = if a > b { a } else { r };
    let r = if a.is_nan() { b } else { r };
    if b.is_nan() { a } else { r }
}

/// Smaller number; of a number and NaN, the number; -0 below +0.
#[inline(always)]
pub fn min_f(a: f32, b: f32) -> f32 {
    let same = f32::from_bits(a.to_bits() | b.to_bits());
    let r = if a < b { a } else { same };
    let r = if a > b { b } else { r };
    let r = if a.is_nan() { b } else { r };
    if b.is_nan() { a } else { r }
}

/// Integer of a bit pattern, sign or zero extended.
pub fn int_from_bits(dtype: DType, bits: u64) -> i64 {
    match dtype {
        DType::I64 => bits as i64,
        DType::U32 => bits as u32 as i64,
        DType::I8 | DType::U8 | DType::I32 | DType::Bool => wrap(dtype, bits as u32 as i32) as i64,
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => {
            convert::float_from_bits(dtype, bits) as i64
        }
    }
}

/// The number an integer lane stands for.
#[inline(always)]
pub fn int_value(dtype: DType, x: i32) -> i64 {
    if dtype == DType::U32 { x as u32 as i64 } else { x as i64 }
}

#[inline(always)]
fn wrap_slice(dtype: DType, x: &mut [i32]) {
    match dtype {
        DType::I8 | DType::U8 | DType::Bool => x.iter_mut().for_each(|v| *v = wrap(dtype, *v)),
        DType::I32
        | DType::U32
        | DType::I64
        | DType::F32
        | DType::F16
        | DType::Bf16
        | DType::E4m3
        | DType::E5m2
        | DType::E2m1
        | DType::E8m0 => {}
    }
}

/// `dst = op(x)` on `n` lanes.
#[inline(always)]
pub fn unary(r: &mut Regs, n: usize, op: UnaryOp, dtype: DType, dst: Reg, x: Reg) {
    match dst.class {
        Class::F => {
            let mut out = std::mem::take(&mut r.f[dst.slot]);
            let (o, x) = (&mut out[..n], &r.f[x.slot][..n]);
            match op {
                UnaryOp::Neg => map1(o, x, |a| -a),
                UnaryOp::Abs => map1(o, x, f32::abs),
                UnaryOp::Not => map1(o, x, |a| a),
                UnaryOp::Exp2 => map1(o, x, math::exp2),
                UnaryOp::Log2 => map1(o, x, math::log2),
                UnaryOp::Rsqrt => map1(o, x, math::rsqrt),
                UnaryOp::Sqrt => map1(o, x, f32::sqrt),
                UnaryOp::Recip => map1(o, x, |a| 1.0 / a),
                UnaryOp::Sin => map1(o, x, math::sin),
                UnaryOp::Cos => map1(o, x, math::cos),
                UnaryOp::Floor => map1(o, x, math::floor),
                UnaryOp::Ceil => map1(o, x, math::ceil),
            }
            round_slice(dtype, o);
            r.f[dst.slot] = out;
        }
        Class::I => {
            let mut out = std::mem::take(&mut r.i[dst.slot]);
            let (o, x) = (&mut out[..n], &r.i[x.slot][..n]);
            match op {
                UnaryOp::Neg => map1(o, x, i32::wrapping_neg),
                UnaryOp::Abs if matches!(dtype, DType::U32 | DType::U8) => map1(o, x, |a| a),
                UnaryOp::Abs => map1(o, x, i32::wrapping_abs),
                UnaryOp::Not if dtype == DType::Bool => map1(o, x, |a| a ^ 1),
                UnaryOp::Not => map1(o, x, |a: i32| !a),
                UnaryOp::Exp2
                | UnaryOp::Log2
                | UnaryOp::Rsqrt
                | UnaryOp::Sqrt
                | UnaryOp::Recip
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Floor
                | UnaryOp::Ceil => map1(o, x, |a| a),
            }
            wrap_slice(dtype, o);
            r.i[dst.slot] = out;
        }
        Class::L => {
            let mut out = std::mem::take(&mut r.l[dst.slot]);
            let (o, x) = (&mut out[..n], &r.l[x.slot][..n]);
            match op {
                UnaryOp::Neg => map1(o, x, i64::wrapping_neg),
                UnaryOp::Abs => map1(o, x, i64::wrapping_abs),
                UnaryOp::Not => map1(o, x, |a: i64| !a),
                UnaryOp::Exp2
                | UnaryOp::Log2
                | UnaryOp::Rsqrt
                | UnaryOp::Sqrt
                | UnaryOp::Recip
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Floor
                | UnaryOp::Ceil => map1(o, x, |a| a),
            }
            r.l[dst.slot] = out;
        }
    }
}

#[inline(always)]
fn div_i(a: i32, b: i32) -> i32 {
    if b == 0 { 0 } else { a.wrapping_div(b) }
}
#[inline(always)]
fn rem_i(a: i32, b: i32) -> i32 {
    if b == 0 { 0 } else { a.wrapping_rem(b) }
}

/// `dst = a op b` on `n` lanes.
#[inline(always)]
pub fn binary(r: &mut Regs, n: usize, op: BinaryOp, dtype: DType, dst: Reg, [a, b]: [Reg; 2]) {
    match dst.class {
        Class::F => {
            let mut out = std::mem::take(&mut r.f[dst.slot]);
            let (o, a, b) = (&mut out[..n], &r.f[a.slot][..n], &r.f[b.slot][..n]);
            match op {
                BinaryOp::Add => map2(o, a, b, |x, y| x + y),
                BinaryOp::Sub => map2(o, a, b, |x, y| x - y),
                BinaryOp::Mul => map2(o, a, b, |x, y| x * y),
                BinaryOp::Div => map2(o, a, b, |x, y| x / y),
                BinaryOp::Min => map2(o, a, b, min_f),
                BinaryOp::Max => map2(o, a, b, max_f),
                BinaryOp::Rem => map2(o, a, b, |x: f32, y| x % y),
                BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => map1(o, a, |x| x),
            }
            round_slice(dtype, o);
            r.f[dst.slot] = out;
        }
        Class::I => {
            let mut out = std::mem::take(&mut r.i[dst.slot]);
            let (o, a, b) = (&mut out[..n], &r.i[a.slot][..n], &r.i[b.slot][..n]);
            let unsigned = dtype == DType::U32;
            let bits = dtype.bits() as u32;
            match op {
                BinaryOp::Add => map2(o, a, b, i32::wrapping_add),
                BinaryOp::Sub => map2(o, a, b, i32::wrapping_sub),
                BinaryOp::Mul => map2(o, a, b, i32::wrapping_mul),
                BinaryOp::Div if unsigned => {
                    map2(o, a, b, |x, y| (x as u32).checked_div(y as u32).unwrap_or(0) as i32);
                }
                BinaryOp::Div => map2(o, a, b, div_i),
                BinaryOp::Rem if unsigned => {
                    map2(o, a, b, |x, y| (x as u32).checked_rem(y as u32).unwrap_or(0) as i32);
                }
                BinaryOp::Rem => map2(o, a, b, rem_i),
                BinaryOp::Min if unsigned => map2(o, a, b, |x, y| (x as u32).min(y as u32) as i32),
                BinaryOp::Min => map2(o, a, b, |x: i32, y| x.min(y)),
                BinaryOp::Max if unsigned => map2(o, a, b, |x, y| (x as u32).max(y as u32) as i32),
                BinaryOp::Max => map2(o, a, b, |x: i32, y| x.max(y)),
                BinaryOp::And => map2(o, a, b, |x, y| x & y),
                BinaryOp::Or => map2(o, a, b, |x, y| x | y),
                BinaryOp::Xor => map2(o, a, b, |x, y| x ^ y),
                BinaryOp::Shl => map2(o, a, b, |x, y| if (y as u32) < bits { x << (y & 31) } else { 0 }),
                BinaryOp::Shr if unsigned => {
                    map2(o, a, b, |x, y| if (y as u32) < bits { ((x as u32) >> (y & 31)) as i32 } else { 0 });
                }
                BinaryOp::Shr => map2(o, a, b, |x, y| x >> (y as u32).min(31)),
            }
            wrap_slice(dtype, o);
            r.i[dst.slot] = out;
        }
        Class::L => {
            let mut out = std::mem::take(&mut r.l[dst.slot]);
            let (o, a, b) = (&mut out[..n], &r.l[a.slot][..n], &r.l[b.slot][..n]);
            match op {
                BinaryOp::Add => map2(o, a, b, i64::wrapping_add),
                BinaryOp::Sub => map2(o, a, b, i64::wrapping_sub),
                BinaryOp::Mul => map2(o, a, b, i64::wrapping_mul),
                BinaryOp::Div => map2(o, a, b, |x: i64, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
                BinaryOp::Rem => map2(o, a, b, |x: i64, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
                BinaryOp::Min => map2(o, a, b, |x: i64, y| x.min(y)),
                BinaryOp::Max => map2(o, a, b, |x: i64, y| x.max(y)),
                BinaryOp::And => map2(o, a, b, |x, y| x & y),
                BinaryOp::Or => map2(o, a, b, |x, y| x | y),
                BinaryOp::Xor => map2(o, a, b, |x, y| x ^ y),
                BinaryOp::Shl => map2(o, a, b, |x, y| if (y as u64) < 64 { x << (y & 63) } else { 0 }),
                BinaryOp::Shr => map2(o, a, b, |x, y| x >> (y as u64).min(63)),
            }
            r.l[dst.slot] = out;
        }
    }
}

/// `dst = a * b + c`, one rounding, by the function given.
#[inline(always)]
pub fn fma(r: &mut Regs, n: usize, dst: Reg, [a, b, c]: [Reg; 3], one: impl Fn(f32, f32, f32) -> f32) {
    let mut out = std::mem::take(&mut r.f[dst.slot]);
    let (a, b, c) = (&r.f[a.slot][..n], &r.f[b.slot][..n], &r.f[c.slot][..n]);
    for (((o, &x), &y), &z) in out[..n].iter_mut().zip(a).zip(b).zip(c) {
        *o = one(x, y, z);
    }
    r.f[dst.slot] = out;
}

/// `x * y + z` with one rounding. The product is exact in f64; rounding the sum to odd there makes the final rounding to
/// f32 correct, without a library call.
#[inline(always)]
pub fn fma_exact(x: f32, y: f32, z: f32) -> f32 {
    let p = x as f64 * y as f64;
    let z = z as f64;
    let s = p + z;
    // Error of the sum (Knuth's two-sum), exact.
    let t = s - p;
    let e = (p - (s - t)) + (z - t);
    let b = s.to_bits();
    // An inexact sum with an even last bit moves one step towards the error, which makes it odd.
    let up = (e > 0.0) == (s > 0.0);
    let moved = if up { b.wrapping_add(1) } else { b.wrapping_sub(1) };
    let odd = e != 0.0 && e.is_finite() && b & 1 == 0;
    f64::from_bits(if odd { moved } else { b }) as f32
}

#[inline(always)]
fn compare_into<T: Copy + PartialOrd>(o: &mut [i32], op: CmpOp, a: &[T], b: &[T]) {
    match op {
        CmpOp::Lt => map2(o, a, b, |x, y| (x < y) as i32),
        CmpOp::Le => map2(o, a, b, |x, y| (x <= y) as i32),
        CmpOp::Gt => map2(o, a, b, |x, y| (x > y) as i32),
        CmpOp::Ge => map2(o, a, b, |x, y| (x >= y) as i32),
        CmpOp::Eq => map2(o, a, b, |x, y| (x == y) as i32),
        CmpOp::Ne => map2(o, a, b, |x, y| (x != y) as i32),
    }
}

/// `out = a op b` for index lanes.
#[inline(always)]
pub fn compare_indices(out: &mut [i32], op: CmpOp, a: &[i64], b: &[i64]) {
    compare_into(out, op, a, b);
}

/// `dst = a op b`, Bool.
#[inline(always)]
pub fn compare(r: &mut Regs, n: usize, op: CmpOp, dtype: DType, dst: Reg, [a, b]: [Reg; 2]) {
    let mut out = std::mem::take(&mut r.i[dst.slot]);
    let o = &mut out[..n];
    match class_of(dtype) {
        Class::F => compare_into(o, op, &r.f[a.slot][..n], &r.f[b.slot][..n]),
        Class::I if dtype == DType::U32 => {
            let (a, b) = (&r.i[a.slot][..n], &r.i[b.slot][..n]);
            // Flipping the sign bit turns unsigned order into signed order.
            let flip = |x: i32| x ^ i32::MIN;
            match op {
                CmpOp::Lt => map2(o, a, b, |x, y| (flip(x) < flip(y)) as i32),
                CmpOp::Le => map2(o, a, b, |x, y| (flip(x) <= flip(y)) as i32),
                CmpOp::Gt => map2(o, a, b, |x, y| (flip(x) > flip(y)) as i32),
                CmpOp::Ge => map2(o, a, b, |x, y| (flip(x) >= flip(y)) as i32),
                CmpOp::Eq => map2(o, a, b, |x, y| (x == y) as i32),
                CmpOp::Ne => map2(o, a, b, |x, y| (x != y) as i32),
            }
        }
        Class::I => compare_into(o, op, &r.i[a.slot][..n], &r.i[b.slot][..n]),
        Class::L => compare_into(o, op, &r.l[a.slot][..n], &r.l[b.slot][..n]),
    }
    r.i[dst.slot] = out;
}

/// `dst = cond ? a : b`.
#[inline(always)]
pub fn select(r: &mut Regs, n: usize, dst: Reg, cond: Reg, [a, b]: [Reg; 2]) {
    #[inline(always)]
    fn go<T: Copy>(o: &mut [T], c: &[i32], a: &[T], b: &[T]) {
        for (((o, &c), &x), &y) in o.iter_mut().zip(c).zip(a).zip(b) {
            *o = if c != 0 { x } else { y };
        }
    }
    match dst.class {
        Class::F => {
            let mut out = std::mem::take(&mut r.f[dst.slot]);
            go(&mut out[..n], &r.i[cond.slot][..n], &r.f[a.slot][..n], &r.f[b.slot][..n]);
            r.f[dst.slot] = out;
        }
        Class::I => {
            let mut out = std::mem::take(&mut r.i[dst.slot]);
            go(&mut out[..n], &r.i[cond.slot][..n], &r.i[a.slot][..n], &r.i[b.slot][..n]);
            r.i[dst.slot] = out;
        }
        Class::L => {
            let mut out = std::mem::take(&mut r.l[dst.slot]);
            go(&mut out[..n], &r.i[cond.slot][..n], &r.l[a.slot][..n], &r.l[b.slot][..n]);
            r.l[dst.slot] = out;
        }
    }
}

/// `dst = x` converted.
#[inline(always)]
pub fn cast(r: &mut Regs, n: usize, from: DType, to: DType, dst: Reg, x: Reg) {
    match (class_of(from), class_of(to)) {
        (Class::F, Class::F) => {
            let mut out = std::mem::take(&mut r.f[dst.slot]);
            out[..n].copy_from_slice(&r.f[x.slot][..n]);
            if from != to {
                round_slice(to, &mut out[..n]);
            }
            r.f[dst.slot] = out;
        }
        (Class::F, Class::I) => {
            let (o, x) = (&mut r.i[dst.slot][..n], &r.f[x.slot][..n]);
            match to {
                DType::I8 => map1(o, x, |v| v as i8 as i32),
                DType::U8 => map1(o, x, |v| v as u8 as i32),
                DType::U32 => map1(o, x, |v| v as u32 as i32),
                DType::Bool => map1(o, x, |v| (v != 0.0) as i32),
                DType::I32
                | DType::I64
                | DType::F32
                | DType::F16
                | DType::Bf16
                | DType::E4m3
                | DType::E5m2
                | DType::E2m1
                | DType::E8m0 => map1(o, x, |v| v as i32),
            }
        }
        (Class::F, Class::L) => map1(&mut r.l[dst.slot][..n], &r.f[x.slot][..n], |v| v as i64),
        (Class::I, Class::F) => {
            let (o, x) = (&mut r.f[dst.slot][..n], &r.i[x.slot][..n]);
            match (from, to) {
                (DType::U32, DType::F32) => map1(o, x, |v| v as u32 as f32),
                (_, DType::F32) => map1(o, x, |v| v as f32),
                (_, DType::E8m0) => {
                    map1(o, x, |v| int_value(from, v) as f32);
                    round_slice(to, o);
                }
                _ => {
                    map1(o, x, |v| int_to_odd(int_value(from, v)));
                    round_slice(to, o);
                }
            }
        }
        (Class::L, Class::F) => {
            let (o, x) = (&mut r.f[dst.slot][..n], &r.l[x.slot][..n]);
            if matches!(to, DType::F32 | DType::E8m0) {
                map1(o, x, |v| v as f32);
                round_slice(to, o);
            } else {
                map1(o, x, int_to_odd);
                round_slice(to, o);
            }
        }
        (Class::I, Class::I) => {
            let mut out = std::mem::take(&mut r.i[dst.slot]);
            out[..n].copy_from_slice(&r.i[x.slot][..n]);
            wrap_slice(to, &mut out[..n]);
            r.i[dst.slot] = out;
        }
        (Class::I, Class::L) => map1(&mut r.l[dst.slot][..n], &r.i[x.slot][..n], |v| int_value(from, v)),
        (Class::L, Class::I) if to == DType::Bool => {
            map1(&mut r.i[dst.slot][..n], &r.l[x.slot][..n], |v| (v != 0) as i32);
        }
        (Class::L, Class::I) => {
            map1(&mut r.i[dst.slot][..n], &r.l[x.slot][..n], |v| v as i32);
            wrap_slice(to, &mut r.i[dst.slot][..n]);
        }
        (Class::L, Class::L) => {
            let mut out = std::mem::take(&mut r.l[dst.slot]);
            out[..n].copy_from_slice(&r.l[x.slot][..n]);
            r.l[dst.slot] = out;
        }
    }
}

/// `dst` has the bit pattern of `x`.
pub fn bits(r: &mut Regs, n: usize, from: DType, to: DType, dst: Reg, x: Reg) {
    match (class_of(from), class_of(to)) {
        (Class::F, Class::F) => {
            let mut out = std::mem::take(&mut r.f[dst.slot]);
            map1(&mut out[..n], &r.f[x.slot][..n], |v| convert::float_from_bits(to, convert::float_to_bits(from, v)));
            r.f[dst.slot] = out;
        }
        (Class::F, Class::I) if from == DType::F32 => {
            map1(&mut r.i[dst.slot][..n], &r.f[x.slot][..n], |v| v.to_bits() as i32);
        }
        (Class::F, Class::I) => {
            map1(&mut r.i[dst.slot][..n], &r.f[x.slot][..n], |v| wrap(to, convert::float_to_bits(from, v) as i32))
        }
        (Class::I, Class::F) if to == DType::F32 => {
            map1(&mut r.f[dst.slot][..n], &r.i[x.slot][..n], |v| f32::from_bits(v as u32));
        }
        (Class::I, Class::F) => map1(&mut r.f[dst.slot][..n], &r.i[x.slot][..n], |v| {
            let mask = if from.bits() == 8 { 0xff } else { u32::MAX };
            convert::float_from_bits(to, (v as u32 & mask) as u64)
        }),
        (Class::I, Class::I) | (Class::L, Class::L) => cast(r, n, from, to, dst, x),
        (Class::F, Class::L) | (Class::L, Class::F) | (Class::I, Class::L) | (Class::L, Class::I) => {
            // Widths differ: no such op passes the verifier.
        }
    }
}

/// Fills a register with the value of a bit pattern.
pub fn fill(r: &mut Regs, n: usize, dst: Reg, dtype: DType, bits: u64) {
    match dst.class {
        Class::F => r.f[dst.slot][..n].fill(convert::float_from_bits(dtype, bits)),
        Class::I => r.i[dst.slot][..n].fill(int_from_bits(dtype, bits) as i32),
        Class::L => r.l[dst.slot][..n].fill(bits as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fma_rounds_once() {
        let mut s = 12345u64;
        let mut next = || {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (s >> 33) as u32
        };
        for i in 0..3_000_000u32 {
            let (x, y, z) = if i % 2 == 0 {
                // Close exponents, so that cancellation and ties are common.
                let f = |b: u32| f32::from_bits((b & 0x80ff_ffff) | 0x3f00_0000);
                (f(next() << 1), f(next() << 1), f(next() << 1))
            } else {
                (f32::from_bits(next() << 1), f32::from_bits(next() << 1), f32::from_bits(next() << 1))
            };
            let (got, want) = (fma_exact(x, y, z), x.mul_add(y, z));
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{x:e} {y:e} {z:e}: {got:e} {want:e}"
            );
        }
    }

    #[test]
    fn min_and_max_prefer_numbers() {
        assert_eq!(max_f(f32::NAN, 1.0), 1.0);
        assert_eq!(max_f(1.0, f32::NAN), 1.0);
        assert_eq!(min_f(f32::NAN, 1.0), 1.0);
        assert!(max_f(f32::NAN, f32::NAN).is_nan());
        assert_eq!(max_f(-0.0, 0.0).to_bits(), 0);
        assert_eq!(min_f(0.0, -0.0).to_bits(), 0x8000_0000);
        assert_eq!(min_f(-3.0, -3.0), -3.0);
    }
}
