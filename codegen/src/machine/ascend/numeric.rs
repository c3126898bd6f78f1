//! Elements of the chip's instructions: widths, numbers, arithmetic with one rounding.

use crate::formats;
use crate::ir::DType;

/// Type of an element, numbered as the host header numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16.
    Bf16,
    /// fp8, 4 exponent bits.
    E4m3,
    /// fp8, 5 exponent bits.
    E5m2,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits; only read by the scalar unit.
    I64,
    /// Unsigned, 64 bits; only read by the scalar unit.
    U64,
}

/// How a conversion rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The conversion is exact, or the default.
    None,
    /// To nearest, ties to even.
    Rint,
    /// Down.
    Floor,
    /// Up.
    Ceil,
    /// To nearest, ties away from zero.
    Away,
    /// Towards zero.
    Trunc,
}

/// Operations of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient.
    Div,
    /// Larger.
    Max,
    /// Smaller.
    Min,
    /// Bits of both.
    And,
    /// Bits of either.
    Or,
    /// Bits of one.
    Xor,
    /// Shift to the left by the second.
    Shl,
    /// Shift to the right by the second; signed numbers keep their sign.
    Shr,
}

/// Operations of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// Magnitude.
    Abs,
    /// Square root.
    Sqrt,
    /// e to the x.
    Exp,
    /// Natural logarithm.
    Ln,
    /// All bits.
    Not,
    /// Sign.
    Neg,
    /// Larger of x and 0.
    Relu,
    /// 1 / x.
    Reciprocal,
    /// 1 / square root of x.
    Rsqrt,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Less.
    Lt,
    /// Greater.
    Gt,
    /// Equal.
    Eq,
    /// Less or equal.
    Le,
    /// Greater or equal.
    Ge,
    /// Different.
    Ne,
}

impl Elem {
    /// All of them, by number.
    pub const ALL: [Elem; 13] = [
        Elem::F32,
        Elem::F16,
        Elem::Bf16,
        Elem::E4m3,
        Elem::E5m2,
        Elem::I8,
        Elem::U8,
        Elem::I16,
        Elem::U16,
        Elem::I32,
        Elem::U32,
        Elem::I64,
        Elem::U64,
    ];

    /// The element with this number.
    pub fn from_number(n: u64) -> Option<Elem> {
        Elem::ALL.get(usize::try_from(n).ok()?).copied()
    }

    /// Bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Elem::E4m3 | Elem::E5m2 | Elem::I8 | Elem::U8 => 1,
            Elem::F16 | Elem::Bf16 | Elem::I16 | Elem::U16 => 2,
            Elem::F32 | Elem::I32 | Elem::U32 => 4,
            Elem::I64 | Elem::U64 => 8,
        }
    }

    /// A float format.
    pub const fn float(self) -> Option<DType> {
        match self {
            Elem::F32 => Some(DType::F32),
            Elem::F16 => Some(DType::F16),
            Elem::Bf16 => Some(DType::Bf16),
            Elem::E4m3 => Some(DType::E4m3),
            Elem::E5m2 => Some(DType::E5m2),
            Elem::I8 | Elem::U8 | Elem::I16 | Elem::U16 | Elem::I32 | Elem::U32 | Elem::I64 | Elem::U64 => None,
        }
    }

    const fn signed(self) -> bool {
        matches!(self, Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64)
    }

    /// Number of a float's bits.
    pub fn number(self, bits: u64) -> f32 {
        self.float().map_or(f32::NAN, |d| formats::decode_f32(d, bits))
    }

    /// Bits of a float, nearest even.
    pub fn bits(self, x: f32) -> u64 {
        self.float().map_or(0, |d| formats::encode_f32(d, x))
    }

    /// Value of an integer's bits.
    pub fn integer(self, bits: u64) -> i64 {
        let unused = 64 - 8 * self.bytes() as u32;
        if self.signed() { (bits << unused) as i64 >> unused } else { (bits << unused >> unused) as i64 }
    }

    /// Bits of an integer, wrapped.
    pub fn wrapped(self, x: i64) -> u64 {
        let unused = 64 - 8 * self.bytes() as u32;
        (x as u64) << unused >> unused
    }

    /// Smallest and largest integer.
    fn range(self) -> (i64, i64) {
        let bits = 8 * self.bytes() as u32;
        match (self.signed(), bits) {
            (true, _) => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
            (false, 64) => (0, i64::MAX),
            (false, _) => (0, (1 << bits) - 1),
        }
    }
}

/// `a op b`; `None` if the type does not have it.
pub fn binary(e: Elem, op: Binary, a: u64, b: u64) -> Option<u64> {
    if matches!(e, Elem::F32 | Elem::F16 | Elem::Bf16) {
        let (x, y) = (e.number(a), e.number(b));
        let z = match op {
            Binary::Add => x + y,
            Binary::Sub => x - y,
            Binary::Mul => x * y,
            Binary::Div => x / y,
            Binary::Max if x.is_nan() || y.is_nan() => f32::NAN,
            Binary::Min if x.is_nan() || y.is_nan() => f32::NAN,
            Binary::Max => x.max(y),
            Binary::Min => x.min(y),
            Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => return None,
        };
        return Some(e.bits(z));
    }
    if e.float().is_some() {
        return None;
    }
    let (x, y) = (e.integer(a), e.integer(b));
    let bits = 8 * e.bytes() as i64;
    let z = match op {
        Binary::Add => x.wrapping_add(y),
        Binary::Sub => x.wrapping_sub(y),
        Binary::Mul => x.wrapping_mul(y),
        // By zero the chip leaves it open; all bits are as good as any.
        Binary::Div => x.checked_div(y).unwrap_or(-1),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::Shl if (0..bits).contains(&y) => x << y,
        Binary::Shl => 0,
        Binary::Shr if (0..bits).contains(&y) => x >> y,
        Binary::Shr => x >> 63,
    };
    Some(e.wrapped(z))
}

/// `op a`; `None` if the type does not have it.
pub fn unary(e: Elem, op: Unary, a: u64) -> Option<u64> {
    if matches!(e, Elem::F32 | Elem::F16) {
        let x = e.number(a);
        // In double precision, then rounded: the same bits with any library.
        let d = f64::from(x);
        let z = match op {
            Unary::Abs => x.abs(),
            Unary::Neg => -x,
            Unary::Sqrt => x.sqrt(),
            Unary::Exp => d.exp() as f32,
            Unary::Ln => d.ln() as f32,
            Unary::Relu if x.is_nan() => x,
            Unary::Relu => x.max(0.0),
            Unary::Reciprocal => 1.0 / x,
            Unary::Rsqrt => (1.0 / d.sqrt()) as f32,
            Unary::Not => return None,
        };
        return Some(e.bits(z));
    }
    if e.float().is_some() {
        return None;
    }
    let x = e.integer(a);
    let z = match op {
        Unary::Abs => x.wrapping_abs(),
        Unary::Neg => x.wrapping_neg(),
        Unary::Not => !x,
        Unary::Relu => x.max(0),
        Unary::Sqrt | Unary::Exp | Unary::Ln | Unary::Reciprocal | Unary::Rsqrt => return None,
    };
    Some(e.wrapped(z))
}

/// Compares; a NaN is different from everything.
pub fn compare(e: Elem, op: Compare, a: u64, b: u64) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match e.float() {
        Some(_) => e.number(a).partial_cmp(&e.number(b)),
        None => Some(e.integer(a).cmp(&e.integer(b))),
    };
    Some(match op {
        Compare::Lt => order == Some(Less),
        Compare::Gt => order == Some(Greater),
        Compare::Eq => order == Some(Equal),
        Compare::Le => matches!(order, Some(Less | Equal)),
        Compare::Ge => matches!(order, Some(Greater | Equal)),
        Compare::Ne => order != Some(Equal),
    })
}

/// Converts; `None` if the chip has no such conversion or it does not round so.
pub fn cast(from: Elem, to: Elem, round: Round, saturate: bool, bits: u64) -> Option<u64> {
    let rounded = |x: f64| match round {
        Round::None | Round::Rint => x.round_ties_even(),
        Round::Floor => x.floor(),
        Round::Ceil => x.ceil(),
        Round::Away => x.round(),
        Round::Trunc => x.trunc(),
    };
    let nearest = matches!(round, Round::None | Round::Rint);
    match (from.float(), to.float()) {
        (Some(_), Some(_)) => {
            let x = from.number(bits);
            let exact = from.bytes() < to.bytes();
            if !exact && round != Round::Rint && !(from == Elem::F32 && to == Elem::F16 && nearest) {
                return None;
            }
            // Formats saturate themselves; without saturation only f16 and bf16 may be asked for.
            if matches!(to, Elem::E4m3 | Elem::E5m2) && !saturate {
                return None;
            }
            Some(to.bits(x))
        }
        (Some(_), None) => {
            let x = f64::from(from.number(bits));
            let (low, high) = to.range();
            let y = if x.is_nan() { 0 } else { rounded(x).clamp(low as f64, high as f64) as i64 };
            Some(to.wrapped(y))
        }
        (None, Some(_)) => {
            let x = from.integer(bits);
            if !nearest && x.unsigned_abs() >> 24 != 0 {
                return None;
            }
            Some(to.bits(x as f32))
        }
        (None, None) => {
            let (low, high) = to.range();
            let x = from.integer(bits);
            Some(to.wrapped(if saturate { x.clamp(low, high) } else { x }))
        }
    }
}

/// Sum of 64 lanes, or fewer: lane i takes lane i + 32, then i + 16, and so on.
pub fn tree(mut lanes: Vec<f32>) -> f32 {
    lanes.resize(lanes.len().next_power_of_two().max(1), 0.0);
    let mut half = lanes.len() / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Reads an element.
pub fn get(bytes: &[u8], e: Elem, at: usize) -> u64 {
    let mut word = [0; 8];
    word[..e.bytes()].copy_from_slice(&bytes[at..at + e.bytes()]);
    u64::from_le_bytes(word)
}

/// Writes an element.
pub fn put(bytes: &mut [u8], e: Elem, at: usize, bits: u64) {
    bytes[at..at + e.bytes()].copy_from_slice(&bits.to_le_bytes()[..e.bytes()]);
}
