//! Number types and literals. Conversions live in `crate::formats`.

/// The dtype of a scalar, tile or tensor element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// fp8, 4 exponent and 3 mantissa bits, no infinity (`fn` variant).
    E4m3,
    /// fp8, 5 exponent and 2 mantissa bits.
    E5m2,
    /// fp4, two per byte, even index in the low nibble.
    E2m1,
    /// Power-of-two scale, `2^(bits-127)`, 255 is NaN.
    E8m0,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer, also the type of raw bytes.
    U8,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Truth value; one byte in memory, 0 or 1.
    Bool,
}

impl DType {
    /// All dtypes, in declaration order.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::E4m3,
        DType::E5m2,
        DType::E2m1,
        DType::E8m0,
        DType::I8,
        DType::U8,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::Bool,
    ];

    /// Name used in IR text, messages and the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::E4m3 => "e4m3",
            DType::E5m2 => "e5m2",
            DType::E2m1 => "e2m1",
            DType::E8m0 => "e8m0",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::Bool => "bool",
        }
    }

    /// The dtype with this [`DType::name`].
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Bits of one element in memory.
    pub const fn bits(self) -> usize {
        match self {
            DType::E2m1 => 4,
            DType::E4m3 | DType::E5m2 | DType::E8m0 | DType::I8 | DType::U8 | DType::Bool => 8,
            DType::F16 | DType::Bf16 => 16,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::I64 => 64,
        }
    }

    /// Bytes of `count` elements stored one after another.
    pub const fn bytes(self, count: usize) -> usize {
        (self.bits() * count).div_ceil(8)
    }

    /// True for the floating-point formats, scales included.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0)
    }

    /// True for the integers; `Bool` is not one.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64)
    }

    /// Largest finite value, for float formats.
    pub const fn max_finite(self) -> f64 {
        match self {
            DType::F32 => f32::MAX as f64,
            DType::F16 => 65504.0,
            DType::Bf16 => 3.3895313892515355e38,
            DType::E4m3 => 448.0,
            DType::E5m2 => 57344.0,
            DType::E2m1 => 6.0,
            DType::E8m0 => 1.7014118346046923e38,
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A constant: a dtype and its bit pattern in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Literal {
    /// Type of the constant.
    pub dtype: DType,
    /// Bit pattern, zero extended.
    pub bits: u64,
}

impl Literal {
    /// A constant of type f32.
    pub fn f32(x: f32) -> Self {
        Literal { dtype: DType::F32, bits: x.to_bits() as u64 }
    }
    /// A constant of type i32.
    pub fn i32(x: i32) -> Self {
        Literal { dtype: DType::I32, bits: x as u32 as u64 }
    }
    /// A constant of type u32.
    pub fn u32(x: u32) -> Self {
        Literal { dtype: DType::U32, bits: x as u64 }
    }
    /// A constant of type i64.
    pub fn i64(x: i64) -> Self {
        Literal { dtype: DType::I64, bits: x as u64 }
    }
    /// A constant of type bool.
    pub fn bool(x: bool) -> Self {
        Literal { dtype: DType::Bool, bits: x as u64 }
    }
}
