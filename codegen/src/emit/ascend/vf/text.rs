//! Text of vector functions: lists over several lines, indentation, and the functions that are the same in every kernel.

use crate::emit::ascend::lower::Lower;
use crate::ir::{DType, UnaryOp};

/// First letter large.
pub fn capital(s: &str) -> String {
    let mut c = s.chars();
    c.next().map(|h| h.to_ascii_uppercase().to_string()).unwrap_or_default() + c.as_str()
}

pub(super) fn declared(ty: &str, names: &[String]) -> Vec<String> {
    let mut lines = vec![];
    let mut line = format!("{ty} ");
    for (i, n) in names.iter().enumerate() {
        let end = if i + 1 == names.len() { ";" } else { "," };
        if line.len() + n.len() > 100 {
            lines.push(line.trim_end().to_string());
            line = "    ".into();
        }
        line += &format!("{n}{end} ");
    }
    lines.push(line.trim_end().to_string());
    lines
}

/// A head, a list and an end, on one line or on two and more.
pub fn wrap(head: &str, list: &[String], end: &str) -> Vec<String> {
    let one = format!("{head}{}{end}", list.join(", "));
    if one.len() <= 110 {
        return vec![one];
    }
    let mut lines = vec![head.to_string()];
    let mut line = "    ".to_string();
    for (i, x) in list.iter().enumerate() {
        let sep = if i + 1 == list.len() { end } else { "," };
        if line.len() > 4 && line.len() + x.len() > 106 {
            lines.push(line.trim_end().to_string());
            line = "    ".into();
        }
        line += &format!("{x}{sep} ");
    }
    lines.push(line.trim_end().to_string());
    lines
}

/// Lines indented by their braces.
pub fn indent(lines: &[String], depth: usize) -> Vec<String> {
    let mut d = depth;
    lines
        .iter()
        .map(|l| {
            if l.starts_with('}') {
                d -= 1;
            }
            let text = format!("{}{l}", "    ".repeat(d));
            if l.ends_with('{') {
                d += 1;
            }
            text
        })
        .collect()
}

/// Adds the function that clears words.
pub fn clear_function(lo: &mut Lower<'_>) {
    let text = "\
__simd_vf__ inline void Clear(__ubuf__ uint32_t* to, uint32_t left, uint16_t steps)
{
    Reg::MaskReg all = Reg::CreateMask<uint32_t, Reg::MaskPattern::ALL>();
    Reg::RegTensor<uint32_t> zero;
    Reg::Duplicate(zero, 0u, all);
    for (uint16_t i = 0; i < steps; ++i) {
        Reg::MaskReg lanes = Reg::UpdateMask<uint32_t>(left);
        Reg::StoreAlign(to + i * 64, zero, lanes);
    }
}";
    once(lo, text);
}

/// Adds the function that fills elements with a scalar.
pub fn fill_function(lo: &mut Lower<'_>) {
    let text = "\
template <typename T>
__simd_vf__ inline void Fill(__ubuf__ T* to, T value, uint16_t steps)
{
    Reg::MaskReg all = Reg::CreateMask<T, Reg::MaskPattern::ALL>();
    Reg::RegTensor<T> x;
    Reg::Duplicate(x, value, all);
    for (uint16_t i = 0; i < steps; ++i) {
        Reg::StoreAlign(to + i * 64, x, all);
    }
}";
    once(lo, text);
}

/// Adds the function that takes a product's result into a tile.
pub fn take_function(lo: &mut Lower<'_>, scaled: bool) {
    let text = if scaled {
        "\
// to = to + part * (row * col), or only the product
template <bool SET>
__simd_vf__ inline void TakeScaled(
    __ubuf__ float* to, __ubuf__ float* part, __ubuf__ float* row, __ubuf__ float* col, uint16_t rows, uint32_t columns,
    uint32_t toPitch, uint32_t partPitch)
{
    Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();
    Reg::RegTensor<float> r, c, p, t;
    for (uint16_t i = 0; i < rows; ++i) {
        Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(r, row + i);
        uint32_t left = columns;
        for (uint16_t j = 0; j < static_cast<uint16_t>((columns + 63) / 64); ++j) {
            Reg::MaskReg lanes = Reg::UpdateMask<float>(left);
            Reg::LoadAlign(c, col + j * 64);
            Reg::LoadAlign(p, part + i * partPitch + j * 64);
            Reg::Mul(c, c, r, all);
            if constexpr (SET) {
                Reg::Mul(t, c, p, all);
            } else {
                Reg::LoadAlign(t, to + i * toPitch + j * 64);
                Reg::MulAddDst(t, c, p, all);
            }
            Reg::StoreAlign(to + i * toPitch + j * 64, t, lanes);
        }
    }
}"
    } else {
        "\
// to = to + part, or only part
template <bool SET>
__simd_vf__ inline void Take(
    __ubuf__ float* to, __ubuf__ float* part, uint16_t rows, uint32_t columns, uint32_t toPitch, uint32_t partPitch)
{
    Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();
    Reg::RegTensor<float> p, t;
    for (uint16_t i = 0; i < rows; ++i) {
        uint32_t left = columns;
        for (uint16_t j = 0; j < static_cast<uint16_t>((columns + 63) / 64); ++j) {
            Reg::MaskReg lanes = Reg::UpdateMask<float>(left);
            Reg::LoadAlign(p, part + i * partPitch + j * 64);
            if constexpr (!SET) {
                Reg::LoadAlign(t, to + i * toPitch + j * 64);
                Reg::Add(p, p, t, all);
            }
            Reg::StoreAlign(to + i * toPitch + j * 64, p, lanes);
        }
    }
}"
    };
    once(lo, text);
}

/// Adds the function that puts narrow elements into words.
pub fn widen_function(lo: &mut Lower<'_>, d: DType) {
    let (load, name) = match d.bits() {
        16 => ("Reg::LoadAlign<T, Reg::LoadDist::DIST_UNPACK_B16>(x, from + i * 64);", "Widen"),
        _ => ("Reg::LoadAlign<T, Reg::LoadDist::DIST_UNPACK4_B8>(x, from + i * 64);", "Widen"),
    };
    let text = format!(
        "template <typename T>\n__simd_vf__ inline void {name}(__ubuf__ uint32_t* to, __ubuf__ T* from, uint32_t left, uint16_t steps)\n{{\n    \
         Reg::RegTensor<T> x;\n    for (uint16_t i = 0; i < steps; ++i) {{\n        \
         Reg::MaskReg lanes = Reg::UpdateMask<uint32_t>(left);\n        {load}\n        \
         Reg::StoreAlign(to + i * 64, (Reg::RegTensor<uint32_t>&)x, lanes);\n    }}\n}}"
    );
    once(lo, &text);
}

/// Adds the function that takes narrow elements out of words.
pub fn narrow_function(lo: &mut Lower<'_>, d: DType) {
    let dist = if d.bits() == 16 { "DIST_PACK_B32" } else { "DIST_PACK4_B32" };
    let text = format!(
        "template <typename T>\n__simd_vf__ inline void Narrow(__ubuf__ T* to, __ubuf__ uint32_t* from, uint32_t left, uint16_t steps)\n{{\n    \
         Reg::RegTensor<uint32_t> x;\n    for (uint16_t i = 0; i < steps; ++i) {{\n        \
         Reg::MaskReg lanes = Reg::UpdateMask<uint32_t>(left);\n        Reg::LoadAlign(x, from + i * 64);\n        \
         Reg::StoreAlign<T, Reg::StoreDist::{dist}>(to + i * 64, (Reg::RegTensor<T>&)x, lanes);\n    }}\n}}"
    );
    once(lo, &text);
}

/// Adds the function that multiplies and adds scalars.
pub fn fma_function(lo: &mut Lower<'_>) {
    let text = "\
__simd_vf__ inline void FmaOf(__ubuf__ float* to, float a, float b, float c)
{
    Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();
    Reg::RegTensor<float> x, y, z;
    Reg::Duplicate(x, a, all);
    Reg::Duplicate(y, b, all);
    Reg::Duplicate(z, c, all);
    Reg::MulAddDst(z, x, y, all);
    Reg::StoreAlign(to, z, all);
}";
    once(lo, text);
}

/// Adds the function that applies a unary op to a scalar.
pub fn scalar_function(lo: &mut Lower<'_>, op: UnaryOp, name: &str) {
    let steps = match op {
        UnaryOp::Exp2 => "    Reg::Muls(x, x, 0.6931471805599453f, all);\n    Reg::Exp(x, x, all);\n",
        UnaryOp::Log2 => "    Reg::Ln(x, x, all);\n    Reg::Muls(x, x, 1.4426950408889634f, all);\n",
        UnaryOp::Sqrt => "    Reg::Sqrt(x, x, all);\n",
        UnaryOp::Rsqrt => {
            "    Reg::Sqrt(x, x, all);\n    Reg::RegTensor<float> one;\n    Reg::Duplicate(one, 1.0f, all);\n    Reg::Div(x, one, x, all);\n"
        }
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Recip
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Floor
        | UnaryOp::Ceil => "",
    };
    let text = format!(
        "__simd_vf__ inline void {name}(__ubuf__ float* to, float value)\n{{\n    \
         Reg::MaskReg all = Reg::CreateMask<float, Reg::MaskPattern::ALL>();\n    \
         Reg::RegTensor<float> x;\n    Reg::Duplicate(x, value, all);\n{steps}    Reg::StoreAlign(to, x, all);\n}}"
    );
    once(lo, &text);
}

pub(super) fn once(lo: &mut Lower<'_>, text: &str) {
    if !lo.functions.iter().any(|f| f == text) {
        lo.functions.push(text.to_string());
    }
}

impl Lower<'_> {
    /// Name of the constant that says how registers are converted; it is declared where it is used.
    pub fn trait_of(&mut self, from: DType, to: DType) -> &'static str {
        match (from, to) {
            (DType::Bf16 | DType::F16 | DType::E4m3 | DType::E5m2, _) => "WIDEN",
            (DType::I32, _) => "FROM_INT",
            (_, DType::Bf16 | DType::F16) => "ROUND",
            (_, DType::I32) => "TRUNCATE",
            (_, _) => "SATURATE",
        }
    }
}
